"""Profiles of Metis (Um et al., USENIX ATC 2024): a file for each device type, tp and batch.

Format: SamsungLabs/Metis at 4b24046, README.md, "Profile Data Guide"; a sample of it is in
profile_data_samples. Times are of a forward and a backward together, memory is all that a layer
holds, and parameters are those of all tensor-parallel ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nest.errors import InputError
from nest.inputs.files import read_description
from nest.inputs.profile import Profile
from nest.measured.profiles.written import joined
from nest.units import parse_bytes, shorten

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


def _inside(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Mapping[str, Any]:
    for depth, key in enumerate(keys):
        found = data.get(key)
        if not isinstance(found, Mapping):
            raise InputError(f"{where}: {'.'.join(keys[:depth + 1])}: got {shorten(found)}; "
                             "allowed: a mapping")
        data = found
    return data


def _numbers(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> list[float]:
    """A list of figures of layers."""
    found = _inside(data, keys[:-1], where).get(keys[-1])
    if not isinstance(found, list) or not found or any(
            isinstance(one, bool) or not isinstance(one, int | float) or not 0 <= one < 1e18
            for one in found):
        raise InputError(f"{where}: {'.'.join(keys)}: got {shorten(found)}; allowed: a list with a "
                         "number from 0 on for each layer")
    return [float(one) for one in found]
