"""What this process remembers of recent requests: bounded, and lost with it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

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
                self._took(key, before, value)
                while self._values and self._is_full():
                    self._took(*self._values.popitem(last=False), None)

    def drop(self, key: Key) -> None:
        with self._lock:
            self._took(key, self._values.pop(key, None), None)

    def clear(self) -> None:
        with self._lock:
            while self._values:
                self._took(*self._values.popitem(), None)

    def _took(self, key: Key, gone: Value | None, come: Value | None) -> None:
        """A value left, another came."""

    def _is_full(self) -> bool:
        return len(self._values) > self._most


class RecentBytes(Recent[Key, Value]):
    """The same, up to a number of bytes as well. `heavy` is what of a value weighs, and `weigh` says how much, of that
    and the key: many values may share one heavy thing, which counts once."""

    def __init__(
        self, most: int, most_bytes: int, heavy: Callable[[Value], object], weigh: Callable[[Key, Any], int]
    ) -> None:
        super().__init__(most)
        self._most_bytes = most_bytes
        self._heavy = heavy
        self._weigh = weigh
        self._shared: dict[int, tuple[int, int]] = {}  # id of a heavy thing -> how many values share it, its bytes
        self.size = 0

    def weight(self, heavy: object) -> int | None:
        """How much a heavy thing weighs that is here; None of any other."""
        shared = self._shared.get(id(heavy))
        return shared[1] if shared is not None else None

    def _took(self, key: Key, gone: Value | None, come: Value | None) -> None:
        for value, more in ((come, 1), (gone, -1)):
            heavy = None if value is None else self._heavy(value)
            if heavy is None:
                continue
            sharing, size = self._shared.get(id(heavy)) or (0, self._weigh(key, heavy))
            self.size += size if sharing == 0 else -size if sharing + more == 0 else 0
            if sharing + more:
                self._shared[id(heavy)] = sharing + more, size
            else:
                del self._shared[id(heavy)]

    def _is_full(self) -> bool:
        return super()._is_full() or self.size > self._most_bytes
