"""The client's side of a reply: head and body written as they are given, nothing added, nothing merged.

The head waits for the first piece of the body where that is there already, so that both leave in one write; whoever
waits for the body sends the head first (`flush`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence

from proxy.gateway.clients import Request, give_up_later
from proxy.gateway.errors import Answer
from proxy.gateway.limits import Patience, TooSlow

_BODILESS = frozenset({204, 304})
_ONE_WRITE = 1 << 15
_LAST_CHUNK = b"0\r\n\r\n"


class Outgoing:
    """One reply to one request."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_framed",
        "_head",
        "_keep_alive",
        "_patience",
        "_request",
        "_transport",
        "sent",
        "started",
        "status",
    )

    def __init__(self, request: Request, patience: Patience) -> None:
        """`patience` is with a client that does not take its reply."""
        self._request = request
        self._connection = request.connection
        self._transport = request.connection.transport
        self._patience = patience
        self._keep_alive = request.keep_alive
        self._framed = True
        self._chunked = False
        self._head = b""
        self.status = 0
        self.started = False
        self.sent = 0

    def hang_up(self) -> None:
        """Close the connection after this reply. Only before `start`."""
        self._keep_alive = False

    def has_body(self, status: int) -> bool:
        """Whether a reply of this status to this request has a body at all."""
        return status not in _BODILESS and self._request.method != "HEAD"

    def start(self, status: int, reason: bytes, headers: Sequence[tuple[bytes, bytes]], length: int | None) -> None:
        """Begin with the head. A `length` of None frames the body by chunks, or for HTTP/1.0 by the connection's end.

        Raises `ConnectionError` if the client has gone.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")
        newer = self._request.minor >= 1
        lines = [b"HTTP/1.%d %d %b" % (self._request.minor, status, reason)]
        lines += [b"%b: %b" % line for line in headers]
        if length is not None:
            if not any(len(name) == 14 and name.lower() == b"content-length" for name, _ in headers):
                lines.append(b"Content-Length: %d" % length)
        elif self.has_body(status):
            if newer:
                lines.append(b"Transfer-Encoding: chunked")
                self._chunked = True
            else:
                self._keep_alive = self._framed = False
        if not self._keep_alive:
            lines.append(b"Connection: close")
        elif not newer:
            lines.append(b"Connection: keep-alive")
        lines.append(b"\r\n")
        self._head = b"\r\n".join(lines)
        self.status = status
        self.started = True

    def flush(self) -> None:
        """Send the head, if it waits still. Raises `ConnectionError`."""
        if self._head:
            self._put(b"")

    def write(self, chunk: bytes) -> None:
        """Hand a piece of the body to the socket, without waiting for room. Raises `ConnectionError`."""
        size = len(chunk)
        if not size:
            return
        if not self._chunked:
            self._put(chunk)
        elif size <= _ONE_WRITE:
            self._put(b"%x\r\n%b\r\n" % (size, chunk))
        else:
            self._put(b"%x\r\n" % size)
            self._put(chunk)
            self._put(b"\r\n")
        self.sent += size
        self._patience.moved(size)

    def _put(self, data: bytes) -> None:
        """Write to the socket, the head first."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _ONE_WRITE:
                data = head + data
            else:
                self._transport.write(head)
        self._transport.write(data)

    @property
    def full(self) -> bool:
        """Whether a slow client must take something before more is written."""
        return self._connection.writing_paused

    async def drain(self) -> None:
        """Wait until a slow client has taken enough for more to be written. Raises `ConnectionError`, and `TooSlow`
        when it did not in time: then its connection is gone."""
        if not self._connection.writing_paused:
            return
        loop = asyncio.get_running_loop()
        since = loop.time()
        try:
            async with asyncio.timeout(self._patience.left()):
                await self._connection.drained()
        except TimeoutError:
            self._transport.abort()
            raise TooSlow from None
        finally:
            self._patience.waited(loop.time() - since)

    async def end(self) -> bool:
        """The body is complete. Returns whether the connection may serve another request. Raises what `drain` does."""
        if self._chunked:
            self._put(_LAST_CHUNK)
        else:
            self.flush()
        if self._connection.writing_paused:
            await self.drain()
        return self._keep_alive

    def break_off(self) -> bool:
        """The body is not complete and never will be: end the connection so that the client notices. False: it cannot
        serve another request."""
        if not self._transport.is_closing():
            self.flush()
            if self._framed:
                self._transport.close()  # what was relayed still arrives, and then the missing end shows
                give_up_later(self._transport, self._patience.left())
            else:
                _reset(self._transport)  # without framing only a reset tells a break from an end
        return False

    async def answer(self, answer: Answer, headers: Sequence[tuple[bytes, bytes]] = ()) -> bool:
        """Send a whole reply of our own. Returns and raises what `end` does."""
        self.start(answer.status, _REASONS.get(answer.status, b""), [*answer.headers, *headers], len(answer.body))
        if self.has_body(answer.status):
            self.write(answer.body)
        return await self.end()


def _reset(transport: asyncio.Transport) -> None:
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None:
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    401: b"Unauthorized",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    422: b"Unprocessable Content",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
}
