"""Several questions as one task: results, errors and deaths are those of each alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from typing import Any

import pytest

from nest.studies import engines as bundles
from nest.studies.engines import MOST, Bundles


class Counted(ThreadPoolExecutor):
    """Notes the sizes of its tasks; one that has a ``deadly`` call dies."""

    def __init__(self) -> None:
        super().__init__(2)
        self.sizes: list[int] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        calls, = args
        self.sizes.append(len(calls))
        if any(given == ("deadly",) for _, given in calls):
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("killed"))
            return future
        return super().submit(fn, calls)


def twice(number: int) -> int:
    if number == 13:
        raise ValueError("no luck")
    return 2 * number


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> Bundles:
    """Bundles of ten calls."""
    monkeypatch.setattr(Bundles, "size", property(lambda self: 10))
    return Bundles(Counted(), lambda: 2)


def test_each_call_has_its_result_or_its_error(many: Bundles) -> None:
    found = [many.submit(twice, number) for number in range(25)]
    assert [one.result(10) for one in found if one is not found[13]] == [
        2 * number for number in range(25) if number != 13]
    assert str(found[13].exception(10)) == "no luck"
    assert many._inner.sizes == [10, 10, 5] and many.width == 20


def test_a_bundle_that_dies_is_taken_apart(many: Bundles) -> None:
    found = [many.submit(twice, given) for given in (1, 2, "deadly", 4, *range(6))]
    assert [one.result(10) for one in found[:2] + found[3:]] == [2, 4, 8, 0, 2, 4, 6, 8, 10]
    assert isinstance(found[2].exception(10), BrokenExecutor)
    assert many._inner.sizes == [10, *[1] * 10]


def test_bundles_grow_with_the_workers_and_shrink_with_the_calls() -> None:
    workers = [4]
    found = Bundles(Counted(), lambda: workers[0])
    assert found.size == 1
    found._seconds = 0.15
    sizes = []
    for workers[0] in (4, 100, 1000, 100_000):
        sizes.append(found.size)
    assert sizes == [1, 7, 67, MOST] and found.width == 100_000 * MOST
    workers[0], found._seconds = 1000, 20.0
    assert found.size == 1 and found.width == 1000


def test_seconds_are_those_of_calls() -> None:
    found = Bundles(Counted(), lambda: 1)
    for _ in range(3):
        found.submit(time.sleep, 0.02).result(10)
    assert found._seconds is not None and 0.02 <= found._seconds < 1.0


def test_what_is_cancelled_wakes_those_who_wait(many: Bundles) -> None:
    held = threading.Event()
    asked = [many.submit(held.wait, 10) for _ in range(10)]  # sent
    more = many.submit(twice, 3)  # waits to be
    for one in (asked[3], more):
        assert one.cancel()
    assert wait([asked[3], more], 10).done == {asked[3], more}
    held.set()
    assert all(one.result(10) for one in asked if one is not asked[3])
    assert many._inner.sizes == [10]


def test_a_task_that_is_cancelled_cancels_its_calls(many: Bundles) -> None:
    task: Future[Any] = Future()
    many._inner = type("Lost", (Executor,), {"submit": lambda *_: task})()
    asked = [many.submit(twice, number) for number in range(10)]
    task.cancel()
    assert wait(asked, 10).not_done == set() and all(one.cancelled() for one in asked)


def test_a_few_calls_are_sent_after_a_moment(
    many: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "WAIT", 0.01)
    assert many.submit(twice, 4).result(10) == 8


class Unfetched:
    """A client of Dask, and a task of it: done, with a result that nobody has any more."""

    status = "running"

    def submit(self, *call: Any, **options: Any) -> Unfetched:
        return self

    def add_done_callback(self, take: Callable[[Any], None]) -> None:
        threading.Thread(target=take, args=(self,), daemon=True).start()

    def result(self, timeout: float | None = None) -> Any:
        time.sleep(1e3 if timeout is None else timeout)
        raise TimeoutError


def test_a_result_that_is_lost_with_its_scheduler_is_not_waited_for(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "FETCH", 0.01)
    client = Unfetched()
    found = bundles.DaskExecutor(client).submit(twice, 1)
    assert not wait([found], 0.1).done  # a busy network
    client.status = "connecting"
    with pytest.raises(CancelledError):
        found.result(10)
