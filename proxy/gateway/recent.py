"""What this process remembers of recent requests: bounded, and lost with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values used most recently, up to a number of them. Safe to use from threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            before = self._values.pop(key, None)
            self._values[key] = value
            if before is not value:
                self._took(before, value)
                while self._values and self._is_full():
                    self._took(self._values.popitem(last=False)[1], None)

    def drop(self, key: Key) -> None:
        with self._lock:
            self._took(self._values.pop(key, None), None)

    def clear(self) -> None:
        with self._lock:
            while self._values:
                self._took(self._values.popitem()[1], None)

    def _took(self, gone: Value | None, come: Value | None) -> None:
        """A value left, another came."""

    def _is_full(self) -> bool:
        return len(self._values) > self._most


class RecentBytes(Recent[Key, Value]):
    """The same, up to a number of bytes as well: `weigh` says how many a value takes."""

    def __init__(self, most: int, most_bytes: int, weigh: Callable[[Value], int]) -> None:
        super().__init__(most)
        self._most_bytes = most_bytes
        self._weigh = weigh
        self.size = 0

    def _took(self, gone: Value | None, come: Value | None) -> None:
        self.size += self._weigh(come) if come is not None else 0
        self.size -= self._weigh(gone) if gone is not None else 0

    def _is_full(self) -> bool:
        return super()._is_full() or self.size > self._most_bytes
