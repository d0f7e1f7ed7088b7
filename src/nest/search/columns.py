"""Figures of many configurations at once, along the axes that they belong to, and rules about them.

Shapes: C candidates, Z ways of ZeRO, R recompute policies, F first layers, Q pipelines, W layouts;
in this order the axes of a mask, 1 where a rule has no figure of an axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nest.inputs.capabilities import FigureProduct, Rule
from nest.stacks.figures import Value
from nest.stacks.rules import outside

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
ROW, WAY, POLICY, FIRST, PIPELINE, LAYOUT = range(6)
AXES = 6
MOST_PRODUCT = 2**62
"""No figure is as large; larger products count as this."""


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

    def take(self, axis: int, entries: Ints) -> Column:
        """Some entries of an axis; all of a figure that is the same for all."""
        if self.values.shape[axis] == 1:
            return self
        return self._replace(values=self.values.take(entries, axis=axis))

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


def single(rules: Mapping[str, Rule]) -> list[Rule]:
    """The rules about stages by themselves, one for each of their fields."""
    return [rule if len(rule.fields) == 1 else rule.unchecked(fields=(field,))
            for rule in rules.values() if not rule.alike for field in rule.fields]


def figures(rule: Rule) -> set[str]:
    """Names that a rule has."""
    return {*rule.fields, *rule.when, *factors(rule)}


def factors(rule: Rule) -> Iterator[str]:
    """Figures of a rule's product."""
    for product in (rule.multiple_of, rule.at_least, rule.equal_to):
        yield from (part for part in product or () if isinstance(part, str))


def broken(rule: Rule, columns: Columns) -> Any:
    """Where some field of a rule breaks it."""
    where: Any = np.ones([1] * AXES, dtype=np.bool_)
    for name, values in rule.when.items():
        where = where & columns[name].among(values)
    if not where.any():
        return where
    found: Any = np.zeros([1] * AXES, dtype=np.bool_)
    for field in rule.fields:
        found = found | (where & ~_holds(rule, columns[field], columns))
    return found


def _holds(rule: Rule, column: Column, columns: Columns) -> Any:
    if rule.allowed is not None:
        return column.allowed(rule.allowed)
    if rule.multiple_of is not None:
        times = _times(rule.multiple_of, columns)
        return np.where(times > 0, column.values % np.maximum(times, 1), column.values) == 0
    if rule.at_least is not None:
        return column.values >= _times(rule.at_least, columns)
    return column.values == _times(rule.equal_to, columns)


def _times(product: FigureProduct, columns: Columns) -> Any:
    found: Any = np.ones([1] * AXES, dtype=np.int64)
    for part in product:
        factor = np.int64(part) if isinstance(part, int) else columns[part].values
        found = np.where(found.astype(np.float64) * factor < MOST_PRODUCT, found * factor,
                         MOST_PRODUCT)
    return found
