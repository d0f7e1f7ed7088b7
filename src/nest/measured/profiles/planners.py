"""Profiles of other planners: Metis and Galvatron; equal layers joined.

Profiles of Metis (Um et al., USENIX ATC 2024): a file for each device type, tp and batch.

Format: SamsungLabs/Metis at 4b24046, README.md, "Profile Data Guide"; a sample of it is in
profile_data_samples. Times are of a forward and a backward together, memory is all that a layer
holds, and parameters are those of all tensor-parallel ranks.

Profiles of Galvatron (Miao et al., VLDB 2023): times at tp 1, memory at every tp.

Formats and rules are those of PKU-DAIR/Hetu-Galvatron at cea12ff: keys of the files in
galvatron/models/gpt/configs; galvatron/core/cost_model/components/layer_cost.py: a backward takes
twice a forward, tp divides the time, and of tp's collectives four in the forward and two in the
backward are not hidden, each an all-gather of the layer's output;
galvatron/core/cost_model/components/embedding_lmhead_cost.py: half of what is no layer is in front
of the layers and half behind them, and states are four times the parameters;
galvatron/utils/config_utils.py: an all-gather takes half of an all-reduce. MB are MiB
(galvatron/core/profiler/utils.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeGuard

import numpy as np

from nest.errors import InputError
from nest.inputs.files import read_description, yaml_text
from nest.inputs.profile import Profile
from nest.units import format_bytes, format_seconds, parse_bytes, shorten


def joined(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Fields of the layers of a profile; consecutive equal ones are one layer, repeated.

    ``layers`` are a name for each layer, and its fields besides. Names that come again get a
    number.
    """
    found: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for (name, fields), same in groupby(layers, key=lambda layer: layer):
        seen[name] = seen.get(name, 0) + 1
        own = name if seen[name] == 1 else f"{name}-{seen[name]}"
        found.append({"name": own, "repeat": len(list(same)), **fields})
    return found


def text_of(profile: Profile) -> str:
    """A profile as YAML, which ``nest.load_profile`` reads."""
    data = profile.model_dump(mode="json")
    for layer in data["layers"]:
        if layer["inputs"] is None:
            del layer["inputs"]
    return yaml_text(data)


def table_of(profile: Profile) -> str:
    """The layers of a profile as text of at most 80 columns."""
    lines = [*wrap(f"{profile.name}, {profile.length} layers: {profile.note}", 80), "",
             f"{'layer':20} {'tp':>4} {'forward':>11} {'backward':>11} {'parameters':>11} "
             f"{'activations':>12}"]
    for layer in profile.layers:
        times = f" x {layer.repeat}" if layer.repeat > 1 else ""
        for tp, one in sorted(layer.tp.items()):
            lines.append(
                f"{shorten(layer.name, 14)[1:-1] + times:20} {tp:4} "
                f"{format_seconds(one.forward):>11} {format_seconds(one.backward):>11} "
                f"{format_bytes(one.parameter_bytes):>11} {format_bytes(one.activation_bytes):>12}")
    return "\n".join(lines)


def _inside(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """A mapping within a file, by the keys on the way to it."""
    for depth, key in enumerate(keys):
        found = data.get(key)
        if not isinstance(found, Mapping):
            raise InputError(f"{where}: {'.'.join(keys[:depth + 1])}: got {shorten(found)}; "
                             "needed: a mapping, as the planner measures it")
        data = found
    return data


def _is_figure(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < 1e18


# ---------------------------------------------------------------- metis


NAME = re.compile(r"DeviceType\.(?P<device>.+)_tp(?P<tp>\d{1,6})_bs(?P<batch>\d{1,6})\.json")
FORWARD = 1 / 3
"""Share of a layer's time in the forward (assumed: a backward takes twice as long)."""
TIMES = ("execution_time", "layer_compute_total_ms")
MEMORY = ("execution_memory", "layer_memory_total_mb")
PARAMETERS = ("model", "parameters", "parameters_per_layer_bytes")


def from_metis(
    folder: str | os.PathLike[str], output_bytes: float | str, device: str | None = None,
    batch: int | None = None, bytes_per_parameter: int = 4,
) -> Profile:
    """The profile that a folder of Metis holds.

    Activations of a sample are what the memory of a layer grows by from the smallest to the largest
    batch, which leaves out what does not depend on it.

    Parameters
    ----------
    folder : with files ``DeviceType.A100_tp1_bs1.json`` and so on.
    output_bytes : that a layer hands on per sample; Metis does not measure it (2 x sequence length
        x hidden size in 16 bits).
    device : the device type to take, where the folder has several.
    batch : samples of a micro-batch, of which times are taken; default: the largest one measured at
        every tp.
    bytes_per_parameter : of the parameters in the files (Metis's own sample: 4).

    Raises
    ------
    InputError : no such folder or files, fields that are missing or not of equal length, fewer than
        two batches at a tp.
    """
    shown = shorten(os.fspath(folder), 300)[1:-1]
    files = _files(Path(folder), shown, device)
    batches = sorted(set.intersection(*(set(measured) for measured in files.values())))
    if batch is None:
        batch = batches[-1] if batches else 0
    if batch not in batches:
        raise InputError(f"batch: got {batch}; allowed: measured at every tp ("
                         f"{', '.join(map(str, batches)) or 'none is'})")
    handed = parse_bytes(output_bytes)
    layers: list[dict[int, dict[str, float]]] = []
    name = "metis"
    for tp, measured in sorted(files.items()):
        path, few, many = measured[batch], min(measured), max(measured)
        if few == many:
            raise InputError(f"{shown}: got batch {few} alone at tp {tp}; needed: two batches, "
                             "whose memory tells activations from parameters")
        data = read_description(path)
        name = str(_inside(data, ("model",), str(path)).get("model_name") or name)
        times = _numbers(data, TIMES, str(path))
        sizes = _numbers(data, PARAMETERS, str(path))
        less, more = (_numbers(read_description(measured[size]), MEMORY, str(measured[size]))
                      for size in (few, many))
        counts = [len(found) for found in (times, sizes, less, more)]
        if len(set(counts)) > 1 or layers and len(layers) != counts[0]:
            raise InputError(f"{path}: got lists of {', '.join(map(str, counts))} layers; allowed: "
                             "as many everywhere")
        layers = layers or [{} for _ in times]
        for number, layer in enumerate(layers):
            seconds = 1e-3 * times[number] / batch
            layer[tp] = {
                "forward": FORWARD * seconds, "backward": (1 - FORWARD) * seconds,
                "parameter_bytes": sizes[number] / tp,
                "activation_bytes": 2**20 * max(0.0, more[number] - less[number]) / (many - few)}
    return Profile.parse({
        "name": name, "bytes_per_parameter": bytes_per_parameter,
        "note": f"measured by Metis, micro-batches of {batch}; a third of the time is in the "
                "forward (assumed)",
        "layers": joined([
            (_name(number, len(layers)),
             {"output_bytes": 0.0 if number == len(layers) - 1 else handed, "tp": layer})
            for number, layer in enumerate(layers)])}, shown)


def _name(number: int, count: int) -> str:
    return "first" if number == 0 else "last" if number == count - 1 else "layer"


def _files(folder: Path, shown: str, device: str | None) -> dict[int, dict[int, Path]]:
    """Files of a device type by tp and batch."""
    try:
        listed = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror or error}); allowed: a "
                         "folder of Metis's profiles") from None
    named = [(found, path) for path in listed if (found := NAME.fullmatch(path.name))]
    devices = sorted({found["device"] for found, _ in named})
    if not devices:
        raise InputError(f"{shown}: got no file DeviceType.DEVICE_tpN_bsN.json; allowed: a folder "
                         "of Metis's profiles")
    if device is None and len(devices) == 1:
        device, = devices
    if device not in devices:
        raise InputError(f"device: got {shorten(device)}; allowed: {', '.join(devices)}")
    files: dict[int, dict[int, Path]] = {}
    for found, path in named:
        if found["device"] == device:
            files.setdefault(int(found["tp"]), {})[int(found["batch"])] = path
    return files


def _numbers(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> list[float]:
    """A list of figures of layers."""
    found = _inside(data, keys[:-1], where).get(keys[-1])
    if not isinstance(found, list) or not found or not all(map(_is_figure, found)):
        raise InputError(f"{where}: {'.'.join(keys)}: got {shorten(found)}; allowed: a list with a "
                         "number from 0 on for each layer")
    return [float(one) for one in found]


# ---------------------------------------------------------------- galvatron


TIME = re.compile(r"layertype_(?P<kind>\d{1,3}|other)_bsz(?P<batch>\d{1,6})_seq(?P<length>\d{1,9})")
MESSAGE = re.compile(r"allreduce_size_(?P<tp>\d{1,6})_(?P<size>\d{1,9})MB_time")
MIB = 2**20
BACKWARD = 2.0
"""Times of a forward that a backward takes (bct_fct_coe)."""
STATES = 4.0
"""Bytes of model states for each byte of parameters."""
SHOWN = {"forward": 4, "backward": 2}
"""Collectives of tp that computing does not hide."""


def from_galvatron(
    computation: str | os.PathLike[str], memory: str | os.PathLike[str], layers: Sequence[int],
    hidden: int, seq_len: int | None = None, batch: int | None = None,
    messages: str | os.PathLike[str] | None = None, bytes_per_element: int = 2,
) -> Profile:
    """The profile that the files of Galvatron stand for.

    Parameters
    ----------
    computation, memory : ``computation_profiling_*.json`` and ``memory_profiling_*.json``.
    layers : how many layers of each type the model has.
    hidden : hidden size, which gives the bytes that layers hand on.
    seq_len : tokens of a sequence; default: the only length measured.
    batch : samples of a micro-batch, of which times are taken; default: the largest one measured.
    messages : ``sp_time_*.json`` of Galvatron's hardware profile, milliseconds of all-reduces;
        without it the profile has tp 1 alone, for Galvatron measures times at tp 1.
    bytes_per_element : of what layers hand on.

    Raises
    ------
    InputError : files that cannot be read, figures that are missing.
    """
    for name, value in (("hidden", hidden), ("layers", sum(layers))):
        if value < 1:
            raise InputError(f"{name}: got {value}; allowed: from 1 on")
    where = shorten(os.fspath(memory), 300)[1:-1]
    times = read_description(computation)
    seq_len, batch = _measured(times, seq_len, batch, shorten(os.fspath(computation), 300)[1:-1])
    kept = read_description(memory)
    handed = bytes_per_element * seq_len * hidden
    waits = {1: 0.0} if messages is None else {1: 0.0} | _gathers(
        read_description(messages), batch * handed / MIB, batch)

    def seconds(kind: str) -> float:
        key = f"layertype_{kind}_bsz{batch}_seq{seq_len}"
        return 1e-3 * _number(times, (key,), shorten(os.fspath(computation), 300)[1:-1])

    def at(tp: int, forward: float, sizes: tuple[float, float], hops: int) -> dict[str, float]:
        return {"forward": forward / tp + SHOWN["forward"] * hops * waits[tp],
                "backward": BACKWARD * forward / tp + SHOWN["backward"] * hops * waits[tp],
                "parameter_bytes": MIB * sizes[0], "activation_bytes": MIB * sizes[1]}

    found: list[tuple[str, dict[str, Any]]] = []
    for kind, count in enumerate(layers):
        own = (f"layertype_{kind}_sp", str(seq_len))
        size = _number(kept, (*own, "parameter_size"), where)
        tps = [tp for tp in waits if tp == 1 or str(tp) in _inside(
            kept, (*own, "tp_activation_per_bsz_dict"), where)]
        found += [(f"layer-{kind}", {"output_bytes": handed, "tp": {
            tp: at(tp, seconds(str(kind)), (size / tp, _number(
                kept, (*own, "tp_activation_per_bsz_dict", str(tp)), where)), 1)
            for tp in tps}})] * count
    ends = []
    for place in ("first", "last"):
        own = (f"other_memory_pp_on_{place}_sp", str(seq_len))
        tps = [tp for tp in waits if str(tp) in _inside(kept, (*own, "activation"), where)]
        ends.append({"output_bytes": handed if place == "first" else 0.0, "tp": {
            tp: at(tp, seconds("other") / 2, (
                _number(kept, (*own, "model_states", str(tp)), where) / STATES,
                _number(kept, (*own, "activation", str(tp)), where)), 0)
            for tp in tps}})
    return Profile.parse({
        "name": "galvatron", "bytes_per_parameter": 4,
        "note": f"measured by Galvatron at tp 1, sequences of {seq_len}, micro-batches of {batch}",
        "layers": joined([("first", ends[0]), *found, ("last", ends[1])])}, where)


def _measured(
    times: Mapping[str, Any], seq_len: int | None, batch: int | None, where: str
) -> tuple[int, int]:
    """The sequence length and the batch to take."""
    named = [found for key in times if (found := TIME.fullmatch(key))]
    lengths = sorted({int(found["length"]) for found in named})
    if seq_len is None and len(lengths) == 1:
        seq_len, = lengths
    if seq_len not in lengths:
        raise InputError(f"{where}: seq_len: got {seq_len}; allowed: "
                         f"{', '.join(map(str, lengths)) or 'none is measured'}")
    batches = sorted({int(found["batch"]) for found in named if int(found["length"]) == seq_len})
    if batch is None:
        batch = batches[-1]
    if batch not in batches:
        raise InputError(f"{where}: batch: got {batch}; allowed: {', '.join(map(str, batches))}")
    return seq_len, batch


def _gathers(found: Mapping[str, Any], size: float, batch: int) -> dict[int, float]:
    """Seconds per sample of an all-gather of ``size`` MiB, by tp."""
    rows: dict[int, list[tuple[int, float]]] = {}
    for key in found:
        if named := MESSAGE.fullmatch(key):
            rows.setdefault(int(named["tp"]), []).append(
                (int(named["size"]), _number(found, (key,), "messages") / 2))
    waits = {}
    for tp, measured in sorted(rows.items()):
        sizes, times = np.array(sorted(measured)).T
        # Beyond the largest message the rate is that of the largest one.
        wait = np.interp(size, sizes, times) * max(1.0, size / sizes[-1])
        waits[tp] = 1e-3 * float(wait) / batch
    if not waits:
        raise InputError("messages: got no key allreduce_size_N_NMB_time; allowed: sp_time_*.json "
                         "of Galvatron")
    return waits


def _number(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> float:
    value = _inside(data, keys[:-1], where).get(keys[-1])
    if not _is_figure(value):
        raise InputError(f"{where}: {'.'.join(keys)}: got {shorten(value)}; allowed: a number "
                         "from 0 on")
    return float(value)
