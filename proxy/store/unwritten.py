"""The records that wait for the writer: in order, bounded in bytes, findable by key and conversation while they wait.

No I/O, no clock, no LanceDB. What does not fit is shed, the oldest first: losing a record costs compaction, and the
newest question is the one that is asked about next.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from proxy.store.record import Entry

# What Python needs for a waiting record besides its bytes.
_ENTRY_COST = 700


class Unwritten:
    """A bounded queue. `accepted` and `gone` only grow: everything accepted so far is gone when `gone` reaches it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[tuple[bytes, bytes], Entry] = {}
        self._under: dict[bytes, dict[bytes, int]] = {}
        self._in_hand = 0
        self.size = 0
        self.accepted = 0
        self.gone = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, key: bytes, row: bytes) -> bool:
        """Whether this very record waits."""
        return (key, row) in self._waiting

    def under(self, name: bytes) -> dict[bytes, int]:
        """The rows that wait under a key, or for a conversation, each with its age."""
        return self._under.get(name, {})

    def accept(self, entry: Entry) -> int:
        """Take a record that does not wait yet; returns how many were shed to make room for it."""
        if _ENTRY_COST + len(entry.row) > self._limit:
            return 1
        self._waiting[entry.key, entry.row] = entry
        for name in _names(entry):
            self._under.setdefault(name, {})[entry.row] = entry.created
        self.accepted += 1
        self.size += _ENTRY_COST + len(entry.row)
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
            size += len(entry.row)
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

    def drop(self, tenant: bytes, conversation: bytes | None) -> int:
        """Forget what waits of a tenant, or of one of its conversations; what is in hand is written all the same."""
        waiting = islice(self._waiting.values(), self._in_hand, None)
        wanted = [e for e in waiting if e.tenant == tenant and conversation in (None, e.conversation)]
        for entry in wanted:
            self._remove(entry)
        return len(wanted)

    def _remove(self, entry: Entry) -> None:
        del self._waiting[entry.key, entry.row]
        for name in _names(entry):
            rows = self._under.get(name, {})
            # Rows of two keys may look alike to their conversation.
            rows.pop(entry.row, None)
            if not rows:
                self._under.pop(name, None)
        self.size -= _ENTRY_COST + len(entry.row)
        self.gone += 1


def _names(entry: Entry) -> Iterator[bytes]:
    yield entry.key
    if entry.conversation is not None:
        yield entry.conversation
