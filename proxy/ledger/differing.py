"""Where a conversation differs from how it was sent before: the reason why no record fits it, for somebody who looks.

Only what counts for a record's key is compared, and in the order in which it counts: user messages, calls and returns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from proxy.evidence.pictures import picture_digest
from proxy.ledger.transcript import Transcript, canonical_arguments
from proxy.wire.messages import Message, Picture, Text

Kind = Literal["user", "call", "return"]
_LONGEST = 4000


class Mark(NamedTuple):
    """Something that counts: in which message it stands, and 8 bytes that stand for all that it says."""

    message: int
    kind: Kind
    digest: bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two requests differ: what stands there now (None: nothing more), and what stood there
    before. `what` says whether it says something else, was put in between, or was taken out."""

    what: Literal["changed", "added", "removed"]
    kind: Kind
    now: int | None
    before: int | None


def marks(transcript: Transcript) -> tuple[Mark, ...]:
    """What counts of a transcript, in order, as far as a few thousand go."""
    found: list[Mark] = []
    for mark in _marks(transcript):
        found.append(mark)
        if len(found) == _LONGEST:
            break
    return tuple(found)


def first_difference(before: Sequence[Mark], now: Sequence[Mark]) -> Difference | None:
    """Where a request stops to be a continuation of an earlier one; None where it is one."""
    for position, old in enumerate(before):
        if position >= len(now):
            return Difference("removed", old.kind, None, old.message)
        new = now[position]
        if (old.kind, old.digest) == (new.kind, new.digest):
            continue
        ahead = {mark.digest for mark in now[position + 1 : position + 9]}
        behind = {mark.digest for mark in before[position + 1 : position + 9]}
        if old.digest in ahead:
            return Difference("added", new.kind, new.message, old.message)
        if new.digest in behind:
            return Difference("removed", old.kind, new.message, old.message)
        return Difference("changed", new.kind, new.message, old.message)
    return None


def continues(before: Sequence[Mark], now: Sequence[Mark]) -> bool:
    """Whether a request looks like the next one of a conversation whose last one is given: most of it stands here.

    Not all of it must: clients edit what they sent, and trim it.
    """
    known = {(mark.kind, mark.digest) for mark in before}
    return bool(known) and 2 * len(known & {(mark.kind, mark.digest) for mark in now}) >= len(known)


def _marks(transcript: Transcript) -> Iterator[Mark]:
    for _, message in transcript.first_users:
        yield Mark(message.index, "user", _digest("user", *_said(message)))
    for step in transcript.replies:
        at = step.messages[0].index if step.messages else 0
        for call in step.calls:
            yield Mark(at, "call", _digest("call", call.id or "", call.name, canonical_arguments(call.arguments)))
        for found in step.returns:
            message = found.message
            yield Mark(message.index, "return", _digest("return", message.call_id or "", *_said(message)))
        for _, message in step.users:
            yield Mark(message.index, "user", _digest("user", *_said(message)))


def _said(message: Message) -> Iterator[str]:
    yield message.text()
    for part in message.parts:
        if isinstance(part, Picture):
            yield picture_digest(part.url).hex()
        elif not isinstance(part, Text):
            yield json.dumps(part.value, sort_keys=True, default=str)


def _digest(*texts: str) -> bytes:
    state = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "big") + raw)
    return state.digest()[:8]
