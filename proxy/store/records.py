"""One table of the store as the rest of the house sees it: find, add, flush, and nothing of what lies beneath.

All of it runs on the proxy's event loop and never waits there for a disk. A find is answered from the cache and from
what still waits to be written; only the rest is asked of the store, once per key however many requests ask for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from proxy.store.cache import RecordCache
from proxy.store.door import Door
from proxy.store.followed import Followed
from proxy.store.health import Counts, Durations, Health, Stats
from proxy.store.lance import Lance, Tail
from proxy.store.place import RECORDS, Place
from proxy.store.record import REPLY_BYTES, Entry, Read, StoredRecord, StoreError, StoreSlow, payloads
from proxy.store.thread import StoreThread
from proxy.store.unwritten import Unwritten
from proxy.store.upkeep import Pace, Upkeep
from proxy.store.writer import Writer

log = logging.getLogger(__name__)

T = TypeVar("T")

_DAY_US = 86_400_000_000
_OPENING_MAY_TAKE = 15.0
_READS_AT_ONCE = 64
# A query costs milliseconds of processor time for one key, and hardly more for a hundred. So only a few go on side by
# side, and what is asked for meanwhile is asked together: after a start each conversation asks for something.
_KEY_READS_AT_ONCE = 4
_KEYS_TOGETHER = 1_024
# While requests come, the end of the table is read every now and then; a while after the last one, no more.
_FOLLOWS_FOR = 10.0
_OF_THE_CACHE_FOR_FOLLOWED = 0.25
_SEEN_JUST_NOW = 0.05
_READ_TAKES_AT_MOST = 30.0
# A store that answers nobody is told of before its reads are given up, which tells of themselves.
_HANGS_AFTER = 3.0
_WRITING_HANGS_AFTER = 10.0
_MAINTENANCE_TAKES_AT_MOST = 3_600.0


class RecordStore:
    """Records by key: in a directory, at an address, or in memory only. All its methods belong to one event loop.

    With `memory://` the cache is all there is: bounded, and gone with the process.
    """

    def __init__(
        self,
        uri: str | None,
        data_dir: Path,
        table: str = RECORDS,
        *,
        read_timeout: float,
        retention: timedelta | None,
        cache_bytes: int = 16 << 20,
        queue_bytes: int = 64 << 20,
        close_grace: float = 20.0,
        pace: Pace | None = None,
    ) -> None:
        self._place = Place.of(uri, data_dir, table)
        self._read_timeout = read_timeout
        self._retention_us = None if retention is None else retention // timedelta(microseconds=1)
        self._close_grace = close_grace
        self._pace = pace or Pace.of(self._place)
        self._counts = Counts()
        self._health = Health()
        self._finding, self._querying, self._writing = Durations(), Durations(), Durations()
        for_followed = 0 if self._pace.follow is None else int(cache_bytes * _OF_THE_CACHE_FOR_FOLLOWED)
        self._cache = RecordCache(cache_bytes - for_followed)
        self._followed = Followed(for_followed)
        self._looking: asyncio.Task[Tail] | None = None
        self._looked_at = self._stirred_at = float("-inf")
        self._stirred = asyncio.Event()
        self._unwritten = Unwritten(queue_bytes)
        self._disk: _Disk | None = None
        self._told_of_erasures: list[Callable[[], None]] = []
        self._closed = False
        self._reading: dict[_Wanted, asyncio.Task[Read]] = {}
        self._gathering: dict[bool, _Together] = {}
        self._turns = asyncio.Semaphore(_KEY_READS_AT_ONCE)
        self._reads: dict[asyncio.Task[Any], float] = {}

    async def start(self) -> None:
        """Begin to write and to look after the store; if one lies there already, it is opened in the background."""
        if self._place.in_memory or self._disk is not None:
            return
        disk = self._disk = _Disk(
            self._place,
            self._unwritten,
            self._cache,
            self.forget,
            self._counts,
            self._health,
            self._pace,
            self._retention_us,
            self._writing,
        )
        if self._pace.follow is not None:
            disk.live(self._follow(disk, self._pace.follow))
        # A look at a healthy disk is quick, and then `ready` can tell; a sick one is not waited for.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1.0):
                await disk.door.look()
        disk.door.enter()
        if self._unwritten:
            disk.writer.wake()

    async def find(
        self, keys: Sequence[bytes], *, replies: Mapping[bytes, bytes] | None = None, fresh: bool = False
    ) -> dict[bytes, tuple[bytes, ...]]:
        """The payloads that stand under `keys`, each key's in bytewise order; keys without a record are absent.

        `replies` says of some keys which reply is looked for. A key that this process knows with that reply (any other
        key: that it knows at all) is not asked of the store, unless `fresh`, which also sees what any other process had
        written before the call. Where so many records stand under a key that only those of the reply are read, there
        are no others in the answer. Raises StoreSlow past the read time-out (while the store is still being opened:
        past 15 seconds of that), and StoreError.
        """
        began = time.perf_counter()
        self._stir()
        try:
            return await self._find(keys, replies or {}, fresh)
        finally:
            self._finding.note(time.perf_counter() - began)

    def cached(
        self, keys: Sequence[bytes], *, replies: Mapping[bytes, bytes] | None = None
    ) -> dict[bytes, tuple[bytes, ...]]:
        """What this process alone can say of these keys. Never waits, never raises.

        Where `replies` names a reply, only its records count: which others there are, this process may not know.
        """
        since, replies = self._oldest(), replies or {}
        found: dict[bytes, tuple[bytes, ...]] = {}
        for key in keys:
            rows: Iterable[bytes] = self._followed.under(key, since) | self._known(key, since)
            if key in replies and not self._place.in_memory:
                rows = _of_reply(rows, replies[key])
            if known := payloads(rows):
                found[key] = known
        return found

    async def newest(self, conversation: bytes, most: int) -> tuple[bytes, ...]:
        """At most `most` payloads of a conversation (its digest, as records were added with), the newest first.

        Raises as `find` does.
        """
        since = self._oldest()
        rows = dict(self._known(conversation, since))
        if not self._place.in_memory:
            lance = await self._open_store(look_again=False)
            if lance is not None:
                read = self._begin(lambda: self._query(lance, lambda lance: lance.newest(conversation, most)))
                ((stored, damaged),) = await self._answers({read}, self._read_timeout)
                self._counts.damaged += damaged
                rows |= {row: created for row, created in stored.items() if created >= since}
        newest = sorted(rows, key=lambda row: (-rows[row], row))
        return tuple(dict.fromkeys(row[REPLY_BYTES:] for row in newest))[:most]

    def add(self, record: StoredRecord) -> None:
        """Take a record: findable here at once, written soon. Never waits, never raises; what is lost is counted."""
        lengths = len(record.key), len(record.tenant), len(record.reply), len(record.conversation or bytes(32))
        if self._closed or lengths != (32, 32, REPLY_BYTES, 32):
            self._counts.refused += 1
            return
        self._counts.added += 1
        now = time.time_ns() // 1000
        entry = Entry.of(record, now)
        waits = self._unwritten.holds(entry.key, entry.row)
        # A day, so that a record which keeps being added does not reach the end of its retention.
        if waits or self._cache.written_since(entry.key, entry.row, now - _DAY_US):
            self._counts.duplicates += 1
            return
        self._cache.hold(entry.key, entry.row, now, written=False)
        if self._place.in_memory:
            if entry.conversation is not None:
                self._cache.hold(entry.conversation, entry.row, now, written=False)
            return
        self._counts.shed += self._unwritten.accept(entry)
        if self._disk is not None:
            self._disk.writer.wake()

    async def flush(self) -> None:
        """Return when all that was added before is written or shed. StoreError if an attempt to write it fails."""
        if self._place.in_memory or self._closed:
            return
        await self.start()
        assert self._disk is not None
        await self._disk.writer.flush()

    async def erase(self, tenant: bytes, conversation: bytes | None = None) -> int:
        """Forget a tenant, or one of its conversations (plain digests, as records were added with); how many rows.

        Other replicas forget what they have by heart at their next look, within half a minute. What the process has in
        hand is written and erased with the rest. StoreError if that could not be done; then it is to be asked again.
        """
        waiting = self._unwritten.drop(tenant, conversation)
        self.forget()
        if self._place.in_memory:
            return waiting
        await self.flush()
        lance = await self._open_store(look_again=True)
        assert self._disk is not None
        try:
            erased = 0 if lance is None else await self._disk.thread.run(lance.erase(tenant, conversation))
        finally:
            self.forget()
        return waiting + erased

    def on_erasure(self, forget: Callable[[], None]) -> None:
        """Have this called when something was erased, here or by any other process: whoever holds what came out of the
        store, or went into it, is to forget it. Nobody says whose it was."""
        self._told_of_erasures.append(forget)

    def forget(self) -> None:
        """Know nothing by heart any more, but what waits to be written; and tell those who hold more."""
        self._cache.clear()
        self._followed.clear()
        for forget in self._told_of_erasures:
            forget()

    async def maintain(self, work: Callable[[Lance], Coroutine[Any, Any, T]]) -> T | None:
        """Do some long work on the open store, away from every request; None while no store lies there, or in memory.

        Raises StoreError.
        """
        if self._place.in_memory or self._closed:
            return None
        lance = await self._open_store(look_again=False)
        assert self._disk is not None
        return None if lance is None else await self._disk.thread.run(work(lance), within=_MAINTENANCE_TAKES_AT_MOST)

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
        now = time.monotonic()
        waited = now - min(self._reads.values(), default=now)
        writing = now - (self._disk.writer.writing_since or now)
        if waited > _HANGS_AFTER or writing > _WRITING_HANGS_AFTER:
            waited = max(waited, writing)
            return False, f"the record store in {self._place.shown} has not answered for {waited:.0f} s"
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
            "cached": len(self._cache) + len(self._followed),
            "cached_bytes": self._cache.size + self._followed.size,
        }

    def stats(self) -> Stats:
        """The counts, and how long things took."""
        return Stats(self.counts(), self._finding.so_far(), self._querying.so_far(), self._writing.so_far())

    def _oldest(self) -> int:
        """The age, as a moment, that a record may have to be found; retention holds before anything is deleted."""
        return 0 if self._retention_us is None else time.time_ns() // 1000 - self._retention_us

    def _known(self, name: bytes, since: int) -> dict[bytes, int]:
        """The rows that this process knows under a key, or of a conversation: those that wait, and the cached."""
        return self._cache.get(name, since) | self._unwritten.under(name)

    def _at_hand(
        self, keys: Iterable[bytes], replies: Mapping[bytes, bytes], since: int
    ) -> tuple[dict[bytes, dict[bytes, int]], set[_Wanted]]:
        """What this process can say of these keys, and what it cannot."""
        found: dict[bytes, dict[bytes, int]] = {}
        rest: set[_Wanted] = set()
        for key in keys:
            known, reply = self._known(key, since), replies.get(key)
            if not _suffices(known, reply) and (followed := self._followed.under(key, since)):
                for row, created in followed.items():
                    self._cache.hold(key, row, created, written=True)
                known = followed | known
            if known:
                found[key] = known
            if not _suffices(known, reply):
                rest.add(_Wanted(key, reply))
        return found, rest

    def _stir(self) -> None:
        """Somebody asks: what others write is worth knowing."""
        self._stirred_at = time.monotonic()
        self._stirred.set()

    async def _follow(self, disk: _Disk, every: float) -> None:
        """Read what others write while requests come, so that these find it in memory. Lives until cancelled."""
        while True:
            await self._stirred.wait()
            await asyncio.sleep(every * random.uniform(0.75, 1.25))
            now = time.monotonic()
            if now - self._stirred_at > _FOLLOWS_FOR:
                self._stirred.clear()
            lance = disk.door.lance
            if lance is None or self._health.fault is not None or now - self._looked_at < every / 2:
                continue  # what is broken, the upkeep finds well again
            with contextlib.suppress(StoreSlow):
                await asyncio.wait({self._look(lance)})

    def _look(self, lance: Lance) -> asyncio.Task[Tail]:
        """A look at what others wrote, or the one that is going on. Raises StoreSlow as every read does."""
        if self._looking is None or self._looking.done():
            self._looked_at = time.monotonic()
            self._looking = self._begin(lambda: self._see(lance))
        return self._looking

    async def _see(self, lance: Lance) -> Tail:
        tail = await self._query(lance, lambda lance: lance.tail())
        assert self._disk is not None
        self._counts.damaged += tail.damaged
        self._counts.followed += len(tail.rows)
        self._followed.take(tail.rows, lance.secret)
        self._disk.upkeep.saw(tail)
        return tail

    async def _catch_up(self) -> float:
        """See what others wrote up to now, or nearly; returns how long a request may still wait, in seconds.

        Raises StoreSlow; what fails here, the read of a key will tell of.
        """
        began = time.monotonic()
        with contextlib.suppress(StoreError):
            lance = await self._open_store(look_again=False)
            began = time.monotonic()
            if lance is not None and began - self._looked_at > _SEEN_JUST_NOW:
                await self._answers({self._look(lance)}, self._read_timeout)
        return self._read_timeout - (time.monotonic() - began)

    async def _find(
        self, keys: Sequence[bytes], replies: Mapping[bytes, bytes], fresh: bool
    ) -> dict[bytes, tuple[bytes, ...]]:
        since, patience = self._oldest(), self._read_timeout
        found, ask = self._at_hand(keys, replies, since)
        if ask and self._pace.follow is not None and not self._place.in_memory and not fresh:
            patience = await self._catch_up()
            found, ask = self._at_hand(keys, replies, since)
        if fresh:
            ask = {_Wanted(key, replies.get(key)) for key in keys}
        self._counts.cache_hits += len(set(keys)) - len(ask)
        if ask and not self._place.in_memory:
            self._counts.cache_misses += len(ask)
            for read in await self._ask(ask, fresh, patience):
                for key in {wanted.key for wanted in ask} & read.found.keys():
                    stored = {row: created for row, created in read.found[key].items() if created >= since}
                    found[key] = found.get(key, {}) | stored
                for key in read.crowded & found.keys():
                    found[key] = {row: found[key][row] for row in _of_reply(found[key], replies[key])}
        return {key: payloads(rows) for key, rows in found.items() if rows}

    async def _ask(self, wanted: set[_Wanted], fresh: bool, patience: float) -> list[Read]:
        """Ask the store, joining reads that are going on, but no longer than a request may wait."""
        lance = await self._open_store(look_again=fresh)
        if lance is None:
            return []
        return await self._answers({self._read(lance, one, fresh) for one in wanted}, patience)

    async def _open_store(self, *, look_again: bool) -> Lance | None:
        """The store, as soon as it is open; None where none lies."""
        if self._closed:
            raise StoreError("The record store is closed.")
        await self.start()
        assert self._disk is not None
        door = self._disk.door
        if door.lance is not None:
            return door.lance
        entering = door.enter(look_again=look_again)
        patience = max(self._read_timeout, _OPENING_MAY_TAKE - (time.monotonic() - door.since))
        await asyncio.wait({entering}, timeout=patience)
        if not entering.done():
            self._counts.slow += 1
            raise StoreSlow(f"The record store was not open after {_OPENING_MAY_TAKE:.0f} s.")
        return _outcome(entering)

    async def _answers(self, reads: set[asyncio.Task[T]], patience: float) -> list[T]:
        done, late = await asyncio.wait(reads, timeout=max(0.0, patience))
        if late:
            self._counts.slow += 1
            raise StoreSlow(f"The record store did not answer within {self._read_timeout * 1000:.0f} ms.")
        return [_outcome(read) for read in done]

    def _read(self, lance: Lance, one: _Wanted, fresh: bool) -> asyncio.Task[Read]:
        """A read of this key: one that is going on, else the next one. A fresh one must not have begun before."""
        going_on = None if fresh else self._reading.get(one)
        if going_on is not None:
            return going_on
        together = self._gathering.get(fresh)
        if together is None or len(together.wanted) >= _KEYS_TOGETHER:
            together = self._gathering[fresh] = _Together()
            together.read = self._begin(lambda: self._read_together(lance, together, fresh))
        together.wanted.add(one)
        self._reading[one] = together.read
        return together.read

    async def _read_together(self, lance: Lance, together: _Together, fresh: bool) -> Read:
        """Read all that is asked for by the time that it is this read's turn."""
        wanted = together.wanted
        try:
            async with self._turns:
                if self._gathering.get(fresh) is together:
                    del self._gathering[fresh]
                keys, replies = _asked(wanted)
                read = await self._query(lance, lambda lance: lance.read(keys, latest=fresh, replies=replies))
                self._hold(read)
                return read
        finally:
            for one in wanted:
                if self._reading.get(one) is together.read:
                    del self._reading[one]

    def _begin(self, read: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin to ask the store something. It goes on when nobody waits any more."""
        if len(self._reads) >= _READS_AT_ONCE:
            self._counts.slow += 1
            raise StoreSlow(f"The record store has {_READS_AT_ONCE} reads to answer already.")
        reading = asyncio.create_task(read())
        self._reads[reading] = time.monotonic()

        def done(_: object) -> None:
            del self._reads[reading]
            if not reading.cancelled():
                reading.exception()  # whoever waited may be gone

        reading.add_done_callback(done)
        return reading

    async def _query(self, lance: Lance, query: Callable[[Lance], Coroutine[Any, Any, T]]) -> T:
        """One query, tried a second time on a handle opened anew: the first may be of a store that is gone."""
        disk = self._disk
        assert disk is not None
        self._counts.reads += 1
        began = time.perf_counter()
        try:
            try:
                answer = await disk.thread.run(query(lance), within=_READ_TAKES_AT_MOST)
            except StoreError:
                if not disk.door.forget(lance):
                    raise
                anew = await asyncio.shield(disk.door.enter())
                if anew is None:
                    raise
                answer = await disk.thread.run(query(anew), within=_READ_TAKES_AT_MOST)
        except StoreError as fault:
            self._counts.failed += 1
            self._health.failed("read", fault)
            raise
        finally:
            self._querying.note(time.perf_counter() - began)
        self._health.worked("read")
        return answer

    def _hold(self, read: Read) -> None:
        self._counts.damaged += read.damaged
        for key, rows in read.found.items():
            for row, created in rows.items():
                self._cache.hold(key, row, created, written=True)


class _Wanted(NamedTuple):
    """A key that the store is asked for, and the reply that is looked for under it."""

    key: bytes
    reply: bytes | None


class _Together:
    """Keys that are read together; more may join until the read begins."""

    __slots__ = ("read", "wanted")

    def __init__(self) -> None:
        self.wanted: set[_Wanted] = set()
        self.read: asyncio.Task[Read]


def _asked(wanted: Iterable[_Wanted]) -> tuple[list[bytes], dict[bytes, list[bytes]]]:
    """The keys, and which replies are looked for under those of which nobody wants everything."""
    replies: dict[bytes, set[bytes | None]] = {}
    for key, reply in wanted:
        replies.setdefault(key, set()).add(reply)
    some = {key: [one for one in each if one is not None] for key, each in replies.items() if None not in each}
    return list(replies), some


def _suffices(known: Mapping[bytes, int] | None, reply: bytes | None) -> bool:
    """Whether what this process knows under a key answers a find.

    Another replica may have settled the same question with another reply; the known one alone would then stand for it.
    """
    return bool(known) and (reply is None or bool(_of_reply(known or (), reply)))


def _of_reply(rows: Iterable[bytes], reply: bytes) -> list[bytes]:
    return [row for row in rows if row.startswith(reply)]


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
        forget: Callable[[], None],
        counts: Counts,
        health: Health,
        pace: Pace,
        retention_us: int | None,
        writing: Durations,
    ) -> None:
        self.thread = StoreThread()
        self.door = Door(place, self.thread, health)
        self.upkeep = Upkeep(place, self.door, self.thread, forget, counts, health, pace, retention_us)
        self.writer = Writer(
            self.door,
            self.thread,
            unwritten,
            cache,
            counts,
            health,
            writing,
            self.upkeep.committed,
            pace.linger,
            pace.group_from_pieces,
        )
        self.upkeep.writer = self.writer
        self._tasks = [asyncio.create_task(self.writer.run()), asyncio.create_task(self.upkeep.run())]

    def live(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some other work until the store is closed."""
        self._tasks.append(asyncio.create_task(work))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await self.door.close()
        await self.thread.stop()
