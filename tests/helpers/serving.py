"""A server as a process, and requests to it."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection


class Server:
    """A server, and requests to it."""

    def __init__(self, *options: str, descriptors: int | None = None, port: int = 0) -> None:
        def limit() -> None:
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.ended = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nest", "serve", "--port", str(port), *options],
            stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("nest: http://127.0.0.1:"), line
        self.port = int(line.split()[1].rpartition(":")[2])

    def end(self) -> None:
        """Send the first SIGTERM."""
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
        self.ended = True

    def ask(self, path: str, data: object) -> tuple[int, dict, str | None]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps(data), {"content-type": "application/json"})
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read()), answer.headers.get("Retry-After")
        connection.close()
        return found

    def get(self, path: str, method: str = "GET") -> dict:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path)
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found

    def drop(self, path: str) -> dict:
        return self.get(path, "DELETE")

    def events(self, path: str) -> Iterator[tuple[str, dict]]:
        """Server-sent events as they come: name and data."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path)
        name = ""
        for line in connection.getresponse():
            kind, _, text = line.decode().strip().partition(": ")
            if kind == "event":
                name = text
            elif kind == "data":
                yield name, json.loads(text)
        connection.close()

    def figure(self, name: str) -> float:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    @property
    def workers(self) -> list[int]:
        listed = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
                                capture_output=True, text=True, check=True).stdout.splitlines()
        return [int(line.split()[0]) for line in listed if "spawn_main" in line]


@contextmanager
def serving(*options: str, descriptors: int | None = None, port: int = 0) -> Iterator[Server]:
    server = Server(*options, descriptors=descriptors, port=port)
    try:
        yield server
    finally:
        server.end()
        assert server.process.wait(60) == 0
        assert server.process.stderr is not None
        assert "Traceback" not in server.process.stderr.read()
