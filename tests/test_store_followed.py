"""What others write is read as it comes, where each read is a round trip: two stores on one place, and how they ask.

Promise 7 is what it serves: a question that comes to another replica is compacted as it would have been by the first.
Nothing is concluded from what a look has missed: that is read by its key.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lancedb
import pytest

from proxy.store import RecordStore, StoredRecord, StoreSlow
from proxy.store import lance as lance_module
from proxy.store import records as store_module
from proxy.store.followed import Followed
from proxy.store.lance import Lance
from proxy.store.place import RECORDS, SHELVES, Place
from proxy.store.record import Entry, StoredRow
from proxy.store.secret import StoreSecret
from proxy.store.thread import StoreThread
from proxy.store.upkeep import Pace
from tests.house.replicas import S3Server
from tests.test_store import TENANT, eventually, opened, record

#: Nobody merges what these tests want to lie apart.
FOLLOWS = Pace(follow=0.05, check=3_600.0, tidy_after=3_600.0, tidy_after_commits=10_000)
#: Nobody looks unless somebody asks.
LOOKS_WHEN_ASKED = replace(FOLLOWS, follow=3_600.0)


class Asked:
    """How often the store was asked for keys, and how often for what is new."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, self.looks = 0, 0
        read, tail = Lance.read, Lance.tail

        async def counted_read(lance: Lance, *arguments: Any, **options: Any) -> Any:
            self.keys += 1
            return await read(lance, *arguments, **options)

        async def counted_tail(lance: Lance) -> Any:
            self.looks += 1
            return await tail(lance)

        monkeypatch.setattr(Lance, "read", counted_read)
        monkeypatch.setattr(Lance, "tail", counted_tail)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests ask sooner after a look than it is worth looking again."""
    monkeypatch.setattr(store_module, "_SEEN_JUST_NOW", 0.0)


@contextlib.asynccontextmanager
async def two(where: Path | str, pace: Pace, **options: Any) -> AsyncIterator[tuple[RecordStore, RecordStore]]:
    """Two replicas, both with their store open: nothing that is written from now on was there before."""
    async with opened(where, pace=pace, **options) as one, opened(where, pace=pace, **options) as other:
        one.add(record())
        await one.flush()
        await other.find([record().key], fresh=True)
        yield one, other


async def written(store: RecordStore, *records: StoredRecord) -> None:
    for each in records:
        store.add(each)
        await store.flush()


async def test_what_another_process_wrote_is_found_without_asking_for_its_key(tmp_path: Path, asked: Asked) -> None:
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED) as (one, other):
        before = asked.keys
        records = [record() for _ in range(20)]
        await written(one, *records)
        for each in records:
            assert await other.find([each.key], replies={each.key: each.reply}) == {each.key: (each.payload,)}
        assert asked.keys == before
        assert asked.looks == 1, "one look found them all"
        assert other.counts()["followed"] == 20


async def test_what_others_write_comes_in_while_requests_do(tmp_path: Path, asked: Asked) -> None:
    async with two(tmp_path / "data", FOLLOWS) as (one, other):
        await other.find([record().key])
        await written(one, each := record())

        async def is_known() -> bool:
            return bool(other.cached([each.key], replies={each.key: each.reply}))

        await eventually(is_known)


async def test_a_process_that_nobody_asks_asks_nobody(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_FOLLOWS_FOR", 0.2)
    async with two(tmp_path / "data", FOLLOWS) as (one, _):
        await written(one, record())

        async def is_quiet() -> bool:
            before = asked.looks
            await asyncio.sleep(0.3)
            return asked.looks == before > 0

        await eventually(is_quiet)
        looks = asked.looks
        await written(one, record())
        await asyncio.sleep(0.3)
        assert asked.looks == looks


async def test_what_was_there_before_is_read_by_its_key(tmp_path: Path, asked: Asked) -> None:
    old = record()
    async with opened(tmp_path / "data") as store:
        await written(store, old)
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED) as (_, other):
        assert await other.find([old.key]) == {old.key: (old.payload,)}


async def test_what_this_process_wrote_itself_is_not_read_again(tmp_path: Path, asked: Asked) -> None:
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED) as (one, _):
        await one.find([record().key])
        for _ in range(5):
            await written(one, record())
            await one.find([record().key])
        assert asked.looks >= 5
        assert one.counts()["followed"] == 0


async def test_another_reply_under_a_key_that_is_known_here_is_found(tmp_path: Path) -> None:
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED) as (one, other):
        mine, theirs = record("asked", b"mine"), record("asked", b"theirs")
        other.add(mine)
        await written(one, theirs)
        assert await other.find([mine.key], replies={mine.key: theirs.reply}) == {mine.key: (b"mine", b"theirs")}


async def test_more_than_one_look_takes_is_found_all_the_same(tmp_path: Path, asked: Asked) -> None:
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED) as (one, other):
        records = [record() for _ in range(1_500)]
        for each in records:
            one.add(each)
        await one.flush()
        found = await other.find([each.key for each in records])
        assert found == {each.key: (each.payload,) for each in records}
        assert 0 < other.counts()["followed"] <= 256


@pytest.mark.parametrize("also", ["merges", "deletes", "rewrites"])
async def test_whatever_else_happens_to_the_table_what_is_new_is_found(tmp_path: Path, also: str) -> None:
    """Then the new rows are no longer surely the last ones."""
    data = tmp_path / "data"
    async with two(data, LOOKS_WHEN_ASKED) as (one, other):
        table = lancedb.connect(data).open_table("records")
        records = []
        for n in range(30):
            records.append(record(payload=os.urandom(30)))
            await written(one, records[-1])
            if n % 7 == 3:
                if also == "merges":
                    table.checkout_latest()
                    table.optimize()
                elif also == "deletes":
                    gone = record(payload=os.urandom(30), tenant=bytes(32))
                    await written(one, gone)
                    assert await one.erase(bytes(32)) == 1
                else:
                    table.update(where="true", values_sql={"reply": "reply"})
                records.append(record(payload=os.urandom(30)))
                await written(one, records[-1])
            if n % 3 == 0:
                assert await other.find([records[-1].key]) == {records[-1].key: (records[-1].payload,)}
        assert await other.find([each.key for each in records]) == {each.key: (each.payload,) for each in records}


async def test_a_merging_that_began_before_a_row_came_does_not_hide_it(tmp_path: Path) -> None:
    """The merged piece then lies behind that row, though all in it is older."""
    data = tmp_path / "data"
    async with two(data, LOOKS_WHEN_ASKED) as (one, other):
        await written(one, *(record() for _ in range(300)))
        await other.find([record().key])
        stale = lancedb.connect(data).open_table("records")
        await written(one, new := record())
        stale.optimize()
        assert await other.find([new.key]) == {new.key: (new.payload,)}


async def test_damaged_rows_of_others_are_passed_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with two(data, LOOKS_WHEN_ASKED) as (one, other):
        await written(one, mine := record("asked", b"mine"))
        table = lancedb.connect(data).open_table("records")
        (row,) = [row for row in table.to_arrow().to_pylist() if row["payload"] == b"mine"]
        table.add([row | {"payload": b"mime"}])
        assert await other.find([mine.key]) == {mine.key: (b"mine",)}
        assert other.counts()["damaged"] == 1


async def test_what_was_erased_elsewhere_is_forgotten_at_the_next_look(tmp_path: Path) -> None:
    """Its usual check is an hour away."""
    conversation = bytes(range(32))
    async with two(tmp_path / "data", FOLLOWS) as (one, other):
        each = record()._replace(conversation=conversation)
        await written(one, each)
        assert await other.find([each.key]) == {each.key: (each.payload,)}
        assert await one.erase(TENANT, conversation) == 1

        async def is_forgotten() -> bool:
            await other.find([record().key])
            return not other.cached([each.key]) and not await other.find([each.key])

        await eventually(is_forgotten)


async def test_the_pieces_of_others_are_merged_as_our_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tidies = replace(FOLLOWS, tidy_after_commits=8, tidy_from_pieces=8, tick=0.05)
    async with opened(data, pace=FOLLOWS) as one, opened(data, pace=tidies) as other:
        records = [record() for _ in range(20)]
        await written(one, records[0])
        await other.find([record().key], fresh=True)
        await written(one, *records[1:])

        async def is_merged() -> bool:
            await other.find([record().key])
            return other.counts()["tidied"] > 0

        await eventually(is_merged)
        assert other.counts()["commits"] == 0
        stats: Any = lancedb.connect(data).open_table("records").stats()
        assert stats["fragment_stats"]["num_fragments"] <= 20 - 8 + 1, "eight pieces or more became one"
        assert await one.find([each.key for each in records], fresh=True) == {e.key: (e.payload,) for e in records}


async def test_a_look_that_hangs_costs_no_more_than_a_read_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(tmp_path / "data", LOOKS_WHEN_ASKED, read_timeout=0.2) as (one, other):
        await written(one, each := record())
        tail, gate = Lance.tail, asyncio.Event()
        loop = asyncio.get_running_loop()

        async def held_up(lance: Lance) -> Any:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), loop))
            return await tail(lance)

        monkeypatch.setattr(Lance, "tail", held_up)
        with pytest.raises(StoreSlow):
            await other.find([each.key])
        gate.set()

        async def is_known() -> bool:
            return bool(other.cached([each.key]))

        await eventually(is_known)


def test_only_records_are_followed_and_only_where_a_read_is_a_round_trip() -> None:
    followed = {
        (uri, table)
        for uri in (None, "s3://bucket/path", "gs://bucket/path", "az://container/path", "db://name")
        for table in SHELVES
        if Pace.of(Place.of(uri, Path("data"), table)).follow is not None
    }
    shared = ("s3://bucket/path", "gs://bucket/path", "az://container/path")
    assert followed == {(uri, RECORDS) for uri in shared}


def test_what_is_followed_stays_within_its_bytes_and_belongs_to_one_store() -> None:
    def row(n: int) -> StoredRow:
        return StoredRow(secret.key(n.to_bytes(32)), bytes(32), bytes(16), n, bytes(100), None, bytes(16), True)

    secret = StoreSecret(bytes(32))
    followed = Followed(limit=20_000)
    for n in range(1_000):
        followed.take([row(n)], secret)
        assert followed.size <= 20_000
    assert followed.under((999).to_bytes(32), since=0) == {bytes(116): 999}
    assert followed.under((999).to_bytes(32), since=1_000) == {}
    assert followed.under((0).to_bytes(32), since=0) == {}
    followed.take([], StoreSecret(bytes(range(32))))
    assert (len(followed), followed.size) == (0, 0)


async def test_how_often_an_object_store_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is a round trip of tens of milliseconds; those of one step go at once."""
    if not S3Server.is_here():
        pytest.skip("no S3 server is installed: run `make clients`")
    monkeypatch.setattr(lance_module, "_LOOKS_AGAIN_AFTER", 60.0)  # however busy this machine is
    server = await S3Server().start()
    thread = StoreThread()
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        place = Place.of(f"s3://{server.bucket}/asked", tmp_path)
        writer = await thread.run(Lance.open(place))
        reader = await thread.run(Lance.open(place))
        entries = [Entry.of(record(), n + 1) for n in range(8)]

        async def requests(work: Callable[[], Any]) -> tuple[Any, list[str]]:
            await server.has_told_all()
            before = len(server.requests)
            gave = await thread.run(work())
            await server.has_told_all()
            return gave, server.requests[before:]

        await thread.run(writer.append(entries[:1]))
        _, told = await requests(lambda: writer.append(entries[1:2]))
        # The rows, whether somebody was quicker, what is to be done, and that it is done.
        assert [one.split()[0] for one in told] == ["PUT", "GET", "PUT", "PUT"]
        await thread.run(reader.tail())
        gave, told = await requests(reader.tail)
        assert gave.rows == [] or gave.rows == ()
        assert len(told) == 1 and "_versions" in told[0]
        for entry in entries[2:]:
            await thread.run(writer.append([entry]))
        gave, told = await requests(reader.tail)
        assert [row.payload for row in gave.rows] == [entry.row[16:] for entry in entries[2:]]
        assert len([one for one in told if "/data/" in one]) == 6, "each piece once, all at the same time"
        assert len(told) == 6 + 2
        gave, told = await requests(lambda: reader.read([entries[3].key], latest=False))
        assert len(gave.found) == 1
        assert len(told) <= 1, "what was just looked at is not looked at again"
    finally:
        await thread.stop()
        await server.stop()
