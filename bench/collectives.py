"""Print how far prices of published collectives are off, by system and size, as text blocks.

    python bench/collectives.py COLLECTIVES.csv [--forms]

The table of collectives is that of `nest calibrate collectives`, with the columns gpu and system.
Each system is fitted by itself, on messages of 1 MiB and more. `--forms` compares forms of the
price instead: bandwidth and latency alone, all four figures, and all four with each size left out
of the fit once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from cases import aligned

from nest.inputs import Cluster, load_cluster
from nest.measured.calibration.collectives import (
    SMALLEST,
    MeasuredCollective,
    NetworkFit,
    decades,
    fit_collectives,
    misfits,
)
from nest.measured.calibration.fit import Array, median_and_tail
from nest.measured.calibration.timings import TimingSelection, read_collectives

UNITS = ("B", "kB", "MB", "GB")


class System(NamedTuple):
    """What was measured, as the table calls it, and the cluster at which its fit starts."""

    name: str
    gpu: str
    cluster: str
    nvlink: str = "NVLink domain"
    """Rows inside a node or an NVLink domain; all rows of some."""


SYSTEMS = (
    System("A100, vTrain's node", "A100-SXM", "dgx-a100", "*"),
    System("A100", "A100-SXM4-80GB", "dgx-a100"),
    System("H100", "H100-SXM", "dgx-h100"),
    System("H200", "H200-SXM", "dgx-h200"),
    System("B200", "B200-SXM", "dgx-b200"),
    System("B300", "B300-SXM", "dgx-b200"),
    System("GB200", "GB200", "gb200-nvl72"),
    System("GB300", "GB300", "gb200-nvl72"),
    System("node of 8, GPU not stated", "(not stated)", "dgx-a100", "1 node x 8"),
    System("V100 node, no switch", "V100", "dgx-a100", "*"),
)


def read(path: str, system: System, rows: str) -> tuple[Cluster, tuple[MeasuredCollective, ...]]:
    """The cluster, and the rows of a system."""
    found, _ = read_collectives([path], TimingSelection(gpu=system.gpu, system=rows))
    return load_cluster(system.cluster), found


# ---------------------------------------------------------------- by size


def by_size(path: str) -> Iterable[list[str]]:
    """Rows of the table of systems and powers of ten: median error, and how many."""
    fits = {each.name: fit_collectives(*read(path, each, "*")) for each in SYSTEMS}
    powers = sorted({each.from_bytes for found in fits.values() for each in decades(found)})
    yield ["system", *map(_power, powers), "1 MiB and more"]
    for name, found in fits.items():
        yield _line(name, [found], powers)
    yield _line("all", list(fits.values()), powers)


def _line(name: str, fits: list[NetworkFit], powers: list[int]) -> list[str]:
    small = [(found.small, found.small_after) for found in fits]
    large = [(found.measured, found.fit.after) for found in fits]
    cells = []
    for power in powers:
        within = [off for rows, errors in (*small, *large)
                  for each, off in zip(rows, errors, strict=True)
                  if power <= each.size < 10 * power]
        cells.append(_median(np.array(within)))
    cells.append(_median(np.concatenate([off for _, off in large])))
    return [name, *cells]


def _median(off: Array) -> str:
    return f"{median_and_tail(off)[0]:.1f} ({len(off)})" if len(off) else "-"


def _power(size: int) -> str:
    step = (len(str(size)) - 1) // 3
    return f"{size // 1000**step} {UNITS[step]}"


# ---------------------------------------------------------------- by form


def by_form(path: str) -> Iterable[list[str]]:
    """Rows of the table of systems and forms of the price: median error of NVLink collectives."""
    yield ["system", "collectives", "two figures", "all four", "sizes left out"]
    every: list[list[Array]] = []
    for system in SYSTEMS:
        cluster, rows = read(path, system, system.nvlink)
        every.append([_two(cluster, rows), fit_collectives(cluster, rows).fit.after,
                      _left_out(cluster, rows)])
        yield _forms(system.name, every[-1])
    yield _forms("all", [np.concatenate(column) for column in zip(*every, strict=True)])


def _forms(name: str, columns: list[Array]) -> list[str]:
    medians = [f"{median_and_tail(off)[0]:.1f} %" for off in columns]
    return [name, f"{len(columns[0])}", *medians]


def _two(cluster: Cluster, rows: tuple[MeasuredCollective, ...]) -> Array:
    levels = [level.replace(base_time=0.0, ramp=0.0) for level in cluster.levels]
    alone = cluster.replace(levels=tuple(levels))
    return fit_collectives(alone, rows, figures=("efficiency", "latency")).fit.after


def _left_out(cluster: Cluster, rows: tuple[MeasuredCollective, ...]) -> Array:
    """Misfits of each size under a fit to the others."""
    large = [each for each in rows if each.size >= SMALLEST]
    found = []
    for size in sorted({each.size for each in large}):
        others = [each for each in large if each.size != size]
        own = [each for each in large if each.size == size]
        found.append(misfits(fit_collectives(cluster, others).cluster, own))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="errors of prices of published collectives")
    parser.add_argument("table", metavar="COLLECTIVES.csv")
    parser.add_argument("--forms", action="store_true", help="compare forms of the price")
    given = parser.parse_args()
    print(aligned([*(by_form if given.forms else by_size)(given.table)]))


if __name__ == "__main__":
    main()
