"""The record store as the rest of the house sees it: find, add, flush, and nothing of what lies beneath.

All of it runs on the proxy's event loop and never waits there for a disk. A find is answered from the cache and from
what still waits to be written; only the rest is asked of the store, once per key however many requests ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proxy.store.cache import RecordCache
from proxy.store.door import Door
from proxy.store.health import Counts, Health
from proxy.store.lance import Lance
from proxy.store.place import Place
from proxy.store.record import Entry, Found, StoredRecord, StoreError, StoreSlow
from proxy.store.thread import StoreThread
from proxy.store.unwritten import Unwritten
from proxy.store.upkeep import Pace, Upkeep
from proxy.store.writer import Writer

if TYPE_CHECKING:
    from proxy.settings import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

_DAY_US = 86_400_000_000
_OPENING_MAY_TAKE = 15.0
_READS_AT_ONCE = 64
_READ_TAKES_AT_MOST = 30.0


class RecordStore:
    """Records by key: in a directory, at an address, or in memory only. All its methods belong to one event loop.

    With `memory://` the cache is all there is: bounded, and gone with the process.
    """

    def __init__(
        self,
        uri: str | None,
        data_dir: Path,
        *,
        read_timeout: float,
        retention_days: int | None,
        cache_bytes: int = 64 << 20,
        queue_bytes: int = 64 << 20,
        close_grace: float = 20.0,
        pace: Pace | None = None,
    ) -> None:
        self._place = Place.of(uri, data_dir)
        self._read_timeout = read_timeout
        self._retention_us = None if retention_days is None else retention_days * _DAY_US
        self._close_grace = close_grace
        self._pace = pace or Pace()
        self._counts = Counts()
        self._health = Health()
        self._cache = RecordCache(cache_bytes)
        self._unwritten = Unwritten(queue_bytes)
        self._disk: _Disk | None = None
        self._closed = False
        self._reading: dict[bytes, asyncio.Task[Found]] = {}
        self._reads: set[asyncio.Task[Found]] = set()

    async def start(self) -> None:
        """Begin to write and to look after the store; if one lies there already, it is opened in the background."""
        if self._place.in_memory or self._disk is not None:
            return
        disk = self._disk = _Disk(
            self._place, self._unwritten, self._cache, self._counts, self._health, self._pace, self._retention_us
        )
        # A look at a healthy disk is quick, and then `ready` can tell; a sick one is not waited for.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1.0):
                await disk.door.look()
        disk.door.enter()
        if self._unwritten:
            disk.writer.wake()

    async def find(self, keys: Sequence[bytes], *, fresh: bool = False) -> dict[bytes, tuple[bytes, ...]]:
        """The payloads that stand under `keys`, each key's in bytewise order; keys without a record are absent.

        Keys that this process knows are not asked of the store unless `fresh`, which also sees what any other process
        had written before the call. Raises StoreSlow past the read time-out (while the store is still being opened:
        past 15 seconds of that), and StoreError.
        """
        since = self._oldest()
        found: Found = {}
        ask: set[bytes] = set()
        for key in keys:
            known = self._cache.get(key, since) | self._unwritten.payloads(key)
            if known:
                found[key] = known
            if fresh or not known:
                ask.add(key)
        self._counts.cache_hits += len(found)
        if ask and not self._place.in_memory:
            self._counts.cache_misses += len(ask)
            for read in await self._ask(ask, fresh):
                for key in ask & read.keys():
                    known = {payload: created for payload, created in read[key].items() if created >= since}
                    if known:
                        found[key] = found.get(key, {}) | known
        return {key: tuple(sorted(payloads)) for key, payloads in found.items()}

    def cached(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        """What `find` would say of these keys without asking the store. Never waits, never raises."""
        since = self._oldest()
        known = {key: self._cache.get(key, since) | self._unwritten.payloads(key) for key in keys}
        return {key: tuple(sorted(payloads)) for key, payloads in known.items() if payloads}

    def add(self, record: StoredRecord) -> None:
        """Take a record: findable here at once, written soon. Never waits, never raises; what is lost is counted."""
        if self._closed or (len(record.key), len(record.tenant), len(record.reply)) != (32, 32, 16):
            self._counts.refused += 1
            return
        self._counts.added += 1
        now = time.time_ns() // 1000
        waits = self._unwritten.holds(record.key, record.payload)
        # A day, so that a record which keeps being added does not reach the end of its retention.
        if waits or self._cache.written_since(record.key, record.payload, now - _DAY_US):
            self._counts.duplicates += 1
            return
        self._cache.hold(record.key, record.payload, now, written=False)
        if self._place.in_memory:
            return
        self._counts.shed += self._unwritten.accept(Entry(record, now))
        if self._disk is not None:
            self._disk.writer.wake()

    async def flush(self) -> None:
        """Return when all that was added before is written or shed. StoreError if an attempt to write it fails."""
        if self._place.in_memory or self._closed:
            return
        await self.start()
        assert self._disk is not None
        await self._disk.writer.flush()

    async def close(self) -> None:
        """Write what waits, within the grace period, and let go of the store. Never raises."""
        if self._closed:
            return
        try:
            if self._unwritten:
                async with asyncio.timeout(self._close_grace):
                    await self.flush()
        except (StoreError, TimeoutError) as fault:
            log.warning("%d records were not written before the end: %s", len(self._unwritten), fault or "no time left")
            self._counts.shed += len(self._unwritten)
        self._closed = True
        if self._disk is not None:
            await self._disk.close()

    def ready(self) -> tuple[bool, str]:
        """Whether the store is well, and a line for the person who asks."""
        if self._place.in_memory:
            return True, "records are kept in memory only"
        if self._disk is None or self._closed:
            return False, "the record store is not started" if self._disk is None else "the record store is closed"
        if self._health.fault is not None:
            return False, self._health.fault
        if self._disk.door.lance is not None:
            return True, f"the record store in {self._place.shown} is open"
        if self._disk.door.held is False:
            return True, f"no records in {self._place.shown} yet"
        return False, f"the record store in {self._place.shown} is being opened"

    def counts(self) -> dict[str, int]:
        """What happened since the start (see Counts), and what waits and is cached now."""
        return asdict(self._counts) | {
            "waiting": len(self._unwritten),
            "waiting_bytes": self._unwritten.size,
            "cached": len(self._cache),
            "cached_bytes": self._cache.size,
        }

    def _oldest(self) -> int:
        """The age, as a moment, that a record may have to be found; retention holds before anything is deleted."""
        return 0 if self._retention_us is None else time.time_ns() // 1000 - self._retention_us

    async def _ask(self, keys: Iterable[bytes], fresh: bool) -> list[Found]:
        """Ask the store for `keys`, joining reads that are going on, but no longer than a request may wait."""
        if self._closed:
            raise StoreError("The record store is closed.")
        await self.start()
        assert self._disk is not None
        lance = self._disk.door.lance
        if lance is None:
            lance = await self._entered(self._disk.door, fresh)
            if lance is None:
                return []
        reads: set[asyncio.Task[Found]] = set()
        rest: list[bytes] = []
        for key in keys:
            going_on = None if fresh else self._reading.get(key)
            if going_on is None:
                rest.append(key)
            else:
                reads.add(going_on)
        if rest:
            reads.add(self._begin_read(lance, rest, fresh))
        done, late = await asyncio.wait(reads, timeout=self._read_timeout)
        if late:
            self._counts.slow += 1
            raise StoreSlow(f"The record store did not answer within {self._read_timeout * 1000:.0f} ms.")
        return [_outcome(read) for read in done]

    async def _entered(self, door: Door, fresh: bool) -> Lance | None:
        entering = door.enter(look_again=fresh)
        patience = max(self._read_timeout, _OPENING_MAY_TAKE - (time.monotonic() - door.since))
        await asyncio.wait({entering}, timeout=patience)
        if not entering.done():
            self._counts.slow += 1
            raise StoreSlow(f"The record store was not open after {_OPENING_MAY_TAKE:.0f} s.")
        return _outcome(entering)

    def _begin_read(self, lance: Lance, keys: list[bytes], fresh: bool) -> asyncio.Task[Found]:
        if len(self._reads) >= _READS_AT_ONCE:
            self._counts.slow += 1
            raise StoreSlow(f"The record store has {_READS_AT_ONCE} reads to answer already.")
        read = asyncio.create_task(self._read(lance, keys, fresh))
        self._reads.add(read)
        self._reading.update(dict.fromkeys(keys, read))

        def done(_: object) -> None:
            self._reads.discard(read)
            for key in keys:
                if self._reading.get(key) is read:
                    del self._reading[key]
            if not read.cancelled():
                read.exception()  # whoever waited may be gone

        read.add_done_callback(done)
        return read

    async def _read(self, lance: Lance, keys: list[bytes], fresh: bool) -> Found:
        """One read, tried a second time on a handle opened anew: the first may be of a store that is gone."""
        disk = self._disk
        assert disk is not None
        self._counts.reads += 1
        try:
            try:
                found, damaged = await disk.thread.run(lance.read(keys, latest=fresh), within=_READ_TAKES_AT_MOST)
            except StoreError:
                if not disk.door.forget(lance):
                    raise
                anew = await asyncio.shield(disk.door.enter())
                if anew is None:
                    return {}
                found, damaged = await disk.thread.run(anew.read(keys, latest=fresh), within=_READ_TAKES_AT_MOST)
        except StoreError as fault:
            self._counts.failed += 1
            self._health.failed("read", fault)
            raise
        self._health.worked("read")
        self._counts.damaged += damaged
        for key, payloads in found.items():
            for payload, created in payloads.items():
                self._cache.hold(key, payload, created, written=True)
        return found


def _outcome(task: asyncio.Task[T]) -> T:
    """What a finished task gave; one that was cancelled was so because the store was closed."""
    if task.cancelled():
        raise StoreError("The record store was closed.")
    return task.result()


class _Disk:
    """What a store that is kept somewhere has and `memory://` has not: the thread, the door, the writer, the upkeep."""

    def __init__(
        self,
        place: Place,
        unwritten: Unwritten,
        cache: RecordCache,
        counts: Counts,
        health: Health,
        pace: Pace,
        retention_us: int | None,
    ) -> None:
        self.thread = StoreThread()
        self.door = Door(place, self.thread, health)
        self.upkeep = Upkeep(self.door, self.thread, counts, health, pace, retention_us)
        self.writer = Writer(self.door, self.thread, unwritten, cache, counts, health, self.upkeep.committed)
        self.upkeep.writer = self.writer
        self._tasks = [asyncio.create_task(self.writer.run()), asyncio.create_task(self.upkeep.run())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await self.door.close()
        await self.thread.stop()


def open_contents(settings: Settings) -> RecordStore:
    """Where what tools registered is kept, beside the records and apart from them, not yet started.

    Its rows are large and read seldom, so they have a table, a cache and a writer of their own.
    """
    section = settings.store
    directory = section.directory
    return RecordStore(
        "memory://" if directory is None else None,
        directory / "contents" if directory is not None else Path(),
        read_timeout=section.read_timeout_ms / 1000,
        retention_days=section.retention_days,
    )


def open_store(settings: Settings) -> RecordStore:
    """The store that the settings name, not yet started."""
    section = settings.store
    directory = section.directory
    return RecordStore(
        "memory://" if directory is None else None,
        directory or Path(),
        read_timeout=section.read_timeout_ms / 1000,
        retention_days=section.retention_days,
    )
