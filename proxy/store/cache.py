"""What this process knows of the store without asking it: rows by key, the least recently used leave first.

No I/O, no clock, no LanceDB. Only what is there is held: that a key has no record may change at any moment, because
another replica may write one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from proxy.store.record import Entry

# What Python needs for an entry besides the bytes of its row, measured, so that the limit means resident bytes.
_KEY_COST = 430
_ROW_COST = 70


class RecordCache:
    """Rows by key, bounded in bytes. A key that takes more than half of the limit is not held.

    A row's age and whether the store has it are one int (`_stamp`): dictionaries of bytes and ints are nothing to
    the garbage collector, while an object for each made its full collections hold the loop up for a tenth of a second.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[bytes, dict[bytes, int]] = OrderedDict()
        self._sizes: dict[bytes, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes, since: int) -> dict[bytes, int]:
        """The rows under `key` that are not older than `since`, each with its age."""
        held = self._held.get(key)
        if held is None:
            return {}
        self._held.move_to_end(key)
        fresh = {row: created for row, stamp in held.items() if (created := stamp >> 1) >= since}
        if not fresh:
            self._drop(key)
        return fresh

    def hold(self, key: bytes, row: bytes, created: int, *, written: bool) -> None:
        """Hold a row; `written` says that the store has it. Once written is written, and the newest age counts."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = {}
            self._grow(key, _KEY_COST)
        self._held.move_to_end(key)
        before = held.get(row)
        if before is None:
            self._grow(key, _ROW_COST + len(row))
            held[row] = _stamp(created, written)
        else:
            held[row] = _stamp(max(created, before >> 1), written or bool(before & 1))
        if self._sizes[key] > self._limit // 2:
            self._drop(key)
        while self.size > self._limit:
            self._drop(next(iter(self._held)))

    def mark_written(self, entries: Iterable[Entry]) -> None:
        """Note that the store has these now. What left the cache meanwhile is not brought back."""
        for entry in entries:
            held = self._held.get(entry.key)
            if held is not None and entry.row in held:
                held[entry.row] = _stamp(entry.created, True)

    def written_since(self, key: bytes, row: bytes, since: int) -> bool:
        """Whether the store is known to have this row, written no earlier than `since`."""
        stamp = self._held.get(key, {}).get(row, 0)
        return bool(stamp & 1) and stamp >> 1 >= since

    def clear(self) -> None:
        """Know nothing any more."""
        self._held.clear()
        self._sizes.clear()
        self.size = 0

    def _grow(self, key: bytes, cost: int) -> None:
        self._sizes[key] = self._sizes.get(key, 0) + cost
        self.size += cost

    def _drop(self, key: bytes) -> None:
        del self._held[key]
        self.size -= self._sizes.pop(key)


def _stamp(created: int, written: bool) -> int:
    return created << 1 | written
