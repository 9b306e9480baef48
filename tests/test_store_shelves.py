"""What stands on the store's shelves beside records by key: conversations, popular keys, held answers, older stores.

Promises 3 and 9: what cannot be told apart is never guessed, and what was erased is gone everywhere.
"""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from proxy.store import HeldAnswers, RecordStore, StoredRecord, StoreError, StoreSlow
from proxy.store.lance import SCHEMA_VERSION, Lance, _rows_schema
from proxy.store.place import Place
from proxy.store.record import Entry
from proxy.store.secret import agreed_secret
from proxy.store.thread import StoreThread
from tests.test_store import QUICK, TENANT, eventually, finds, opened, record

CONVERSATION = hashlib.sha256(b"a conversation").digest()
OTHER = hashlib.sha256(b"another conversation").digest()


def of(conversation: bytes | None, tenant: bytes = TENANT) -> StoredRecord:
    return record(tenant=tenant)._replace(conversation=conversation)


def reply(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


def popular(number: int) -> StoredRecord:
    """One of the many records under one key, each of another reply."""
    key = hashlib.sha256(b"how do I begin?").digest()
    return StoredRecord(key, TENANT, reply(f"reply {number}"), b"settled by reply %d" % number)


# Conversations.


@pytest.mark.parametrize("where", ["disk", "memory"])
async def test_a_conversations_records_come_newest_first_wherever_they_are(tmp_path: Path, where: str) -> None:
    async with opened(tmp_path / "data" if where == "disk" else "memory://") as store:
        records = [of(CONVERSATION) for _ in range(6)]
        for one in records[:4]:
            store.add(one)
            await asyncio.sleep(0.001)
            store.add(of(OTHER))
            store.add(of(None))
        await store.flush()
        for one in records[4:]:
            await asyncio.sleep(0.001)
            store.add(one)
        payloads = [one.payload for one in reversed(records)]
        assert await store.newest(CONVERSATION, 10) == tuple(payloads)
        assert await store.newest(CONVERSATION, 3) == tuple(payloads[:3])
        assert await store.newest(hashlib.sha256(b"none").digest(), 3) == ()


async def test_a_conversation_of_another_process_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as here, opened(tmp_path / "data") as there:
        one = of(CONVERSATION)
        assert await there.newest(CONVERSATION, 3) == ()
        here.add(one)
        await here.flush()

        async def is_found() -> bool:
            return await there.newest(CONVERSATION, 3) == (one.payload,)

        await eventually(is_found)


async def test_a_row_that_was_moved_to_another_conversation_is_passed_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with opened(data) as store:
        store.add(of(CONVERSATION))
        store.add(mine := of(OTHER))
    table = lancedb.connect(data).open_table("records")
    rows = table.to_arrow().to_pylist()
    conversation = next(row["conversation"] for row in rows if row["payload"] == mine.payload)
    moved = next(row for row in rows if row["payload"] != mine.payload) | {"conversation": conversation}
    table.add(pa.Table.from_pylist([moved], schema=table.schema))
    async with opened(data) as store:
        assert await store.newest(OTHER, 5) == (mine.payload,)
        assert store.counts()["damaged"] == 1


# Popular keys.


async def test_a_popular_key_is_read_by_its_reply_and_one_that_cannot_be_told_apart_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    async with opened(data) as store:
        for number in range(500):
            store.add(popular(number))
        store.add(rare := record())
    key = popular(0).key
    read: list[int] = []
    reading = Lance._stored

    def watched(self: Lance, table: Any) -> Any:
        read.append(table.num_rows)
        return reading(self, table)

    monkeypatch.setattr(Lance, "_stored", watched)
    async with opened(data) as store:
        found = await store.find([key, rare.key], replies={key: popular(321).reply, rare.key: rare.reply})
        assert found == {key: (popular(321).payload,), rare.key: (rare.payload,)}
        assert sum(read) < 250, "what is read does not grow with the number of conversations that began alike"
        assert await store.find([key], replies={key: popular(77).reply}) == {key: (popular(77).payload,)}
        unknown = reply("a reply that its client edited")
        assert await store.find([key], replies={key: unknown}) == {}
        assert store.cached([key], replies={key: unknown}) == {}
        assert store.cached([key], replies={key: popular(77).reply}) == {key: (popular(77).payload,)}


async def test_another_replicas_reply_under_a_key_that_is_known_here_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as here, opened(tmp_path / "data") as there:
        here.add(mine := popular(1))
        await here.flush()
        there.add(theirs := popular(2))
        await there.flush()

        async def is_found() -> bool:
            found = await here.find([mine.key], replies={mine.key: theirs.reply})
            return theirs.payload in found.get(mine.key, ())

        await eventually(is_found)
        reads = here.counts()["reads"]
        assert mine.payload in (await here.find([mine.key], replies={mine.key: mine.reply}))[mine.key]
        assert here.counts()["reads"] == reads, "a reply that is known here is not asked for"


async def test_with_few_records_under_a_key_an_unknown_reply_gets_all_of_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        for number in range(3):
            store.add(popular(number))
        await store.flush()
        key = popular(0).key
        found = await store.find([key], replies={key: reply("edited")})
        assert found == {key: tuple(popular(number).payload for number in range(3))}


# Erasing.


@pytest.mark.parametrize("what", ["conversation", "tenant"])
async def test_what_is_erased_is_gone_here_there_and_on_the_disk(tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    other_tenant = hashlib.sha256(b"Bearer sk-other").digest()
    async with opened(data, pace=QUICK) as here, opened(data, pace=QUICK) as there:
        gone, sibling, foreign = of(CONVERSATION), of(OTHER), of(CONVERSATION, other_tenant)
        for one in (gone, sibling, foreign):
            here.add(one)
        await here.flush()
        await eventually(lambda: finds(there, gone, sibling, foreign))
        here.add(waiting := of(CONVERSATION))

        whole_tenant = what == "tenant"
        assert await here.erase(TENANT, None if whole_tenant else CONVERSATION) == (3 if whole_tenant else 2)

        for store in (here, there):

            async def is_gone(store: RecordStore = store) -> bool:
                return await store.find([gone.key, waiting.key]) == {}

            await eventually(is_gone)
            await eventually(lambda store=store: finds(store, foreign))
            assert await finds(store, sibling) == (not whole_tenant)
    payloads = lancedb.connect(data).open_table("records").to_arrow().column("payload").to_pylist()
    assert sorted(payloads) == sorted([foreign.payload] + ([] if whole_tenant else [sibling.payload]))


async def test_erasing_where_nothing_was_ever_kept_is_no_error(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as store:
        assert await store.erase(TENANT) == 0
    async with opened("memory://") as store:
        store.add(one := record())
        await store.erase(TENANT)
        assert not await finds(store, one)


# Held answers.


async def test_a_held_answer_is_read_by_any_replica_as_soon_as_it_was_put(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", table="held") as here, opened(tmp_path / "data", table="held") as there:
        name = hashlib.sha256(b"tenant and id").digest()
        assert await HeldAnswers(there).get(name) is None
        await HeldAnswers(here).put(name, TENANT, b"the answer")
        assert await HeldAnswers(there).get(name) == b"the answer"
        assert await HeldAnswers(here).get(name) == b"the answer"


async def test_an_answer_that_cannot_be_written_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: Lance, entries: Any) -> None:
        await asyncio.Event().wait()

    async def fails(self: Lance, entries: Any) -> None:
        raise StoreError("The record store could not be written: no space left on device")

    async with opened(tmp_path / "data", close_grace=0.1) as store:
        monkeypatch.setattr(Lance, "append", fails)
        with pytest.raises(StoreError, match="no space left"):
            await HeldAnswers(store).put(bytes(32), TENANT, b"one")
        monkeypatch.setattr(Lance, "append", never)
        with pytest.raises(StoreSlow, match="did not write"):
            await HeldAnswers(store, write_within=0.05).put(bytes(32), TENANT, b"two")


# Older and newer stores.


async def a_store_of_version_1(data: Path, records: list[StoredRecord]) -> None:
    """What the first schema version left: no column `conversation`, seals without one."""
    data.mkdir()  # noqa: ASYNC240 - nothing else runs
    db = await lancedb.connect_async(data)
    secret, _ = await agreed_secret(db, Place.of(None, data))
    await db.create_table("schema", data=pa.table({"version": pa.array([1], pa.int32())}))
    schema = _rows_schema()
    schema = schema.remove(schema.get_field_index("conversation"))
    rows = []
    for one in records:
        key, tenant = secret.key(one.key), secret.tenant(one.tenant)
        rows.append((key, tenant, one.reply, 7, one.payload, secret.seal(key, tenant, one.reply, 7, one.payload, None)))
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    await db.create_table("records", data=pa.table(arrays, schema=schema))


async def test_an_older_store_is_migrated_at_start_by_several_replicas_at_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old = [record() for _ in range(5)]
    await a_store_of_version_1(data, old)
    before = await (await lancedb.connect_async(data)).open_table("records")  # a replica of the version before
    async with opened(data) as one, opened(data) as two, opened(data) as three:
        for store in (one, two, three):
            assert await finds(store, *old)
            store.add(new := of(CONVERSATION))
            await store.flush()
            assert new.payload in await store.newest(CONVERSATION, 9)
        await before.add((await before.query().to_arrow()).slice(0, 1))  # it goes on writing what it knows
        assert await finds(one, *old, fresh=True)
        assert one.counts()["damaged"] == 0
    versions = lancedb.connect(data).open_table("schema").to_arrow().column("version").to_pylist()
    assert max(versions) == SCHEMA_VERSION


async def test_a_migration_that_broke_off_is_finished_by_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    old = record()
    await a_store_of_version_1(data, [old])
    table = await (await lancedb.connect_async(data)).open_table("records")
    await table.add_columns([_rows_schema().field("conversation")])  # killed before it wrote the version down
    async with opened(data) as store:
        assert await finds(store, old)


# Elsewhere than on this disk.


async def test_a_remote_store_is_opened_with_what_the_environment_says_and_sees_others_within_half_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    class Stop(Exception): ...

    async def connect(uri: str, **options: Any) -> Any:
        told.append((uri, options))
        raise Stop("nobody there")

    monkeypatch.setattr(lancedb, "connect_async", connect)
    monkeypatch.setenv("LANCEDB_API_KEY", "sk-hunter2")
    monkeypatch.setenv("LANCEDB_REGION", "eu-west-1")
    thread = StoreThread()
    for uri in ("s3://bucket/path/", "gs://bucket/path", "az://container/path", "db://name"):
        with pytest.raises(StoreError, match="nobody there") as refused:
            await thread.run(Lance.open(Place.of(uri, Path("unused"))))
        assert "hunter2" not in str(refused.value)
    await thread.stop()
    assert [uri for uri, _ in told] == ["s3://bucket/path", "gs://bucket/path", "az://container/path", "db://name"]
    assert not any("read_consistency_interval" in options for _, options in told), "looks are made, and counted, by us"
    for _, options in told[:3]:
        assert options["storage_options"]["timeout"] == "30s"
        assert not any("key" in name or "secret" in name for name in options["storage_options"])
        assert "api_key" not in options
    assert (told[3][1]["api_key"], told[3][1]["region"]) == ("sk-hunter2", "eu-west-1")


async def test_a_store_in_the_cloud_is_indexed_by_us_and_merged_by_others(tmp_path: Path) -> None:
    thread = StoreThread()
    place = Place.of(None, tmp_path / "data")
    lance = await thread.run(Lance.open(place))
    for number in range(4):
        await thread.run(lance.append([Entry.of(record(), number)]))
    lance._place = Place("db://name", None)
    await thread.run(lance.tidy(keep=timedelta(0), index_from_rows=1))
    assert await thread.run(lance.fragments()) == 0
    lance._place = place
    assert await thread.run(lance.fragments()) == 4, "nothing was merged"
    table = lancedb.connect(tmp_path / "data").open_table("records")
    assert {column for index in table.list_indices() for column in index.columns} == {"key", "conversation"}
    await thread.run(lance.close())
    await thread.stop()


def test_a_store_in_the_cloud_without_its_key_says_which_variable_is_missing() -> None:
    with pytest.raises(ValueError, match="LANCEDB_API_KEY, which is unset or empty"):
        Place.of("db://name", Path("unused")).options({})
