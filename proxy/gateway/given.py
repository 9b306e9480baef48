"""What this process gave its requests: where their question begins, and the record that this rests on.

Thousands are remembered, and few of them are asked for again. As a value a record takes nine times as many bytes as it
has, so only those in use are held as values, each once: a question's requests share theirs.
"""

from __future__ import annotations

import hashlib
import struct

from proxy.gateway.packed import Packed
from proxy.gateway.recent import RecentBytes
from proxy.ledger import records
from proxy.ledger.boundary import Boundary
from proxy.ledger.records import Record

_MOST_RECORDS = 500
_MOST_PACKED = 20_000
_MOST_PACKED_BYTES = 12 * 1024 * 1024
#: How much larger a record is in memory than its bytes, measured.
_DECODED = 9
_BOUNDARY = struct.Struct(">i32s")
_NO_RECORD = bytes(32)


class Records:
    """Records by their bytes: those in use as values, many more as bytes. Safe to use from threads."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` are those of the values."""
        self._in_use = _InUse(_MOST_RECORDS, most_bytes)
        self._packed = Packed(_MOST_PACKED, _MOST_PACKED_BYTES)

    def of(self, payload: bytes) -> Record | None:
        """The record of these bytes: the same value as long as it is in use. None where they are damaged."""
        name = _named(payload)
        held = self._in_use.get(name)
        if held is not None:
            return held[1]
        record = records.decode(payload)
        if record is not None:
            self._hold(name, payload, record)
        return record

    def name(self, record: Record) -> bytes:
        """What it is found by as long as it is remembered."""
        name = self._in_use.name(record)
        if name is None:
            payload = records.encode(record)
            name = _named(payload)
            self._hold(name, payload, record)
        return name

    def called(self, name: bytes) -> Record | None:
        """The record of that name."""
        held = self._in_use.get(name)
        if held is not None:
            return held[1]
        payload = self._packed.get(name)
        record = records.decode(payload) if payload is not None else None
        if payload is not None and record is not None:
            self._in_use.put(name, (name, record, len(payload)))
        return record

    def clear(self) -> None:
        self._in_use.clear()
        self._packed.clear()

    def _hold(self, name: bytes, payload: bytes, record: Record) -> None:
        self._in_use.put(name, (name, record, len(payload)))
        if name not in self._packed:
            self._packed.put(name, payload)


class Given:
    """Boundaries by their request's digest, those used most recently. Safe to use from threads."""

    def __init__(self, most: int, records: Records) -> None:
        self._records = records
        self._given = Packed(most)

    def __contains__(self, key: bytes) -> bool:
        return key in self._given

    def put(self, key: bytes, boundary: Boundary) -> None:
        record, untouched = boundary.record, boundary.untouched
        packed = _BOUNDARY.pack(boundary.reply, self._records.name(record) if record is not None else _NO_RECORD)
        self._given.put(key, packed + untouched.encode() if untouched is not None else packed)

    def get(self, key: bytes) -> Boundary | None:
        """What a request was given; None where that is no longer known, or its record is not."""
        packed = self._given.get(key)
        if packed is None:
            return None
        reply, name = _BOUNDARY.unpack_from(packed)
        untouched = packed[_BOUNDARY.size :].decode() if len(packed) > _BOUNDARY.size else None
        if name == _NO_RECORD:
            return Boundary(reply, None, untouched)
        record = self._records.called(name)
        return Boundary(reply, record, untouched) if record is not None else None

    def reply(self, key: bytes) -> int | None:
        """After which reply the question of a request begins."""
        packed = self._given.get(key)
        return int.from_bytes(packed[:4], "big", signed=True) if packed is not None else None

    def clear(self) -> None:
        self._given.clear()


_Held = tuple[bytes, Record, int]


class _InUse(RecentBytes[bytes, _Held]):
    """Records as values, by name, and their names."""

    def __init__(self, most: int, most_bytes: int) -> None:
        super().__init__(most, most_bytes, lambda held: _DECODED * held[2])
        self._names: dict[int, bytes] = {}

    def name(self, record: Record) -> bytes | None:
        with self._lock:
            return self._names.get(id(record))

    def _took(self, gone: _Held | None, come: _Held | None) -> None:
        super()._took(gone, come)
        if gone is not None:
            self._names.pop(id(gone[1]), None)
        if come is not None:
            self._names[id(come[1])] = come[0]


def _named(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()
