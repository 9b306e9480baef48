"""All that lasts, opened by the settings: records, registered contents, held answers, each a table of one store.

They are apart because their rows differ in size, age and use; they share the place and its secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.store.collecting import Collector, NamesIn
from proxy.store.health import Stats
from proxy.store.held import KEPT_FOR, HeldAnswers
from proxy.store.place import CONTENTS, HELD, RECORDS
from proxy.store.records import RecordStore

if TYPE_CHECKING:
    from proxy.settings import Settings

_HELD_BYTES = 8 << 20


class Store:
    """The tables of one store."""

    def __init__(
        self, records: RecordStore, contents: RecordStore, held: RecordStore, names_in: NamesIn | None = None
    ) -> None:
        """`names_in` says which contents a record names; without it, none is ever collected."""
        self.records = records
        """What settled questions left, by key, and by conversation."""
        self.contents = contents
        """What tools registered, and what else is not on the wire, by the digest of what it is."""
        self.held = HeldAnswers(held)
        for other in (contents, held):
            records.on_erasure(other.forget)  # it notices first: every request looks at it
        self._tables = {RECORDS: records, CONTENTS: contents, HELD: held}
        self.collector = Collector(records, contents, names_in) if names_in is not None else None
        self._collecting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write and to look after each; what lies there already is opened in the background."""
        await asyncio.gather(*(table.start() for table in self._tables.values()))
        if self.collector is not None and self._collecting is None:
            self._collecting = asyncio.create_task(self.collector.run())

    async def close(self) -> None:
        """Write what waits, within the grace period, and let go of everything. Never raises."""
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        await asyncio.gather(*(table.close() for table in self._tables.values()))

    def on_erasure(self, forget: Callable[[], None]) -> None:
        """Have this called when something was erased, by any process; see `RecordStore.on_erasure`."""
        self.records.on_erasure(forget)

    def ready(self) -> tuple[bool, str]:
        """Whether all of it is well, and a line for the person who asks: of the first that is not, else of records."""
        answers = [table.ready() for table in self._tables.values()]
        return next((answer for answer in answers if not answer[0]), answers[0])

    def stats(self) -> dict[str, Stats]:
        """What each table counted and holds, by its name."""
        return {name: table.stats() for name, table in self._tables.items()}

    def __iter__(self) -> Iterator[RecordStore]:
        return iter(self._tables.values())


def open_store(settings: Settings, names_in: NamesIn | None = None) -> Store:
    """The store that the settings name, not yet started. `names_in` says which contents a record names."""
    section = settings.store
    retention = None if section.retention_days is None else timedelta(days=section.retention_days)

    def table(name: str, keep: timedelta | None, cache_bytes: int) -> RecordStore:
        return RecordStore(
            section.address,
            section.directory or Path(),
            name,
            read_timeout=section.read_timeout_ms / 1000,
            retention=keep,
            cache_bytes=cache_bytes,
            queue_bytes=section.queue_bytes,
            close_grace=section.close_grace_ms / 1000,
        )

    return Store(
        table(RECORDS, retention, section.records_cache_bytes),
        # A record of today may need what was cited long ago: contents go when no record names them any more.
        table(CONTENTS, None, section.contents_cache_bytes),
        table(HELD, KEPT_FOR, _HELD_BYTES),
        names_in,
    )
