"""Contents that no record names are collected: mark what records name, sweep the rest.

Contents have no retention of their own: a record of yesterday may need what was cited a year ago. What is younger than
the grace stays, because the record that will name it may not be written yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from proxy.store.lance import Lance
from proxy.store.record import StoredRow, StoreError
from proxy.store.records import RecordStore

log = logging.getLogger(__name__)

#: What a record's payload names: contents, by the digest that their rows carry in place of a reply's. None where that
#: cannot be told.
NamesIn = Callable[[bytes], Iterable[bytes] | None]
#: Called with how many rows were looked at more.
Advanced = Callable[[int], None]


@dataclass
class Names:
    """What records name, each name with the tenant (as it lies there) that may see it. Of a tenant one of whose records
    cannot be read nothing is known for sure, so that everything counts as named."""

    known: set[tuple[bytes, bytes]] = field(default_factory=set)
    unclear: set[bytes] = field(default_factory=set)

    def holds(self, row: StoredRow) -> bool:
        """Whether a content (as it lies there) may be named."""
        return row.tenant in self.unclear or (row.tenant, row.reply) in self.known


GRACE = timedelta(days=2)
_EVERY = timedelta(hours=6)
_FIRST_AFTER = timedelta(minutes=10)


def _quietly(_: int) -> None:
    pass


async def named(records: Lance, names_in: NamesIn, advanced: Advanced = _quietly) -> Names:
    """What all records name. Raises StoreError."""
    found = Names()
    async for rows in records.rows():
        for row in rows:
            names = names_in(row.payload) if row.intact else None
            if names is None:
                found.unclear.add(row.tenant)
            else:
                found.known.update((row.tenant, name) for name in names)
        advanced(len(rows))
    return found


async def unnamed(contents: Lance, names: Names, before: int, advanced: Advanced = _quietly) -> list[bytes]:
    """The keys (as they lie there) of contents that are older than a moment (microseconds) and that nothing names."""
    found: set[bytes] = set()
    stays: set[bytes] = set()
    async for rows in contents.rows(at_once=100):
        for row in rows:
            wanted = names.holds(row) or row.created >= before
            (stays if wanted else found).add(row.key)
        advanced(len(rows))
    return sorted(found - stays)


class Collector:
    """Collects while a process serves: a few times a day, in the background."""

    def __init__(self, records: RecordStore, contents: RecordStore, names_in: NamesIn) -> None:
        self._records = records
        self._contents = contents
        self._names_in = names_in
        self.collected = 0
        """Keys whose contents were deleted."""

    async def run(self) -> None:
        """Live until cancelled. What fails comes again."""
        wait = _FIRST_AFTER
        while True:
            await asyncio.sleep(wait.total_seconds() * random.uniform(0.75, 1.25))
            wait = _EVERY
            with contextlib.suppress(StoreError):
                await self.collect(GRACE)

    async def collect(self, grace: timedelta) -> int:
        """Delete what no record names; returns how many keys that was. Raises StoreError."""
        before = (time.time_ns() - int(grace.total_seconds() * 1e9)) // 1000
        # What is not written yet is younger than the grace, so the order of the two looks does not matter.
        names = await self._records.maintain(lambda lance: named(lance, self._names_in))
        if names is None:
            return 0
        keys = await self._contents.maintain(lambda lance: unnamed(lance, names, before))
        if keys:
            await self._contents.maintain(lambda lance: lance.forget_keys(keys))
            log.info("contents that no record names were collected: %d", len(keys))
        self.collected += len(keys or ())
        return len(keys or ())
