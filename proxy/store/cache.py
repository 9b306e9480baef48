"""What this process knows of the store without asking it: payloads by key, the least recently used leave first.

No I/O, no clock, no LanceDB. Only what is there is held: that a key has no record may change at any moment, because
another replica may write one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from proxy.store.record import Entry

# What Python needs for an entry besides the bytes of its payload, measured, so that the limit means resident bytes.
_KEY_COST = 450
_PAYLOAD_COST = 180


class _Held(NamedTuple):
    created: int
    written: bool


class _Shelf:
    """What stands under one key, and what it costs."""

    __slots__ = ("payloads", "size")

    def __init__(self) -> None:
        self.payloads: dict[bytes, _Held] = {}
        self.size = _KEY_COST


class RecordCache:
    """Payloads by key, bounded in bytes. A key that takes more than half of the limit is not held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shelves: OrderedDict[bytes, _Shelf] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._shelves)

    def get(self, key: bytes, since: int) -> dict[bytes, int]:
        """The payloads under `key` that are not older than `since`, each with its age."""
        shelf = self._shelves.get(key)
        if shelf is None:
            return {}
        self._shelves.move_to_end(key)
        fresh = {payload: held.created for payload, held in shelf.payloads.items() if held.created >= since}
        if not fresh:
            self._drop(key)
        return fresh

    def hold(self, key: bytes, payload: bytes, created: int, *, written: bool) -> None:
        """Hold a payload; `written` says that the store has it. Once written is written, and the newest age counts."""
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = _Shelf()
            self.size += _KEY_COST
        self._shelves.move_to_end(key)
        held = shelf.payloads.get(payload)
        if held is None:
            cost = _PAYLOAD_COST + len(payload)
            shelf.size += cost
            self.size += cost
        else:
            created, written = max(created, held.created), written or held.written
        shelf.payloads[payload] = _Held(created, written)
        if shelf.size > self._limit // 2:
            self._drop(key)
        while self.size > self._limit:
            self._drop(next(iter(self._shelves)))

    def mark_written(self, entries: list[Entry]) -> None:
        """Note that the store has these now. What left the cache meanwhile is not brought back."""
        for (key, _, _, payload), created in entries:
            shelf = self._shelves.get(key)
            if shelf is not None and payload in shelf.payloads:
                shelf.payloads[payload] = _Held(created, True)

    def written_since(self, key: bytes, payload: bytes, since: int) -> bool:
        """Whether the store is known to have this payload, written no earlier than `since`."""
        shelf = self._shelves.get(key)
        held = shelf.payloads.get(payload) if shelf is not None else None
        return held is not None and held.written and held.created >= since

    def _drop(self, key: bytes) -> None:
        self.size -= self._shelves.pop(key).size
