"""What the record store costs, with sqlite3 doing the same work beside it in the same run.

    python benchmarks/store.py [ROWS ...]        (default: 10000 100000)

A cold find goes to the disk every time (the cache is switched off), with the index in place; a warm one is answered
from memory. sqlite3 is asked directly, in WAL mode, without a thread and without waiting for the disk at each commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from proxy.store import RecordStore, StoredRecord
from proxy.store.lance import Lance
from proxy.store.place import Place
from proxy.store.thread import StoreThread

PAYLOAD = 400
FINDS = 60
KEYS_OF_A_LONG_CONVERSATION = 100


def records(count: int) -> list[StoredRecord]:
    tenant = hashlib.sha256(b"tenant").digest()
    return [StoredRecord(os.urandom(32), tenant, os.urandom(16), os.urandom(PAYLOAD)) for _ in range(count)]


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


async def timed(
    find: Callable[[Sequence[bytes]], Awaitable[int]], keys: list[bytes], at_once: int
) -> tuple[float, float]:
    """The median and the 99th percentile of a find, in milliseconds."""
    picked = random.Random(1)
    times = []
    for _ in range(FINDS):
        asked = picked.sample(keys, at_once)
        began = time.perf_counter()
        assert await find(asked) == at_once
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


class Heartbeat:
    """How long the loop is held up while something else goes on."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._task = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.pauses.append((time.perf_counter() - began - 0.001) * 1e3)

    def stop(self) -> str:
        self._task.cancel()
        ordered = sorted(self.pauses)
        return f"{ordered[len(ordered) // 2]:.2f} / {ordered[int(len(ordered) * 0.999)]:.1f}"


async def idle_loop() -> str:
    heart = Heartbeat()
    await asyncio.sleep(2)
    return heart.stop()


async def settled(directory: Path) -> None:
    """Bring the table to where the upkeep brings it when nothing is written for some minutes."""
    thread = StoreThread()
    opened = await thread.run(Lance.open(Place.of(None, directory)))
    for _ in range(4):
        await asyncio.sleep(0.01)
        await thread.run(opened.tidy(keep=timedelta(milliseconds=1), index_from_rows=1))
    await thread.run(opened.close())
    await thread.stop()


async def lance(rows: list[StoredRecord], directory: Path) -> dict[str, str]:
    keys = [row.key for row in rows]
    store = RecordStore(None, directory, read_timeout=30, retention=None, cache_bytes=1 << 30)
    await store.start()
    store.add(records(1)[0])
    await store.flush()  # the import is paid here

    heart = Heartbeat()
    began = time.perf_counter()
    adding = 0.0
    for start in range(0, len(rows), 20):
        before = time.perf_counter()
        for row in rows[start : start + 20]:
            store.add(row)
        adding += time.perf_counter() - before
        # So that what holds the loop up is the store and not this loop.
        await (asyncio.sleep(0) if start % 500 else store.flush())
    await store.flush()
    writing = time.perf_counter() - began
    pauses = heart.stop()

    async def found(asked: Sequence[bytes]) -> int:
        return len(await store.find(asked))

    warm_one, warm_many = await timed(found, keys, 1), await timed(found, keys, KEYS_OF_A_LONG_CONVERSATION)
    written = size(directory)
    await store.close()
    await settled(directory)

    store = RecordStore(None, directory, read_timeout=30, retention=None, cache_bytes=0)
    await store.start()
    await found(keys[:1])
    cold_one, cold_many = await timed(found, keys, 1), await timed(found, keys, KEYS_OF_A_LONG_CONVERSATION)
    absent = records(2_000)
    cold_absent = await timed(lambda asked: _all_absent(store, asked), [row.key for row in absent], 100)
    await store.close()
    return {
        "add, us": f"{adding / len(rows) * 1e6:.1f}",
        "written, rows/s": f"{len(rows) / writing:,.0f}",
        "loop held up meanwhile, ms p50 / p99.9": pauses,
        "find 1 warm, ms p50 / p99": "{:.3f} / {:.3f}".format(*warm_one),
        "find 100 warm": "{:.3f} / {:.3f}".format(*warm_many),
        "find 1 cold": "{:.1f} / {:.1f}".format(*cold_one),
        "find 100 cold": "{:.1f} / {:.1f}".format(*cold_many),
        "find 100 that are absent": "{:.1f} / {:.1f}".format(*cold_absent),
        "disk, bytes per record, when settled": f"{size(directory) / len(rows):.0f}",
        "disk, bytes per record, just written": f"{written / len(rows):.0f}",
    }


async def _all_absent(store: RecordStore, asked: Sequence[bytes]) -> int:
    assert await store.find(asked) == {}
    return len(asked)


async def sqlite(rows: list[StoredRecord], directory: Path) -> dict[str, str]:
    directory.mkdir()  # noqa: ASYNC240 - nothing else runs
    keys = [row.key for row in rows]
    db = sqlite3.connect(directory / "records.db")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE records (key BLOB, tenant BLOB, reply BLOB, created INTEGER, payload BLOB)")
    db.execute("CREATE INDEX by_key ON records (key)")
    heart = Heartbeat()
    began = time.perf_counter()
    for start in range(0, len(rows), 500):
        some = [
            (row.key, row.tenant, row.reply, time.time_ns() // 1000, row.payload) for row in rows[start : start + 500]
        ]
        with db:
            db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", some)
        await asyncio.sleep(0)
    writing = time.perf_counter() - began
    pauses = heart.stop()

    async def found(asked: Sequence[bytes]) -> int:
        marks = ",".join("?" * len(asked))
        return len(db.execute(f"SELECT key, payload FROM records WHERE key IN ({marks})", asked).fetchall())

    async def absent(asked: Sequence[bytes]) -> int:
        assert await found(asked) == 0
        return len(asked)

    one, many = await timed(found, keys, 1), await timed(found, keys, KEYS_OF_A_LONG_CONVERSATION)
    none = await timed(absent, [row.key for row in records(2_000)], 100)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return {
        "written, rows/s": f"{len(rows) / writing:,.0f}",
        "loop held up meanwhile, ms p50 / p99.9": pauses,
        "find 1 cold": "{:.3f} / {:.3f}".format(*one),
        "find 100 cold": "{:.3f} / {:.3f}".format(*many),
        "find 100 that are absent": "{:.3f} / {:.3f}".format(*none),
        "disk, bytes per record, when settled": f"{size(directory) / len(rows):.0f}",
    }


async def main(sizes: list[int]) -> None:
    console = Console(width=120)
    console.print(f"An idle loop is held up {await idle_loop()} ms (p50 / p99.9).")
    for count in sizes:
        rows = records(count)
        with tempfile.TemporaryDirectory() as directory:
            ours = await lance(rows, Path(directory) / "lance")
            theirs = await sqlite(rows, Path(directory) / "sqlite")
        table = Table(title=f"{count:,} records of {PAYLOAD} bytes")
        for heading in ("", "record store", "sqlite3"):
            table.add_column(heading, justify="left" if not heading else "right")
        for name, value in ours.items():
            table.add_row(name, value, theirs.get(name, ""))
        console.print(table)


if __name__ == "__main__":
    asyncio.run(main([int(size) for size in sys.argv[1:]] or [10_000, 100_000]))
