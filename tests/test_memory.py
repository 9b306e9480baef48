"""What conversations leave in a process is bounded: counted here in objects; in megabytes by benchmarks/resident.py."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from benchmarks.resident import hold
from proxy.gateway import conversation
from proxy.gateway.conversation import Conversations
from proxy.gateway.seen import SeenRequests
from proxy.settings import EvidenceTable, Settings, StoreSettings
from proxy.store import open_store


async def test_a_process_holds_no_more_after_many_conversations_than_after_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_MOST_GIVEN", "_MOST_RECORDS", "_MOST_PICTURES"):
        monkeypatch.setattr(conversation, bound, 100)
    monkeypatch.setattr(conversation, "SeenRequests", lambda: SeenRequests(most_bytes=500_000))
    table = EvidenceTable(format="auto", tools=("search",), cite="cite")
    kept = StoreSettings(data_dir=tmp_path, records_cache_bytes=100_000, contents_cache_bytes=100_000)
    settings = Settings(evidence=[table], store=kept)
    store = open_store(settings)
    await store.start()
    conversations = Conversations(settings, store.records)
    rng = random.Random(1)

    async def objects_after(count: int) -> int:
        for number in range(count):
            await hold(conversations, rng.getrandbits(40), rng)
            if number % 100 == 99:
                await store.records.flush()
        gc.collect()
        return len(gc.get_objects())

    few = await objects_after(600)
    many = await objects_after(2_400)
    await store.close()
    assert store.records.counts()["cached_bytes"] <= 100_000
    assert many < few + 600, "not one object more for every fourth conversation"
