"""Drives the record store as the ledger does: records are added, found, found after a restart, or lost in good order.

Promise 3 is what it serves: a store that is slow, broken, full or gone costs compaction and never more. Promise 9:
what lies on the disk tells nothing about a tenant to one who can guess.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from proxy.settings import Settings, StoreSettings
from proxy.store import RecordStore, StoredRecord, StoreError, StoreSlow, open_store
from proxy.store import records as store_module
from proxy.store.lance import SCHEMA_VERSION, Lance
from proxy.store.place import Place
from proxy.store.record import Entry
from proxy.store.thread import StoreThread
from proxy.store.upkeep import Pace

TENANT = hashlib.sha256(b"Bearer sk-test").digest()
QUICK = Pace(tidy_after_commits=4, tidy_from_pieces=2, keep_versions=0.2, index_from_rows=50, check=0.1, tick=0.05)
numbers = itertools.count()


def record(name: str = "", payload: bytes = b"", tenant: bytes = TENANT) -> StoredRecord:
    name = name or f"conversation {next(numbers)}"
    payload = payload or f"what {name} settled".encode()
    return StoredRecord(hashlib.sha256(name.encode()).digest(), tenant, hashlib.sha256(payload).digest()[:16], payload)


@contextlib.asynccontextmanager
async def opened(where: Path | str, **options: Any) -> AsyncIterator[RecordStore]:
    uri, data_dir = (where, Path("unused")) if isinstance(where, str) else (None, where)
    store = RecordStore(uri, data_dir, **{"read_timeout": 20.0, "retention": None} | options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def eventually(holds: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not await holds():
        assert time.monotonic() < deadline, "this never came to hold"
        await asyncio.sleep(0.02)


async def finds(store: RecordStore, *records: StoredRecord, fresh: bool = False) -> bool:
    try:
        found = await store.find([one.key for one in records], fresh=fresh)
    except (StoreError, StoreSlow):
        return False
    return all(one.payload in found.get(one.key, ()) for one in records)


def in_a_new_process(script: str, *arguments: object) -> str:
    code = textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Found: at once, in order, after a restart, by another process.


async def test_an_added_record_is_found_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        one = record()
        store.add(one)
        assert await store.find([one.key]) == {one.key: (one.payload,)}
        assert await store.find([one.key], fresh=True) == {one.key: (one.payload,)}
        assert await store.find([record().key]) == {}
        assert store.cached([one.key, record().key]) == {one.key: (one.payload,)}


async def test_an_added_record_is_found_even_if_the_cache_cannot_hold_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", cache_bytes=0) as store:
        one = record()
        store.add(one)
        assert await finds(store, one)
        await store.flush()
        assert await finds(store, one)


async def test_several_replies_under_one_key_are_all_found_in_bytewise_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        for payload in (b"b", b"\xff", b"a", b"ab"):
            store.add(record("asked", payload))
        await store.flush()
    async with opened(tmp_path / "data") as store:
        asked = record("asked")
        assert await store.find([asked.key]) == {asked.key: (b"a", b"ab", b"b", b"\xff")}


async def test_a_restart_finds_all_that_was_flushed(tmp_path: Path) -> None:
    records = [record(payload=os.urandom(50)) for _ in range(700)]
    async with opened(tmp_path / "data") as store:
        for one in records:
            store.add(one)
        await store.flush()
        assert store.counts()["written"] == 700
    async with opened(tmp_path / "data") as store:
        assert await store.find([one.key for one in records]) == {one.key: (one.payload,) for one in records}
        assert store.counts()["reads"] == 1


async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    one = record()
    async with opened(tmp_path / "data", close_grace=60.0) as store:
        store.add(one)
    async with opened(tmp_path / "data") as store:
        assert await finds(store, one)


async def test_what_was_read_once_is_not_read_again_unless_it_has_to_be_fresh(tmp_path: Path) -> None:
    one = record()
    async with opened(tmp_path / "data") as store:
        store.add(one)
    async with opened(tmp_path / "data") as store:
        for _ in range(3):
            assert await finds(store, one)
        assert store.counts()["reads"] == 1
        assert await finds(store, one, fresh=True)
        assert store.counts()["reads"] == 2


async def test_what_one_process_writes_another_finds(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as here, opened(tmp_path / "data") as there:
        for writer, reader in ((here, there), (there, here), (here, there)):
            one = record()
            assert await reader.find([one.key]) == {}
            writer.add(one)
            await eventually(lambda reader=reader, one=one: finds(reader, one))


async def test_a_fresh_find_sees_another_reply_under_a_key_that_is_known_here(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as here, opened(tmp_path / "data") as there:
        mine, theirs = record("asked", b"mine"), record("asked", b"theirs")
        here.add(mine)
        await here.flush()
        there.add(theirs)
        await there.flush()
        assert await here.find([mine.key]) == {mine.key: (b"mine",)}
        assert await here.find([mine.key], fresh=True) == {mine.key: (b"mine", b"theirs")}


async def test_equal_records_collapse_whoever_wrote_them(tmp_path: Path) -> None:
    one = record()
    async with opened(tmp_path / "data") as here, opened(tmp_path / "data") as there:
        for store in (here, there, here):
            store.add(one)
            await store.flush()
        assert here.counts()["duplicates"] == 1
    async with opened(tmp_path / "data") as store:
        assert await store.find([one.key]) == {one.key: (one.payload,)}


async def test_in_memory_nothing_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened("memory://", cache_bytes=100_000) as store:
        for _ in range(1_000):
            store.add(one := record())
        await store.flush()
        assert await finds(store, one, fresh=True)
        assert store.ready()[0]
        assert store.counts()["cached_bytes"] <= 100_000
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - nothing else runs


# What it costs those who do not need it.


def test_lancedb_is_imported_for_the_first_record_only_and_never_on_the_loop(tmp_path: Path) -> None:
    script = """
        import asyncio, sys, threading
        from pathlib import Path
        from proxy.store import RecordStore, StoredRecord

        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name in ("lancedb", "pyarrow"):
                    imported.add((name, threading.current_thread() is threading.main_thread()))

        imported = set()
        sys.meta_path.insert(0, Watch())

        async def main():
            for uri in ("memory://", None):
                store = RecordStore(uri, Path(sys.argv[1]), read_timeout=20, retention=None)
                await store.start()
                assert store.ready()[0], store.ready()
                assert await store.find([bytes(32)], fresh=True) == {}
                if uri:
                    store.add(StoredRecord(bytes(32), bytes(32), bytes(16), b"payload"))
                    assert await store.find([bytes(32)]) == {bytes(32): (b"payload",)}
                    await store.close()
            assert not imported, imported
            store.add(StoredRecord(bytes(32), bytes(32), bytes(16), b"payload"))
            await store.flush()
            assert await store.find([bytes(32)], fresh=True) == {bytes(32): (b"payload",)}
            await store.close()
            print(sorted(imported))

        asyncio.run(main())
    """
    assert in_a_new_process(script, tmp_path / "data") == "[('lancedb', False), ('pyarrow', False)]"


async def test_nothing_of_lancedb_runs_on_the_thread_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[int]] = {}

    def watch(name: str) -> None:
        method = getattr(Lance, name)

        async def watched(*args: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return await method(*args, **options)

        monkeypatch.setattr(Lance, name, staticmethod(watched) if name == "open" else watched)

    for name in ("open", "read", "append", "tidy", "fragments", "forget_before", "is_ours", "erasures", "close"):
        watch(name)
    async with opened(tmp_path / "data", pace=QUICK, retention=timedelta(days=1)) as store:

        async def all_of_it_ran() -> bool:
            store.add(record())
            await store.flush()
            await store.find([record().key])
            return len(threads) == 8

        await eventually(all_of_it_ran)
    assert threads.keys() == {
        "open",
        "read",
        "append",
        "tidy",
        "fragments",
        "forget_before",
        "is_ours",
        "erasures",
        "close",
    }
    ran_on = set.union(*threads.values())
    assert len(ran_on) == 1
    assert threading.get_ident() not in ran_on


async def test_a_find_waits_for_a_store_that_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record()
    async with opened(tmp_path / "data") as store:
        store.add(one)
    gate = threading.Event()
    opening = Lance.open

    async def held_up(place: Place) -> Lance:
        await asyncio.to_thread(gate.wait)
        return await opening(place)

    monkeypatch.setattr(Lance, "open", held_up)
    async with opened(tmp_path / "data", read_timeout=1.0) as store:
        assert store.ready()[0] is False and "being opened" in store.ready()[1]
        asyncio.get_running_loop().call_later(1.5, gate.set)
        assert await store.find([one.key]) == {one.key: (one.payload,)}
        assert store.ready()[0]


async def test_the_first_records_opening_holds_up_no_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), threading.Event()
    opening = Lance.open

    async def held_up(place: Place) -> Lance:
        begun.set()
        await asyncio.to_thread(gate.wait)
        return await opening(place)

    monkeypatch.setattr(Lance, "open", held_up)
    async with opened(tmp_path / "data") as store:
        store.add(one := record())
        await asyncio.to_thread(begun.wait)
        assert await store.find([record().key, one.key]) == {one.key: (one.payload,)}
        assert not gate.is_set()
        gate.set()
        await store.flush()


# Slow, broken, full, gone.


async def test_a_slow_read_is_reported_as_slow_goes_on_and_fills_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = record()
    async with opened(tmp_path / "data") as store:
        store.add(one)
    gate = threading.Event()
    reading = Lance.read

    async def held_up(self: Lance, keys: Any, **options: Any) -> Any:
        await asyncio.to_thread(gate.wait)
        return await reading(self, keys, **options)

    monkeypatch.setattr(Lance, "read", held_up)
    async with opened(tmp_path / "data", read_timeout=0.05) as store:
        for _ in range(3):
            with pytest.raises(StoreSlow, match="50 ms"):
                await store.find([one.key])
        assert store.counts()["reads"] == 1, "the same key is asked once, however many wait for it"
        gate.set()
        await eventually(lambda: finds(store, one))
        assert store.counts()["reads"] == 1
        assert store.counts()["slow"] >= 3  # waiting for the gate may meet a slow read, too


async def test_reads_that_never_come_back_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as store:
        store.add(record())

    async def never(self: Lance, keys: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(Lance, "read", never)
    async with opened(tmp_path / "data", read_timeout=0.001) as store:
        for _ in range(100):
            with pytest.raises(StoreSlow):
                await store.find([record().key])
        assert store.counts()["reads"] == 4, "the others wait for these"


async def test_what_is_asked_for_while_others_are_read_is_read_together(tmp_path: Path) -> None:
    records = [record() for _ in range(300)]
    async with opened(tmp_path / "data") as store:
        for one in records:
            store.add(one)
    async with opened(tmp_path / "data") as store:
        await store.find([record().key])  # opens it
        before = store.counts()["reads"]
        found = await asyncio.gather(*(store.find([one.key, record().key]) for one in records))
        assert found == [{one.key: (one.payload,)} for one in records]
        assert store.counts()["reads"] - before <= 10


async def test_a_fresh_find_is_not_answered_by_a_read_that_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, began, goes_on = Lance.read, threading.Event(), threading.Event()

    async def slow(self: Lance, keys: Any, **options: Any) -> Any:
        answer = await read(self, keys, **options)
        if not began.is_set():
            began.set()
            await asyncio.to_thread(goes_on.wait, 20)
        return answer

    one = record()
    async with opened(tmp_path / "data") as writer:
        writer.add(record())
    async with opened(tmp_path / "data") as writer, opened(tmp_path / "data") as store:
        await store.find([record().key])
        monkeypatch.setattr(Lance, "read", slow)
        early = asyncio.create_task(store.find([one.key]))
        await asyncio.to_thread(began.wait, 20)
        writer.add(one)
        await writer.flush()
        try:
            assert await store.find([one.key], fresh=True) == {one.key: (one.payload,)}
        finally:
            goes_on.set()
        assert await early == {}


async def test_each_of_many_who_began_alike_finds_its_own_reply_when_they_ask_at_once(tmp_path: Path) -> None:
    alike = [record("a popular opening", f"settled {number}".encode()) for number in range(100)]
    others = [record() for _ in range(40)]
    async with opened(tmp_path / "data") as store:
        for one in alike + others:
            store.add(one)
    async with opened(tmp_path / "data") as store:
        await store.find([record().key])
        asked = [(one, {one.key: one.reply}) for one in alike + others]
        found = await asyncio.gather(*(store.find([one.key], replies=replies) for one, replies in asked))
        assert found == [{one.key: (one.payload,)} for one in alike + others]
    async with opened(tmp_path / "data") as store:
        key = alike[0].key
        everything, own = await asyncio.gather(store.find([key]), store.find([key], replies={key: alike[5].reply}))
        assert len(everything[key]) == 100 and alike[5].payload in own[key], "who wants everything gets it"


async def test_a_damaged_table_is_an_error_with_a_reason_and_mends_without_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    one = record()
    async with opened(data) as store:
        store.add(one)
    shutil.copytree(data, tmp_path / "spare")
    for manifest in (data / "records.lance" / "_versions").glob("*.manifest"):
        manifest.write_bytes(manifest.read_bytes()[:20])
    async with opened(data) as store:
        with pytest.raises(StoreError, match="could not be opened"):
            await store.find([one.key])
        ready, why = store.ready()
        assert not ready and str(data) in why
        store.add(two := record())
        assert await finds(store, two), "what is added is found, whatever the disk does"

        shutil.rmtree(data)
        shutil.copytree(tmp_path / "spare", data)
        await eventually(lambda: finds(store, one))
        await store.flush()
        assert store.ready()[0]
    async with opened(data) as store:
        assert await finds(store, one, two)


async def test_damaged_data_is_an_error_with_a_reason_and_mends_without_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    one = record()
    async with opened(data) as store:
        store.add(one)
    files = {file: file.read_bytes() for file in (data / "records.lance" / "data").iterdir()}
    async with opened(data, pace=QUICK) as store:
        for file, content in files.items():
            file.write_bytes(content[:40])
        with pytest.raises(StoreError, match="could not be read"):
            await store.find([one.key])
        assert not store.ready()[0]
        for file, content in files.items():
            file.write_bytes(content)

        async def is_ready() -> bool:
            return store.ready()[0]

        await eventually(is_ready)
        assert await finds(store, one)


async def test_a_place_that_cannot_be_written_is_an_error_with_a_reason_and_mends_without_a_restart(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.write_text("not a directory")
    async with opened(data) as store:
        ready, why = store.ready()
        assert not ready and str(data) in why
        with pytest.raises(StoreError, match=str(data)):
            await store.find([record().key])
        store.add(one := record())
        assert await store.find([one.key]) == {one.key: (one.payload,)}
        with pytest.raises(StoreError):
            await store.flush()

        data.unlink()

        async def is_written() -> bool:
            return store.counts()["written"] == 1

        await eventually(is_written)
        assert store.ready()[0]
    async with opened(data) as store:
        assert await finds(store, one)


async def test_a_store_that_is_removed_under_a_running_proxy_is_begun_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data, pace=QUICK) as store:
        store.add(record())
        await store.flush()
        shutil.rmtree(data)
        store.add(two := record())

        async def is_written() -> bool:
            return store.counts()["written"] == 2

        await eventually(is_written)
        async with opened(data) as other:
            await eventually(lambda: finds(other, two))
            assert await finds(store, two, fresh=True)


async def test_a_store_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    two = record()
    async with opened(tmp_path / "other") as other:
        other.add(two)
    async with opened(data, pace=QUICK) as store:
        store.add(record())
        await store.flush()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "other", data)
        await eventually(lambda: finds(store, two, fresh=True))


async def test_a_failing_store_sheds_the_oldest_counts_them_and_writes_the_rest_when_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True
    appending = Lance.append

    async def append(self: Lance, entries: Any) -> None:
        if broken:
            raise StoreError("The record store could not be written: no space left on device")
        await appending(self, entries)

    monkeypatch.setattr(Lance, "append", append)
    records = [record(payload=os.urandom(1_000)) for _ in range(200)]
    async with opened(tmp_path / "data", queue_bytes=50_000) as store:
        for one in records:
            store.add(one)
        with pytest.raises(StoreError, match="no space left"):
            await store.flush()
        ready, why = store.ready()
        assert not ready and "no space left" in why
        counts = store.counts()
        assert counts["waiting_bytes"] <= 50_000
        assert counts["shed"] + counts["waiting"] == 200
        assert await finds(store, *records), "what was shed is still known here"
        broken = False
        await eventually(lambda: flushed(store))
        assert store.ready()[0]
    async with opened(tmp_path / "data") as store:
        kept = [await finds(store, one) for one in records]
        assert kept == [n >= counts["shed"] for n in range(200)]


async def flushed(store: RecordStore) -> bool:
    with contextlib.suppress(StoreError):
        await store.flush()
    return store.counts()["waiting"] == 0


async def test_closing_ends_even_if_the_store_hangs_and_counts_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: Lance, entries: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Lance, "append", never)
    async with opened(tmp_path / "data", close_grace=0.1) as store:
        for _ in range(3):
            store.add(record())
    assert store.counts()["shed"] == 3
    assert not store.ready()[0]
    with pytest.raises(StoreError, match="closed"):
        await store.find([record().key])
    store.add(record())
    assert store.counts()["refused"] == 1
    await store.close()


async def test_a_record_with_a_digest_of_the_wrong_length_is_refused_and_counted(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        store.add(record()._replace(key=b"short"))
        store.add(record()._replace(tenant=b""))
        store.add(record()._replace(reply=bytes(32)))
        assert store.counts()["refused"] == 3
        store.add(one := record())
        await store.flush()
        assert await finds(store, one)


# What lies on the disk.


def stored_rows(data: Path) -> pa.Table:
    return lancedb.connect(data).open_table("records").to_arrow()


async def test_no_digest_that_could_be_guessed_lies_on_the_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    one = record()
    async with opened(data) as store:
        store.add(one)
    (row,) = stored_rows(data).to_pylist()
    assert row["payload"] == one.payload
    for file in data.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for digest in (one.key, one.tenant):
                assert digest not in content and digest.hex().encode() not in content


async def test_two_stores_keep_the_same_tenant_under_different_names(tmp_path: Path) -> None:
    one = record()
    rows = []
    for name in ("a", "b"):
        async with opened(tmp_path / name) as store:
            store.add(one)
        rows += stored_rows(tmp_path / name).to_pylist()
    assert rows[0]["tenant"] != rows[1]["tenant"] and rows[0]["key"] != rows[1]["key"]


async def test_only_the_owner_may_enter_what_is_made(tmp_path: Path) -> None:
    async with opened(tmp_path / "made" / "here") as store:
        store.add(record())
    (loose := tmp_path / "loose").mkdir(mode=0o755)
    loose.chmod(0o755)
    async with opened(loose) as store:
        store.add(record())
    assert stat.S_IMODE((tmp_path / "made" / "here").stat().st_mode) == 0o700
    assert stat.S_IMODE(loose.stat().st_mode) == 0o755, "a directory that was there is not ours to change"
    for data in (tmp_path / "made" / "here", loose):
        tables = {table.name: stat.S_IMODE(table.stat().st_mode) for table in data.iterdir()}
        assert tables == {"records.lance": 0o700, "schema.lance": 0o700, "secret.lance": 0o700}


async def test_processes_that_begin_a_store_at_once_end_up_with_one_secret(tmp_path: Path) -> None:
    threads = [StoreThread() for _ in range(5)]
    for attempt in range(6):
        place = Place.of(None, tmp_path / str(attempt))
        lances = await asyncio.gather(*(thread.run(Lance.open(place)) for thread in threads))
        entries = [Entry.of(record(), 1) for _ in threads]
        for thread, lance, entry in zip(threads, lances, entries, strict=True):
            await thread.run(lance.append([entry]))
        for thread, lance in zip(threads, lances, strict=True):
            read = await thread.run(lance.read([entry.key for entry in entries], latest=True))
            assert (len(read.found), read.damaged) == (5, 0)
    for thread in threads:
        await thread.stop()


async def test_a_newer_store_is_refused_with_advice_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as store:
        store.add(record())
    lancedb.connect(data).open_table("schema").add(pa.table({"version": pa.array([SCHEMA_VERSION + 1], pa.int32())}))
    before = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
    async with opened(data, close_grace=0.1) as store:
        with pytest.raises(StoreError, match=r"newer evidence-proxy.*version is 3.*up to 2.*Upgrade"):
            await store.find([record().key])
        store.add(record())
    assert {file: file.read_bytes() for file in data.rglob("*") if file.is_file()} == before


async def test_rows_that_were_changed_or_moved_under_another_key_are_passed_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    mine, theirs = record("mine", b"mine"), record("theirs", b"theirs", tenant=bytes(32))
    async with opened(data) as store:
        store.add(mine)
        store.add(theirs)
    table = lancedb.connect(data).open_table("records")
    rows = {row["payload"]: row for row in table.to_arrow().to_pylist()}
    changed = rows[b"mine"] | {"payload": b"mime"}
    moved = rows[b"theirs"] | {"key": rows[b"mine"]["key"], "tenant": rows[b"mine"]["tenant"]}
    table.add(pa.Table.from_pylist([changed, moved], schema=table.schema))
    async with opened(data) as store:
        assert await store.find([mine.key]) == {mine.key: (b"mine",)}
        assert store.counts()["damaged"] == 2


async def test_what_is_older_than_the_retention_is_not_found_and_then_deleted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old, new = record(), record()
    now = time.time_ns() // 1000
    day = 86_400_000_000
    thread = StoreThread()
    lance = await thread.run(Lance.open(Place.of(None, data)))
    await thread.run(lance.append([Entry.of(old, now - 3 * day), Entry.of(new, now - day)]))
    await thread.stop()
    async with opened(data, retention=timedelta(days=2)) as store:
        assert await store.find([old.key, new.key]) == {new.key: (new.payload,)}
    async with opened(data, retention=timedelta(days=2), pace=QUICK) as store:

        async def is_deleted() -> bool:
            return store.counts()["pruned"] == 1

        await eventually(is_deleted)
    assert stored_rows(data).column("payload").to_pylist() == [new.payload]


async def test_tidying_merges_indexes_and_cleans_while_everything_stays_found(tmp_path: Path) -> None:
    data = tmp_path / "data"
    records = [record(payload=os.urandom(40)) for _ in range(120)]
    async with opened(data, pace=QUICK) as store, opened(data, pace=QUICK) as other:
        for n, one in enumerate(records):
            writer = (store, other)[n % 2]
            writer.add(one)
            await writer.flush()
            reader = (other, store)[n % 2]
            assert await reader.find([one.key], fresh=True) == {one.key: (one.payload,)}

        async def is_tidy() -> bool:
            table = await (await lancedb.connect_async(data)).open_table("records")
            versions = len(list((data / "records.lance" / "_versions").glob("*.manifest")))
            return bool(await table.list_indices()) and versions < 10

        await eventually(is_tidy)
        assert await finds(store, *records, fresh=True)
    async with opened(data) as store:
        assert await finds(store, *records)
        assert await store.find([record().key for _ in range(1_000)]) == {}
    assert stored_rows(data).num_rows == 120


async def test_the_settings_say_where_records_are_kept(tmp_path: Path) -> None:
    store = open_store(Settings(store=StoreSettings(data_dir=tmp_path / "data")))
    await store.start()
    store.records.add(one := record())
    store.contents.add(two := record())
    await store.held.put(bytes(32), TENANT, b"held")
    await store.close()
    for table, payload in (("records", one.payload), ("contents", two.payload), ("held", b"held")):
        rows = lancedb.connect(tmp_path / "data").open_table(table).to_arrow()
        assert rows.column("payload").to_pylist() == [payload]
    in_memory = open_store(Settings(store=StoreSettings(uri="memory://")))
    assert in_memory.ready() == (True, "records are kept in memory only")


@pytest.mark.parametrize("what", ["read", "append"])
async def test_a_store_that_hangs_is_told_of_before_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(store_module, "_HANGS_AFTER", 0.05)
    monkeypatch.setattr(store_module, "_WRITING_HANGS_AFTER", 0.05)
    gate = threading.Event()
    working = getattr(Lance, what)

    async def held_up(self: Lance, *arguments: Any, **options: Any) -> Any:
        await asyncio.to_thread(gate.wait)
        return await working(self, *arguments, **options)

    async with opened(tmp_path / "data", read_timeout=0.01) as store:
        store.add(record())
        await store.flush()
        assert store.ready()[0]
        monkeypatch.setattr(Lance, what, held_up)
        if what == "append":
            store.add(record())

        async def is_told() -> bool:
            with contextlib.suppress(StoreSlow):
                await store.find([record().key])
            return "has not answered for" in store.ready()[1] and not store.ready()[0]

        async def is_well() -> bool:
            return store.ready()[0]

        await eventually(is_told)
        gate.set()
        await eventually(is_well)
