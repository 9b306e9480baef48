"""What the store costs, with sqlite3 doing the same work beside it in the same run.

    python -m benchmarks.store [ROWS ...] [--chunks N] [--write FILE]        (default: 10000 100000)

A cold find goes to the disk every time (the cache is switched off), with the index in place; a warm one is answered
from memory. sqlite3 is asked directly, in WAL mode, without a thread and without waiting for the disk at each commit.

How long the loop is held up is told by a heartbeat in it, and by one in the idle loop of a process beside it: both feel
the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import multiprocessing
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from proxy.store import RecordStore, StoredRecord, StoreSlow
from proxy.store.lance import Lance
from proxy.store.place import CONTENTS, RECORDS, Place
from proxy.store.thread import StoreThread
from proxy.store.upkeep import Pace

RECORD_BYTES = 400
CHUNK_BYTES = 2_000
FINDS = 300
KEYS_OF_A_LONG_CONVERSATION = 100
LOADED_SECONDS = 20.0
#: A day of a busy proxy, in fast motion: so many commits of so many records, one in ten of them still live at its end.
DAY_COMMITS, DAY_ROWS = 2_000, 25

Figures = dict[str, str]


def record(rng: random.Random, size: int) -> StoredRecord:
    tenant = hashlib.sha256(b"tenant").digest()
    return StoredRecord(rng.randbytes(32), tenant, rng.randbytes(16), rng.randbytes(size))


def records(count: int, size: int, seed: int = 1) -> Iterator[StoredRecord]:
    """The same ones each time: a million of them need not be held."""
    rng = random.Random(seed)
    return (record(rng, size) for _ in range(count))


def some_keys(count: int, size: int, seed: int = 1) -> list[bytes]:
    """Every so-manieth key, 20,000 at most."""
    step = max(1, count // 20_000)
    return [row.key for n, row in enumerate(records(count, size, seed)) if n % step == 0]


def on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


async def timed(
    find: Callable[[Sequence[bytes]], Awaitable[int]], keys: list[bytes], at_once: int, finds: int = FINDS
) -> str:
    """The median and the 99th percentile of a find, in milliseconds."""
    picked = random.Random(1)
    times = []
    for _ in range(finds):
        asked = picked.sample(keys, at_once)
        began = time.perf_counter()
        assert await find(asked) == at_once
        times.append((time.perf_counter() - began) * 1e3)
    return f"{statistics.median(times):.3f} / {statistics.quantiles(times, n=100)[98]:.3f}"


# How long a loop is held up.


async def heartbeat(pauses: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        pauses.append((time.perf_counter() - began - 0.001) * 1e3)


def quantiles(pauses: list[float]) -> tuple[float, float]:
    ordered = sorted(pauses)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.999)]


def _idle(said: Connection) -> None:
    """An idle loop in a process of its own: says how it was held up when told to."""

    async def beat() -> None:
        pauses: list[float] = []
        task = asyncio.create_task(heartbeat(pauses))
        while True:
            await asyncio.sleep(0.1)
            if said.poll():
                if said.recv() == "end":
                    task.cancel()
                    return
                said.send(pauses)
                pauses.clear()

    asyncio.run(beat())


class Beside:
    """The heartbeat here and the idle one beside it, over the same seconds."""

    def __init__(self) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_idle, args=(there,), daemon=True)
        self._process.start()

    async def told(self, work: Awaitable[object]) -> tuple[str, float]:
        """Both medians and 99.9th percentiles while this was done, and the ratio of the latter."""
        await self._from_idle()
        pauses: list[float] = []
        task = asyncio.create_task(heartbeat(pauses))
        await work
        task.cancel()
        here, idle = quantiles(pauses), quantiles(await self._from_idle())
        text = f"{here[0]:.2f} / {here[1]:.2f} (idle: {idle[0]:.2f} / {idle[1]:.2f})"
        return text, here[1] / idle[1]

    async def _from_idle(self) -> list[float]:
        self._here.send("tell")
        await asyncio.to_thread(self._here.poll, None)
        pauses: list[float] = self._here.recv()
        return pauses

    def end(self) -> None:
        self._here.send("end")
        self._process.join(5)


# Ours.


async def settled(place: Place, rounds: int = 4) -> None:
    """Bring the table to where the upkeep brings it when nothing is written for some minutes."""
    thread = StoreThread()
    opened = await thread.run(Lance.open(place))
    for _ in range(rounds):
        await asyncio.sleep(0.01)
        await thread.run(opened.tidy(keep=timedelta(milliseconds=1), index_from_rows=1), within=600)
    await thread.run(opened.close())
    await thread.stop()


def shelf(directory: Path, table: str, **options: object) -> RecordStore:
    given = {"read_timeout": 60.0, "retention": None, "queue_bytes": 1 << 30} | options
    return RecordStore(None, directory, table, **given)  # type: ignore[arg-type]


async def ours(count: int, size: int, table: str, directory: Path, beside: Beside) -> tuple[Figures, float]:
    """What our table of this many rows costs; and the ratio of the loop's pauses to the idle ones, under load."""
    store = shelf(directory, table, cache_bytes=64 << 20)
    await store.start()
    store.add(record(random.Random(2), size))
    await store.flush()  # the import is paid here
    adding = 0.0

    async def write() -> None:
        nonlocal adding
        batch: list[StoredRecord] = []
        for n, row in enumerate(records(count, size)):
            batch.append(row)
            if len(batch) == 20 or n == count - 1:
                before = time.perf_counter()
                for one in batch:
                    store.add(one)
                adding += time.perf_counter() - before
                batch.clear()
                # So that what holds the loop up is the store and not this loop.
                await (asyncio.sleep(0) if n % 2_000 < 1_980 else store.flush())
        await store.flush()

    began = time.perf_counter()
    await write()
    writing = time.perf_counter() - began
    keys = some_keys(count, size)
    recent = [row.key for n, row in enumerate(records(count, size)) if n >= count - 5_000]

    async def found(asked: Sequence[bytes]) -> int:
        return len(await store.find(asked))

    warm = await timed(found, recent, 1), await timed(found, recent, KEYS_OF_A_LONG_CONVERSATION)
    written = on_disk(directory)
    await store.close()
    await settled(Place.of(None, directory, table))

    store = shelf(directory, table, cache_bytes=0)
    await store.start()
    await found(keys[:1])
    after_opening = await timed(found, keys, 1, finds=100)
    cold = await timed(found, keys, 1), await timed(found, keys, KEYS_OF_A_LONG_CONVERSATION, finds=60)
    absent = some_keys(2_000, size, seed=3)
    cold_absent = await timed(lambda asked: _all_absent(store, asked), absent, KEYS_OF_A_LONG_CONVERSATION, finds=60)
    pauses, ratio = await beside.told(loaded(store, keys, size))
    await store.close()
    await settled(Place.of(None, directory, table), 2)
    return {
        "add, us": f"{adding / count * 1e6:.1f}",
        "written, rows/s": f"{count / writing:,.0f}",
        "find 1 warm, ms p50 / p99": warm[0],
        "find 100 warm": warm[1],
        "find 1 cold, the first 100 after opening": after_opening,
        "find 1 cold": cold[0],
        "find 100 cold": cold[1],
        "find 100 that are absent": cold_absent,
        "disk, bytes per row, just written": f"{written / count:.0f}",
        "disk, bytes per row, when settled": f"{on_disk(directory) / count:.0f}",
        "loop held up under load, ms p50 / p99.9": pauses,
        "  of an idle loop's p99.9 beside it": f"{ratio:.2f} times",
    }, ratio


async def _all_absent(store: RecordStore, asked: Sequence[bytes]) -> int:
    assert await store.find(asked) == {}
    return len(asked)


async def loaded(store: RecordStore, keys: list[bytes], size: int) -> None:
    """What a busy proxy asks of it: some two hundred cold finds and as many new records a second, for a while."""
    rng = random.Random(4)
    ends = time.perf_counter() + LOADED_SECONDS
    reads: set[asyncio.Task[object]] = set()

    async def find() -> None:
        with contextlib.suppress(StoreSlow):  # it takes so many at once
            await store.find([rng.choice(keys)])

    while time.perf_counter() < ends:
        store.add(record(rng, size))
        task: asyncio.Task[object] = asyncio.create_task(find())
        reads.add(task)
        task.add_done_callback(reads.discard)
        await asyncio.sleep(0.005)
    await asyncio.gather(*reads)
    await store.flush()


async def a_day(directory: Path) -> float:
    """Bytes per live record after a day of commits, in fast motion: the upkeep tidies on the way, retention forgets."""
    pace = Pace(keep_versions=0.5, tidy_share=1.0, tick=0.1, prune=1e9, check=1e9)
    store = shelf(directory, RECORDS, pace=pace)
    await store.start()
    rng = random.Random(5)
    live = DAY_COMMITS * DAY_ROWS // 10
    for n in range(DAY_COMMITS):
        if n == DAY_COMMITS - DAY_COMMITS // 10:
            moment = time.time_ns() // 1000
        for _ in range(DAY_ROWS):
            store.add(record(rng, RECORD_BYTES))
        await store.flush()
    await store.close()
    place = Place.of(None, directory)
    thread = StoreThread()
    lance = await thread.run(Lance.open(place))
    forgotten = await thread.run(lance.forget_before(moment), within=600)
    assert forgotten == DAY_COMMITS * DAY_ROWS - live
    await thread.run(lance.close())
    await thread.stop()
    await settled(place)
    return on_disk(directory) / live


# The yardstick.


def sqlite(directory: Path) -> sqlite3.Connection:
    directory.mkdir()
    db = sqlite3.connect(directory / "records.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE records (key BLOB, tenant BLOB, reply BLOB, created INTEGER, payload BLOB)")
    db.execute("CREATE INDEX by_key ON records (key)")
    return db


def insert(db: sqlite3.Connection, rows: list[StoredRecord]) -> None:
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
        [(row.key, row.tenant, row.reply, time.time_ns() // 1000, row.payload) for row in rows],
    )
    db.execute("COMMIT")


async def theirs(count: int, size: int, directory: Path, beside: Beside) -> Figures:
    db = sqlite(directory)
    began = time.perf_counter()
    batch: list[StoredRecord] = []
    for row in records(count, size):
        batch.append(row)
        if len(batch) == 500:
            insert(db, batch)
            batch.clear()
    insert(db, batch)
    writing = time.perf_counter() - began
    keys = some_keys(count, size)

    async def found(asked: Sequence[bytes]) -> int:
        marks = ",".join("?" * len(asked))
        return len(db.execute(f"SELECT key, payload FROM records WHERE key IN ({marks})", asked).fetchall())

    async def absent(asked: Sequence[bytes]) -> int:
        assert await found(asked) == 0
        return len(asked)

    after_opening = await timed(found, keys, 1, finds=100)
    one = await timed(found, keys, 1)
    many = await timed(found, keys, KEYS_OF_A_LONG_CONVERSATION, finds=60)
    none = await timed(absent, some_keys(2_000, size, seed=3), KEYS_OF_A_LONG_CONVERSATION, finds=60)

    async def load() -> None:
        rng = random.Random(4)
        ends = time.perf_counter() + LOADED_SECONDS / 4
        while time.perf_counter() < ends:
            insert(db, [record(rng, size)])
            await found([rng.choice(keys)])
            await asyncio.sleep(0.005)

    pauses, ratio = await beside.told(load())
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return {
        "written, rows/s": f"{count / writing:,.0f}",
        "find 1 cold, the first 100 after opening": after_opening,
        "find 1 cold": one,
        "find 100 cold": many,
        "find 100 that are absent": none,
        "disk, bytes per row, when settled": f"{on_disk(directory) / count:.0f}",
        "loop held up under load, ms p50 / p99.9": pauses,
        "  of an idle loop's p99.9 beside it": f"{ratio:.2f} times",
    }


def their_day(directory: Path) -> float:
    db = sqlite(directory)
    rng = random.Random(5)
    for _ in range(DAY_COMMITS):
        insert(db, [record(rng, RECORD_BYTES) for _ in range(DAY_ROWS)])
    live = DAY_COMMITS * DAY_ROWS // 10
    db.execute("DELETE FROM records WHERE rowid <= ?", (DAY_COMMITS * DAY_ROWS - live,))
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return on_disk(directory) / live


def shown(title: str, mine: Figures, yardstick: Figures) -> str:
    lines = [f"## {title}", "", "| | the store | sqlite3 |", "|---|---:|---:|"]
    lines += [f"| {name} | {value} | {yardstick.get(name, '')} |" for name, value in mine.items()]
    return "\n".join(lines) + "\n"


async def main(sizes: list[int], chunks: int) -> str:
    beside = Beside()
    told = []
    work = [(count, RECORD_BYTES, RECORDS) for count in sizes] + ([(chunks, CHUNK_BYTES, CONTENTS)] if chunks else [])
    for count, size, table in work:
        with tempfile.TemporaryDirectory() as directory:
            mine, _ = await ours(count, size, table, Path(directory) / "lance", beside)
            yardstick = await theirs(count, size, Path(directory) / "sqlite", beside)
        told.append(shown(f"{count:,} {table} of {size:,} bytes", mine, yardstick))
        print(told[-1], flush=True)
    with tempfile.TemporaryDirectory() as directory:
        mine = {"disk, bytes per live record": f"{await a_day(Path(directory) / 'lance'):.0f}"}
        yardstick = {"disk, bytes per live record": f"{their_day(Path(directory) / 'sqlite'):.0f}"}
    days = f"a day's churn: {DAY_COMMITS:,} commits of {DAY_ROWS} records, nine in ten forgotten at its end"
    told.append(shown(days, mine, yardstick))
    print(told[-1], flush=True)
    beside.end()
    return "\n".join(told)


def written(told: str) -> str:
    """The page for docs/proofs."""
    about = (__doc__ or "").split("\n\n", 2)[2]
    cores = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    return f"# The store's costs\n\n{about}\nMeasured with benchmarks/store.py on {cores}.\n\n{told}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("rows", nargs="*", type=int, default=[10_000, 100_000])
    options.add_argument("--chunks", type=int, default=20_000)
    options.add_argument("--write", type=Path, default=None)
    given = options.parse_args()
    told = asyncio.run(main(given.rows, given.chunks))
    if given.write is not None:
        given.write.write_text(written(told))
