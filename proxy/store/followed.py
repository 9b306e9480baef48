"""What other processes wrote lately, read as it came, so that a request that follows them here asks no store.

No I/O, no clock, no LanceDB. The rows lie under the keys that stand in the store, since only who asks knows the plain
ones. Nothing is concluded from what is missing here.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.store.cache import RecordCache
from proxy.store.record import StoredRow
from proxy.store.secret import StoreSecret


class Followed:
    """Rows of others by key, bounded in bytes; the least recently used leave first."""

    def __init__(self, limit: int) -> None:
        self._cache = RecordCache(limit)
        self._secret: StoreSecret | None = None

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def size(self) -> int:
        return self._cache.size

    def take(self, rows: Iterable[StoredRow], secret: StoreSecret) -> None:
        """Hold rows of the store with this secret."""
        if secret != self._secret:
            self._cache.clear()
            self._secret = secret
        for row in rows:
            self._cache.hold(row.key, row.reply + row.payload, row.created, written=True)

    def under(self, key: bytes, since: int) -> dict[bytes, int]:
        """The rows under a plain `key` that are not older than `since`, each with its age."""
        if self._secret is None or not len(self._cache):
            return {}
        return self._cache.get(self._secret.key(key), since)

    def clear(self) -> None:
        """Know nothing any more."""
        self._cache.clear()
