"""What the inspector keeps: the newest requests as rows, and all that has no fixed size as blobs, within a bound."""

from __future__ import annotations

import json
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]


class Blobs:
    """Values by key, compressed; those used longest ago go first. One alone may take a quarter of the room.

    Safe to use from threads.
    """

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._most = most_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self.size = 0

    def put(self, kind: str, name: str, blob: bytes) -> bool:
        """Keep a blob. False where it is too large to be kept at all."""
        with self._lock:
            self._drop(kind, name)
            if len(blob) > self._most // 4:
                return False
            self._kept[kind, name] = blob
            self.size += len(blob)
            while self.size > self._most:
                _, gone = self._kept.popitem(last=False)
                self.size -= len(gone)
            return True

    def get(self, kind: str, name: str) -> bytes | None:
        """A blob, which is now the one used last."""
        with self._lock:
            blob = self._kept.get((kind, name))
            if blob is not None:
                self._kept.move_to_end((kind, name))
            return blob

    def drop(self, kind: str, name: str) -> None:
        """Forget a blob, if it is there."""
        with self._lock:
            self._drop(kind, name)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self.size = 0

    def _drop(self, kind: str, name: str) -> None:
        gone = self._kept.pop((kind, name), None)
        if gone is not None:
            self.size -= len(gone)


def packed(value: Any) -> bytes:
    """A JSON value as a blob."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def unpacked(blob: bytes | None) -> Any:
    """The value of a blob; None without one."""
    return json.loads(zlib.decompress(blob)) if blob is not None else None


class Rows:
    """The newest requests, oldest first, and those of each conversation."""

    def __init__(self, most: int) -> None:
        self._rows: deque[Row] = deque()
        self._most = most
        self._by_id: dict[str, Row] = {}
        self._conversations: dict[str, deque[Row]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def add(self, row: Row) -> Row | None:
        """Take a row. Returns the one that had to go for it."""
        self._rows.append(row)
        self._by_id[row["id"]] = row
        if row["conversation"] is not None:
            self.belongs(row, row["conversation"])
        if len(self._rows) <= self._most:
            return None
        gone = self._rows.popleft()
        if self._by_id.get(gone["id"]) is gone:
            del self._by_id[gone["id"]]
        if gone["conversation"] is not None:
            of = self._conversations[gone["conversation"]]
            of.popleft()  # rows of a conversation go in the order in which they came
            if not of:
                del self._conversations[gone["conversation"]]
        return gone

    def belongs(self, row: Row, conversation: str) -> None:
        """A row that is kept is one of this conversation: the newest of which that is known."""
        row["conversation"] = conversation
        self._conversations.setdefault(conversation, deque()).append(row)

    def get(self, serial: int) -> Row | None:
        """The row with this serial number. These have no gaps, so that the place of each is known."""
        at = serial - self._rows[0]["serial"] if self._rows else -1
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def called(self, request_id: str) -> Row | None:
        """The newest row of a request with this id. Clients may give several the same."""
        return self._by_id.get(request_id)

    def conversation(self, name: str) -> list[Row]:
        """The requests of a conversation, oldest first."""
        return list(self._conversations.get(name, ()))

    def has(self, conversation: str) -> bool:
        """Whether any request of a conversation is kept."""
        return conversation in self._conversations

    def conversations(self) -> int:
        return len(self._conversations)

    def newest(self, most: int, before: int | None = None) -> list[Row]:
        """So many rows, newest first; older than the one with the serial number `before`, where that is given."""
        found: list[Row] = []
        for row in self._back_from(before):
            found.append(row)
            if len(found) == most:
                break
        return found

    def _back_from(self, before: int | None) -> Iterator[Row]:
        if not self._rows:
            return
        last = self._rows[-1]["serial"]
        skip = max(0, last - before + 1) if before is not None else 0
        for position in range(len(self._rows) - 1 - skip, -1, -1):
            yield self._rows[position]
