"""Connections of clients: bounds of time, size and number on all that comes before an answer.

The protocol of uvicorn limits neither the bytes of a header nor the time in which a request
arrives, and refuses nobody before the process has no descriptor left. :func:`protocol` adds these
bounds. None of them depends on the token, which is in the header.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nest.server.service import told
from nest.server.settings import BODY_SECONDS, HEADER, HEADER_SECONDS

PHRASES = {400: "Bad Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}
LATER = 5.0
"""Seconds after which a body is cut off whose end the application did not wait for (chosen)."""
WAITING = 16
"""Requests of one connection that wait for the answer to an earlier one (chosen)."""
TAKEN, TAKEN_SECONDS = 32 * 2**10, 30.0
"""Bytes of answers that a client takes in so many seconds, or is cut off (chosen)."""


class BoundedConnection(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """One connection."""

    most: ClassVar[int] = 1000
    """Connections at once."""

    def connection_made(self, transport: Any) -> None:
        """Start to wait for a header; where there are too many, the longest idle one goes."""
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._taken: asyncio.TimerHandle | None = None
        self._in_header, self._size, self._since = True, 0, self.loop.time()
        self._within(HEADER_SECONDS)
        open_ = [one for one in self.connections
                 if isinstance(one, BoundedConnection) and not one.transport.is_closing()]
        if len(open_) > self.most:
            idle = [one for one in open_ if one is not self and one.idle]
            if idle:
                min(idle, key=lambda one: one._since)._close()
            else:
                self._refuse(503, "busy", f"{self.most} connections are answered; ask again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._within(None)
        self._cancel_taken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came; a header that is too long is refused before its end."""
        if self._in_header:
            self._size += len(data)
            if self._timer is None:  # the next request of a connection that was kept
                self._within(HEADER_SECONDS)
        super().data_received(data)
        if self._in_header and self._size > HEADER and not self.transport.is_closing():
            self._refuse(431, "input", f"header: got more than {HEADER} bytes; allowed: {HEADER}")

    def on_headers_complete(self) -> None:
        """The header is whole: its body has some time too."""
        if len(self.pipeline) >= WAITING:  # many in one packet take much more memory than it
            raise ValueError(f"got more than {WAITING} requests before the first was answered")
        self._in_header = False
        self._within(BODY_SECONDS + LATER)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole: the answer may take its time."""
        self._in_header, self._size = True, 0
        self._within(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client takes its answers slowly, or not at all."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has taken most of them; a connection that is being closed must take all."""
        if not self.transport.is_closing():
            self._cancel_taken()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """An answer is written; the connection may end with it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        self._close()

    def _watch(self, left: int) -> None:
        """Cut off a client that takes too little; ``left`` bytes wait for it."""
        self._cancel_taken()
        self._taken = self.loop.call_later(TAKEN_SECONDS, self._look, left)

    def _look(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if before - left < TAKEN:
            self.transport.abort()
        else:
            self._watch(left)

    def _cancel_taken(self) -> None:
        if self._taken is not None:
            self._taken.cancel()
        self._taken = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, "input", f"request: {msg}")

    @property
    def idle(self) -> bool:
        """Nothing is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _within(self, seconds: float | None) -> None:
        """Close the connection in some seconds; None: not any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(
            seconds, self.transport.abort)

    def _refuse(self, status: int, error: str, message: str) -> None:
        """Answer with an error document, and close."""
        body = told(status, error, message).body
        head = (f"HTTP/1.1 {status} {PHRASES[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n")
        self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        """Close, even if the client does not take what was written."""
        self.transport.close()
        if self._taken is None:
            self._watch(self.transport.get_write_buffer_size())


def protocol(most: int) -> type[BoundedConnection]:
    """The protocol of a server.

    Parameters
    ----------
    most : connections at once; one more closes the one that has been idle for longest, or is
        refused where all are being answered.
    """
    return type("Protocol", (BoundedConnection,), {"most": most})
