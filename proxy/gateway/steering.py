"""The seam for replies that are not simply passed on: held, replaced, put together from several, or given unasked.

A `Steering` says what the client gets; it sees the provider's replies decoded and asks for more of them, and knows no
socket, address or header of the connection. How its pieces reach the client, what they settle and who gave up first is
`app`'s business; what it decides by is `policy`'s. A request without a steering takes the way that knows nothing of
this file.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Protocol

from proxy.gateway import encodings, headers
from proxy.gateway.upstream import BrokenOff, Reply


@dataclass(frozen=True, slots=True)
class Head:
    """How a reply begins: its status line and header lines. `length` is the body's, where it is known and stays."""

    status: int
    reason: bytes
    lines: headers.Headers
    length: int | None = None

    def holding(self, length: int | None) -> Head:
        """The head of a body of another length: without the lines that described the bytes of the first one."""
        return replace(self, lines=headers.of_another_body(self.lines), length=length)

    @property
    def is_stream(self) -> bool:
        """Whether what follows is a stream of server-sent events."""
        kind = headers.value(self.lines, b"content-type") or ""
        return kind.partition(";")[0].strip().lower() == "text/event-stream"


class Incoming(Protocol):
    """One reply of the provider: its head at once, its body as it comes."""

    @property
    def head(self) -> Head: ...
    @property
    def readable(self) -> bool:
        """Whether its chunks are what it says: a body in an unknown coding can only be passed on."""

    async def chunk(self) -> bytes:
        """The next piece of the body, decoded, or b"" at the end. Raises `BrokenOff`."""

    def close(self) -> None:
        """Stop the provider's work on it. What was read to its end needs none, and takes none amiss."""


class Provider(Protocol):
    """The provider, as far as one request may ask it: always for what the client asked, with the client's headers."""

    async def ask(self, body: bytes | None = None) -> Incoming:
        """Send the request, with its own body or another one, and wait for the head of the reply.

        Raises `Unreachable`. Whatever is still open when the exchange ends is closed.
        """


Piece = Head | bytes


class Steering(Protocol):
    """What the client gets for one request."""

    def steer(self, provider: Provider) -> AsyncGenerator[Piece, None]:
        """One `Head`, then the body in pieces, each of which is sent at once.

        What the exchange settles is read out of these pieces. `Unreachable` before the head is told to the client as
        ever; `BrokenOff` after it breaks the client's reply off. Closed when the client leaves.
        """


class Decoded:
    """A reply of the provider whose body is read decoded, within a limit. An unknown coding is left as it is."""

    def __init__(self, reply: Reply, limit: int) -> None:
        self._reply = reply
        self._decoder: encodings.Decoder | None = None
        self._ended = False
        self.head = Head(reply.status, reply.reason, reply.headers, reply.length)
        self.readable = True
        codings = encodings.named(v.decode("latin-1") for v in headers.values(reply.headers, b"content-encoding"))
        if codings:
            try:
                self._decoder = encodings.Decoder(codings, limit)
                self.head = self.head.holding(None)
            except encodings.Broken:
                self.readable = False

    async def chunk(self) -> bytes:
        while not self._ended:
            chunk = await self._reply.chunk()
            if not chunk:
                self._ended = True
                self._reply.done()
                self._complete()
            elif self._decoder is None:
                return chunk
            elif pieces := self._unfolded(chunk):
                return pieces
        return b""

    def _unfolded(self, chunk: bytes) -> bytes:
        assert self._decoder is not None
        try:
            return b"".join(self._decoder.feed(chunk))
        except (encodings.Broken, encodings.TooLarge) as fault:
            raise BrokenOff from fault

    def _complete(self) -> None:
        try:
            if self._decoder is not None:
                self._decoder.close()
        except encodings.Broken as fault:
            raise BrokenOff from fault

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._reply.close()
