"""What the gateway tells of each request, as values, and the protocol of whoever wants to hear it.

Watchers hear of a request twice, at its arrival and at its end, on the event loop: whatever takes long they do
elsewhere. Bodies, transcripts and records are given by reference; a watcher that keeps them keeps the memory. Nothing
here is copied, parsed or counted for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from proxy.compaction.outcome import Outcome
from proxy.evidence.tables import Table
from proxy.gateway.headers import Headers
from proxy.ledger.boundary import Boundary
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Usage


class Stay(NamedTuple):
    """How long a request was in one room of the house, in nanoseconds of `time.perf_counter_ns`."""

    room: str
    began: int
    ended: int


class Stays:
    """The stays of one request, in the order in which they ended."""

    __slots__ = ("_room", "_since", "ended")

    def __init__(self) -> None:
        self.ended: list[Stay] = []
        self._room = ""
        self._since = 0

    def room(self, name: str) -> Stays:
        """`with stays.room(name): ...` is one stay. They stand beside each other, never inside."""
        self._room = name
        return self

    def __enter__(self) -> None:
        self._since = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.ended.append(Stay(self._room, self._since, time.perf_counter_ns()))


@dataclass(frozen=True, slots=True)
class Arrived:
    """The head of a request. `id` is what the client is told as `x-request-id`, and what log lines say.

    `at` is nanoseconds since the epoch, `began` the same moment of `time.perf_counter_ns`. `path` is without query.
    `trace` are the header lines by which its sender says what trace it belongs to.
    """

    id: str
    at: int
    began: int
    method: str
    path: str
    api: str | None
    trace: Headers = ()


@dataclass(frozen=True, slots=True)
class Conversed:
    """What the rooms made of a request on a compacted path, and of its reply.

    `came` is its body (decoded), `went` what goes upstream: the same object where nothing changed; under `observe`,
    `would` is what would have gone up instead. `reads` gives how `came` reads (None where nobody can: off, or no JSON);
    that may be found out only then, and takes as long as it is large: not on the event loop. `evidence` are the tables
    of its evidence returns by ordinal, `boundary` where the current question begins and the record that this rests on.
    `settled` are the records that the reply made (for `records.decode`), `usage` what the provider says that it used,
    `model` whom the request asked (else who says to have replied). `refused` says that the client got an answer of ours
    instead (`strict`). `tenant` is a digest that stands for whose request it is.
    """

    came: bytes
    went: bytes
    outcome: Outcome
    model: str | None = None
    tenant: bytes | None = None
    question_id: str | None = None
    reads: Callable[[], Transcript | None] | None = None
    evidence: Mapping[int, Table] = field(default_factory=dict)
    boundary: Boundary = field(default_factory=Boundary)
    would: bytes | None = None
    settled: tuple[bytes, ...] = ()
    usage: Usage | None = None
    refused: bool = False

    @property
    def was_read(self) -> bool:
        """Whether there is a transcript."""
        return self.reads is not None

    @property
    def transcript(self) -> Transcript | None:
        """How `came` reads."""
        return self.reads() if self.reads is not None else None

    @property
    def question(self) -> int | None:
        """The current question's ordinal, from 1; None where there is no transcript."""
        if not self.was_read:
            return None
        return self.boundary.record.ordinal + 1 if self.boundary.record is not None else 1


@dataclass(frozen=True, slots=True)
class Passed:
    """A request at its end: how it ended, what it weighed, and how long it took.

    `status` is what the client got (0: nothing), `asked` the provider's own status. `end` is as in log lines:
    complete, client-gone, upstream-broke, unreachable, ... `outcome` is the Evidence-Proxy header. `received`,
    `forwarded` and `sent` are body bytes: from the client, to the provider, to the client. `added` are the seconds
    that the proxy itself took before it asked the provider and before the reply's last byte could leave, `waited`
    those until the provider's reply began, `took` all of them. `provider_id` is the provider's own x-request-id.
    """

    arrived: Arrived
    status: int
    end: str
    took: float
    asked: int | None = None
    outcome: str | None = None
    received: int = 0
    forwarded: int = 0
    sent: int = 0
    added: float = 0.0
    waited: float | None = None
    provider_id: str | None = None
    stays: tuple[Stay, ...] = ()
    conversed: Conversed | None = None


class Watcher(Protocol):
    """Whoever wants to know. Neither method may raise, wait, or change what it is given."""

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        """A request is here. Returns the header lines that it carries upstream in place of its `trace`, if any."""

    def passed(self, request: Passed) -> None:
        """It is over. Called once for each that arrived."""


class Nobody:
    """Nobody watches."""

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        return ()

    def passed(self, request: Passed) -> None: ...
