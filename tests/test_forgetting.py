"""What was erased from the store leaves the memory of the processes that run on it, too."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest

from proxy.gateway.conversation import Asked, Conversations
from proxy.gateway.keeping import Keeping
from proxy.settings import Settings, StoreSettings
from proxy.store import RecordStore, open_store
from tests.fake_store import FakeStore
from tests.house.client import ask
from tests.house.provider import Provider, completion, json_reply
from tests.house.replicas import S3Server
from tests.house.responding import of_completion
from tests.house.running import ROOT, ProxyProcess, scratch
from tests.items import Rendered
from tests.rewrites import CREDENTIAL
from tests.talk import body, calls, cited, returns, says, user
from tests.test_store import QUICK, TENANT, eventually, opened, record

TABLE = {"format": "auto", "tools": ["search"], "cite": "cite"}
SECRET = "hunter2 is what this document says"


def first_question() -> list[dict[str, Any]]:
    found = f"[a1] {SECRET} {'x' * 2000}\n[a2] nothing"
    return [user("one"), calls(("s1", "search", {"q": 1})), returns("s1", found), *cited(["a1"], call_id="c1")]


def reachable(start: object) -> bool:
    """Whether the secret stands in anything that can be reached from an object."""
    seen: set[int] = set()
    rest: list[object] = [start]
    while rest:
        one = rest.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | BuiltinFunctionType):
            continue  # through the globals of a function all of Python is reached
        seen.add(id(one))
        if isinstance(one, str | bytes | memoryview):
            if SECRET.encode() in (one.encode() if isinstance(one, str) else bytes(one)):
                return True
        else:
            rest += gc.get_referents(one)
    return False


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_promise_3_a_question_that_is_under_way_goes_on_untouched_and_nothing_is_left_of_what_was_erased(
    api: str,
) -> None:
    records, contents = FakeStore(), FakeStore()
    chosen = Settings(evidence=[TABLE], store={"uri": "memory://"})  # type: ignore[arg-type]
    rooms = Conversations(chosen, records, keeping=Keeping(contents))  # type: ignore[arg-type]

    async def asks(*messages: dict[str, Any], answer: str | None = None) -> str:
        said = completion(answer, () if answer is not None else [("x", "search", "{}")])
        raw, reply = body(*messages), said
        if api == "responses":
            raw, reply = Rendered.of(raw).body, of_completion(said)
        exchange = await rooms.ask(Asked(raw, "Bearer sk-test", conversation_id="named", api=api))
        exchange.feed(json.dumps(reply).encode())
        await exchange.ended(True)
        return exchange.header

    await asks(*first_question()[:3])
    await asks(*first_question(), answer="the answer")
    second = [*first_question(), says("the answer"), user("two")]
    assert (await asks(*second)).startswith("compacted; question=2; capsule=1;")
    assert reachable(rooms)

    records.forget()
    contents.forget()
    rooms.forget()
    assert not reachable(rooms)
    more = [calls(("s2", "search", {"q": 2})), returns("s2", "[b1] other")]
    assert await asks(*second, *more) == "untouched; reason=no-record"
    # What goes on is recorded anew.
    assert await asks(*second, *more, answer="another") == "untouched; reason=no-record"
    assert (await asks(*second, *more, says("another"), user("three"))).startswith("compacted; ")


async def test_whoever_holds_more_is_told_of_an_erasure_here_and_elsewhere(tmp_path: Path) -> None:
    told: list[str] = []
    async with opened(tmp_path / "data", pace=QUICK) as here, opened(tmp_path / "data", pace=QUICK) as there:
        here.on_erasure(lambda: told.append("here"))
        there.on_erasure(lambda: told.append("there"))
        here.add(one := record())
        await here.flush()
        await eventually(lambda: _finds(there, one.key))
        await asyncio.sleep(0.5)
        assert told == []
        assert await here.erase(TENANT) == 1
        assert "here" in told

        async def is_told() -> bool:
            return "there" in told

        await eventually(is_told)


async def test_what_one_table_notices_all_forget(tmp_path: Path) -> None:
    store = open_store(Settings(store=StoreSettings(data_dir=tmp_path / "data")))
    await store.start()
    store.contents.add(one := record())
    await store.contents.flush()
    assert store.contents.cached([one.key])
    await store.records.erase(bytes(32))
    assert not store.contents.cached([one.key])
    await store.close()


async def _finds(store: RecordStore, key: bytes) -> bool:
    return bool(await store.find([key]))


async def test_a_server_forgets_what_the_command_line_erased(provider: Provider) -> None:
    """On an object store within moments; in a local directory it looks every half minute."""
    if not S3Server.is_here():
        pytest.skip("no S3 server is installed: run `make clients`")
    server = await S3Server().start()
    environment = {**server.environment, "THE_TAG_KEYS": "5b" * 32, "WHOSE": CREDENTIAL[1]}
    config = (
        f'[server]\nadmin_port = 0\n[upstream]\nbase_url = "{provider.url}"\n[tags]\nkey_env = "THE_TAG_KEYS"\n'
        f'[store]\nuri = "s3://{server.bucket}/forgets"\nread_timeout_ms = 20000\n'
        '[[evidence]]\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n'
    )
    process = ProxyProcess(config, scratch(), environment)
    try:
        await process.start()

        async def asks(*messages: dict[str, Any]) -> str:
            provider.reply(json_reply(completion("the answer")))
            return (await ask(process.url, body(*messages), headers=[CREDENTIAL])).evidence

        await asks(*first_question())
        second = [*first_question(), says("the answer"), user("two")]
        assert (await asks(*second)).startswith("compacted; question=2; capsule=1;")
        command = [sys.executable, "-m", "proxy", "store", "erase", "--config", str(process.file)]
        erasing = await asyncio.create_subprocess_exec(
            *command,
            *("--credential-env", "WHOSE", "--whole-tenant"),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE,
        )
        assert b"erased" in (await erasing.communicate())[0]
        deadline = time.monotonic() + 60
        more = [*second, calls(("s2", "search", {"q": 2})), returns("s2", "[b1] other")]
        while (evidence := await asks(*more, user("and?"))) != "untouched; reason=no-record":
            assert time.monotonic() < deadline, evidence
            await asyncio.sleep(0.2)
    finally:
        await process.stop()
        await server.stop()
        shutil.rmtree(process.directory, ignore_errors=True)
