"""Many short values under digests, in a few large buffers.

A value that stays for long while thousands beside it come and go keeps a megabyte of Python's small memory from going
back to the system: one in each is enough. So what is remembered of every request is no object of its own.
"""

from __future__ import annotations

import struct
import threading
from array import array

KEY_BYTES = 32
_LENGTH = struct.Struct(">I")
_HEAD = KEY_BYTES + _LENGTH.size
#: Where a table leads that said something of a key once: no key stands there.
_DROPPED = 1


class Packed:
    """Values of bytes by keys of 32 bytes. What is used goes to the younger of two generations; when that holds `most`
    values, or takes half of `most_bytes`, the older is forgotten. Safe to use from threads."""

    def __init__(self, most: int, most_bytes: int = 1 << 30) -> None:
        self._most = most
        self._most_bytes = most_bytes // 2
        self._lock = threading.Lock()
        self._young, self._old = _Generation(most), _Generation(0)

    def __contains__(self, key: bytes) -> bool:
        with self._lock:
            return self._young.find(key) != 0 or (self._old.count != 0 and self._old.find(key) != 0)

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, which is now the one used last."""
        with self._lock:
            if place := self._young.find(key):
                return self._young.value(place)
            if not self._old.count or not (place := self._old.find(key)):
                return None
            value = self._old.value(place)
            self._keep(key, value)
            return value

    def put(self, key: bytes, value: bytes) -> None:
        with self._lock:
            self._keep(key, value)

    def drop(self, key: bytes) -> None:
        with self._lock:
            self._young.drop(key)
            self._old.drop(key)

    def clear(self) -> None:
        with self._lock:
            self._young, self._old = _Generation(self._most), _Generation(0)

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return len(self._young.said) + len(self._old.said)

    def _keep(self, key: bytes, value: bytes) -> None:
        young, size = self._young, _HEAD + len(value)
        if young.count and (young.count >= self._most or len(young.said) + size > self._most_bytes):
            self._old = young
            self._young = young = _Generation(self._most)
        if size <= self._most_bytes:
            young.put(key, value)


class _Generation:
    """Keys and values one after the other, as they came, and a table of where they stand (0: nowhere)."""

    def __init__(self, most: int) -> None:
        self._mask = (1 << (2 * most).bit_length()) - 1
        self._places = array("I", bytes(4 * (self._mask + 1)))
        self.said = bytearray(_DROPPED + KEY_BYTES)
        self.count = 0

    def find(self, key: bytes) -> int:
        """Where a key stands; 0 for nowhere. Nobody knows Python's hashes beforehand, so nobody can choose keys that
        meet in the table."""
        places, starts, mask = self._places, self.said.startswith, self._mask
        slot = hash(key) & mask
        while place := places[slot]:
            if starts(key, place):
                return place
            slot = (slot + 1) & mask
        return 0

    def value(self, place: int) -> bytes:
        place += KEY_BYTES
        (length,) = _LENGTH.unpack_from(self.said, place)
        place += _LENGTH.size
        return bytes(self.said[place : place + length])

    def put(self, key: bytes, value: bytes) -> None:
        """What stood under the key is said no more, and takes its room until all of it goes."""
        self._places[self._slot(key)] = len(self.said)
        self.said += key + _LENGTH.pack(len(value)) + value
        self.count += 1

    def drop(self, key: bytes) -> None:
        slot = self._slot(key)
        if self._places[slot]:
            self._places[slot] = _DROPPED

    def _slot(self, key: bytes) -> int:
        """Where in the table the key is, or would be."""
        places, starts, mask = self._places, self.said.startswith, self._mask
        slot = hash(key) & mask
        while (place := places[slot]) and not starts(key, place):
            slot = (slot + 1) & mask
        return slot
