"""The client's side of a reply: head and body written as they are given, nothing added, nothing merged, nothing held.

aiohttp's response classes add Date, Server and Content-Type of their own and re-encode header values, so the head is
written by hand; the framing of the body and its backpressure are aiohttp's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine, Sequence
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11, StreamWriter

from proxy.gateway.errors import Answer
from proxy.gateway.limits import Patience, TooSlow

_BODILESS = frozenset({204, 304})


class Sent(web.StreamResponse):
    """What the server is given back for a reply that is already on its way."""

    def __init__(self, status: int, keep_alive: bool) -> None:
        super().__init__(status=status, reason="")
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> Any:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


class Outgoing:
    """One reply to one request."""

    def __init__(self, request: web.BaseRequest, patience: Patience) -> None:
        """`patience` is with a client that does not take its reply."""
        self._request = request
        self._patience = patience
        self._writer: StreamWriter = request.writer  # type: ignore[assignment]
        self._keep_alive = bool(request.keep_alive)
        self._framed = True
        self.status = 0
        self.started = False
        self.sent = 0

    def hang_up(self) -> None:
        """Close the connection after this reply. Only before `start`."""
        self._keep_alive = False

    def has_body(self, status: int) -> bool:
        """Whether a reply of this status to this request has a body at all."""
        return self._request.method != "HEAD" and status not in _BODILESS

    def start(self, status: int, reason: bytes, headers: Sequence[tuple[bytes, bytes]], length: int | None) -> None:
        """Send the head. A `length` of None frames the body by chunks, or for HTTP/1.0 by the connection's end.

        Raises `ConnectionError` if the client has gone.
        """
        version = self._request.version
        lines = [b"HTTP/%d.%d %d %b" % (*version, status, reason)]
        lines += [b"%b: %b" % line for line in headers]
        if length is not None:
            if not any(name.lower() == b"content-length" for name, _ in headers):
                lines.append(b"Content-Length: %d" % length)
        elif self.has_body(status):
            if version >= HttpVersion11:
                lines.append(b"Transfer-Encoding: chunked")
                self._writer.enable_chunking()
            else:
                self._keep_alive = self._framed = False
        if not self._keep_alive:
            lines.append(b"Connection: close")
        elif version < HttpVersion11:
            lines.append(b"Connection: keep-alive")
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        head = b"\r\n".join(lines) + b"\r\n\r\n"
        transport.write(head)
        self._writer.output_size += len(head)
        self.status = status
        self.started = True

    async def write(self, chunk: bytes) -> None:
        """Hand a piece of the body to the socket, without waiting for room. Raises `ConnectionError`."""
        await self._writer.write(chunk, drain=False)
        self.sent += len(chunk)
        self._patience.moved(len(chunk))

    async def drain(self) -> None:
        """Wait until a slow client has taken enough for more to be written. Raises `ConnectionError`, and `TooSlow`
        when it did not in time: then its connection is gone."""
        if self._request.protocol.writing_paused:
            await self._within(self._writer.drain())

    async def end(self) -> Sent:
        """The body is complete. Raises what `drain` raises."""
        await self._within(self._writer.write_eof())
        if not self._keep_alive and (transport := self._request.transport) is not None:
            give_up_later(transport, self._patience.left())
        return Sent(self.status, self._keep_alive)

    async def _within(self, work: Coroutine[Any, Any, None]) -> None:
        if not self._request.protocol.writing_paused:
            return await work
        loop = asyncio.get_running_loop()
        since = loop.time()
        try:
            async with asyncio.timeout(self._patience.left()):
                await work
        except TimeoutError:
            if (transport := self._request.transport) is not None:
                transport.abort()
            raise TooSlow from None
        finally:
            self._patience.waited(loop.time() - since)

    def break_off(self) -> Sent:
        """The body is not complete and never will be: end the connection so that the client notices."""
        transport = self._request.transport
        if transport is not None:
            if self._framed:
                transport.close()  # what was relayed still arrives, and then the missing end shows
                give_up_later(transport, self._patience.left())
            else:
                _reset(transport)  # without framing only a reset tells a break from an end
        return Sent(self.status, keep_alive=False)

    async def answer(self, answer: Answer, headers: Sequence[tuple[bytes, bytes]] = ()) -> Sent:
        """Send a whole reply of our own."""
        self.start(answer.status, _REASONS.get(answer.status, b""), [*answer.headers, *headers], len(answer.body))
        if self.has_body(answer.status):
            await self.write(answer.body)
        return await self.end()


def give_up_later(transport: asyncio.Transport, seconds: float | None) -> None:
    """Of a connection that is being closed: a client that never takes what is still to be sent would keep it open."""
    if seconds is not None and transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(seconds, transport.abort)


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
