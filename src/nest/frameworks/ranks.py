"""Devices of the ranks of an exported launch, from its `hosts` or `ranks` beside the script."""

from __future__ import annotations

import re

from nest.errors import InputError

Placed = tuple[int, ...]
"""Device of each rank."""
MOST = 10**7
_NUMBER = re.compile(r"(\d{1,8})")
_SIZE = re.compile(r"^# node, device of (\d{1,4}) of the node, rank$", re.MULTILINE)
"""Devices of a node, where some of each are not used."""


def devices_of(hosts: str | None, ranks: str | None, per_node: int, where: str) -> Placed:
    """Devices by rank, of a list of hosts or of node, device and rank.

    Raises
    ------
    InputError : lines that are no such list.
    """
    rows = [line for line in (hosts or ranks or "").splitlines()
            if line.strip() and not line.startswith("#")]
    if hosts is not None:
        nodes = [found[1] for row in rows if (found := re.search(r"(\d{1,8})\s*$", row))]
        if len(nodes) != len(rows) or len(rows) * per_node > MOST:
            raise InputError(f"{where}: got a line that is no number of a node; allowed: numbers")
        return tuple(int(node) * per_node + n for node in nodes for n in range(per_node))
    numbers = [row.split() for row in rows]
    if not all(len(row) == 3 and all(_NUMBER.fullmatch(one) for one in row) for row in numbers):
        raise InputError(f"{where}: allowed: lines of node, device and rank")
    table = [[int(one) for one in row] for row in numbers]
    size = max(per_node, 1 + max((row[1] for row in table), default=0))
    if named := _SIZE.search(ranks or ""):
        size = max(size, int(named[1]))
    by_rank = {row[2]: row[0] * size + row[1] for row in table}
    if sorted(by_rank) != list(range(len(rows))):
        raise InputError(f"{where}: allowed: each rank once, from 0")
    return tuple(by_rank[rank] for rank in range(len(rows)))


def placed(
    found: Placed | range, dp: int, tp: int, pp: int, cp: int, *, experts: int = 1,
    replicas: int | None = None,
) -> tuple[int, int | None]:
    """Replicas, and devices from one to the next, whose devices are those of the ranks.

    Ranks are numbered tp, cp, dp, pp, the first the fastest.

    Parameters
    ----------
    experts : ranks that share experts, which are in one block.
    replicas : number of replicas; default: the most.

    Raises
    ------
    InputError : no configuration has this order.
    """
    inner = tp * cp
    if len(found) != dp * inner * pp:
        raise InputError(f"places of {len(found)} ranks; allowed: {dp * inner * pp}")
    outer = [n for n in range(dp, 0, -1) if dp % n == 0 and replicas in (None, n)
             and dp // n * inner % experts == 0]
    # Where groups are partly used, devices are numbered with those that are not.
    order = {device: n for n, device in enumerate(sorted(found))}
    for listed in (found, tuple(order[device] for device in found)):
        if (match := _order(listed, dp, inner, pp, outer)) is not None:
            return match
    raise InputError("places: no configuration of replicas one behind the other has this order of "
                     "ranks")


def _order(
    found: Placed | range, dp: int, inner: int, pp: int, replicas: list[int]
) -> tuple[int, int] | None:
    for outer in replicas:
        dp_in = dp // outer
        stride = found[dp_in * inner] - found[0] if outer > 1 else pp * dp_in * inner
        block = dp_in * inner
        if all(device - found[0] == (rank // inner % dp) // dp_in * stride
               + rank // (inner * dp) * block + rank // inner % dp_in * inner + rank % inner
               for rank, device in enumerate(found)):
            return outer, stride
    return None
