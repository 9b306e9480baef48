"""The records that wait for the writer: in order, bounded in bytes, findable by key while they wait.

No I/O, no clock, no LanceDB. What does not fit is shed, the oldest first: losing a record costs compaction, and the
newest question is the one that is asked about next.
"""

from __future__ import annotations

from itertools import islice

from proxy.store.record import Entry

# What Python needs for a waiting record besides its bytes.
_ENTRY_COST = 700


class Unwritten:
    """A bounded queue. `accepted` and `gone` only grow: everything accepted so far is gone when `gone` reaches it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[tuple[bytes, bytes], Entry] = {}
        self._by_key: dict[bytes, dict[bytes, int]] = {}
        self._in_hand = 0
        self.size = 0
        self.accepted = 0
        self.gone = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, key: bytes, payload: bytes) -> bool:
        """Whether this very record waits."""
        return (key, payload) in self._waiting

    def payloads(self, key: bytes) -> dict[bytes, int]:
        """What waits under `key`, with its age."""
        return self._by_key.get(key, {})

    def accept(self, entry: Entry) -> int:
        """Take a record that does not wait yet; returns how many were shed to make room for it."""
        record = entry.record
        if _ENTRY_COST + len(record.payload) > self._limit:
            return 1
        self._waiting[record.key, record.payload] = entry
        self._by_key.setdefault(record.key, {})[record.payload] = entry.created
        self.accepted += 1
        self.size += _ENTRY_COST + len(record.payload)
        shed = 0
        while self.size > self._limit:
            # What the writer has in hand is past saving memory by shedding it.
            oldest = next(islice(self._waiting.values(), self._in_hand, None), None)
            if oldest is None:
                break
            self._remove(oldest)
            shed += 1
        return shed

    def take(self, rows: int, limit: int) -> list[Entry]:
        """The oldest records, at most `rows` of them and about `limit` bytes. They stay findable until `remove`."""
        batch: list[Entry] = []
        size = 0
        for entry in islice(self._waiting.values(), rows):
            size += len(entry.record.payload)
            if batch and size > limit:
                break
            batch.append(entry)
        self._in_hand = len(batch)
        return batch

    def put_back(self) -> None:
        """The batch in hand was not written: its records wait again, the oldest of all, and may be shed."""
        self._in_hand = 0

    def remove(self, batch: list[Entry]) -> None:
        """The batch in hand was written."""
        for entry in batch:
            self._remove(entry)
        self._in_hand = 0

    def _remove(self, entry: Entry) -> None:
        record = entry.record
        del self._waiting[record.key, record.payload]
        payloads = self._by_key[record.key]
        del payloads[record.payload]
        if not payloads:
            del self._by_key[record.key]
        self.size -= _ENTRY_COST + len(record.payload)
        self.gone += 1
