"""Which candidates the job's stack can run: its rules for many configurations at once.

A rule is about few figures, and each figure belongs to an axis: candidates, ways of ZeRO, recompute
policies, first layers of full recompute, pipelines. So a rule is a mask over the axes of its
figures. ``nest.stacks.rules`` is the same for one configuration; a test compares them.

Shapes: C candidates, Z ways of ZeRO, R policies, F first layers, Q pipelines; in this order the
axes of a mask, 1 where a rule has no figure of an axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.costs.choices import FULL, policy
from nest.costs.distinct import distinct_rows
from nest.describe.capabilities import Capabilities, Product, Rule
from nest.describe.job import Job
from nest.describe.space import MODULES
from nest.graph import Chain
from nest.graph.schedules import is_grouped
from nest.search.candidates import FORMS, Outer, Pairs, Rows, Splits
from nest.stacks.figures import Value, model_figures, offload_figures
from nest.stacks.rules import applies, outside

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
ROW, WAY, POLICY, FIRST, PIPELINE = range(5)
AXES = 5
OUTER = ("micro_batches", "rounds", "round", "group", "missing", "outer_dp")
"""Figures of an outer choice."""
TOGETHER = ((ROW, WAY), (ROW, POLICY), (ROW, PIPELINE), (WAY, POLICY), (WAY, PIPELINE),
            (POLICY, FIRST), (POLICY, PIPELINE), (FIRST, PIPELINE))
"""Axes that a rule may be about together."""
CUTS = ("cuts", "mtp_chunks", "vision_chunks")
"""Figures that depend on where a pipeline is cut."""
YES_NO = ("no", "yes")
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


class Column(NamedTuple):
    """A figure of all entries of an axis: numbers, or the numbers of words."""

    values: Any
    """int64, one axis longer than 1."""
    words: Sequence[Value] | None = None

    @classmethod
    def of(cls, axis: int, values: Any, words: Sequence[Value] | None = None) -> Column:
        """Values along an axis."""
        shape = [1] * AXES
        shape[axis] = len(values)
        return cls(np.asarray(values, dtype=np.int64).reshape(shape), words)

    @classmethod
    def same(cls, value: Value) -> Column:
        """A figure that everything has."""
        return cls.of(ROW, [value]) if isinstance(value, int) else cls.of(ROW, [0], [value])

    def among(self, values: Any) -> Bools:
        """Where the figure is one of these values, or has one of them."""
        return self._where(values, lambda word: word in values if isinstance(word, str) else
                           any(one in values for one in word))

    def allowed(self, values: Any) -> Bools:
        """Where the figure is what a rule allows."""
        return self._where(values, lambda word: outside(word, values) is None)

    def _where(self, values: Any, holds: Any) -> Bools:
        if self.words is not None:
            each: Bools = np.array([holds(word) for word in self.words], dtype=np.bool_)
            found: Bools = each[self.values]
            return found
        found = np.zeros(self.values.shape, dtype=np.bool_)
        for first, last in values.ranges:
            found |= (first <= self.values) & (self.values <= last)
        return found


Columns = Mapping[str, Column]


class Runnable:
    """What a stack can run of the candidates of a search.

    Parameters
    ----------
    known : the rules; None: everything can be run.
    pipelines : those of the search.
    zeros, policies, longest : ZeRO stages and how each shards (1: dp_in); recompute policies as
        :func:`nest.costs.choices.policy`; most first layers of full recompute.
    offload : what is kept in the memory of the hosts.

    Notes
    -----
    What a rule about axes that are not in ``TOGETHER`` forbids for some entry of the first of them,
    it forbids for all; one about an outer choice forbids a pipeline for all else. The tables of
    the catalog have no rule that is made stricter by this.
    """

    def __init__(
        self, known: Capabilities | None, chain: Chain, job: Job, pipelines: Sequence[Pipeline],
        zeros: Sequence[tuple[int, int]], policies: Sequence[int], longest: int,
        offload: str = "none",
    ) -> None:
        self.rules = [] if known is None else [r for r in known.rules.values() if not r.alike]
        self._sizes = [0, len(zeros), len(policies), longest + 1, len(pipelines)]
        self._masks: dict[tuple[int, int], Any] = {}
        self._model = {**model_figures(chain, job), **offload_figures(offload)}
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

    def _columns(self, rows: Rows, splits: Splits, pairs: Pairs) -> Columns:
        """Figures of candidates."""
        tp, sp, cp = (column[rows.split] for column in splits[:3])
        ep, etp = pairs.ep[rows.pair], pairs.etp[rows.pair]
        etp = np.where(etp > 0, etp, tp)
        found = {"block": rows.block, "dp_in": rows.block // (tp * cp), "tp": tp, "cp": cp,
                 "ep": ep, "etp": etp, "expert_ranks": ep * etp, "model_ranks": tp * cp}
        return {
            **self._fixed, **{name: Column.of(ROW, values) for name, values in found.items()},
            "sp": Column.of(ROW, sp, YES_NO),
            "cp_comm": Column.of(ROW, splits.form[rows.split], FORMS)}

    def look_at(self, rows: Rows, splits: Splits, pairs: Pairs) -> None:
        """Compare candidates with all rules but those that depend on the outer choice."""
        columns = self._columns(rows, splits, pairs)
        self._sizes[ROW] = len(rows.block)
        for rule in self.rules:
            names = self.figures(rule)
            if names <= {*columns}:
                for where in _broken(rule, columns):
                    self._forbid(where, not names.isdisjoint(Pipeline._fields))

    def _forbid(self, where: Bools, piped: bool = False) -> None:
        """``piped``: for pipelines; what a single one forbids, others may allow."""
        none = tuple(axis for axis, size in enumerate(where.shape) if size == 0)
        where = np.asarray(where.any(axis=none, keepdims=True))
        axes = tuple(axis for axis, size in enumerate(where.shape)
                     if size > 1 or (axis == PIPELINE and piped)) or (ROW,)
        while len(axes) > 2 or (len(axes) == 2 and axes not in TOGETHER):
            where = np.asarray(where.any(axis=axes[0], keepdims=True))
            axes = axes[1:]
        pair = axes[0], axes[-1]
        self._masks[pair] = self._masks.get(pair, True) & ~where

    def keep(self, rows: Ints) -> None:
        """Leave out all other candidates."""
        self._sizes[ROW] = len(rows)
        for pair, mask in self._masks.items():
            if len(mask) > 1:
                self._masks[pair] = mask[rows]

    def allow(self, first: int, second: int, rows: slice = slice(None)) -> Bools:
        """What the rules about two axes, or one of them, allow: their entries; of some ``rows``."""
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
    def count(self) -> int:
        """Outer choices of which is known which pipelines they allow."""
        return len(self._piped)

    def copy(self) -> Runnable:
        """The same, which may leave out candidates; what is known of pipelines is shared."""
        other = copy(self)
        other._sizes, other._masks = [*self._sizes], {**self._masks}
        return other

    def piped(self, outer: Outer) -> Bools:
        """Pipelines that the rules about an outer choice allow; (Q,)."""
        key = outer.micro_batches, outer.outer_dp
        if key not in self._piped:
            self._piped[key] = self._piped_under(outer)
        return self._piped[key]

    def _piped_under(self, outer: Outer) -> Bools:
        m, pp = outer.micro_batches, self._fixed["pp"].values
        rounds, group = np.maximum(1, m // pp), np.maximum(1, self.groups(m))
        rest = m % group
        columns = {**self._fixed, "micro_batches": Column.same(m), "rounds": Column(rounds),
                   "round": Column(m // rounds), "group": Column.of(PIPELINE, group),
                   "missing": Column.of(PIPELINE, np.where(
                       rest > 0, np.maximum(0, self._pp - rest), 0)),
                   "outer_dp": Column.same(outer.outer_dp)}
        found: Any = np.ones([1] * AXES, dtype=np.bool_)
        for rule in self._outer_rules:
            for where in _broken(rule, columns):
                found = found & ~where.any(axis=(ROW, WAY, POLICY, FIRST), keepdims=True)
        return np.broadcast_to(found.reshape(-1), self._sizes[PIPELINE])

    @cached_property
    def _outer_rules(self) -> list[Rule]:
        """Rules about outer choices and pipelines."""
        named = ((rule, self.figures(rule)) for rule in self.rules)
        return [rule for rule, names in named
                if names & {*OUTER} and names <= {*self._fixed, *OUTER}]

    @staticmethod
    def figures(rule: Rule) -> set[str]:
        """Names that a rule has."""
        return {*rule.fields, *rule.when, *_factors(rule)}

    def names(self, figures: Iterable[str], but: str = "") -> bool:
        """Whether a rule that may apply to the pipelines names one of these figures.

        ``but``: rules about this schedule alone do not count.
        """
        own = {*figures}
        return any(
            own & self.figures(rule) and all(
                self._fixed[name].among(values).any()
                for name, values in rule.when.items() if name in self._fixed)
            and {*rule.when.get("schedule", ())} != {but}
            for rule in self.rules)

    def about_cuts(self, pipeline: Pipeline) -> dict[str, list[Any]]:
        """What rules allow of each of ``CUTS`` in a pipeline: one entry for each rule."""
        figures = {**self._model, **pipeline._asdict()}
        found: dict[str, list[Any]] = {name: [] for name in CUTS}
        for rule in self.rules:
            for name in rule.fields:
                if name in CUTS and applies(rule, figures):
                    found[name].append(rule.allowed)
        return found


def runnable_splits(
    known: Capabilities | None, chain: Chain, job: Job, offload: str, splits: Splits
) -> tuple[Bools, bool]:
    """Ways to split a sample that the rules about them alone allow; (S,). And whether no other
    rule tells those apart that differ in how cp exchanges.
    """
    allowed, alone = np.ones(len(splits.tp), dtype=np.bool_), True
    figures = {**model_figures(chain, job), **offload_figures(offload)}
    columns = {name: Column.same(value) for name, value in figures.items()}
    for name, values in (("tp", splits.tp), ("cp", splits.cp), ("model_ranks", splits.width)):
        columns[name] = Column.of(ROW, values)
    columns |= {"sp": Column.of(ROW, splits.sp, YES_NO),
                "cp_comm": Column.of(ROW, splits.form, FORMS)}
    for rule in known.rules.values() if known is not None else ():
        names = Runnable.figures(rule)
        if rule.alike:
            continue
        if names <= {*columns}:
            for where in _broken(rule, columns):
                allowed &= ~where.reshape(-1)
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
        names = Runnable.figures(rule) & {*without, "dp_in", "model_ranks"}
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


def _broken(rule: Rule, columns: Columns) -> Iterator[Bools]:
    """Where a rule is broken, for each of its fields."""
    where: Any = np.ones([1] * AXES, dtype=np.bool_)
    for name, values in rule.when.items():
        where = where & columns[name].among(values)
    if where.any():
        for field in rule.fields:
            yield where & ~_holds(rule, columns[field], columns)


def _holds(rule: Rule, column: Column, columns: Columns) -> Any:
    if rule.allowed is not None:
        return column.allowed(rule.allowed)
    if rule.multiple_of is not None:
        times = _times(rule.multiple_of, columns)
        return np.where(times > 0, column.values % np.maximum(times, 1), column.values) == 0
    if rule.at_least is not None:
        return column.values >= _times(rule.at_least, columns)
    return column.values == _times(rule.equal_to, columns)


def _factors(rule: Rule) -> Iterator[str]:
    for product in (rule.multiple_of, rule.at_least, rule.equal_to):
        yield from (part for part in product or () if isinstance(part, str))


def _times(product: Product, columns: Columns) -> Any:
    found: Any = 1
    for part in product:
        found = found * (part if isinstance(part, int) else columns[part].values)
    return found
