"""Workers that die, are slow or end concern no other request."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from nest.errors import InputError, LimitError
from nest.server.pool import FIRST, LATER, Busy, Died, Ending, Lent, Pool


def nothing() -> bool:
    return True


def double(number: int) -> int:
    return 2 * number


def refuse() -> None:
    raise InputError("no")


def rest(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(flag: str) -> str:
    """End the process unless one did so before."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "answered"
    die()
    return ""


def note(path: str, text: str) -> None:
    with open(path, "a") as stream:
        stream.write(text)


def pooled(count: int, make: Any, waiting: int = 100) -> Any:
    """What a coroutine of a pool returns."""

    async def run() -> Any:
        pool = Pool(count, waiting, nothing)
        pool.start()
        try:
            return await asyncio.wait_for(make(pool), 60)
        finally:
            await pool.drain(0.0)

    return asyncio.run(run())


def test_all_requests_are_answered() -> None:
    async def make(pool: Pool) -> list[int]:
        return await asyncio.gather(*(pool.run(double, n) for n in range(20)))

    assert pooled(2, make) == [2 * n for n in range(20)]


def test_errors_come_back() -> None:
    async def make(pool: Pool) -> None:
        with pytest.raises(InputError, match="no"):
            await pool.run(refuse)

    pooled(1, make)


def test_a_request_is_asked_again_and_others_are_not_touched(tmp_path: Path) -> None:
    async def make(pool: Pool) -> tuple[Any, int]:
        found = await asyncio.gather(
            pool.run(die_once, str(tmp_path / "flag")), pool.run(rest, 0.5),
            *(pool.run(double, n) for n in range(5)))
        return found, pool.deaths

    assert pooled(2, make) == (["answered", 0.5, 0, 2, 4, 6, 8], 1)


def test_a_request_that_ends_workers_gets_one_error() -> None:
    async def make(pool: Pool) -> tuple[list[Any], int]:
        found = await asyncio.gather(pool.run(die), pool.run(rest, 0.3), pool.run(double, 1),
                                     return_exceptions=True)
        return found, pool.deaths

    (died, *rest_), deaths = pooled(2, make)
    assert isinstance(died, Died) and rest_ == [0.3, 2] and deaths == 2


def test_a_worker_that_ended_while_idle_is_replaced() -> None:
    async def make(pool: Pool) -> tuple[int, int]:
        await pool.run(double, 1)
        pid = pool.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.3)
        return await pool.run(double, 2), pool.deaths

    assert pooled(1, make) == (4, 0)


def test_slow_requests_are_ended() -> None:
    async def make(pool: Pool) -> int:
        with pytest.raises(LimitError, match=r"in 0\.3 s, as long as this server allows"):
            await pool.run(rest, 30.0, seconds=0.3)
        return await pool.run(double, 2)

    assert pooled(1, make) == 4


def test_what_runs_ends_and_what_waits_is_handed_back() -> None:
    async def make(pool: Pool) -> Any:
        await pool.run(double, 1)
        asked = [asyncio.ensure_future(pool.run(rest, 0.5)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await pool.drain(10.0)
        with pytest.raises(Ending):
            await pool.run(double, 1)
        return await asyncio.gather(*asked, return_exceptions=True)

    ended, *waited = pooled(1, make)
    assert ended == 0.5 and all(isinstance(one, Ending) for one in waited)


def test_what_runs_longer_than_the_grace_is_handed_back() -> None:
    async def make(pool: Pool) -> Any:
        await pool.run(double, 1)
        asked = asyncio.ensure_future(pool.run(rest, 30.0))
        await asyncio.sleep(0.1)
        await pool.drain(0.2)
        return await asyncio.gather(asked, return_exceptions=True)

    assert isinstance(pooled(1, make)[0], Ending)


def test_a_full_queue_refuses() -> None:
    async def make(pool: Pool) -> Any:
        await pool.run(double, 1)
        asked = []
        for _ in range(4):  # one runs, three wait
            asked.append(asyncio.ensure_future(pool.run(rest, 0.2)))
            await asyncio.sleep(0.02)
        with pytest.raises(Busy):
            await pool.run(double, 1)
        assert await pool.run(double, 1, order=LATER) == 2
        return await asyncio.gather(*asked, return_exceptions=True)

    assert pooled(1, make, waiting=3) == [0.2] * 4


def test_questions_go_before_those_of_sweeps(tmp_path: Path) -> None:
    path = str(tmp_path / "order")

    async def make(pool: Pool) -> None:
        await pool.run(double, 1)
        asked: list[Coroutine[Any, Any, Any]] = [
            pool.run(rest, 0.2), pool.run(note, path, "sweep ", order=LATER),
            pool.run(note, path, "question ", order=FIRST)]
        await asyncio.gather(*asked)

    pooled(1, make)
    assert Path(path).read_text() == "question sweep "


def test_threads_borrow_the_workers() -> None:
    async def make(pool: Pool) -> int:
        return await asyncio.to_thread(lambda: Lent(pool).submit(double, 21).result(30))

    assert pooled(1, make) == 42
