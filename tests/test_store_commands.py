"""`evidence-proxy store ...`: what is there, whether it is whole, moving it, erasing data. Promises 3 and 9."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.gateway.keeping import named_id
from proxy.store.lance import Lance
from proxy.store.place import CONTENTS, RECORDS, Place
from tests.conftest import StartHere
from tests.house.client import ask
from tests.house.provider import Provider
from tests.rewrites import CREDENTIAL
from tests.talk import body, user
from tests.test_returns_endpoint import GIVEN, PATH
from tests.test_trimmed import TABLE, Host, question

OTHER = ("Authorization", "Bearer sk-test-two")


def named(conversation: str) -> tuple[str, str]:
    return ("Evidence-Conversation", conversation)


def run(*arguments: str, data: Path, stdin: str | None = None, code: int = 0, **environ: str) -> str:
    """What a command prints; `environ` is added to its environment."""
    line = ["store", arguments[0], "--data", str(data), *arguments[1:]]
    done = CliRunner().invoke(app, line, input=stdin, env=environ)
    assert done.exit_code == code, done.output
    return done.output


async def run_later(*arguments: str, **more: Any) -> str:
    return await asyncio.to_thread(run, *arguments, **more)


def holds(directory: Path, text: str) -> bool:
    """Whether any file of a store holds these bytes."""
    return subprocess.run(["grep", "-rqaF", text, str(directory)], check=False).returncode == 0


Fill = Callable[..., Awaitable[Host]]


@pytest.fixture(autouse=True)
def _nobody_reads_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.commands.store._READERS_ARE_GONE_AFTER", 0.02)


@pytest.fixture
def filled(start_here: StartHere, provider: Provider, tmp_path: Path) -> Fill:
    """Holds conversations through a proxy that keeps them in `tmp_path / "data"`, then stops it."""

    async def fill(*conversations: tuple[str, tuple[str, str]]) -> Host:
        running = await start_here(evidence=[TABLE], store={"uri": str(tmp_path / "data")})
        host = Host(running.url, provider, "chat")
        for name, credential in conversations:
            host.headers = [credential, named(name)]
            found = f"[{name}1] SECRET-{name} {'x' * 300}\n[{name}2] nothing"
            await host.holds(question(1, f"{name}1", found=found, call=f"s-{name}"), question(2))
        await running.store.records.flush()
        await running.store.contents.flush()
        await running.stop()
        await running.store.close()
        return host

    return fill


async def rows(data: Path, table: str) -> list[Any]:
    lance = await Lance.open(Place.of(None, data, table))
    found = [row async for some in lance.rows() for row in some]
    await lance.close()
    return found


async def test_stats_count_rows_tenants_and_conversations(filled: Fill, tmp_path: Path) -> None:
    await filled(("aa", CREDENTIAL), ("bb", CREDENTIAL), ("cc", OTHER))
    said = json.loads(await run_later("stats", "--json", data=tmp_path / "data"))
    records, contents = said["tables"][RECORDS], said["tables"][CONTENTS]
    assert (records["rows"], records["tenants"], records["conversations"], records["damaged"]) == (6, 2, 3, 0)
    assert contents["rows"] == 3 and contents["payload_bytes"] > 900 and said["disk_bytes"] > 1000
    assert records["oldest"] <= records["newest"]
    assert "contents" in await run_later("stats", data=tmp_path / "data")


async def test_verify_names_what_is_damaged(filled: Fill, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL))
    assert "0 damaged" in await run_later("verify", data=data)
    lance = await Lance.open(Place.of(None, data, CONTENTS))
    (row,) = [row async for some in lance.rows() for row in some]
    for payload, seal in ((row.payload.replace(b"SECRET", b"FORGED"), row.seal), (row.payload[:-3], None)):
        seal = seal or lance.secret.seal(row.key, row.tenant, row.reply, row.created, payload, row.conversation)
        await lance.append_stored([row._replace(payload=payload, seal=seal)])
    await lance.close()
    said = await run_later("verify", data=data, code=1)
    assert "its seal does not fit" in said and "hashed again, is not what its name says" in said and "2 damaged" in said
    assert row.key.hex()[:16] in said
    assert len(json.loads(await run_later("verify", "--json", data=data, code=1))["damaged"]) == 2


async def test_verify_names_records_whose_content_is_gone(filled: Fill, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL))
    lance = await Lance.open(Place.of(None, data, CONTENTS))
    await lance.forget_keys([row.key async for some in lance.rows() for row in some])
    await lance.close()
    assert "0 damaged" in await run_later("verify", data=data)  # all of it stands on its host's wire still


async def test_what_is_exported_is_imported_into_an_empty_place_and_found_there(
    filled: Fill, start_here: StartHere, provider: Provider, tmp_path: Path
) -> None:
    await filled(("aa", CREDENTIAL))
    archive, there = tmp_path / "store.archive", tmp_path / "there"
    assert "3 rows written" in await run_later("export", str(archive), data=tmp_path / "data")
    assert archive.stat().st_mode & 0o077 == 0
    assert "3 rows written, 0 were there already" in await run_later("import", str(archive), data=there)
    assert "0 rows written, 3 were there already" in await run_later("import", str(archive), data=there)
    assert "0 damaged" in await run_later("verify", data=there)
    running = await start_here(evidence=[TABLE], store={"uri": str(there), "read_timeout_ms": 5_000})
    host = Host(running.url, provider, "chat", named("aa"))
    history = question(2)
    evidence, sent = await host.sends(*history, {"role": "assistant", "content": "answer 2"}, user("next"))
    assert evidence.startswith("compacted; question=3; capsule=1;") and "SECRET-aa" in json.dumps(sent)


async def test_an_archive_is_refused_where_it_cannot_be_used(filled: Fill, tmp_path: Path) -> None:
    await filled(("aa", CREDENTIAL))
    archive, data = tmp_path / "store.archive", tmp_path / "data"
    await run_later("export", str(archive), data=data)
    raw = archive.read_bytes()
    for name, spoiled in (("cut", raw[:-40]), ("none", b"no archive"), ("empty", b"")):
        file = tmp_path / name
        file.write_bytes(spoiled)
        assert "cannot be imported" in await run_later("import", str(file), data=tmp_path / "there", code=1)
    other = await Lance.open(Place.of(None, tmp_path / "other"))
    await other.close()
    said = await run_later("import", str(archive), data=tmp_path / "other", code=2)
    assert "another secret" in said and not holds(tmp_path / "other", "SECRET")


async def test_prune_deletes_old_records_and_then_what_no_record_names(
    filled: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL))
    assert "1 contents" not in await run_later("prune", "--older-than", "1", data=data)
    in_ten_days = time.time_ns() // 1000 + 10 * 86_400_000_000
    monkeypatch.setattr("proxy.commands.store._now", lambda: in_ten_days)
    said = await run_later("prune", "--older-than", "5", "--dry-run", data=data)
    assert "2 records older than 5 days would be deleted" in said and len(await rows(data, RECORDS)) == 2
    said = await run_later("prune", "--older-than", "5", data=data)
    assert "2 records older than 5 days deleted" in said and "1 contents that no record names deleted" in said
    assert await rows(data, RECORDS) == await rows(data, CONTENTS) == []
    assert not holds(data, "SECRET-aa")


async def test_prune_keeps_what_a_record_names_however_old_it_is(
    filled: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(("aa", CREDENTIAL))
    in_a_year = time.time_ns() // 1000 + 365 * 86_400_000_000
    monkeypatch.setattr("proxy.commands.store._now", lambda: in_a_year)
    assert "0 contents" in await run_later("prune", data=tmp_path / "data")
    assert len(await rows(tmp_path / "data", CONTENTS)) == 1


async def test_erasing_one_conversation_leaves_no_trace_of_it_and_all_others(filled: Fill, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL), ("bb", CREDENTIAL), ("aa", OTHER))
    assert holds(data, "SECRET-aa") and holds(data, "SECRET-bb")
    before = len(await rows(data, RECORDS))
    said = await run_later("erase", "--credential-env", "WHOSE", "--conversation", "bb", data=data, WHOSE="sk-test-one")
    assert "2 rows of records, 1 rows of contents" in said
    assert not holds(data, "SECRET-bb") and len(await rows(data, RECORDS)) == before - 2
    assert len(await rows(data, CONTENTS)) == 2 and holds(data, "SECRET-aa")
    # By the id that the record API shows; the other tenant's of the same name stays.
    shown = named_id("aa").hex()
    await run_later("erase", "--credential-file", "-", "--conversation", shown, data=data, stdin="Bearer sk-test-one\n")
    assert len(await rows(data, RECORDS)) == before - 4 and len(await rows(data, CONTENTS)) == 1


async def test_a_conversation_is_erased_by_any_request_of_it(filled: Fill, tmp_path: Path) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL), ("bb", CREDENTIAL))
    found = f"[aa1] SECRET-aa {'x' * 300}\n[aa2] nothing"
    first = question(1, "aa1", found=found, call="s-aa")
    captured = tmp_path / "request.json"
    captured.write_bytes(body(*first, {"role": "assistant", "content": "answer 1"}, user("question 2")))
    secret = tmp_path / "credential"
    secret.write_text("Bearer sk-test-one\n")
    await run_later("erase", "--credential-file", str(secret), "--request", str(captured), data=data)
    assert not holds(data, "SECRET-aa") and holds(data, "SECRET-bb") and len(await rows(data, RECORDS)) == 2


async def test_a_whole_tenant_is_erased_with_what_it_registered(
    filled: Fill, start_here: StartHere, provider: Provider, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    await filled(("aa", CREDENTIAL), ("cc", OTHER))
    running = await start_here(store={"uri": str(data)})
    await ask(running.url, {"results": [GIVEN]}, target=PATH, headers=[CREDENTIAL])
    await running.store.contents.flush()
    await running.stop()
    await running.store.close()
    assert holds(data, "The pump runs at 3 bar")
    await run_later("erase", "--credential-env", "WHOSE", "--whole-tenant", data=data, WHOSE="sk-test-one")
    assert not holds(data, "SECRET-aa") and not holds(data, "The pump runs") and holds(data, "SECRET-cc")
    assert len(await rows(data, RECORDS)) == 2


def test_what_was_said_wrong_is_said_so(tmp_path: Path) -> None:
    for arguments in (["stats"], ["verify"], ["prune"], ["export", "x"]):
        assert "holds no store" in run(*arguments, data=tmp_path / "nowhere", code=2)
    assert not (tmp_path / "nowhere").exists()
    assert "say what to erase" in run("erase", data=tmp_path, code=2)


async def test_a_credential_is_never_an_argument(filled: Fill, tmp_path: Path) -> None:
    await filled(("aa", CREDENTIAL))
    assert "whose is it?" in await run_later("erase", "--whole-tenant", data=tmp_path / "data", code=2)
    said = await run_later("erase", "--credential-env", "NONE", "--whole-tenant", data=tmp_path / "data", code=2)
    assert "the credential is empty" in said
