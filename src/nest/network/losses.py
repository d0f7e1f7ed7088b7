"""What is left of a cluster after a loss of devices, as a cluster that can be planned on.

Groups of a hierarchy are alike, and so are the parts of a group. So the devices that are left can
take other places: groups that lost nothing, or all lost equally much, come first, and one group of
each level may be smaller if it comes last. Levels can express this
(:attr:`nest.inputs.Cluster.devices`, :attr:`nest.inputs.Level.whole`) and their prices hold.
Where more groups differ, some devices stay idle: as few as possible. Networks of links, and losses
of links, keep all devices and are priced by links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nest.errors import InputError
from nest.inputs import Cluster
from nest.network.changes import LINK, numbered, split, unknown_part
from nest.network.hierarchy import device_names, group_stems
from nest.network.network import load_network, named_without
from nest.network.topology import Flags, Ints

MOST_TRIED = 3
"""Sizes of the groups of a level that are tried: those that keep most devices (chosen)."""


class Left(NamedTuple):
    """What is left of a cluster."""

    cluster: Cluster
    """Its devices have their names and numbers of before."""
    lost: tuple[str, ...]
    """Names of the devices that are lost."""
    idle: tuple[str, ...]
    """Names of devices that are left but not part of ``cluster``."""


def left_of(cluster: Cluster, without: Sequence[str]) -> Left:
    """The cluster without some parts.

    Parameters
    ----------
    cluster : as it was. Its devices are named as in the graph of the cluster
        (:func:`nest.network.graph_of`), unless it names them.
    without : parts as :func:`nest.network.without` takes them; besides, of a cluster with levels
        whose devices have no names of their own, groups of any level: ``leaf3``.

    Raises
    ------
    InputError : no such part, or nothing is left.
    """
    parts = [part for text in without for part in split(text, "without")]
    names = device_names(cluster)
    if cluster.links is not None or any(part.startswith(LINK) for part in parts):
        found = load_network(cluster, without=",".join(parts)) if parts else cluster
        kept = set(found.names or names)
        return Left(found, tuple(name for name in names if name not in kept), ())
    known = _names(cluster, names)
    devices = set(names)
    groups = [name for name in known if name not in devices]
    lost = np.zeros(cluster.size, dtype=np.bool_)
    for part in parts:
        lost[numbered(part, lambda name: known.get(name, ()),
                      lambda name, of: unknown_part("without", name, of, groups, names),
                      "without")] = True
    if lost.all():
        raise InputError(f"without: got all {cluster.size:,} devices; allowed: at least one left")
    gone = tuple(names[number] for number in np.flatnonzero(lost).tolist())
    if not lost.any():
        return Left(cluster.replace(names=names), gone, ())
    sizes, order = _placed(~lost, cluster)
    numbers = cluster.numbers
    levels = [
        level.replace(size=size, whole=whole if size < whole and (v == 0 or v < len(sizes) - 1)
                      else None)
        for v, (level, size, whole) in enumerate(
            zip(cluster.levels, sizes, cluster.whole_sizes, strict=True))]
    idle = ~lost
    idle[order] = False
    found = cluster.replace(
        name=named_without(cluster.name, parts), levels=levels, devices=len(order),
        default_devices=None, names=[names[number] for number in order],
        order=[number if numbers is None else numbers[number] for number in order.tolist()])
    return Left(found, gone, tuple(names[number] for number in np.flatnonzero(idle).tolist()))


# ---------------------------------------------------------------- names


def _names(cluster: Cluster, names: Sequence[str]) -> dict[str, list[int]]:
    """Devices of each name of a device or group."""
    found: dict[str, list[int]] = {}
    if cluster.names is None:
        for level, stem in group_stems(cluster).items():
            size = cluster.group_sizes[level]
            for first in range(0, cluster.size, size):
                found[f"{stem}{first // size}"] = [*range(first, min(first + size, cluster.size))]
    else:
        for number, name in enumerate(names):
            cut = name.find("/")
            while cut > 0:
                found.setdefault(name[:cut], []).append(number)
                cut = name.find("/", cut + 1)
    return found | {name: [number] for number, name in enumerate(names)}


# ---------------------------------------------------------------- places


@dataclass(frozen=True)
class _Tier:
    """The groups of a level, where so many of each are used."""

    size: int
    """Groups of the level below (of level 0: devices) that a full group uses."""
    full: Flags
    """Groups that have as many, by number."""
    rest: Ints
    """Devices that a group which is not full could use as the last one."""


@dataclass
class _Fit:
    """Levels that hold most of the devices that are left, found by trying sizes level by level."""

    group_sizes: tuple[int, ...]
    most: int = 0
    tiers: list[_Tier] = field(default_factory=list)

    def place(self, below: list[_Tier], full: Flags, rest: Ints, devices: int) -> None:
        """Try sizes of the next level; ``devices``: those of a full group of the one below."""
        level = len(below)
        inner = self.group_sizes[level - 1] if level else 1
        per = self.group_sizes[level] // inner
        groups = -(-len(full) // per)
        padded = groups * per - len(full)
        count = np.pad(full, (0, padded)).reshape(groups, per).sum(axis=1)
        last = np.pad(rest, (0, padded)).reshape(groups, per).max(axis=1)
        if level == len(self.group_sizes) - 1:
            total = int(count[0]) * devices + int(last[0])
            if total > self.most:
                size = int(count[0]) + int(last[0] > 0)
                self.most, self.tiers = total, [*below, _Tier(size, count > 0, last)]
            return
        # with the one that is not full no group may be full
        sizes = {*count[count > 0].tolist(), *(count[last > 0] + 1).tolist()}
        tried = []
        for size in sizes:
            enough = count >= size
            left = np.where(enough, 0, count * devices + last)
            kept = np.count_nonzero(enough) * size * devices + left.max()
            tried.append((int(kept), size, _Tier(size, enough, left)))
        tried.sort(key=lambda one: one[:2], reverse=True)
        for _, size, tier in tried[:MOST_TRIED]:
            self.place([*below, tier], tier.full, tier.rest, size * devices)


def _placed(kept: Flags, cluster: Cluster) -> tuple[list[int], Ints]:
    """Sizes of the levels for the devices that are left, and the devices in their new order."""
    fit = _Fit(cluster.group_sizes)
    fit.place([], kept, np.zeros(len(kept), dtype=np.int64), 1)
    tiers, inner = fit.tiers, (1, *cluster.group_sizes)

    def chosen(level: int, group: int, full: bool) -> list[int]:
        """Devices of a group: of full parts, and after them, unless it is full, of one more."""
        if level < 0:
            return [group]
        per = inner[level + 1] // inner[level]
        below = tiers[level - 1]
        parts = range(group * per, min((group + 1) * per, len(below.full if level else kept)))
        whole = [part for part in parts if (below.full if level else kept)[part]]
        found = [device for part in whole[:tiers[level].size]
                 for device in chosen(level - 1, part, True)]
        if not full and level:
            most = max(parts, key=lambda part: below.rest[part])
            found += chosen(level - 1, most, False) if below.rest[most] else []
        return found

    return [tier.size for tier in tiers], np.array(chosen(len(tiers) - 1, 0, False))
