"""Limits and addresses of a server."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Any

from nest.errors import InputError
from nest.search.threads import thread_count
from nest.units import shorten

TOKEN = "NEST_TOKEN"
"""Environment variable of the token."""
SHORTEST = 16
"""Characters of a token (chosen)."""
HEADER = 64 * 1024
"""Bytes of a header (chosen: eight times what browsers send)."""
HEADER_SECONDS = 10.0
"""Seconds in which a header must be whole (chosen)."""
BODY_SECONDS = 30.0
"""Seconds in which a body must be whole (chosen: 4 MiB at 140 kB/s)."""
EXTRA = "nest serve needs {}, which is not installed; pip install 'nest-planner[server]' adds it"


@dataclass(frozen=True)
class ServerSettings:
    """What a server allows; all counts and sizes are chosen."""

    host: str = "127.0.0.1"
    port: int = 8316
    token: str | None = None
    """None: none is asked for, which is allowed on loopback only."""
    workers: int = 0
    """Processes that plan, one thread each; 0: one for each processor."""
    folder: str | None = None
    """Where answers of sweeps are kept; None: a temporary folder."""
    store: str | None = None
    """File for answers to questions; None: they are kept in memory alone."""
    body: int = 4 * 2**20
    """Bytes of a request."""
    devices: int = 131_072
    layers: int = 1024
    seconds: float = 60.0
    """Longest search; a question may ask for less."""
    waiting: int = 1000
    """Questions that may wait for a worker."""
    cache: int = 256 * 2**20
    """Bytes of answers that are kept."""
    connections: int = 0
    """Connections at once; 0: half of the descriptors that the process may have, at most 1,000."""
    sweeps: int = 2
    """Sweeps that run at once."""
    grace: float = 10.0
    """Seconds that running questions have when the server ends."""

    def __post_init__(self) -> None:
        least = {"port": 0, "workers": 0, "body": 1024, "devices": 1, "layers": 1, "waiting": 1,
                 "cache": 0, "sweeps": 0, "connections": 0}
        most = {"port": 65535, "workers": 1024, "body": 16 * 2**20, "connections": 10**5}
        for name, low in least.items():
            given, high = getattr(self, name), most.get(name, 10**12)
            if not low <= given <= high:
                raise InputError(f"{name}: got {shorten(given)}; allowed: {low} to {high}")
        for name in ("seconds", "grace"):
            if not 0 < getattr(self, name) < 1e6:
                raise InputError(f"{name}: got {getattr(self, name)}; allowed: seconds, above 0")
        if self.token is not None and (len(self.token) < SHORTEST or not self.token.isascii()
                                       or not self.token.isprintable() or " " in self.token):
            raise InputError(f"token: got {len(self.token)} characters; allowed: {SHORTEST} or "
                             "more printable ASCII characters without spaces")
        if self.token is None and not self.local:
            raise InputError(f"host: got {shorten(self.host)}, which others can reach, without a "
                             f"token; allowed: 127.0.0.1, or a token in {TOKEN} or --token-file")

    @property
    def local(self) -> bool:
        """Only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def open(self) -> int:
        """Connections at once."""
        if self.connections:
            return self.connections
        try:
            import resource
        except ImportError:  # no POSIX system
            return 1000
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1000 if allowed == resource.RLIM_INFINITY else max(4, min(1000, allowed // 2))

    @property
    def processes(self) -> int:
        """Workers that plan."""
        return self.workers or thread_count()


def token_of(file: str | None) -> str | None:
    """The token of a file or of the environment; None: there is none.

    Raises
    ------
    InputError : the file cannot be read.
    """
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read(10_000).strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise InputError(f"--token-file: {file[:200]} cannot be read ({reason})") from None


def need(module: str) -> Any:
    """A module of the extra.

    Raises
    ------
    InputError : it is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise InputError(EXTRA.format(module.partition(".")[0])) from None
