"""A server from its start to its end."""

from __future__ import annotations

import asyncio
import os
import socket
from importlib import import_module
from typing import Any

from nest.errors import InputError
from nest.server.settings import ServerSettings, need
from nest.units import shorten


def serve(settings: ServerSettings, say: Any = print) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then end what runs, and hand back what waits.

    Parameters
    ----------
    settings : addresses and limits.
    say : told the address.

    Raises
    ------
    InputError : the extra is not installed, or the address is in use or of another machine.
    """
    for module in ("fastapi", "prometheus_client"):
        need(module)
    uvicorn = need("uvicorn")
    from nest.server.app import application
    from nest.server.connections import protocol

    listens = _listening(settings)
    app = application(settings)
    service = app.state.service
    config = uvicorn.Config(app, settings.host, settings.port, log_level="warning",
                            access_log=False, server_header=False, lifespan="on", ws="none",
                            http=protocol(settings.open), proxy_headers=False,
                            timeout_graceful_shutdown=int(settings.grace) + 5)
    server = uvicorn.Server(config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(server, service, settings, listens, say))


def _listening(settings: ServerSettings) -> socket.socket:
    """A socket at the address, before anything is started.

    Raises
    ------
    InputError : there can be none.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(f"host, port: got {shorten(settings.host)} and {settings.port}, where "
                         f"nothing can listen ({error.strerror or error}); allowed: an address of "
                         "this machine and a free port") from None


def _loop_factory() -> Any:
    """The event loop of uvloop, where it is installed; None: that of Python."""
    try:
        return import_module("uvloop").new_event_loop
    except ImportError:  # not on Windows
        return None


async def _run(
    server: Any, service: Any, settings: ServerSettings, listens: socket.socket, say: Any
) -> None:
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Task[None]] = []

    def end(number: int, frame: Any) -> None:
        """The first signal ends the service, then the server; the second ends at once."""
        if ending:  # workers end with their parent
            os._exit(128 + number)
        loop.call_soon_threadsafe(lambda: ending.append(asyncio.ensure_future(_end())))

    async def _end() -> None:
        await service.end()
        server.should_exit = True

    server.handle_exit = end
    started = asyncio.create_task(server.serve([listens]))
    while not server.started and not started.done():
        await asyncio.sleep(0.02)
    if server.started:
        port = listens.getsockname()[1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        workers = f"{settings.processes} worker{'s' if settings.processes > 1 else ''}"
        say(f"nest: http://{shown}:{port} answers; {workers}; "
            f"{'a token is asked for' if settings.token else 'no token is asked for'}")
    await started
