"""What the readers of both APIs share that take the calls of one tool out of a reply while the rest passes on.

A reply to one request of a client may be put together from several of the provider: each is a round. The client sees
one reply, in which the calls of that tool never were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.wire.messages import Call, Usage
from proxy.wire.raw_events import RawEvent, RawEvents

#: Told of every reply of a stream that finishes normally, before its end is passed on: whether that is to be withheld.
Holds = Callable[["Said"], bool]


@dataclass(frozen=True, slots=True)
class Said:
    """What one round said.

    `own` are the calls of our tool, `others` those that the client is to answer, `finish` how it finished (None: it
    did not). `again` says the same in a further request, as elements of its conversation: the reply's text and our
    calls. `error` is what the provider said went wrong, as JSON; `usage` what the round used. `identity` is what the
    provider calls it, `shown_as` what the client knows it by.
    """

    text: str = ""
    own: tuple[Call, ...] = ()
    others: tuple[Call, ...] = ()
    finish: str | None = None
    again: tuple[bytes, ...] = ()
    error: bytes | None = None
    usage: Usage | None = None
    identity: str | None = None
    shown_as: str | None = None


class Rounds(Protocol):
    """Reads the replies of one exchange, round by round, whole or streamed, and gives what the client gets of them."""

    def begin(self) -> None:
        """Another reply of the provider begins. What is withheld of the last one stays for `conclude`."""

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the reply, in any cut; what the client gets now. A whole reply gives nothing before its
        end."""

    def end(self, complete: bool) -> Said:
        """The reply ended, or broke off."""

    def release(self) -> bytes:
        """What was withheld of this reply: its end, or all of a whole one."""

    def conclude(self) -> bytes:
        """An end for what the client has: that of the last reply that said something, as of an answer."""

    def failed(self, error: bytes) -> bytes:
        """An end that tells the client of an error (JSON of the API's shape), where its reply has begun."""

    @property
    def text(self) -> str:
        """All text that the client was given, or is with `release` or `conclude`."""


class Pieces:
    """One reply as its bytes come, whole or streamed, told apart by how it begins. `_held` is withheld of it."""

    def _take(self) -> None:
        """Another reply begins."""
        self._events: RawEvents | None = None
        self._whole: list[bytes] | None = None
        self._held: list[bytes] = []
        self._blind = False  # an event was too large to be read: the rest passes as it comes

    def feed(self, chunk: bytes) -> bytes:
        if self._blind:
            return chunk
        if self._events is None and self._whole is None:
            start = chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not start:
                return b""
            if start.startswith(b"{"):
                self._whole = []
            else:
                self._events = RawEvents()
        if self._whole is not None:
            self._whole.append(chunk)
            return b""
        assert self._events is not None
        try:
            return b"".join([self._event(event) for event in self._events.feed(chunk)])
        except ValueError:
            self._blind = True
            return self._events.rest()

    def end(self, complete: bool) -> Said:
        if self._whole is not None and complete:
            self._read_whole(b"".join(self._whole))
        elif self._events is not None and complete and not self._blind:
            self._held += [out for event in self._events.close() if (out := self._event(event))]
        return self._said()

    def release(self) -> bytes:
        held, self._held = self._held, []
        return b"".join(held)

    def _event(self, event: RawEvent) -> bytes:
        """What the client gets of an event of a stream."""
        raise NotImplementedError

    def _read_whole(self, data: bytes) -> None:
        """Read a whole reply; what the client gets of it is withheld."""
        raise NotImplementedError

    def _said(self) -> Said:
        """What the reply said, as far as it has come."""
        raise NotImplementedError
