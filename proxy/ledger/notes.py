"""Citations that no history of a client shows: made on requests that only the provider saw.

A note says what one reply cited. It is addressed by the conversation before that reply and by the calls that the client
was given with it, so that a later request of the same question finds it again, on any replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from proxy.ledger.transcript import ReplyStep, reply_digest
from proxy.wire.messages import Call

#: The version of a note's layout. One of another version is not read: then the model is asked as if it had not cited.
VERSION = 1
#: How a note's bytes begin, so that nobody takes them for a record's.
_MARK = b"note"


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """What was cited in the reply of this index (as the client's history counts replies).

    `ids` are those that meant something, `nothing` says that nothing grounds the answer. `refused` were sent back to
    the model since they mean several things: they count only if nothing was cited in their stead.
    """

    reply: int
    ids: tuple[str, ...] = ()
    nothing: bool = False
    refused: tuple[str, ...] = ()

    @property
    def says_something(self) -> bool:
        return bool(self.ids or self.nothing or self.refused)


class _Note(msgspec.Struct, frozen=True, array_like=True):
    version: int
    said: tuple[tuple[tuple[str, ...], bool, tuple[str, ...]], ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Note)


def encode(noted: Iterable[Noted]) -> bytes:
    """A note's bytes, of what one reply cited: equal notes have equal bytes."""
    return _MARK + _encoder.encode(_Note(VERSION, tuple((n.ids, n.nothing, n.refused) for n in noted)))


def decode(payload: bytes, reply: int) -> list[Noted]:
    """What a note says, as of the reply of this index; nothing where the bytes are of another version or damaged."""
    if not is_note(payload):
        return []
    try:
        note = _decoder.decode(payload[len(_MARK) :])
    except msgspec.MsgspecError:
        return []
    return [Noted(reply, *said) for said in note.said] if note.version == VERSION else []


def as_of(noted: Iterable[Noted], reply: int, shown: int) -> list[Noted]:
    """What was noted of the reply of one index, as of another: a history may show more than was sent."""
    return [msgspec.structs.replace(note, reply=shown) if note.reply == reply else note for note in noted]


def is_note(payload: bytes) -> bool:
    """Whether a stored payload is a note, and no record."""
    return payload.startswith(_MARK)


def address(key: bytes, calls: Sequence[Call]) -> bytes:
    """32 bytes under which the note of a reply stands: what was asked (`Transcript.key`), and what the client was
    given to call."""
    return hashlib.sha256(b"note:" + key + reply_digest("", tuple(calls))).digest()


def address_of(step: ReplyStep) -> bytes:
    """Where the note of a reply stands that a transcript shows."""
    return address(step.key, step.calls)
