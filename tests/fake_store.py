"""A record store in memory with the interface of `proxy.store.RecordStore`; it can be slow, sick, deaf or forgetful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from proxy.store import StoredRecord, StoreError, StoreSlow

Health = Literal["well", "slow", "sick", "deaf"]


@dataclass
class FakeStore:
    """Records by key. `slow` and `sick` fail every read, `deaf` loses what it is told; `told` is its cache."""

    kept: dict[bytes, set[bytes]] = field(default_factory=dict)
    told: dict[bytes, set[bytes]] = field(default_factory=dict)
    health: Health = "well"

    async def find(
        self, keys: Sequence[bytes], *, replies: Mapping[bytes, bytes] | None = None, fresh: bool = False
    ) -> dict[bytes, tuple[bytes, ...]]:
        if self.health == "slow":
            raise StoreSlow("The record store did not answer in time.")
        if self.health == "sick":
            raise StoreError("The record store could not be read.")
        return _under(self.kept, keys)

    def cached(
        self, keys: Sequence[bytes], *, replies: Mapping[bytes, bytes] | None = None
    ) -> dict[bytes, tuple[bytes, ...]]:
        return _under(self.told, keys)

    async def newest(self, conversation: bytes, most: int) -> tuple[bytes, ...]:
        found = await self.find([conversation])
        return found.get(conversation, ())[:most]

    def add(self, record: StoredRecord) -> None:
        assert (len(record.key), len(record.tenant), len(record.reply)) == (32, 32, 16)
        if self.health == "deaf":
            return
        for place in (self.kept, self.told):
            place.setdefault(record.key, set()).add(record.payload)
            if record.conversation is not None:
                place.setdefault(record.conversation, set()).add(record.payload)

    def forget(self, position: int | None = None) -> None:
        """Lose everything, or the records under the key that was written at this position (modulo their number)."""
        lost = list(self.kept) if position is None or not self.kept else [list(self.kept)[position % len(self.kept)]]
        for key in lost:
            self.kept.pop(key, None)
            self.told.pop(key, None)

    def elsewhere(self) -> FakeStore:
        """The same records as another process sees them: nothing cached."""
        return FakeStore(kept=self.kept)


def _under(place: dict[bytes, set[bytes]], keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
    return {key: tuple(sorted(place[key])) for key in keys if key in place}
