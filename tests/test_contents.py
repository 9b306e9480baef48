"""Contents beside the wire: kept while a record names them, collected after; not to be had. Promises 3 and 7."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from proxy.evidence.chunks import Chunk, digest_text
from proxy.gateway.conversation import Conversations
from proxy.gateway.keeping import Keeping
from proxy.ledger import aside
from proxy.ledger.records import Cited, Place
from proxy.store.collecting import Collector
from tests.conftest import StartHere
from tests.fake_store import FakeStore
from tests.house.client import ask
from tests.house.provider import Provider
from tests.house.running import settings
from tests.rewrites import CREDENTIAL
from tests.talk import calls, cited, returns, says, user
from tests.test_returns_endpoint import GIVEN, PATH
from tests.test_trimmed import NAMED, TABLE, Host, carried, question


@pytest.mark.parametrize("health", ["slow", "sick"])
async def test_promise_3_a_request_goes_up_as_it_came_where_what_it_needs_cannot_be_had(
    start_here: StartHere, provider: Provider, health: Any
) -> None:
    chosen = settings(provider.url, evidence=[TABLE])
    records, contents = FakeStore(), FakeStore()
    rooms: Any = Conversations(chosen, records, keeping=Keeping(contents))  # type: ignore[arg-type]
    running = await start_here(rooms, evidence=[TABLE])
    host = Host(running.url, provider, "chat", NAMED)
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    contents.health = health
    rest = [*history[6:], user("question 3")]
    evidence, sent = await host.sends(*rest)
    assert evidence == f"untouched; reason=store-{'slow' if health == 'slow' else 'error'}" and sent == rest
    contents.health = "well"
    more = [*rest, calls(("s3", "search", {})), returns("s3", "[z] Z"), *cited([])]
    assert (await host.sends(*more))[1] == more  # promise 7: its prefix does not change inside a question
    _, sent = await host.sends(*more, says("the answer"), user("question 4"))
    assert "A1 is long" in carried(sent)


async def test_promise_3_what_is_gone_for_good_costs_itself_and_nothing_else(
    start_here: StartHere, provider: Provider
) -> None:
    chosen = settings(provider.url, evidence=[TABLE])
    records, contents = FakeStore(), FakeStore()
    rooms: Any = Conversations(chosen, records, keeping=Keeping(contents))  # type: ignore[arg-type]
    running = await start_here(rooms, evidence=[TABLE])
    host = Host(running.url, provider, "chat", NAMED)
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    contents.forget()
    evidence, sent = await host.sends(*history[6:], user("question 3"))
    assert evidence.startswith("compacted; question=3; capsule=1; receipts=0;") and "B2 too" in carried(sent)


async def test_what_no_record_names_is_collected_and_what_one_names_stays(
    start_here: StartHere, provider: Provider, tmp_path: Path
) -> None:
    running = await start_here(evidence=[TABLE], store={"uri": str(tmp_path)})
    host = Host(running.url, provider, "chat", NAMED)
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    await ask(running.url, {"results": [GIVEN]}, target=PATH, headers=[CREDENTIAL])  # and nobody ever asked about it
    store = running.store
    await asyncio.gather(store.records.flush(), store.contents.flush())
    assert await store.collector.collect(timedelta(days=1)) == 0  # it may be named yet
    assert await store.collector.collect(timedelta(0)) == 1
    evidence, sent = await host.sends(*history[6:], user("question 3"))
    assert evidence.startswith("compacted; question=3; capsule=2;") and "A1 is long" in carried(sent)


async def test_promise_3_where_a_record_cannot_be_read_its_tenants_contents_stay(
    start_here: StartHere, provider: Provider, tmp_path: Path
) -> None:
    running = await start_here(evidence=[TABLE], store={"uri": str(tmp_path)})
    await Host(running.url, provider, "chat", NAMED).holds(question(1, "a1"))
    store = running.store
    await asyncio.gather(store.records.flush(), store.contents.flush())

    def unread(payload: bytes) -> Iterable[bytes] | None:
        return None  # of a newer version

    assert await Collector(store.records, store.contents, unread).collect(timedelta(0)) == 0
    assert await Collector(store.records, store.contents, lambda _: ()).collect(timedelta(0)) == 1


def test_contents_come_back_as_they_were_and_only_under_their_own_name() -> None:
    text = "one \ud800 \x00 whole"
    entry = Cited("kb", None, "c1", 1, (0, 0), (Place(-1, -1, b""),))
    chunk = Chunk("c1", text, source="S", details="d")
    for shown, place in ((chunk, Place(-1, 0, chunk.digest)), (text, Place(-1, -1, digest_text(text)))):
        name = aside.chunk_name("kb", None, "c1", place.digest)
        payload = aside.encode_chunk(entry, shown)
        assert aside.is_as_named(name, payload) and not aside.is_as_named(b"x" * 16, payload)
        assert aside.Aside({name: payload}).chunk(entry, place) == shown
        assert aside.Aside({name: payload[:-1]}).chunk(entry, place) is None
        other = aside.encode_chunk(entry, "another text")
        assert aside.Aside({name: other}).chunk(entry, place) is None
    assert aside.is_as_named(b"x" * 16, b"damaged") is None
