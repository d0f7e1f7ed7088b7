"""Orders of passes and their step, naively: lists of tasks with micro-batches, one event at a time.

A task is a kind, a position in the model and a micro-batch. Kinds are "f", "b" (all of a backward),
"i" (for inputs), "w" (for weights) and "fb", a forward beside a backward, of which the position and
the micro-batch are pairs. Written from the publications and the frameworks' sources; p ranks, v
chunks a rank, m micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

Task = tuple[str, Any, Any]
Rows = list[list[Task]]


def groups(m: int, size: int) -> list[range]:
    """Micro-batches that pass a chunk in a row."""
    return [range(first, min(m, first + size)) for first in range(0, m, size)]


def interleaved(p: int, v: int, m: int, size: int, together: bool = False) -> Rows:
    """Megatron-Core's interleaved 1F1B; ``together``: combined with one more warm-up pass."""
    rows = []
    for s in range(p):
        ahead = deque((n * p + s, k) for g in groups(m, size) for n in range(v) for k in g)
        back = deque((n * p + s, k) for g in groups(m, size) for n in reversed(range(v)) for k in g)
        warm = 2 * (p - 1 - s) + (v - 1) * size + together
        row: list[Task] = [("f", *ahead.popleft()) for _ in range(min(warm, len(ahead)))]
        while ahead:
            one, other = ahead.popleft(), back.popleft()
            if together:
                row.append(("fb", (one[0], other[0]), (one[1], other[1])))
            else:
                row += [("f", *one), ("b", *other)]
        rows.append([*row, *(("b", *x) for x in back)])
    return rows


def breadth_first(p: int, v: int, m: int) -> Rows:
    """Looped BFS."""
    return [[*(("f", n * p + s, k) for n in range(v) for k in range(m)),
             *(("b", n * p + s, k) for n in reversed(range(v)) for k in range(m))]
            for s in range(p)]


def zero_bubble(p: int, v: int, m: int, size: int) -> Rows:
    """ZB1P, and PyTorch's interleaved zero-bubble: rank s is s backwards for weights behind."""
    rows = []
    for s in range(p):
        ahead = deque((n * p + s, k) for g in groups(m, size) for n in range(v) for k in g)
        back = deque((n * p + s, k) for g in groups(m, size) for n in reversed(range(v)) for k in g)
        warm = min(p - 1 - s + (v - 1) * size, len(ahead))
        row: list[Task] = [("f", *ahead.popleft()) for _ in range(warm)]
        left: deque[tuple[int, int]] = deque()
        while back:
            if ahead:
                row.append(("f", *ahead.popleft()))
            left.append(back.popleft())
            row.append(("i", *left[-1]))
            if len(left) > s:
                row.append(("w", *left.popleft()))
        rows.append([*row, *(("w", *x) for x in left)])
    return rows


def zero_bubble_v(p: int, m: int) -> Rows:
    """PyTorch's ZB-V, for 2 p - 1 micro-batches at the least."""
    rows = []
    for s in range(p):
        first, second = s, 2 * p - 1 - s
        number: dict[tuple[str, int], int] = {}
        row: list[Task] = []

        def add(kinds: str, q: int, number: Any = number, row: Any = row) -> None:
            for kind in kinds:
                k = number.get((kind, q), 0)
                number[kind, q] = k + 1
                row.append((kind, q, k))

        for _ in range(2 * (p - s) - 1):
            add("f", first)
        for _ in range(s):
            add("f", second)
            add("f", first)
        for _ in range(p - s):
            add("fiw", second)
        while number["f", second] < max(2 * p - 1, m):
            if number["f", first] < max(2 * p - 1, m):
                add("f", first)
            add("iw", first)
            add("fiw", second)
        for _ in range(s):
            add("i", first)
            add("i", second)
        for _ in range(p - s):
            add("iw", first)
        for q in (second, first):
            while number["w", q] < number["i", q]:
                add("w", q)
        rows.append([task for task in row if task[2] < m])
    return rows


Grid = list[dict[int, tuple[str, int, int]]]
"""Of each rank, what it runs in a slot: a kind, a chunk and a micro-batch."""


@cache
def controlled(p: int, m: int, half: bool) -> Rows:
    """V-Half or V-Min (arXiv:2405.15362 and its authors' zbv_greedy.py), step by step."""
    grid: Grid = []
    for s in range(p):
        if half:
            late = 3 * (p % 2 == 0)
            begins = (2 * s, 3 * p - s - 2, 3 * p - 1 + late + 2 * s, 6 * p - 2 + late - s)
        else:
            late = 2 * (p % 3 == 0)
            begins = (s, 2 * p - 1 - s, 2 * p + late + s, 4 * p - 1 + late - s)
        grid.append({begin + 6 * k: (kind, n, k) for begin, kind, n in zip(
            begins, "ffii", (0, 1, 1, 0), strict=True) for k in range(m)})
    fill(grid)
    ahead(grid, True)
    squeeze(grid)
    strip(grid)
    ahead(grid, False)
    fill(grid)
    squeeze(grid)
    strip(grid)
    fill(grid, apart=True)
    return [[(kind, 2 * p - 1 - s if n else s, k) for _, (kind, n, k) in sorted(row.items())]
            for s, row in enumerate(grid)]


def fill(grid: Grid, apart: bool = False) -> None:
    """Put backwards for weights where nothing runs, chunk 1 first; in one sequence or apart."""
    for row in grid:
        left: dict[int, int] = {0: 0, 1: 0}
        done = {0: 0, 1: 0}
        slot, end = 0, max(row)
        while slot <= end or any(left.values()):
            if slot in row and row[slot][0] == "i":
                left[row[slot][1] if apart else 1] += 1
            elif slot not in row and any(left.values()):
                n = 1 if left[1] else 0
                row[slot] = ("w", n, done[n])
                left[n], done[n] = left[n] - 1, done[n] + 1
            slot += 1


def strip(grid: Grid) -> None:
    """Take them out again."""
    for row in grid:
        for slot in [slot for slot, task in row.items() if task[0] == "w"]:
            del row[slot]


def earliest(grid: Grid, s: int, task: tuple[str, int, int]) -> int:
    """First slot behind all that a task waits for, but for the order of its rank."""
    kind, n, k = task
    rows = [{one: slot for slot, one in row.items()} for row in grid[max(0, s - 1):s + 2]]
    own = rows[min(s, 1)]
    need = [own[kind, n, k - 1]] if k else []
    if kind == "w":
        back = sorted(slot for one, slot in own.items() if one[0] == "i")
        return max([*need, back[k]]) + 1
    if (n == 0) == (kind == "f"):  # down the V
        need += [rows[0][task]] if s else []
    elif s + 1 < len(grid):
        need += [rows[-1][task]]
    way = [("f", 0), ("f", 1), ("i", 1), ("i", 0)]
    if (place := way.index((kind, n))):
        need.append(own[(*way[place - 1], k)])
    return max(need, default=-1) + 1


def peak(row: dict[int, tuple[str, int, int]]) -> int:
    """Most forwards that wait for weights; without slots of their own these run in free ones."""
    own = any(task[0] == "w" for task in row.values())
    now = most = left = 0
    for slot in range(max(row) + 1):
        kind = row[slot][0] if slot in row else ""
        now += kind == "f"
        left += kind == "i"
        if kind == "w" or (not own and not kind and left):
            now, left = now - 1, left - 1
        most = max(most, now)
    return most


TURN = (("f", 0), ("f", 1), ("i", 1), ("i", 0), ("w", 1))


def listed(grid: Grid) -> list[tuple[int, int, int, tuple[str, int, int]]]:
    return sorted((slot, s, TURN.index(task[:2]), task)
                  for s, row in enumerate(grid) for slot, task in row.items())


def squeeze(grid: Grid) -> None:
    """Run all in the same order, as soon as it may."""
    found: Grid = [{} for _ in grid]
    for _, s, _, task in listed(grid):
        waits = -1
        if task[0] != "w":
            waits = earliest(found, s, task) - 1
        elif task[2]:
            waits = next(slot for slot, one in found[s].items()
                         if one == (*task[:2], task[2] - 1))
        found[s][max([waits, *found[s]]) + 1] = task
    grid[:] = found


def ahead(grid: Grid, weights: bool) -> None:
    """Move what is outside the stable phase to free slots in front, if no more is held."""
    limit = max(map(peak, grid))
    last = max(k for kind, n, k in grid[0].values() if (kind, n) == ("f", 0))
    phase = 0
    for slot, s, _, task in listed(grid):
        if phase == 0 and s == 0 and task[:2] == ("i", 0):
            phase = 1
        if phase == 1 or (phase == 0 and not weights):
            if phase == 1 and task == ("f", 0, last):
                phase = 2
            continue
        row = grid[s]
        for free in range(earliest(grid, s, task), slot):
            if free in row:
                continue
            trial = {at: one for at, one in row.items() if at != slot}
            trial[free] = task
            if peak(trial) <= limit:
                grid[s] = trial
                break


def dual_pipe(ranks: int, m: int, together: bool, crossed: bool = False) -> Rows:
    """DualPipeV; ``crossed``: DualPipe of twice as many ranks, whose second chain of positions is
    behind the first one.
    """
    rows = []
    p = 2 * ranks if crossed else ranks
    for rank in range(p):
        s = min(rank, p - 1 - rank) if crossed else rank
        near, far = s, 2 * ranks - 1 - s
        if crossed:
            near, far = (rank, 2 * p - 1 - rank) if rank < ranks else (2 * p - 1 - rank, rank)
        number: dict[tuple[str, int], int] = {}
        row: list[Task] = []
        left: deque[tuple[int, int]] = deque()

        def take(kind: str, q: int, number: Any = number) -> int:
            k: int = number.get((kind, q), 0)
            number[kind, q] = k + 1
            return k

        def ahead(q: int, row: Any = row, take: Any = take) -> None:
            row.append(("f", q, take("f", q)))

        def back(q: int, zero: bool = False, row: Any = row, take: Any = take,
                 left: Any = left) -> None:
            k = take("b", q)
            row.append(("i" if zero else "b", q, k))
            if zero:
                left.append((q, k))

        def weights(row: Any = row, left: Any = left) -> None:
            if left:
                row.append(("w", *left.popleft()))

        def both(one: int, other: int, row: Any = row, take: Any = take, ahead: Any = ahead,
                 back: Any = back) -> None:
            if together:
                row.append(("fb", (one, other), (take("f", one), take("b", other))))
            else:
                ahead(one)
                back(other)

        for _ in range(2 * (ranks - s - 1)):
            ahead(near)
        for _ in range(s + 1):
            ahead(near)
            ahead(far)
        for _ in range(ranks - s - 1):
            back(far, True)
            weights()
            ahead(far)
        for i in range(m - 2 * ranks + s + 1):
            if i == 0 and s == ranks - 1:
                ahead(near)
                back(far)
            else:
                both(near, far)
            both(far, near)
        for _ in range(ranks - s - 1):
            back(far)
            both(far, near)
        zero = False
        for i in range(s + 1):
            zero = zero or (i == (s + 1) // 2 and s % 2 == 1)
            back(far, zero)
            zero = zero or (i == (s + 1) // 2 and s % 2 == 0)
            back(near, zero)
        for _ in range(ranks - s - 1):
            weights()
            back(near, zero)
        for _ in range(s + 1):
            weights()
        rows.append(row)
    return rows


class Times(NamedTuple):
    """Seconds by position; a hand-over's are from a position to the next one."""

    forward: Sequence[float]
    inputs: Sequence[float]
    weights: Sequence[float]
    hop: Sequence[float]
    gap: Sequence[float]


def ends(
    rows: Rows, times: Times, depth: int, wire: Any, hidden: float = 0.0
) -> list[float] | None:
    """End of the last task of each rank; None: they wait for each other.

    ``wire(q, way)`` names the link from position q on, or back to it. Of chains of ``depth``
    positions each begins with micro-batches and ends with the loss. A forward beside a backward
    takes ``hidden`` of the sum of both less.
    """
    done: dict[tuple[str, int, int], float] = {}
    came: dict[Any, float] = {}
    clock, place = [0.0] * len(rows), [0] * len(rows)

    def ready(kind: str, q: int, k: int) -> float | None:
        if kind == "w" or (kind == "f" and q % depth == 0):
            return 0.0
        if kind == "f":
            return done.get(("f", q, k))
        return done.get(("b", q, k))

    def finish(kind: str, q: int, k: int, at: float) -> None:
        if kind == "w":
            return
        if kind == "f" and q % depth == depth - 1:
            done["b", q, k] = at
            return
        if kind != "f" and q % depth == 0:
            return
        to, link = (q + 1, q) if kind == "f" else (q - 1, q - 1)
        name = wire(link, kind == "f")
        came[name] = max(at + times.hop[link], came.get(name, -1e99) + times.gap[link])
        done["f" if kind == "f" else "b", to, k] = came[name]

    def seconds(kind: str, q: int) -> float:
        whole = times.inputs[q] + times.weights[q]
        own = {"f": times.forward[q], "b": whole, "i": times.inputs[q], "w": times.weights[q]}
        return own[kind]

    while any(place[s] < len(row) for s, row in enumerate(rows)):
        moved = False
        for s, row in enumerate(rows):
            if place[s] == len(row):
                continue
            kind, q, k = row[place[s]]
            parts = list(zip("fb", q, k, strict=True)) if kind == "fb" else [(kind, q, k)]
            when = [ready(*part) for part in parts]
            if any(t is None for t in when):
                continue
            moved = True
            clock[s] = max(clock[s], *(t for t in when if t is not None)) + sum(
                seconds(part[0], part[1]) for part in parts) - hidden * (len(parts) - 1)
            for part in parts:
                finish(*part, clock[s])
            place[s] += 1
        if not moved:
            return None
    return clock
