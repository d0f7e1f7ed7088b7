"""Tables of a plan's stages: degrees, time and memory.

Neighbours with the same degrees and sizes whose times differ by less than ``ALIKE`` are one row,
which shows the times of the slowest. Under 1F1B a later stage holds fewer micro-batches, so such a
row shows the maximum in the first table, and the first and the last figure of its stages in the
last one. A table of stages that would be too wide becomes two: places, and degrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nest.evaluation.plans import Plan, Stage
from nest.inputs.space import IntSet
from nest.schedules.registry import SCHEDULES

GIB = 2.0**30
DIGITS = 4
LONGEST = 20
"""Characters of a list of layers; a longer one is counted."""
ALIKE = 0.005
"""Share of the time of a micro-batch (and of the end of a step) that the report neglects."""
CAUSES = (("forward", "forward"), ("backward", "backward"), ("recompute", "recomp."), ("tp", "tp"),
          ("cp", "cp"), ("ep", "ep"), ("offload", "host"),
          ("maxima", "maxima"), ("zero", "ZeRO"),
          ("handover", "hand-over"))
CATEGORIES = (("parameters", "params"), ("gradients", "gradients"), ("optimizer", "optimizer"),
              ("activations", "activations"), ("buffers", "buffers"))


class StageRun(NamedTuple):
    """Consecutive equal stages."""

    first: int
    stages: tuple[Stage, ...]


class Table(NamedTuple):
    """A table of stages."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...]


def runs(plan: Plan) -> list[StageRun]:
    """Stages folded into runs, first to last."""
    found: list[StageRun] = []
    for number, stage in enumerate(plan.stages):
        before = found[-1].stages[0] if found else None
        if before and _alike(before, stage) and _type(plan, before) == _type(plan, stage):
            found[-1] = StageRun(found[-1].first, (*found[-1].stages, stage))
        else:
            found.append(StageRun(number, (stage,)))
    return found


def _alike(a: Stage, b: Stage) -> bool:
    if _layout(a) != _layout(b):
        return False
    near = ALIKE * a.time_s.total
    times = zip(a.time_s.model_dump().values(), b.time_s.model_dump().values(), strict=True)
    ends = ((a.finish_s, b.finish_s), (a.grad_sync_s, b.grad_sync_s),
            (a.param_wait_s, b.param_wait_s))
    return (all(abs(x - y) <= near for x, y in times)
            and all(abs(x - y) <= ALIKE * a.finish_s for x, y in ends))


def _layout(s: Stage) -> tuple[object, ...]:
    sizes = tuple(stop - start for start, stop in s.chunks)
    return (sizes, s.devices[1] - s.devices[0], s.dp_in, s.tp, s.sp, s.cp, s.cp_comm,
            s.cp_a2a, s.ep, s.etp, s.zero, s.shard, s.recompute, s.recompute_modules,
            s.recompute_layers)


def _slowest(run: StageRun) -> Stage:
    return max(run.stages, key=lambda s: s.time_s.total)


Columns = list[tuple[str, Callable[[StageRun], str]]]


def stage_tables(plan: Plan, width: int) -> tuple[Table, ...]:
    """Layers, devices and degrees, time of a micro-batch and memory of each run.

    One table, or two where one would be wider than ``width`` columns.
    """
    folded = runs(plan)
    places, degrees = _places(plan, folded), _degrees(plan)
    milli = _decimals([1e3 * s.time_s.total for s in plan.stages])
    prices: Columns = [
        ("ms", lambda r: f"{1e3 * _slowest(r).time_s.total:.{milli}f}"),
        ("GiB", lambda r: f"{max(s.memory_bytes.total for s in r.stages) / GIB:.1f}"),
    ]
    limits = sorted({f"{stage.memory_limit_bytes / GIB:.1f}" for stage in plan.stages})
    margin = plan.inputs.job.memory_margin
    free = f" with a margin of {100 * margin:g} %" if margin else ""
    title = f"Stages (ms per micro-batch; GiB per device, at most {' or '.join(limits)}{free})"
    whole = _table(title, [*places, *degrees, *prices], folded)
    if _narrowest(whole) <= width:
        return (whole,)
    number: Columns = [("stage", _numbers)]
    return (_table(title, [*places, *prices], folded),
            _table("Degrees of the stages", [*number, *degrees], folded))


def _places(plan: Plan, folded: list[StageRun]) -> Columns:
    """Which layers and which devices."""
    columns: Columns = [("stage", _numbers), ("layers", lambda r: _layers(r, plan))]
    alone = all(len(r.stages) == 1 for r in folded)  # then the spans say the sizes
    if plan.parallelism.vpp > 1:
        columns.append(("chunks", _chunks))
    elif not alone:
        columns.append(("each", lambda r: _size(r.stages[0].layers)))
    columns.append(
        ("devices", lambda r: _span(r.stages[0].devices[0], r.stages[-1].devices[1])))
    if not alone:
        columns.append(("each", lambda r: _size(r.stages[0].devices)))
    if plan.inputs.cluster.types:
        columns.append(("type", lambda r: _type(plan, r.stages[0])))
    return columns


def _type(plan: Plan, stage: Stage) -> str:
    """Type of the devices of a stage."""
    cluster = plan.inputs.cluster
    return cluster.device_types[cluster.type_at(stage.devices[0])].name


def _degrees(plan: Plan) -> Columns:
    """How a stage uses its devices; degrees that no stage uses are left out."""
    columns: Columns = [
        ("dp_in", lambda r: str(r.stages[0].dp_in)),
        ("tp", lambda r: str(r.stages[0].tp)),
    ]
    if any(s.sp != (s.tp > 1) for s in plan.stages):
        columns.append(("sp", lambda r: "yes" if r.stages[0].sp else "no"))
    if any(s.cp > 1 for s in plan.stages):
        columns.append(("cp", _context))
    if any(s.ep > 1 or s.etp != s.tp for s in plan.stages):
        columns.append(("ep", lambda r: str(r.stages[0].ep)))
        columns.append(("etp", lambda r: str(r.stages[0].etp)))
    columns += [("ZeRO", _zero), ("recompute", _recompute)]
    return columns


def _table(title: str, columns: Columns, folded: list[StageRun]) -> Table:
    heads = tuple(name for name, _ in columns)
    rows = tuple(tuple(show(run) for _, show in columns) for run in folded)
    words = ("stage", "layers", "devices", "type", "cp", "ZeRO", "recompute")
    left = tuple(n for n, name in enumerate(heads) if name in words)
    return Table(title, heads, rows, left)


def _narrowest(table: Table) -> int:
    """Least columns of a terminal that the table needs: its cells, one space apart."""
    cells = zip(table.heads, *table.rows, strict=True)
    return sum(1 + max(map(len, column)) for column in cells) - 1


def _recompute(run: StageRun) -> str:
    """Recompute in a few words: `none`, `core_attn+norm`, `full`, `full 3 layers`."""
    stage = run.stages[0]
    if stage.recompute == "selective":
        return "+".join(stage.recompute_modules)
    if stage.recompute_layers is None:
        return stage.recompute
    chunk = " a chunk" if len(stage.chunks) > 1 else ""
    return f"full {stage.recompute_layers} layer{'' if stage.recompute_layers == 1 else 's'}{chunk}"


def _context(run: StageRun) -> str:
    one = run.stages[0]
    if one.cp_comm == "a2a+p2p":
        return f"{one.cp} a2a {one.cp_a2a}"
    return str(one.cp) if one.cp_comm == "p2p" else f"{one.cp} {one.cp_comm}"


def _zero(run: StageRun) -> str:
    one = run.stages[0]
    return f"{one.zero} dp_in" if one.shard == "dp_in" else str(one.zero)


def _layers(run: StageRun, plan: Plan) -> str:
    """Layers of a run; with virtual stages those of the first and of the last chunk."""
    order = plan.parallelism.order
    first, last = run.stages[0], run.stages[-1]
    if order is not None:
        members = IntSet.of(order[first.layers[0] : last.layers[1]])
        text = str(members)
        return text if len(text) <= LONGEST else (
            f"{len(members)} of {members.smallest}..{members.largest}")
    # In a V the last stage's second chunk is in front of the first stage's.
    spans = [_span(min(start for start, _ in chunks), max(stop for _, stop in chunks))
             for chunks in zip(*(stage.chunks for stage in run.stages), strict=True)]
    return " ".join(spans if len(spans) <= 2 else (spans[0], "..", spans[-1]))


def _chunks(run: StageRun) -> str:
    """Chunks of a stage and the layers of one of them."""
    sizes = sorted({stop - start for start, stop in run.stages[0].chunks})
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]}..{sizes[-1]}"
    return f"{len(run.stages[0].chunks)} x {each}"


def time_table(plan: Plan) -> Table:
    """Milliseconds of a micro-batch by cause, and of the end of a step."""
    causes = [(name, head) for name, head in CAUSES
              if any(getattr(s.time_s, name) for s in plan.stages)]
    causes.append(("total", "total"))
    decimals = _decimals([1e3 * s.time_s.total for s in plan.stages])
    once = [(name, head) for name, head in (("param_wait_s", "start"), ("grad_sync_s", "sync"))
            if any(getattr(s, name) for s in plan.stages)]
    end = _decimals([1e3 * s.finish_s for s in plan.stages])
    rows = []
    for run in runs(plan):
        one = _slowest(run)
        row = [_numbers(run)]
        row += [f"{1e3 * getattr(one.time_s, name):.{decimals}f}" for name, _ in causes]
        row += [f"{1e3 * getattr(one, name):.{end}f}" for name, _ in once]
        rows.append((*row, f"{1e3 * one.finish_s:.{end}f}"))
    heads = ("stage", *(head for _, head in causes + once), "end")
    words = {"start": "start: parameter gathers", "sync": "sync: gradient reduction"}
    last = "end: all after the last backward"
    if ("grad_sync_s", "sync") in once:
        last += ", sync too"
    what = ", ".join((*(words[head] for _, head in once), last))
    return Table(f"Time, ms per micro-batch (per step: {what})", heads, tuple(rows), (0,))


def memory_table(plan: Plan) -> Table:
    """GiB on each device by category; activations are those of all micro-batches in flight."""
    kept = [(name, head) for name, head in CATEGORIES
            if any(getattr(s.memory_bytes, name) for s in plan.stages)]
    kept.append(("total", "total"))
    decimals = max(1, _decimals([s.memory_bytes.total / GIB for s in plan.stages]) - 1)
    rows = []
    for run in runs(plan):
        row = [_numbers(run), _ends([float(s.in_flight) for s in run.stages], 0, 1.0)]
        row += [_ends([getattr(s.memory_bytes, name) for s in run.stages], decimals)
                for name, _ in kept]
        rows.append(tuple(row))
    heads = ("stage", "held", *(head for _, head in kept))
    what = "micro-batches in flight" + (", of one chunk" if plan.parallelism.vpp > 1 else "")
    if SCHEDULES[plan.parallelism.schedule].split:
        what += "; activations: also what waits for a backward for weights"
    return Table(f"Memory, GiB per device (held: {what})", heads, tuple(rows), (0,))


def _numbers(run: StageRun) -> str:
    return _span(run.first, run.first + len(run.stages))


def _span(first: int, end: int) -> str:
    """A half-open range as people write it: both ends named, as on the command line."""
    if first == end:
        return "-"
    return str(first) if end - first == 1 else f"{first}..{end - 1}"


def _size(pair: tuple[int, int]) -> str:
    return str(pair[1] - pair[0])


def _ends(values: list[float], decimals: int, unit: float = GIB) -> str:
    """The first and the last figure if they differ as shown, else one."""
    first, last = (f"{value / unit:.{decimals}f}" for value in (values[0], values[-1]))
    return first if first == last else f"{first}..{last}"


def _decimals(values: Sequence[float]) -> int:
    """Decimals that show the largest value of a column with ``DIGITS`` digits."""
    largest = max(values, default=0.0)
    decimals = DIGITS - 1
    while decimals and largest >= 10.0 ** (DIGITS - decimals):
        decimals -= 1
    return decimals
