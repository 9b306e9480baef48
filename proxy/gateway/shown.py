"""What evidence returns of a question held when they were first shown, in conversations whose hosts may rewrite them.

This process's own, bounded in bytes: a host that clears what its tools returned while the question goes on takes away
what is cited later, and then this is where it is had from.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

from proxy.wire.messages import OtherPart, Part, Picture, Text

_MOST_BYTES = 32 << 20
_MOST_OF_ONE = 2 << 20
#: What a part takes beside its text.
_PART_BYTES = 200

_Key = tuple[bytes, bytes]


class ShownReturns:
    """The contents shown most recently, by conversation and call. Safe to use from threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_of_one: int = _MOST_OF_ONE) -> None:
        self._most = most_bytes
        self._most_of_one = most_of_one
        self._held: OrderedDict[_Key, tuple[tuple[Part, ...], int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0

    def see(self, conversation: bytes, call: bytes, parts: tuple[Part, ...]) -> None:
        """Remember what a call returned; what was seen first stays."""
        size = sum(map(_size, parts))
        key = conversation, call
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
            elif size <= self._most_of_one:
                self._held[key] = parts, size
                self.size += size
                while self.size > self._most:
                    self.size -= self._held.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Know nothing any more."""
        with self._lock:
            self._held.clear()
            self.size = 0

    def get(self, conversation: bytes, call: bytes) -> tuple[Part, ...] | None:
        """What a call returned when that was first shown; None where nobody remembers."""
        with self._lock:
            held = self._held.get((conversation, call))
            return held[0] if held is not None else None


def _size(part: Part) -> int:
    if isinstance(part, Text):
        return _PART_BYTES + sys.getsizeof(part.text)
    if isinstance(part, Picture):
        return _PART_BYTES + sys.getsizeof(part.url)
    assert isinstance(part, OtherPart)
    return _PART_BYTES + 2 * len(repr(part.value))
