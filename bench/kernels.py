"""Print how fast the kernels are against what the processor can do, and where a search's time goes.

    python bench/kernels.py

One thread, kernels loaded; processor seconds, so that other work on the machine counts little.
Operations and bytes of a transition are counted: the source of ``solve`` runs as plain Python on
numbers and arrays that count. Compiled code keeps some of the loads and stores in registers.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from cases import Case
from numba import njit
from numba.core import config

import nest
from nest.evaluation.evaluate import chain_of
from nest.records.problems import Problem
from nest.search import branch_and_bound, compiled
from nest.search.alike import Alike
from nest.search.query import Control, Query
from nest.search.solution import SearchResult
from nest.search.tensors import Formulation

CASES = [Case(model, "h100-spine-leaf", 1024)
         for model in ("llama3-70b", "deepseek-v3", "llama3.1-405b")]
COUNTED = 50_000
"""Transitions of the largest problem that is counted; plain Python is some 1,000 times slower."""

# ------------------------------------------------------------ the processor


@njit
def _in_turn(n: int, a: float, x: float) -> float:
    for _ in range(n):
        a += x
    return a


@njit
def _adds(n: int, values: Any) -> float:
    a, b, c, d, e, f, g, h = (values[0], values[1], values[2], values[3], values[4], values[5],
                              values[6], values[7])
    x = values[8]
    for _ in range(n // 8):
        a += x
        b += x
        c += x
        d += x
        e += x
        f += x
        g += x
        h += x
    return float(a + b + c + d + e + f + g + h)


@njit
def _maxima(n: int, values: Any) -> float:
    a = b = c = d = e = f = g = h = -1.0
    for i in range(n // 8):
        at = 8 * (i & 63)
        a = max(a, values[at])
        b = max(b, values[at + 1])
        c = max(c, values[at + 2])
        d = max(d, values[at + 3])
        e = max(e, values[at + 4])
        f = max(f, values[at + 5])
        g = max(g, values[at + 6])
        h = max(h, values[at + 7])
    return a + b + c + d + e + f + g + h


@njit
def _divisions(n: int, x: float) -> float:
    a, b, c, d = 1.0, 2.0, 3.0, 4.0
    for _ in range(n // 4):
        a, b, c, d = x / a, x / b, x / c, x / d
    return a + b + c + d


@njit
def _loads(n: int, values: Any) -> int:
    total = 0
    for turn in range(n // len(values)):
        values[turn % len(values)] += 1  # no two turns add up the same
        for i in range(len(values)):  # by index: compiled to vectors
            total += values[i]
    return total


def processor() -> dict[str, float]:
    """What one thread does in a second: floating-point operations by kind, bytes loaded."""
    values = np.random.default_rng(0).random(512)
    tests: dict[str, tuple[Any, ...]] = {
        "additions": (_adds, values), "maxima": (_maxima, values), "divisions": (_divisions, 3.3),
        "additions in turn": (_in_turn, 0.0, 1.1),
    }
    tests |= {f"{cache} bytes": (_loads, np.ones(size // 8, dtype=np.int64))
              for cache, size in (("L1", 1 << 15), ("L2", 1 << 19))}
    rates = {}
    for name, (function, *arguments) in tests.items():
        function(0, *arguments)
        seconds = []
        for _ in range(5):
            started = process_time()
            function(10**8, *arguments)
            seconds.append(process_time() - started)
        rates[name] = (8 if "bytes" in name else 1) * 1e8 / min(seconds)
    return rates


# ------------------------------------------------------------ a search and its parts


class Profile(NamedTuple):
    """A search on one thread."""

    found: SearchResult
    seconds: float
    parts: dict[str, float]
    """Seconds of each part."""
    pairs: float
    """Configurations times signatures that ``select`` was asked about."""
    problem: tuple[Any, ...]
    """The largest arguments of ``solve`` with at most COUNTED transitions."""


@contextmanager
def _clock(parts: dict[str, float], name: str) -> Iterator[None]:
    started = process_time()
    yield
    parts[name] += process_time() - started


def profile(case: Case) -> Profile:
    """Search a case with a clock around each part."""
    parts: dict[str, float] = defaultdict(float)
    pairs, largest, problem = 0.0, 0, ()
    kernels, _ = compiled.load()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with _clock(parts, name):
                return function(*arguments)
        return run

    clocks = [(cls, name, timed("arrays of an outer choice", getattr(cls, name)))
              for cls, names in ((Formulation, ("tables", "spans", "problem")),
                                 (Alike, ("arrays", "rings"))) for name in names]
    clocks.append((branch_and_bound, "formulate",
                   timed("prices of all layers", branch_and_bound.formulate)))
    clocks.append((compiled, "load", lambda *_: (clocked, 0.0)))

    def select(t: Any, *rest: Any) -> Any:
        nonlocal pairs
        pairs += len(t.price) * len(t.shard) * t.back.shape[1] * len(t.part)
        with _clock(parts, "select"):
            return kernels.select(t, *rest)

    def solve(*arguments: Any) -> Any:
        nonlocal largest, problem
        with _clock(parts, "solve"):
            result = kernels.solve(*arguments)
        if largest < result[3][2] <= COUNTED:
            largest, problem = result[3][2], arguments
        return result

    model, cluster, job = case.question()
    chain = chain_of(model)
    clocked = kernels._replace(
        select=select, solve=solve, useful=timed("useful", kernels.useful),
        alike=timed("alike", kernels.alike))
    with ExitStack() as stack:
        for where, name, clock in clocks:
            stack.enter_context(patch.object(where, name, clock))
        started = process_time()
        found = branch_and_bound.search_one(
            Query(chain, cluster, job, beyond_stack=True), Control(1))
        seconds = process_time() - started
    parts["the rest"] = seconds - sum(parts.values())
    return Profile(found, seconds, dict(parts), pairs, problem)


# ------------------------------------------------------------ counting


class Tally:
    """Operations done, for the bounds of cells and for all else."""

    def __init__(self) -> None:
        self.bounds, self.labels = Counter[str](), Counter[str]()
        self.now = self.labels

    def add(self, name: str, number: int = 1) -> None:
        """Count."""
        self.now[name] += number


TALLY = Tally()
MEMORY = ("loads", "stores")
COUNTING = ("bounds", "labels", "pipeline")
"""Modules of kernels that make arrays, or that `solve` calls."""


class Real(float):
    """A number that counts what is done with it."""

    __hash__ = float.__hash__


class Row:
    """A record that counts loads and stores of its fields; finding it is neither."""

    def __init__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            TALLY.add("loads")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        TALLY.add("stores")
        super().__setattr__(name, value)


class Memory(np.ndarray[Any, Any]):
    """An array of objects that counts loads and stores of its elements."""

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, str):
            return _memory([getattr(row, at) for row in self.ravel()])
        found = super().__getitem__(at)
        if not isinstance(found, (np.ndarray, Row)):
            TALLY.add("loads")
        return found

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            TALLY.add("loads", value.size)
            TALLY.add("stores", value.size)
        else:
            TALLY.add("stores")
        numbers = isinstance(at, Memory) and at.dtype == object
        super().__setitem__(np.asarray(at, np.int64) if numbers else at, value)


def _counting(name: str, operation: Callable[[Any, Any], Any], swapped: bool) -> Any:
    def run(self: Real, other: Any) -> Any:
        TALLY.add(name)
        left, right = (other, self) if swapped else (self, other)
        result = operation(float(left), float(right))
        return Real(result) if isinstance(result, float) else result
    return run


for _word, _names in {"additions": ("add", "sub"), "multiplications": ("mul",),
                      "divisions": ("truediv",), "comparisons": ("lt", "le", "gt", "ge", "eq"),
                      }.items():
    for _name in _names:
        _operation = getattr(operator, _name)
        setattr(Real, f"__{_name}__", _counting(_word, _operation, False))
        if _word != "comparisons":
            setattr(Real, f"__r{_name}__", _counting(_word, _operation, True))


def _counted(x: Any) -> Any:
    return Real(x) if isinstance(x, float) else x


def _memory(array: Any) -> Memory:
    """Arrays and numbers as ones that count; whole numbers and flags count as memory only."""
    plain = np.asarray(array)
    items = plain.ravel().tolist()
    made = np.empty(plain.size, dtype=object)
    if plain.dtype.names:
        items = [Row({name: _counted(x) for name, x in zip(plain.dtype.names, row, strict=True)})
                 for row in items]
    made[:] = [_counted(x) for x in items]
    return made.reshape(plain.shape).view(Memory)


class _Numpy:
    """NumPy whose new arrays count."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("empty", "zeros", "full"):
            return getattr(np, name)

        def make(shape: Any, *rest: Any) -> Memory:
            if name == "full":
                return _memory(np.full(shape, *rest))
            return _memory(np.zeros(shape, *(x for x in rest if x is not np.dtype(object))))
        return make


@contextmanager
def _uncompiled() -> Iterator[Any]:
    """The package of kernels as plain Python whose arrays count; the compiled one is put aside."""
    apart = [name for name in sys.modules if name.startswith("nest._kernels")]
    with patch.dict(sys.modules), patch.object(nest, "_kernels"), patch.object(
            config, "DISABLE_JIT", True):
        for name in apart:
            del sys.modules[name]
        for name in COUNTING:
            importlib.import_module(f"nest._kernels.{name}").np = _Numpy()  # type: ignore[attr-defined]
        yield sys.modules["nest._kernels"]


def count(problem: tuple[Any, ...]) -> int:
    """Solve a problem with TALLY counting; its transitions."""
    TALLY.__init__()  # type: ignore[misc]
    arrays, limit, *rest = problem
    counting = (_memory(x) if isinstance(x, np.ndarray) else x for x in arrays)
    with _uncompiled() as kernels:
        bounds = kernels.bounds.reach

        def reach(*arguments: Any) -> Any:
            TALLY.now = TALLY.bounds
            try:
                return bounds(*arguments)
            finally:
                TALLY.now = TALLY.labels

        kernels.pipeline.reach = reach
        result = kernels.pipeline.solve(Problem(*counting), Real(limit), *rest)
    return int(result[3][2])


# ------------------------------------------------------------ the text


def print_transition(problem: tuple[Any, ...], rates: dict[str, float]) -> None:
    """What one problem does and takes, per transition, against the processor."""
    solve = compiled.load()[0].solve
    seconds = []
    for _ in range(5):
        started = process_time()
        solve(*problem)
        seconds.append(process_time() - started)
    transitions = count(problem)
    each = min(seconds) / transitions
    done = TALLY.bounds + TALLY.labels
    print(f"  one problem of {transitions:,} transitions, {1e9 * each:.0f} ns each; a transition:")
    print("    " + ", ".join(f"{n / transitions:.1f} {name}" for name, n in done.items()))
    moved = 8 * sum(done[name] for name in MEMORY)
    floats = done.total() - moved // 8
    share = 100 * TALLY.bounds.total() / done.total()
    print(f"    {share:.0f} % of this for the bounds of cells")
    for what, unit, number, most in (("operations", "billion a second", floats, "additions"),
                                     ("bytes", "GB/s", moved, "L1 bytes")):
        rate = number / min(seconds)
        print(f"    {number / transitions:,.0f} {what}: {rate / 1e9:.2f} {unit}, "
              f"{100 * rate / rates[most]:.0f} % of the processor's {most}")


def main() -> None:
    rates = processor()
    print("processor, one thread, a second:")
    for name, rate in rates.items():
        print(f"  {name:20} {rate / 1e9:8.2f} billion")
    for case in CASES:
        profile(case)
        run = profile(case)
        print(f"\n{case}: {run.seconds:.2f} s on one thread")
        for name, seconds in sorted(run.parts.items(), key=lambda part: -part[1]):
            print(f"  {name:26} {seconds:6.2f} s {100 * seconds / run.seconds:5.1f} %")
        transitions = run.found.effort.transitions
        each = run.parts["solve"] / transitions
        print(f"  solve: {transitions:,} transitions, {1e-6 / each:.1f} million a second, "
              f"{1e9 * each:.0f} ns each")
        print(f"  select: {run.pairs:,.0f} configurations x signatures, "
              f"{run.pairs / run.parts['select'] / 1e6:,.0f} million a second")
        if run.problem:
            print_transition(run.problem, rates)


if __name__ == "__main__":
    main()
