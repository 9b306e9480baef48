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


class RecordCache:
    """Payloads by key, bounded in bytes. A key that alone is larger than the limit is not held."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[bytes, dict[bytes, _Held]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: bytes, since: int) -> dict[bytes, int] | None:
        """The payloads under `key` that are not older than `since`, each with its age; None if there are none."""
        held = self._held.get(key)
        if held is None:
            return None
        self._held.move_to_end(key)
        fresh = {payload: seen.created for payload, seen in held.items() if seen.created >= since}
        if not fresh:
            self._drop(key)
            return None
        return fresh

    def hold(self, key: bytes, payload: bytes, created: int, *, written: bool) -> None:
        """Hold a payload; `written` says that the store has it. What was once written stays so, the newest age counts."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = {}
            self.size += _KEY_COST
        seen = held.get(payload)
        if seen is None:
            self.size += _PAYLOAD_COST + len(payload)
        else:
            created, written = max(created, seen.created), written or seen.written
        held[payload] = _Held(created, written)
        self._held.move_to_end(key)
        while self.size > self._limit:
            self._drop(next(iter(self._held)))

    def mark_written(self, entries: list[Entry]) -> None:
        """Note that the store has these now. What left the cache meanwhile is not brought back."""
        for (key, _, _, payload), created in entries:
            if payload in self._held.get(key, ()):
                self._held[key][payload] = _Held(created, True)

    def written_since(self, key: bytes, payload: bytes, since: int) -> bool:
        """Whether the store is known to have this payload, written no earlier than `since`."""
        seen = self._held.get(key, {}).get(payload)
        return seen is not None and seen.written and seen.created >= since

    def _drop(self, key: bytes) -> None:
        held = self._held.pop(key)
        self.size -= _KEY_COST + sum(_PAYLOAD_COST + len(payload) for payload in held)
