"""A connection that changes its protocol (WebSocket): relayed as bytes in both directions, and not looked at.

The provider decides. If it does not change the protocol, what it answers instead is relayed, and the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from proxy.gateway import headers
from proxy.gateway.clients import Raw, Request
from proxy.gateway.limits import Patience
from proxy.gateway.upstream import Unreachable, Upstream

_HEAD_BYTES = 1 << 18
_PIECE = 1 << 16
_SENT = "The request was sent whole"


class Tunnel:
    """One such connection. `status` is the provider's, `sent` and `received` count bytes after the heads."""

    def __init__(self, upstream: Upstream, request: Request, patience: Patience) -> None:
        """`patience` is with a client that does not take what the provider sends."""
        self._destination = upstream.destination
        self._limits = upstream.limits
        self._tls = upstream.tls
        self._request = request
        self._patience = patience
        self.status = 0
        self.sent = 0
        self.received = 0

    async def run(self, target: bytes, lines: Iterable[tuple[bytes, bytes]], evidence: bytes | None) -> None:
        """Ask the provider for the change and relay until either side ends.

        `lines` are the client's without those of this hop; `evidence` is the value of our own reply header. Raises
        `Unreachable` where there is no reply.
        """
        reader, writer = await self._connect()
        try:
            writer.write(self._head(target, lines))
            try:
                async with asyncio.timeout(self._limits.first_byte or None):
                    head = await reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                late = f"it did not reply within {self._limits.first_byte:g} seconds"
                raise Unreachable(self._destination.origin, late, _SENT, late=True) from None
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
                raise Unreachable(self._destination.origin, "it closed the connection without a reply", _SENT) from None
            transport, client = self._request.connection.transport, self._request.raw
            if transport.is_closing() or client is None:
                raise ConnectionResetError("the client has gone")
            self.status = _status(head)
            if evidence is not None:
                head = head[:-2] + headers.EVIDENCE_PROXY + b": " + evidence + b"\r\n\r\n"
            transport.write(head)
            up = asyncio.create_task(self._up(client, writer))
            down = asyncio.create_task(self._down(reader, transport, None if self.status == 101 else head))
            try:
                await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (up, down):
                    task.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
        finally:
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = self._destination.origin
        parts = urlsplit(where)
        port = parts.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(self._limits.connect or None):
                return await asyncio.open_connection(parts.hostname, port, ssl=self._tls, limit=_HEAD_BYTES)
        except TimeoutError:
            raise Unreachable(where, f"got no connection within {self._limits.connect:g} seconds") from None
        except OSError:
            raise Unreachable(where, "could not connect") from None

    def _head(self, target: bytes, lines: Iterable[tuple[bytes, bytes]]) -> bytes:
        head = [b"GET %b HTTP/1.1" % target, b"Host: " + self._destination.host]
        head += [b"%b: %b" % line for line in lines]
        head += [b"Connection: Upgrade", b"Upgrade: websocket"]
        return b"\r\n".join(head) + b"\r\n\r\n"

    async def _up(self, client: Raw, writer: asyncio.StreamWriter) -> None:
        while piece := await client.read():
            self.received += len(piece)
            writer.write(piece)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, transport: asyncio.Transport, refusal: bytes | None) -> None:
        """Until the provider ends it; a reply that refuses the change (`refusal` is its head) ends with its body."""
        left = _length(refusal) if refusal is not None else None
        while left != 0 and (piece := await reader.read(_PIECE if left is None else min(left, _PIECE))):
            self.sent += len(piece)
            transport.write(piece)
            try:
                async with asyncio.timeout(self._patience.left()):
                    await self._request.connection.drained()
            except TimeoutError:
                transport.abort()
                return
            left = left - len(piece) if left is not None else None
            if left is None and refusal is not None and piece.endswith(b"0\r\n\r\n"):
                return  # the last chunk


def _length(head: bytes) -> int | None:
    found = re.search(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", head, re.IGNORECASE)
    return int(found[1]) if found else None


def _status(head: bytes) -> int:
    code = head[:16].split(b" ", 2)[1:2]
    return int(code[0]) if code and code[0].isdigit() else 0
