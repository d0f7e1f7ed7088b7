"""Which candidates the job's stack can run: its rules for many configurations at once.

A rule is about few figures, and each figure belongs to an axis: candidates, ways of ZeRO, recompute
policies, first layers of full recompute, pipelines. So a rule is a mask over the axes of its
figures, or, where these are more than two, the table of :mod:`nest.search.wide_rules`.
``nest.stacks.rules`` is the same for one configuration; a test compares them.

Axes and shapes are those of ``nest.search.columns``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nest.costs.choices import FULL, policy
from nest.costs.distinct import distinct_rows
from nest.inputs.capabilities import Capabilities, Rule
from nest.inputs.space import MODULES
from nest.model import Chain
from nest.records.problems import NONE, Wide
from nest.schedules.registry import is_grouped
from nest.search.candidates import FORMS, Outer, Pairs, Rows, Splits
from nest.search.columns import (
    AXES,
    FIRST,
    PIPELINE,
    POLICY,
    ROW,
    WAY,
    Bools,
    Column,
    Columns,
    Ints,
    broken,
    figures,
    single,
)
from nest.search.query import Query
from nest.search.wide_rules import row_keys, wide
from nest.stacks.figures import Value, model_figures, offload_figures
from nest.stacks.rules import applies, outside

T = TypeVar("T")
OUTER = ("micro_batches", "rounds", "round", "group", "missing", "outer_dp", "gap")
"""Figures of an outer choice."""
AXIS_OF = {
    **dict.fromkeys(("block", "dp_in", "mbs", "tp", "sp", "cp", "cp_comm", "ep", "etp",
                     "expert_ranks", "model_ranks"), ROW),
    **dict.fromkeys(("zero", "shard"), WAY),
    **dict.fromkeys(("recompute", "recompute_modules", "module_set"), POLICY),
    "recompute_layers": FIRST,
    **dict.fromkeys(("schedule", "pp", "vpp"), PIPELINE),
}
"""Axes of the figures that have one whatever the outer choice."""
TOGETHER = ((ROW, WAY), (ROW, POLICY), (ROW, PIPELINE), (WAY, POLICY), (WAY, PIPELINE),
            (POLICY, FIRST), (POLICY, PIPELINE), (FIRST, PIPELINE))
"""Axes of which a mask may have two."""
HELD = {"mtp_chunks": "mtp", "vision_chunks": "vision"}
"""Figures of the cuts by the kind of layer that they count."""
CUTS = ("cuts", *HELD, "empty_chunks")
"""Figures that depend on where a pipeline is cut."""
NO_YES = ("no", "yes")
TIMES = 1, 2
"""Groups of micro-batches that are searched where the stack has any: from so many times the stages
on (docs/schedules.md)."""


class Pipeline(NamedTuple):
    """An order of passes, stages, and chunks a stage."""

    schedule: str
    pp: int
    vpp: int
    times: int = TIMES[0]
    """Micro-batches that pass a chunk in a row are as few as can be from so many times the stages
    on."""
    group: int = 0
    """Or they are so many, if the space names them."""


class SpacePart(NamedTuple):
    """A part of the space that is searched as one."""

    rules: Capabilities | None = None
    """What the training software can run of it; None: everything."""
    pipelines: tuple[Pipeline, ...] = ()
    """Of alike stages."""
    later: tuple[Pipeline, ...] = ()
    """Those that are searched behind it with its prices."""

    @property
    def own(self) -> bool:
        """Whether it is the space of a stack: stages are alike."""
        return self.rules is not None

    @property
    def schedules(self) -> set[str]:
        """Of its pipelines."""
        return {one.schedule for one in self.pipelines}


class Runnable:
    """What a stack can run of the candidates of a search.

    Parameters
    ----------
    zeros, policies, longest : ZeRO stages and how each shards (1: dp_in); recompute policies as
        :func:`nest.costs.choices.policy`; most first layers of full recompute.

    Notes
    -----
    Each rule is applied as it is, once: to one or two axes by a mask, to cuts alone where these are
    listed, to pipelines of an outer choice by :meth:`piped`, else by :meth:`wide`.
    """

    def __init__(
        self, query: Query, part: SpacePart, zeros: Sequence[tuple[int, int]],
        policies: Sequence[int], longest: int,
    ) -> None:
        known, pipelines, chain = part.rules, part.pipelines, query.chain
        self.rules = [] if known is None else single(known.rules)
        self._sizes = [0, len(zeros), len(policies), longest + 1, len(pipelines), 1]
        self._masks: dict[tuple[int, int], Any] = {}
        held = {name: sum(chain.kinds[kind].name.startswith(start) for kind in chain.order)
                for name, start in HELD.items()}
        self._held = {name: count for name, count in held.items() if count}
        """Layers of the kinds of ``HELD`` that the model has."""
        self._cuts = {"cuts", *self._held, "empty_chunks"}
        self._model = {
            **model_figures(chain, query.job), **offload_figures(query.offload), "misplaced": 0,
            **{name: 0 for name in held if name not in self._held}}
        self._fixed: dict[str, Column] = {name: Column.same(v) for name, v in self._model.items()}
        schedule, pp, vpp = ([one[n] for one in pipelines] for n in range(3))
        self._pp = np.array(pp, dtype=np.int64)
        self._grouped = np.array([is_grouped(one.schedule, one.vpp) for one in pipelines],
                                 dtype=np.bool_)
        names = list(dict.fromkeys(schedule))
        modules = [tuple(m for m in MODULES if bits & policy("", [m])) if bits != FULL else ()
                   for bits in policies]
        word = ["full" if bits == FULL else "selective" if bits else "none" for bits in policies]
        each = np.arange(len(policies))
        self._fixed |= {
            "pp": Column.of(PIPELINE, pp), "vpp": Column.of(PIPELINE, vpp),
            "schedule": Column.of(PIPELINE, [names.index(s) for s in schedule], names),
            "zero": Column.of(WAY, [zero for zero, _ in zeros]),
            "shard": Column.of(WAY, [shard for _, shard in zeros], ("dp", "dp_in")),
            "recompute": Column.of(POLICY, each, word),
            "recompute_modules": Column.of(POLICY, each, modules),
            "module_set": Column.of(POLICY, each, ["+".join(m) for m in modules]),
            "recompute_layers": Column.of(FIRST, np.arange(longest + 1)),
        }
        self._by_rounds = self.names(("round",))
        self._larger = larger_groups(known)
        self._times = np.array([one.times for one in pipelines], dtype=np.int64)
        self._named = np.array([one.group for one in pipelines], dtype=np.int64)
        self._groups: dict[int, Ints] = {}
        self._piped: dict[tuple[int, int], Bools] = {}
        self._pairs, self._outer_rules, self._about_cuts, self._wide = self._sorted_rules()
        self._rows: Columns = {}
        """Figures of candidates that wide rules have."""
        self._made: dict[Hashable, Any] = {}

    def _sorted_rules(self) -> tuple[list[Rule], ...]:
        """Rules about one or two axes, about pipelines of an outer choice, about cuts of
        pipelines, and all others."""
        found: tuple[list[Rule], ...] = [], [], [], []
        for rule in self.rules:
            names = figures(rule) - {*self._model}
            axes = tuple(sorted({AXIS_OF[name] for name in names if name in AXIS_OF}))
            if not names.isdisjoint(self._cuts):
                kind = 2 if self._is_about_cuts(rule, names) else 3
            elif not names.isdisjoint(OUTER):
                kind = 1 if "gap" not in names and axes in ((), (PIPELINE,)) else 3
            else:
                kind = 0 if len(axes) < 2 or axes in TOGETHER else 3
            found[kind].append(rule)
        return found

    def _is_about_cuts(self, rule: Rule, names: set[str]) -> bool:
        """Whether a rule says what the cuts of some pipelines may be, in the way of lists of cuts:
        their forms, how many chunks are empty, or in how many chunks layers may lie that else lie
        in any, or in one."""
        field, = rule.fields
        if rule.allowed is None or field not in CUTS or field in rule.when or not (
                names - {field} <= {*Pipeline._fields}):
            return False
        counts = range(1, self._held.get(field, 0) + 1)
        return field in ("cuts", "empty_chunks") or (
            [n for n in counts if n in rule.allowed] in ([1], [*counts]))

    def _columns(self, rows: Rows, splits: Splits, pairs: Pairs) -> Columns:
        """Figures of candidates."""
        tp, sp, cp = (column[rows.split] for column in splits[:3])
        ep, etp = pairs.ep[rows.pair], pairs.etp[rows.pair]
        etp = np.where(etp > 0, etp, tp)
        found = {"block": rows.block, "dp_in": rows.block // (tp * cp), "mbs": rows.samples,
                 "tp": tp, "cp": cp, "ep": ep, "etp": etp, "expert_ranks": ep * etp,
                 "model_ranks": tp * cp}
        return {
            **self._fixed, **{name: Column.of(ROW, values) for name, values in found.items()},
            "sp": Column.of(ROW, sp, NO_YES),
            "cp_comm": Column.of(ROW, splits.form[rows.split], FORMS)}

    def compared(self, rows: Rows, splits: Splits, pairs: Pairs) -> Runnable:
        """The same, with candidates compared with all rules but those about the outer choice."""
        other, columns = self._copy(), self._columns(rows, splits, pairs)
        other._sizes[ROW] = len(rows.block)
        for rule in self._pairs:
            other._forbid(broken(rule, columns), not figures(rule).isdisjoint(Pipeline._fields))
        if self._wide:
            other._rows = {name: columns[name] for name in columns if AXIS_OF.get(name) == ROW}
        return other

    def _forbid(self, where: Bools, piped: bool = False) -> None:
        """``piped``: for pipelines; what a single one forbids, others may allow."""
        none = tuple(axis for axis, size in enumerate(where.shape) if size == 0)
        where = np.asarray(where.any(axis=none, keepdims=True))
        axes = tuple(axis for axis, size in enumerate(where.shape)
                     if size > 1 or (axis == PIPELINE and piped)) or (ROW,)
        pair = axes[0], axes[-1]
        self._masks[pair] = self._masks.get(pair, True) & ~where

    def take(self, rows: Ints) -> Runnable:
        """The same of some candidates."""
        other = self._copy()
        other._sizes[ROW] = len(rows)
        other._masks = {pair: mask[rows] if len(mask) > 1 else mask
                        for pair, mask in self._masks.items()}
        other._rows = {name: column.take(ROW, rows) for name, column in self._rows.items()}
        return other

    def allow(self, first: int, second: int, rows: slice = slice(None)) -> Bools:
        """What the rules about two axes, or one of them, allow: their entries; of some ``rows``."""
        if first != ROW:
            return self.once((first, second), lambda: self._allowed(first, second))
        return self._allowed(first, second, rows)

    def _allowed(self, first: int, second: int, rows: slice = slice(None)) -> Bools:
        found: Any = np.ones([1] * AXES, dtype=np.bool_)
        for pair in dict.fromkeys(((first, first), (second, second), (first, second))):
            mask = self._masks.get(pair)
            if mask is not None:
                found = found & (mask[rows] if len(mask) > 1 else mask)
        shape = [1] * AXES
        for axis in (first, second):
            shape[axis] = self._sizes[axis]
        shape[ROW] = len(range(*rows.indices(self._sizes[ROW]))) if first == ROW else 1
        every = np.broadcast_to(found, shape).reshape(shape[first], shape[second])
        return np.array(every, order="C")  # kernels are compiled for this order

    @property
    def rows(self) -> Bools:
        """Candidates that the rules about them alone allow; (C,)."""
        found: Bools = self._masks.get((ROW, ROW), np.ones(1, dtype=np.bool_)).reshape(-1)
        return np.broadcast_to(found, self._sizes[ROW])

    @property
    def verdicts(self) -> Ints:
        """A number for candidates that can be run alike; (C,)."""
        columns = [column.astype(np.int64) for mask in self._masks.values() if len(mask) > 1
                   for column in _distinct(mask.reshape(len(mask), -1))]
        for rule in self._wide:
            columns += row_keys(rule, self._rows)
        return distinct_rows(np.zeros(self._sizes[ROW], dtype=np.int64), *columns)[1]

    def groups(self, m: int) -> Ints:
        """Micro-batches of m that pass a chunk of each pipeline in a row; 0: there is no way; (Q,).

        As many as the space names. Else as many as stages where these divide m; or those of a
        round, if the rules know rounds; or a number of the stack's choice: the least that is legal
        from the stages, or a multiple of them, on, unless a smaller multiple has the same.
        """
        if m not in self._groups:
            rounds = np.maximum(1, m // self._pp)
            by_rounds = np.where(self._by_rounds & (m % rounds == 0), m // rounds, 0)
            found = np.where(~self._grouped | (m % self._pp == 0), self._pp, by_rounds)
            named = self._named > 0
            legal = _may_pass(m, self._pp, np.maximum(1, self._named))
            found = np.where(named, np.where(legal, self._named, 0), found)
            for k in np.flatnonzero(self._grouped & ~named & self._larger).tolist():
                pp, times = int(self._pp[k]), int(self._times[k])
                fewer = max((n for n in TIMES if n < times), default=None)
                found[k] = least_group(m, pp, times)
                if fewer is not None and found[k] == least_group(m, pp, fewer):
                    found[k] = 0
            self._groups[m] = found
        return self._groups[m]

    @property
    def extent(self) -> int:
        """Grows when what follows from the rules for these candidates does."""
        return len(self._made)

    @property
    def count(self) -> int:
        """Outer choices of which is known which pipelines they allow."""
        return len(self._piped)

    def _copy(self) -> Runnable:
        """The same for other candidates; what is known of pipelines is shared."""
        other = copy(self)
        other._sizes, other._masks, other._made = [*self._sizes], {**self._masks}, {}
        return other

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What follows from the rules for these candidates, made when it is first asked for."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found

    def piped(self, outer: Outer) -> Bools:
        """Pipelines that the rules about an outer choice allow; (Q,)."""
        key = outer.micro_batches, outer.outer_dp
        if key not in self._piped:
            self._piped[key] = self._piped_under(outer)
        return self._piped[key]

    def _piped_under(self, outer: Outer) -> Bools:
        columns = {**self._fixed, **self._of_outer(outer)}
        found: Any = np.ones([1] * AXES, dtype=np.bool_)
        for rule in self._outer_rules:
            found = found & ~broken(rule, columns)
        return np.broadcast_to(found.reshape(-1), self._sizes[PIPELINE])

    def _of_outer(self, outer: Outer) -> Columns:
        """Figures of ``OUTER``, but for the gap."""
        m, pp = outer.micro_batches, self._fixed["pp"].values
        rounds, group = np.maximum(1, m // pp), np.maximum(1, self.groups(m))
        rest = m % group
        return {"micro_batches": Column.same(m), "rounds": Column(rounds),
                "round": Column(m // rounds), "group": Column.of(PIPELINE, group),
                "missing": Column.of(PIPELINE, np.where(
                    rest > 0, np.maximum(0, self._pp - rest), 0)),
                "outer_dp": Column.same(outer.outer_dp)}

    def wide(self, outer: Outer, span: slice, chosen: Ints, layouts: Columns) -> Wide:
        """What the other rules say of an outer choice: of its candidates, the pipelines ``chosen``
        by number, and layouts."""
        if not self._wide:
            return NONE
        rows = np.arange(*span.indices(self._sizes[ROW]))
        columns = {**self._fixed, **self._of_outer(outer)}
        columns = {name: column.take(PIPELINE, chosen) for name, column in columns.items()}
        columns |= {name: column.take(ROW, rows) for name, column in self._rows.items()}
        if outer.outer_dp == 1:
            columns["gap"] = Column.same(0)
        sizes = (len(rows), *self._sizes[WAY:PIPELINE], len(chosen))
        return wide(self._wide, columns, layouts, outer.stride, sizes)

    @property
    def asks_layouts(self) -> bool:
        """Whether the rules of :meth:`wide` have figures of layouts."""
        return any(not figures(rule).isdisjoint(self._cuts) for rule in self._wide)

    def lists(self, pipeline: Pipeline) -> bool:
        """Whether such a rule may be about a pipeline: then its cuts are listed."""
        known = {**self._model, **pipeline._asdict()}
        return any(
            not figures(rule).isdisjoint(self._cuts) and applies(
                rule.unchecked(when={name: values for name, values in rule.when.items()
                                     if name in known}), known)
            for rule in self._wide)

    def names(self, own: Iterable[str], but: str = "") -> bool:
        """Whether a rule that may apply to the pipelines names one of these figures.

        ``but``: rules about this schedule alone do not count.
        """
        return any(
            not figures(rule).isdisjoint(own) and all(
                self._fixed[name].among(values).any()
                for name, values in rule.when.items() if name in self._fixed)
            and {*rule.when.get("schedule", ())} != {but}
            for rule in self.rules)

    def about_cuts(self, pipeline: Pipeline) -> dict[str, list[Any]]:
        """What rules allow of each of ``CUTS`` in a pipeline: one entry for each rule."""
        known = {**self._model, **pipeline._asdict()}
        found: dict[str, list[Any]] = {name: [] for name in CUTS}
        for rule in self._about_cuts:
            if applies(rule, known):
                found[rule.fields[0]].append(rule.allowed)
        return found


def runnable_splits(query: Query, known: Capabilities | None, splits: Splits
                    ) -> tuple[Bools, bool]:
    """Ways to split a sample that the rules about them alone allow; (S,). And whether no other
    rule tells those apart that differ in how cp exchanges.
    """
    allowed, alone = np.ones(len(splits.tp), dtype=np.bool_), True
    known_of = {**model_figures(query.chain, query.job), **offload_figures(query.offload)}
    columns = {name: Column.same(value) for name, value in known_of.items()}
    for name, values in (("tp", splits.tp), ("cp", splits.cp), ("model_ranks", splits.width)):
        columns[name] = Column.of(ROW, values)
    columns |= {"sp": Column.of(ROW, splits.sp, NO_YES),
                "cp_comm": Column.of(ROW, splits.form, FORMS)}
    for rule in single(known.rules) if known is not None else ():
        names = figures(rule)
        if names <= {*columns}:
            allowed &= ~broken(rule, columns).reshape(-1)
        elif "cp_comm" in names:
            alone = False
    return allowed, alone


def needs_context(known: Capabilities | None, chain: Chain) -> bool:
    """Whether some rule may allow context parallelism what it forbids ranks with whole samples."""
    without: dict[str, Value] = {"cp": 1, "cp_comm": FORMS[0]}
    fixed = {"cp": 1} | ({"ep": 1} if chain.experts is None else {})

    def kept(rule: Rule) -> bool:
        """Whether ranks with whole samples keep a rule, or keep it if others do."""
        if rule.alike or any(one not in rule.when.get(name, (one,)) for name, one in fixed.items()):
            return True  # it is about stages, or about context parallelism
        names = figures(rule) & {*without, "dp_in", "mbs", "model_ranks"}
        return names.isdisjoint(rule.when) and all(
            name in without and rule.allowed is not None
            and outside(without[name], rule.allowed) is None for name in names)

    return known is not None and not all(kept(rule) for rule in known.rules.values())


def larger_groups(known: Capabilities | None) -> bool:
    """Whether a stack lets its user say how many micro-batches pass a chunk in a row."""
    return known is not None and any(
        "group" in rule.fields and rule.at_least is not None for rule in known.rules.values())


def least_group(m: int, pp: int, times: int) -> int:
    """Fewest of m micro-batches that may pass a chunk in a row, from times x pp on; 0: none.

    The last group has at least pp of them.
    """
    return next((n for n in range(times * pp, m + 1) if m % n == 0 or m % n >= pp), 0)


def _may_pass(m: int, pp: Ints, group: Ints) -> Any:
    """Whether so many of m micro-batches may pass a chunk in a row, as in ``group_problems``."""
    rest = m % group
    return ((group >= np.minimum(pp, m)) & (group <= m)
            & ((rest == 0) | (rest >= pp)))


def _distinct(mask: Bools) -> list[Bools]:
    """Each column once: few differ."""
    found: list[Bools] = []
    for column in np.ascontiguousarray(mask.T):
        if not any(np.array_equal(column, other) for other in found):
            found.append(column)
    return found
