"""The cache of a planner: what searches of similar questions share, within a bound of bytes.

Every entry is what a function made of its key alone, so that an answer does not depend on what was
asked before. The key of a step of a search names the inputs that the step reads.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import RLock
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


UNBOUND = 8
"""Entries of a cache without memory: the searches of one question share those used last."""


class Identity:
    """Key of an object that is equal to itself alone: its own hash would take long."""

    def __init__(self, what: object) -> None:
        self.what = what

    def __hash__(self) -> int:
        return id(self.what)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.what is self.what


class Cache:
    """Objects by key; those used least recently go first.

    Parameters
    ----------
    most : bytes, at most, once a question is answered; 0: nothing lasts longer than a question.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._extents: dict[Hashable, Any] = {}
        """``extent`` of what grows, when it was measured."""
        self._touched: set[Hashable] = set()
        self._lock = RLock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry of a key; the first time, what ``make`` gives."""
        with self._lock:
            if key not in self._entries:
                self._entries[key] = make()
            self._entries.move_to_end(key)
            found: T = self._entries[key]
            if self.most:
                self._touched.add(key)
            elif len(self._entries) > UNBOUND:
                self._entries.popitem(last=False)
            return found

    def settle(self) -> None:
        """Drop what is beyond the bound; objects grow while they are used."""
        with self._lock:
            if not self.most:
                self._entries.clear()
            for key in self._touched:
                entry = self._entries[key]
                extent = getattr(entry, "extent", None)
                if key not in self._sizes or self._extents[key] != extent:
                    self._sizes[key], self._extents[key] = size_of((key, entry)), extent
            self._touched.clear()
            while self._entries and self.size > self.most:
                key, _ = self._entries.popitem(last=False)
                del self._sizes[key], self._extents[key]

    @property
    def size(self) -> int:
        """Bytes of all entries; what two objects share counts for both."""
        return sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._entries.values()])


def size_of(thing: object) -> int:
    """Bytes of an object and of all that it refers to, each once; not of classes and modules."""
    seen: set[int] = set()
    left, total = [thing], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, (type, Callable)):  # type: ignore[arg-type]
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, np.ndarray):
            if one.base is not None:
                left.append(one.base)
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
        else:
            left += [vars(one)] if hasattr(one, "__dict__") else []
    return total
