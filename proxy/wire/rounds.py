"""What the readers of both APIs share that take the calls of one tool out of a reply while the rest passes on.

A reply to one request of a client may be put together from several of the provider: each is a round. The client sees
one reply, in which the calls of that tool never were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.wire.messages import Call, Usage

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
