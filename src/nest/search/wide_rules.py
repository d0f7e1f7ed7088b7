"""Rules about more than two axes, or about figures that no axis has alone, for a kernel that asks.

The entries of an axis that a rule cannot tell apart are a class; a table over the classes says
where the rule is broken, so that it is exact and small whatever the rule says.

Axes and shapes are those of ``nest.search.columns``; n rules, T entries of all tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nest.costs.distinct import distinct_rows
from nest.errors import InputError
from nest.inputs.capabilities import Rule
from nest.records.problems import Wide
from nest.search.columns import (
    AXES,
    LAYOUT,
    ROW,
    Bools,
    Column,
    Columns,
    Ints,
    broken,
    factors,
    figures,
)

MOST_ENTRIES = 50_000_000
"""Of a table: more of them are refused."""
GAP = "block", "pp"
"""Figures of candidates and pipelines that the gap between replicas follows from."""


def wide(
    rules: Iterable[Rule], columns: Columns, layouts: Columns, stride: int, sizes: Sequence[int],
) -> Wide:
    """What a kernel gets of rules.

    Parameters
    ----------
    columns, layouts : figures; those of layouts apart. Without ``gap``, it is what pipelines leave
        of the ``stride`` of replicas.
    sizes : entries of all axes but layouts.

    Raises
    ------
    InputError : a rule tells more combinations apart than a table may have.
    """
    plain = [rule for rule in rules if figures(rule).isdisjoint(layouts)]
    rest = [rule for rule in rules if rule not in plain]
    every, start = {**columns, **layouts}, 0
    many = max([1, *(column.values.shape[LAYOUT] for column in layouts.values())])
    tables, numbers = list[Bools](), list[list[Ints]]()
    for rule in (*plain, *rest):
        classes, table = _table(rule, every, stride, (*sizes, many))
        steps = np.array([math.prod(table.shape[axis + 1:]) for axis in range(AXES)])
        each = [step * number for step, number in zip(steps.tolist(), classes, strict=True)]
        each[ROW] = each[ROW] + start
        tables.append(table.reshape(-1))
        numbers.append(each)
        start += table.size
    each_axis = [np.ascontiguousarray(np.stack(axis)) for axis in zip(*numbers, strict=True)]
    return Wide._make((np.concatenate(tables), *each_axis, len(plain)))


def row_keys(rule: Rule, columns: Columns) -> list[Ints]:
    """Columns by which a rule may tell candidates apart; (C,) each."""
    return _keys(rule, ROW, columns)


def _keys(rule: Rule, axis: int, columns: Columns) -> list[Ints]:
    """Columns by which a rule may tell the entries of an axis apart."""
    found = []
    names, values = figures(rule), {*factors(rule)}
    if rule.allowed is None:
        values |= {*rule.fields}
    if "gap" in names and "gap" not in columns:
        names, values = names | {*GAP}, values | {*GAP}
    for name in sorted(names & {*columns}):
        column = columns[name]
        if column.values.shape[axis] == 1:
            continue
        if name in rule.when:
            found.append(column.among(rule.when[name]))
        if name in rule.fields and rule.allowed is not None:
            found.append(column.allowed(rule.allowed))
        if name in values:
            found.append(column.values)
    return [one.reshape(-1).astype(np.int64) for one in found]


def _table(
    rule: Rule, columns: Columns, stride: int, sizes: Sequence[int]
) -> tuple[list[Ints], Any]:
    """The class of each entry of each axis, and where combinations of classes break a rule."""
    classes, few, shape = [], dict(columns), list[int]()
    for axis, size in enumerate(sizes):
        keys = _keys(rule, axis, columns)
        entries, number = distinct_rows(*keys) if keys else (
            np.zeros(1, dtype=np.int64), np.zeros(size, dtype=np.int64))
        classes.append(number)
        shape.append(len(entries))
        few = {name: column.take(axis, entries) for name, column in few.items()}
    if math.prod(shape) > MOST_ENTRIES:
        raise InputError(
            f"stack.capabilities.rules: the rule about {', '.join(sorted(figures(rule)))} tells "
            f"{math.prod(shape)} combinations apart; allowed: at most {MOST_ENTRIES}; name fewer "
            "figures in one rule, or bound the space")
    if "gap" not in few:
        few["gap"] = Column(stride - few["pp"].values * few["block"].values)
    return classes, np.broadcast_to(broken(rule, few), shape)
