"""A client that sends exactly these bytes and shows exactly what came back, HTTP chunk by HTTP chunk."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Seen:
    """A reply as it came off the wire."""

    version: bytes
    status: int
    reason: bytes
    headers: list[tuple[bytes, bytes]]
    #: The body as it was framed: one item per HTTP chunk, or the whole.
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def value(self, name: str) -> bytes | None:
        return next(iter(self.values(name)), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def evidence(self) -> str:
        """The Evidence-Proxy header."""
        return (self.value("evidence-proxy") or b"").decode()


class Torn(Exception):
    """The connection ended inside a reply."""


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, url: str) -> Client:
        if url.startswith("unix:"):
            return cls(*await asyncio.open_unix_connection(url.removeprefix("unix:"), limit=1 << 26))
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 26))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> Seen:
        """The head of the next reply."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as torn:
            raise Torn from torn
        first, *lines = raw[:-4].split(b"\r\n")
        version, status, reason = (*first.split(b" ", 2), b"")[:3]
        pairs = [line.split(b":", 1) for line in lines]
        return Seen(version, int(status), reason, [(name, value.strip()) for name, value in pairs])

    async def chunk(self) -> bytes:
        """The next HTTP chunk of a chunked reply; b"" is its proper end."""
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError) as torn:
            raise Torn from torn
        return data

    async def rest(self, seen: Seen, bodiless: bool = False) -> Seen:
        """The whole body of a reply whose head was read. Raises `Torn` if it does not end properly."""
        try:
            if bodiless or seen.status in (204, 304):
                pass
            elif b"chunked" in (seen.value("transfer-encoding") or b""):
                while data := await self.chunk():
                    seen.chunks.append(data)
            elif (length := seen.value("content-length")) is not None:
                if int(length):
                    seen.chunks.append(await self._reader.readexactly(int(length)))
            else:
                seen.chunks.append(await self._reader.read())
        except (asyncio.IncompleteReadError, ConnectionError) as torn:
            raise Torn from torn
        return seen

    async def reply(self, bodiless: bool = False) -> Seen:
        return await self.rest(await self.head(), bodiless)

    async def exactly(self, size: int) -> bytes:
        """The next bytes, whatever they are. Raises `Torn` if there are not that many."""
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as torn:
            raise Torn from torn

    async def ended(self) -> bool:
        """Wait for the other side to end the connection; True if nothing more came."""
        try:
            return await self._reader.read() == b""
        except ConnectionError:
            return True

    def stop_reading(self) -> None:
        """Take nothing more from the socket, so that the other side's sending comes to a halt."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._writer.close()

    def vanish(self) -> None:
        """Drop the connection without a word."""
        self._writer.transport.abort()


def request(
    method: str = "POST",
    target: str | bytes = "/v1/chat/completions",
    body: bytes | Any = None,
    headers: list[tuple[str | bytes, str | bytes]] | None = None,
    host: str = "proxy.test",
) -> bytes:
    """The bytes of a request with Content-Length. A body that is not bytes is written as JSON."""
    lines = [b"%b %b HTTP/1.1" % (method.encode(), _bytes(target)), b"Host: " + _bytes(host)]
    lines += [_bytes(name) + b": " + _bytes(value) for name, value in headers or ()]
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    if body is not None:
        lines.append(b"Content-Length: %d" % len(raw))
    return b"\r\n".join(lines) + b"\r\n\r\n" + raw


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


async def ask(
    url: str,
    body: bytes | Any = None,
    target: str | bytes = "/v1/chat/completions",
    method: str = "POST",
    headers: list[tuple[str | bytes, str | bytes]] | None = None,
    host: str = "proxy.test",
) -> Seen:
    """One request on a connection of its own, and its whole reply."""
    client = await Client.connect(url)
    try:
        await client.send(request(method, target, body, headers, host))
        return await client.reply(bodiless=method == "HEAD")
    finally:
        client.close()
