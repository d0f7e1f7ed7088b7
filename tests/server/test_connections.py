"""Connections: headers that are too long, requests that are too slow, clients that are too many."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from serving import serving

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module)
import uvicorn  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

from nest.server import app as addresses  # noqa: E402
from nest.server import connections  # noqa: E402
from nest.server.settings import HEADER, ServerSettings  # noqa: E402

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
QUICK = 0.2
"""Seconds that a header or a body may take here."""
LARGE = 20 * 2**20
"""Bytes of an answer that no buffer of the system holds."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the bytes of the body once it is whole; /early at once, /late a while later.

    /large is answered at once, with many bytes.
    """
    size, more = 0, scope["path"] not in ("/early", "/large")
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    if scope["path"] == "/late":
        await asyncio.sleep(5 * QUICK)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b"a" * LARGE if scope["path"] == "/large" else str(size).encode()
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def listening(monkeypatch: pytest.MonkeyPatch, most: int = 10) -> AsyncIterator[Any]:
    monkeypatch.setattr(connections, "HEADER_SECONDS", QUICK if most > 5 else 20.0)
    monkeypatch.setattr(connections, "BODY_SECONDS", QUICK)
    monkeypatch.setattr(connections, "LATER", 0.0)
    config = uvicorn.Config(echo, http=connections.protocol(most), ws="none", access_log=False)
    config.load()
    state = ServerState()
    made = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: made(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield lambda: asyncio.open_connection("127.0.0.1", port)
    server.close()


def run(monkeypatch: pytest.MonkeyPatch, work: Any, most: int = 10) -> None:
    async def whole() -> None:
        async with listening(monkeypatch, most) as connect:
            await work(connect)

    asyncio.run(asyncio.wait_for(whole(), 30))


async def said(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection ends."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("part", [b"x-long: " + b"a" * 1000 + b"\r\n", b"a" * 1000])
def test_a_header_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    async def work(connect: Any) -> None:
        reader, writer = await connect()
        sent = 0
        writer.write(GET if part.startswith(b"x-") else b"GET /")
        try:
            while sent < 150 * 2**20 and not reader.at_eof():
                writer.write(part)
                sent += len(part)
                await writer.drain()
        except ConnectionError:
            pass
        # What systems buffer on both sides: 4 MiB and 32 MiB are usual limits.
        assert sent < 50 * 2**20
        found = await said(reader)
        assert not found or b" 431 " in found and b"nest.error/1" in found

    run(monkeypatch, work)


@pytest.mark.parametrize("start", [
    b"", b"GET / HT", GET, b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nabc",
    b"POST /early HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nabc"])
def test_what_is_too_slow_is_closed(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    async def work(connect: Any) -> None:
        reader, writer = await connect()
        writer.write(start)
        ended = asyncio.ensure_future(said(reader))
        begun = asyncio.get_running_loop().time()
        while not ended.done():  # a byte now and then puts nothing off
            await asyncio.sleep(0.02)
            if start and not writer.is_closing():
                writer.write(b"a")
        assert asyncio.get_running_loop().time() - begun < 3 * QUICK

    run(monkeypatch, work)


def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(connect: Any) -> None:
        reader, writer = await connect()
        for _ in range(2):  # the second one on the same connection
            writer.write(b"POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc")
            assert b"200" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    run(monkeypatch, work)


def test_idle_connections_make_room_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(connect: Any) -> None:
        busy = []
        for _ in range(2):
            reader, writer = await connect()
            writer.write(b"POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
            busy.append((reader, writer))
        await asyncio.sleep(0.05)
        idle = [await connect() for _ in range(3)]
        await asyncio.sleep(0.05)
        assert [reader.at_eof() for reader, _ in idle] == [True, True, False]
        third = await connect()
        await asyncio.sleep(0.05)
        assert idle[2][0].at_eof() and not third[0].at_eof()
        for reader, _ in busy:
            assert b"200" in await reader.readuntil(b"\r\n")

    async def full(connect: Any) -> None:
        busy = [await connect() for _ in range(3)]
        for _, writer in busy:
            writer.write(b"POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        await asyncio.sleep(0.05)
        refused = await connect()
        assert b" 503 " in await said(refused[0])

    run(monkeypatch, work, most=3)
    run(monkeypatch, full, most=3)


def test_many_requests_ahead_of_answers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet of them would take a hundred times its memory, before any token is looked at."""
    async def work(connect: Any) -> None:
        one = b"GET /early HTTP/1.1\r\nhost: a\r\n\r\n"
        reader, writer = await connect()
        writer.write(one * 10)
        for _ in range(10):
            assert b"200" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.write(one * 2000)
        found = await said(reader)
        assert b" 400 " in found and found.count(b" 200 ") < 50

    run(monkeypatch, work)


@pytest.mark.parametrize("end", [b"", b"connection: close\r\n"])
def test_answers_that_nobody_takes_hold_no_connection(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(connections, "TAKEN_SECONDS", QUICK)

    async def work(connect: Any) -> None:
        ask = b"GET /large HTTP/1.1\r\nhost: a\r\n" + end + b"\r\n"
        (reader, writer), (steady, other) = await connect(), await connect()
        writer.write(ask)
        other.write(ask)
        size = 0
        while size < LARGE:  # slow, and still within the bound
            size += len(await steady.read(2**20))
            await asyncio.sleep(QUICK / 20)
        assert len(await said(reader)) < LARGE

    run(monkeypatch, work)


def test_what_is_no_http_is_told_as_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(connect: Any) -> None:
        reader, writer = await connect()
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        found = await said(reader)
        assert json.loads(found.partition(b"\r\n\r\n")[2])["schema"] == "nest.error/1"

    run(monkeypatch, work)


def test_idle_sockets_do_not_lock_others_out_of_few_descriptors() -> None:
    """90 sockets that say nothing, of a process that may have 80 descriptors."""
    with serving("--workers", "1", "--grace", "0.1", descriptors=80) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(90)]
        for _ in range(3):
            assert "llama3-8b" in server.get("/v1/catalog")["models"]
        for one in idle:
            one.close()


def test_a_body_that_does_not_arrive_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the token comes first: without it no body is waited for."""
    monkeypatch.setattr(addresses, "BODY_SECONDS", 0.1)

    async def asked(found: Any, headers: list[tuple[bytes, bytes]]) -> tuple[int, dict]:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(3600)

        async def send(message: Any) -> None:
            sent.append(message)

        await found({"type": "http", "method": "POST", "path": "/v1/plan", "raw_path": b"/v1/plan",
                     "query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1",
                     "headers": [(b"content-type", b"application/json"), *headers]}, receive, send)
        assert dict(sent[0]["headers"])[b"connection"] == b"close"
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def both() -> None:
        found = addresses.application(ServerSettings(workers=1, token="0123456789abcdef"))
        right = (b"authorization", b"bEARER  0123456789abcdef")
        assert (await asked(found, []))[0] == 401
        status, told = await asked(found, [right])
        assert status == 408 and told["error"] == "input"
        assert (await asked(found, [right, (b"content-length", b"9" * 30)]))[0] == 413
        assert (await asked(found, [right, (b"x", b"a" * HEADER)]))[0] == 431

    asyncio.run(asyncio.wait_for(both(), 30))
