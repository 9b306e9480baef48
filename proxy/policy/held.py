"""An answer that waits until the client has run its cite call: what is kept of it, and for which request alone."""

from __future__ import annotations

import hashlib
import re
import zlib

import msgspec

from proxy.ledger.transcript import ReplyStep, canonical_arguments
from proxy.wire.messages import Call

_VERSION = 1
_OURS = re.compile(r"call_evp[0-9a-f]{24}|evp[0-9a-f]{6}")
#: Some providers refuse call ids of any other length in what clients send back to them.
_SHORT = re.compile(r"[A-Za-z0-9]{9}")


class HeldCall(msgspec.Struct, frozen=True, array_like=True):
    """A cite call as the client got it."""

    id: str
    name: str
    arguments: str


class HeldAnswer(msgspec.Struct, frozen=True, array_like=True):
    """A whole reply of the provider, and the request that may be answered with it.

    `shown` is the digest of the conversation that it answers, `calls` are what the client got instead. `lines` are its
    header lines, `body` its bytes, packed; `streamed` says whether the client had asked for a stream. `extra_tokens` is
    what it took to ask for its citations.
    """

    version: int
    shown: bytes
    calls: tuple[HeldCall, ...]
    streamed: bool
    status: int
    reason: bytes
    lines: tuple[tuple[bytes, bytes], ...]
    packed: bytes
    extra_tokens: int = 0

    @classmethod
    def of(
        cls,
        shown: bytes,
        calls: tuple[Call, ...],
        streamed: bool,
        status: int,
        reason: bytes,
        lines: tuple[tuple[bytes, bytes], ...],
        body: bytes,
        extra_tokens: int,
    ) -> HeldAnswer:
        held = tuple(HeldCall(call.id or "", call.name, call.arguments) for call in calls)
        # Quickly: a stream says the same words around every token, and shrinks to a twentieth.
        return cls(_VERSION, shown, held, streamed, status, reason, lines, zlib.compress(body, 1), extra_tokens)

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)

    def fits(self, step: ReplyStep) -> bool:
        """Whether a request that ends in this reply and its returns is the held one plus our calls and nothing else."""
        made = [(call.id, call.name, canonical_arguments(call.arguments)) for call in step.calls]
        ours = [(call.id, call.name, canonical_arguments(call.arguments)) for call in self.calls]
        answered = [found.call.id for found in step.returns if found.call is not None]
        same = step.shown == self.shown and made == ours and not step.text
        return same and not step.users and len(step.returns) == len(answered) and answered == [c.id for c in self.calls]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HeldAnswer)


def encode(held: HeldAnswer) -> bytes:
    return _encoder.encode(held)


def decode(payload: bytes) -> HeldAnswer | None:
    """The held answer, or None where the bytes are of another version or damaged."""
    try:
        held = _decoder.decode(payload)
        return held if held.version == _VERSION and held.body is not None else None
    except (msgspec.MsgspecError, zlib.error):
        return None


def call_id(random: bytes, others: list[str | None]) -> str:
    """A fresh id for a cite call of ours, of 16 random bytes; short where all `others` of the conversation are."""
    if others and all(other is not None and _SHORT.fullmatch(other) for other in others):
        return f"evp{random.hex()[:6]}"
    return f"call_evp{random.hex()[:24]}"


def is_ours(call_id: str | None) -> bool:
    """Whether a call's id looks like ours. Only what the store holds under it says that it is."""
    return call_id is not None and _OURS.fullmatch(call_id) is not None


def name(tenant: bytes, call_id: str) -> bytes:
    """What a held answer is kept under: 32 bytes."""
    return hashlib.sha256(b"held:" + tenant + call_id.encode("utf-8", "surrogatepass")).digest()


def asked_name(tenant: bytes, shown: bytes) -> bytes:
    """What is kept for a request whose answer was asked for citations, so that no replica asks again: 32 bytes."""
    return hashlib.sha256(b"asked:" + tenant + shown).digest()
