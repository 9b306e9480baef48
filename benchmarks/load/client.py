"""A load generator in one process: raw HTTP/1.1 over uvloop, so that it costs less than what it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

Request = Sequence[bytes]


def request(path: str, length: int, body: Sequence[bytes], key: str = "benchmark") -> Request:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    return (head.encode(), *body)


@dataclass
class Told:
    """What a run of requests gave: seconds in all, seconds of each, and what came back that should not have."""

    seconds: float = 0.0
    each: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    headers: set[str] = field(default_factory=set)

    @property
    def per_second(self) -> float:
        return len(self.each) / self.seconds


class _Connection(asyncio.Protocol):
    """One connection that sends one request after another."""

    def __init__(self, requests: Iterator[Request], told: Told, over: asyncio.Future[None], holds: bytes) -> None:
        self._requests = requests
        self._holds = holds
        self._told = told
        self._over = over
        self._buffer = bytearray()
        self._left: int | None = None
        self._chunked = False
        self._head = b""
        self._since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        transport.set_write_buffer_limits(1 << 25)
        self._next()

    def _next(self) -> None:
        following = next(self._requests, None)
        if following is None:
            self._transport.close()
            if not self._over.done():
                self._over.set_result(None)
            return
        self._left, self._chunked = None, False
        self._since = time.perf_counter()
        for piece in following:
            self._transport.write(piece)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._left is None and not self._chunked:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._framing()
        if self._chunked:
            if self._buffer.endswith(b"0\r\n\r\n"):
                self._done()
        elif self._left is not None and len(self._buffer) >= self._left:
            self._done()

    def _framing(self) -> None:
        for line in self._head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                self._left = int(line[15:])
            elif line.startswith(b"transfer-encoding:"):
                self._chunked = True

    def _done(self) -> None:
        self._told.each.append(time.perf_counter() - self._since)
        if not self._head.startswith(b"HTTP/1.1 200") or self._holds not in self._buffer:
            self._told.wrong.append(self._head.decode("latin-1")[:300] + self._buffer.decode("latin-1")[:300])
        at = self._head.lower().find(b"evidence-proxy:")
        if at >= 0:
            self._told.headers.add(self._head[at:].split(b"\r\n")[0].decode("latin-1").split(";")[0])
        self._buffer.clear()
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._told.wrong.append(f"the connection was closed early: {exc}")
            self._over.set_result(None)


async def run(url: str, requests: Iterator[Request], connections: int, holds: bytes = b"") -> Told:
    """Send all requests over so many connections, each as soon as one is free. A reply without `holds` is wrong."""
    loop = asyncio.get_running_loop()
    told = Told()
    parts = urlsplit(url)
    overs = [loop.create_future() for _ in range(connections)]
    began = time.perf_counter()
    for over in overs:
        await loop.create_connection(
            lambda over=over: _Connection(requests, told, over, holds), parts.hostname, parts.port
        )
    await asyncio.gather(*overs)
    told.seconds = time.perf_counter() - began
    return told
