"""What this process read of conversations' requests, so that the next one is read from where the last one ended.

A client sends its whole conversation each time. What was read of a request is found again by a few bytes near its end,
and taken only as far as the new body begins with it: that is compared byte for byte. Losing it costs time, never
anything else. Bounded in bytes.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from proxy.compaction.replacing import Rewrite
from proxy.evidence.tables import Table
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Cuts

_MOST_BYTES = 32 * 1024 * 1024
_MOST_BYTES_OF_ONE = 24 * 1024 * 1024
#: A shorter conversation is read in less time than it takes to look for it, and has no evidence to speak of.
SHORTEST = 1024
#: What a message takes beside its bytes: itself, its place in the transcript, and the objects that it holds.
_MESSAGE_BYTES = 1600

#: Where bodies are looked at: four places in each doubling of the size. Up to each, a few bytes are taken there, at
#: half of it, at half of that and so on, and its beginning: conversations may differ in their first question only.
_PLACES = [int(128 * 2 ** (step / 4)) for step in range(100)]
_SAMPLE, _BEGINNING = 32, 256
_SAMPLES: dict[int, tuple[slice, ...]] = {
    place: (
        slice(0, min(place, _BEGINNING)),
        *(slice((place >> by) - _SAMPLE, place >> by) for by in range(32) if place >> by > _BEGINNING),
    )
    for place in _PLACES
}
#: How many conversations with the same bytes at a place are told apart, the most recent ones.
_MOST_ALIKE = 4


_Address = tuple[bytes, str, int, bytes]


class Done(msgspec.Struct, frozen=True):
    """The rewrite of a question's requests, and its splices made ready: the same for all of them, since it replaces
    nothing of the question.

    It holds as long as the question's `record` does, in transcripts that share so many messages.
    """

    record: Record
    messages: int
    rewrite: Rewrite
    cuts: Cuts


class Seen(msgspec.Struct):
    """What was read of a request: its transcript, the tables of its evidence returns, by ordinal, and the tags of those
    that do not fit; whether it has pictures; and the rewrite that its question was given. `address` is where it is
    kept, as long as it is."""

    transcript: Transcript
    evidence: Mapping[int, Table]
    cut_short: tuple[tuple[int, str], ...]
    pictures: bool
    done: Done | None = None
    address: _Address | None = None

    @property
    def size(self) -> int:
        """About how many bytes it holds in memory: the body, and its texts once more."""
        request = self.transcript.request
        return 2 * sys.getsizeof(request.body) + _MESSAGE_BYTES * len(request.messages)


class SeenRequests:
    """The requests read most recently, one for each conversation. Safe to use from threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_bytes_of_one: int = _MOST_BYTES_OF_ONE) -> None:
        self._most = most_bytes
        self._most_of_one = most_bytes_of_one
        self._kept: OrderedDict[_Address, list[tuple[Seen, int]]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0

    def before(self, tenant: bytes, api: str, body: bytes) -> tuple[Seen | None, int]:
        """What was read of a request that this body may continue, and how many of its bytes are surely that one's.

        It is one that the body begins with, or else one that begins alike, how far nobody looked.
        """
        alike: Seen | None = None
        for position in range(bisect_right(_PLACES, len(body)) - 1, -1, -1):
            place = _PLACES[position]
            if 2 * place < SHORTEST:
                break
            address = tenant, api, place, _sample(body, place)
            with self._lock:
                held = self._kept.get(address)
                if held is None:
                    continue
                self._kept.move_to_end(address)
                found = [seen for seen, _ in held]
            for seen in reversed(found):
                request = seen.transcript.request
                if request.continuation is not None and body.startswith(
                    memoryview(request.body)[: request.continuation.end]
                ):
                    return seen, request.continuation.end
            alike = alike or found[-1]
        return alike, 0

    def keep(self, tenant: bytes, api: str, seen: Seen, instead_of: Seen | None) -> None:
        """Keep what was read of a request, instead of what it continues."""
        size = seen.size
        address = seen.address = _address(tenant, api, seen)
        with self._lock:
            if instead_of is not None:
                self._drop(instead_of)
            if address is None or size > self._most_of_one:
                return
            held = self._kept.setdefault(address, [])
            held.append((seen, size))
            self.size += size
            self._kept.move_to_end(address)
            if len(held) > _MOST_ALIKE:
                self.size -= held.pop(0)[1]
            while self.size > self._most:
                _, gone = self._kept.popitem(last=False)
                self.size -= sum(bytes_of_one for _, bytes_of_one in gone)

    def clear(self) -> None:
        """Know nothing any more."""
        with self._lock:
            self._kept.clear()
            self.size = 0

    def _drop(self, seen: Seen) -> None:
        address = seen.address
        held = self._kept.get(address) if address is not None else None
        if address is None or held is None:
            return
        left = [(other, size) for other, size in held if other is not seen]
        self.size -= sum([size for _, size in held]) - sum([size for _, size in left])
        if left:
            self._kept[address] = left
        else:
            del self._kept[address]


def _address(tenant: bytes, api: str, seen: Seen) -> _Address | None:
    """Where it is found again: bytes at the last place before the end of its last message."""
    request = seen.transcript.request
    if request.continuation is None or request.continuation.end < max(SHORTEST, _PLACES[0]):
        return None
    place = _PLACES[bisect_right(_PLACES, request.continuation.end) - 1]
    return tenant, api, place, _sample(request.body, place)


def _sample(body: bytes, place: int) -> bytes:
    """Bytes from all over the first `place` of a body, few enough to be taken from a large one at once."""
    return b"".join([body[piece] for piece in _SAMPLES[place]])
