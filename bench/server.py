"""A server under load: python bench/server.py [--clients N] [--seconds S].

Prints the response times of clients that ask questions with kept answers, each as soon as it has
its answer and then with pauses; and, with a worker killed meanwhile, how many questions that need a
search are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time

MODELS = ("bert-large", "llama2-7b", "llama3-8b", "llama3-70b")
PAUSE = 0.1
"""Seconds between questions of a client, in the second measurement."""


def question(number: int, batch: int = 512) -> bytes:
    """One of a few questions whose answers are kept."""
    return json.dumps({
        "model": MODELS[number % len(MODELS)], "cluster": {"base": "dgx-h100", "devices": 256},
        "job": {"global_batch": batch, "seq_len": 512}}).encode()


class Client:
    """Asks over one connection; as little work as possible, so that the server is measured."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition("/")[2].rpartition(":")
        self._port = int(port)

    async def __aenter__(self) -> Client:
        self._in, self._out = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._out.close()

    async def plan(self, body: bytes) -> int:
        """Ask a question; the status of the answer."""
        self._out.write(b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\n"
                        b"Content-Type: application/json\r\nContent-Length: "
                        + str(len(body)).encode() + b"\r\n\r\n" + body)
        head = await self._in.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        await self._in.readexactly(size)
        return int(head.split()[1])


async def cached(address: str, clients: int, seconds: float, pause: float) -> list[float]:
    """Response times of clients that ask the same few questions."""
    times: list[float] = []
    until = time.monotonic() + seconds

    async def ask(number: int) -> None:
        async with Client(address) as client:
            await asyncio.sleep(pause * random.random())
            while time.monotonic() < until:
                started = time.perf_counter()
                status = await client.plan(question(number))
                times.append(time.perf_counter() - started)
                assert status == 200
                await asyncio.sleep(pause * 2 * random.random())

    await asyncio.gather(*(ask(number) for number in range(clients)))
    return sorted(times)


async def killed(address: str, clients: int, server: int) -> int:
    """Questions without an answer where a worker is killed meanwhile."""
    lost = 0

    async def ask(number: int) -> None:
        nonlocal lost
        async with Client(address) as client:
            lost += await client.plan(question(number, 1024 + 8 * number)) != 200

    async def kill() -> None:
        await asyncio.sleep(1.0)
        children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(server)],
                                  capture_output=True, text=True, check=True).stdout
        pids = [int(line.split()[0]) for line in children.splitlines() if "spawn_main" in line]
        os.kill(pids[0], signal.SIGKILL)

    await asyncio.gather(kill(), *(ask(number) for number in range(clients)))
    return lost


def main() -> None:
    """Start a server, and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-m", "nest", "serve", "--port", "0"],
                              stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    address = server.stderr.readline().split()[1]
    try:
        asyncio.run(cached(address, len(MODELS), 1.0, 0.0))  # the answers are kept from here on
        for pause, name in ((0.0, "without pauses"), (PAUSE, "with pauses")):
            times = asyncio.run(cached(address, given.clients, given.seconds, pause))
            p50, p99 = (1e3 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
            print(f"{given.clients} clients {name}: {len(times) / given.seconds:.0f} answers/s, "
                  f"median {p50:.1f} ms, p99 {p99:.1f} ms, longest {1e3 * times[-1]:.1f} ms")
        lost = asyncio.run(killed(address, given.clients, server.pid))
        print(f"{given.clients} questions, a worker killed: {lost} lost")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
