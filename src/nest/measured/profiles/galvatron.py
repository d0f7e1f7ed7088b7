"""Profiles of Galvatron (Miao et al., VLDB 2023): times at tp 1, memory at every tp.

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
from typing import Any

import numpy as np

from nest.errors import InputError
from nest.inputs.files import read_description
from nest.inputs.profile import Profile
from nest.measured.profiles.written import joined
from nest.units import shorten

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
        tps = [tp for tp in waits if tp == 1 or str(tp) in _mapping(
            kept, (*own, "tp_activation_per_bsz_dict"), where)]
        found += [(f"layer-{kind}", {"output_bytes": handed, "tp": {
            tp: at(tp, seconds(str(kind)), (size / tp, _number(
                kept, (*own, "tp_activation_per_bsz_dict", str(tp)), where)), 1)
            for tp in tps}})] * count
    ends = []
    for place in ("first", "last"):
        own = (f"other_memory_pp_on_{place}_sp", str(seq_len))
        tps = [tp for tp in waits if str(tp) in _mapping(kept, (*own, "activation"), where)]
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


def _mapping(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Mapping[str, Any]:
    for depth, key in enumerate(keys):
        found = data.get(key)
        if not isinstance(found, Mapping):
            raise InputError(f"{where}: {'.'.join(keys[:depth + 1])}: got {shorten(found)}; "
                             "needed: what Galvatron measures with sequence parallelism")
        data = found
    return data


def _number(data: Mapping[str, Any], keys: tuple[str, ...], where: str) -> float:
    value = _mapping(data, keys[:-1], where).get(keys[-1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise InputError(f"{where}: {'.'.join(keys)}: got {shorten(value)}; allowed: a number "
                         "from 0 on")
    return float(value)
