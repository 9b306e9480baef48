"""`doctor` looks at each thing that the proxy needs, says what it found, and what to do where that is not well."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.doctor import Check, _clock, examine, read_token
from tests.conftest import StartProcess
from tests.house.provider import Provider, Reply, json_reply
from tests.test_explain import run

EVIDENCE = '[[evidence]]\nname = "kb"\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n'


async def checks(tmp_path: Path, config: str = EVIDENCE, **given: Any) -> dict[str, Check]:
    """What the doctor says of this configuration, by name: of several with one name, the worst."""
    file = tmp_path / "proxy.toml"
    await asyncio.to_thread(file.write_text, "[server]\nport = 0\nadmin_port = 0\n" + config)
    asked = {"upstream": None, "data": tmp_path / "data", "credential_env": None, "offline": True, "environ": {}}
    found = await examine(file, **{**asked, **given})
    worst = ["skipped", "ok", "warn", "fail"]
    return {check.name: check for check in sorted(found, key=lambda check: worst.index(check.status))}


def jwt(**claims: Any) -> str:
    def piece(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return ".".join([piece({"alg": "RS256", "typ": "JWT"}), piece(claims), "c2lnbmF0dXJl"])


async def test_all_is_well_where_all_is_well_and_nothing_is_made(tmp_path: Path, provider: Provider) -> None:
    provider.reply(json_reply({"data": []}))
    found = await checks(tmp_path, upstream=provider.url, offline=False, environ={"OPENAI_API_KEY": "sk-hunter2"})

    assert {check.status for check in found.values()} <= {"ok", "skipped"}
    assert provider.requests[0].path.endswith("/models")
    assert "hunter2" not in str(found)
    assert not (tmp_path / "data").exists()


async def test_a_wrong_setting_is_named_and_ends_the_visit(tmp_path: Path) -> None:
    found = await checks(tmp_path, '[compaction]\nlayuot = "append"\n')
    assert list(found) == ["configuration"]
    assert "did you mean layout" in found["configuration"].found
    assert found["configuration"].todo


@pytest.mark.parametrize(
    ("config", "name", "status", "said"),
    [
        ("", "evidence", "warn", "explain"),
        ('[[evidence]]\nformat = "auto"\ntools = ["s"]\n', "evidence", "warn", "`cite`"),
        ('[compaction]\nmode = "off"\n' + EVIDENCE, "configuration", "warn", "compaction.mode"),
        ('[compaction]\nmode = "observe"\n' + EVIDENCE, "configuration", "warn", "convince"),
        ('[store]\nuri = "memory://"\n' + EVIDENCE, "tag keys", "warn", "tags.key_env"),
    ],
)
async def test_what_makes_compaction_rare_is_a_warning(
    tmp_path: Path, config: str, name: str, status: str, said: str
) -> None:
    found = await checks(tmp_path, config, data=None)
    assert found[name].status == status
    assert said in found[name].todo


async def test_a_tenant_for_all_is_a_warning_beyond_this_machine(tmp_path: Path) -> None:
    shared = EVIDENCE + '[tenant]\nby = "none"\n'
    assert (await checks(tmp_path, shared))["tenants"].status == "ok"
    open_to_all = shared.replace("[[evidence]]", 'host = "0.0.0.0"\n[[evidence]]')
    assert (await checks(tmp_path, open_to_all))["tenants"].status == "warn"


# The provider.


@pytest.mark.parametrize(
    ("reply", "key", "status", "said"),
    [
        (json_reply({}, status=401), None, "ok", ""),
        (json_reply({}, status=401), "sk-old", "fail", "renew it"),
        (json_reply({}, status=404), "sk-old", "ok", ""),
        (json_reply({}, status=503), None, "warn", "status page"),
        (json_reply({}, status=307), None, "warn", "redirects"),
    ],
)
async def test_what_the_provider_answers_is_judged(
    tmp_path: Path, provider: Provider, reply: Reply, key: str | None, status: str, said: str
) -> None:
    provider.reply(reply)
    config = '[upstream]\napi_key_env = "UP"\n' + EVIDENCE if key else EVIDENCE
    environ = {"UP": key} if key else {}
    check = (await checks(tmp_path, config, upstream=provider.url, offline=False, environ=environ))["upstream"]
    assert check.status == status
    assert said in check.todo
    if key is not None:
        assert provider.requests[0].value("authorization") == f"Bearer {key}".encode()


async def test_a_provider_that_nobody_is_says_what_to_look_at(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check = (await checks(tmp_path, upstream=f"http://127.0.0.1:{port}/v1", offline=False))["upstream"]
    assert check.status == "fail"
    assert "upstream.base_url" in check.todo


async def test_an_endpoint_in_place_of_the_base_url_is_told_without_asking(tmp_path: Path) -> None:
    wrong = "http://127.0.0.1:9/v1/chat/completions"
    check = (await checks(tmp_path, upstream=wrong, offline=False))["upstream"]
    assert (check.status, "base URL alone" in check.todo) == ("fail", True)


# Time.


@pytest.mark.parametrize(("apart", "status"), [(0, "ok"), (-20, "ok"), (90, "warn"), (-4000, "fail")])
def test_the_clock_is_compared_with_the_provider_s(apart: float, status: str) -> None:
    now = time.time()
    assert _clock(formatdate(now + apart, usegmt=True), now).status == status


def test_a_clock_that_was_never_set_is_a_fault_without_anybody_to_ask() -> None:
    assert _clock(None, 12_345.0).status == "fail"
    assert _clock(None, time.time()).status == "skipped"
    assert _clock("yesterday", time.time()).status == "skipped"


# Ports, the store, keys.


async def test_a_port_of_another_process_is_a_fault_and_one_of_a_running_proxy_is_not(
    tmp_path: Path, start_process: StartProcess
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = tmp_path / "p.toml"
        await asyncio.to_thread(file.write_text, f"[server]\nport = {taken.getsockname()[1]}\nadmin_port = 0\n")
        (port,) = [c for c in await examine(file, None, tmp_path, None, True, {}) if c.name == "port"]
        assert (port.status, bool(port.todo)) == ("fail", True)
    running = await start_process()
    await asyncio.to_thread(file.write_text, f"[server]\nport = {running.url.rpartition(':')[2]}\nadmin_port = 0\n")
    (port,) = [c for c in await examine(file, None, tmp_path, None, True, {}) if c.name == "port"]
    assert (port.status, "running there" in port.found) == ("ok", True)


async def test_a_directory_or_a_key_that_others_may_read_is_a_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    key = data / "tag-keys"
    await asyncio.to_thread(key.write_text, "ab" * 32 + "\n")
    key.chmod(0o600)
    assert (await checks(tmp_path))["tag keys"].status == "ok"
    key.chmod(0o644)
    data.chmod(0o755)
    found = await checks(tmp_path)
    assert (found["tag keys"].status, found["store"].status) == ("warn", "warn")
    assert "chmod 600" in found["tag keys"].todo
    await asyncio.to_thread(key.write_text, "short\n")
    assert (await checks(tmp_path))["tag keys"].status == "fail"


async def test_a_store_that_cannot_be_opened_is_a_fault(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await asyncio.to_thread(data.write_text, "this is a file")
    found = await checks(tmp_path)
    assert found["store"].status == "fail"
    assert "--data" in found["store"].todo


async def test_tags_are_tried_with_the_keys_that_are_there(tmp_path: Path) -> None:
    found = await checks(tmp_path, '[tags]\nkey_env = "KEYS"\n' + EVIDENCE, environ={"KEYS": "cd" * 32})
    assert (found["tags"].status, found["tag keys"].status) == ("ok", "ok")
    found = await checks(tmp_path, '[tags]\nkey_env = "KEYS"\n' + EVIDENCE, environ={"KEYS": "x"})
    assert found["tag keys"].status == "fail"


# Credentials that do not last.


async def test_a_token_that_expires_is_warned_of_and_never_shown(tmp_path: Path) -> None:
    now = time.time()
    token = jwt(exp=now + 3600, iat=now, sub="hunter2")
    for sent in (token, f"Bearer {token}"):
        check = (await checks(tmp_path, credential_env="WHO", environ={"WHO": sent}))["credentials"]
        assert check.status == "warn"
        assert "60 minutes" in check.found
        assert "header:NAME" in check.todo
        assert token not in str(check)
        assert "hunter2" not in str(check)


async def test_a_token_that_lives_long_or_a_plain_key_is_no_trouble(tmp_path: Path) -> None:
    now = time.time()
    for sent in ("sk-abc", jwt(exp=now + 10**8, iat=now), "a.b.c"):
        found = await checks(tmp_path, credential_env="WHO", environ={"WHO": sent})
        assert found["credentials"].status == "ok"
    by_user = EVIDENCE + '[tenant]\nby = "header:x-user"\n'
    found = await checks(tmp_path, by_user, credential_env="WHO", environ={"WHO": jwt(exp=now + 60)})
    assert found["credentials"].status == "ok"


async def test_a_provider_s_key_that_expires_is_told(tmp_path: Path) -> None:
    config = '[upstream]\napi_key_env = "UP"\n' + EVIDENCE
    found = await checks(tmp_path, config, environ={"UP": jwt(exp=time.time() - 60)})
    assert (found["credentials"].status, "expired" in found["credentials"].found) == ("fail", True)


@pytest.mark.parametrize("text", ["", "sk-abc", "a.b.c", "..", "eyJ.eyJ.x", "é.é.é", "W10.W10.W10"])
def test_what_is_no_token_is_none(text: str) -> None:
    assert read_token(text) is None


# The command.


def test_the_command_says_what_to_do_and_ends_with_1_where_a_check_fails(tmp_path: Path) -> None:
    quiet = tmp_path / "p.toml"
    quiet.write_text("[server]\nport = 0\nadmin_port = 0\n")
    code, out, err = run("doctor", "--config", str(quiet), "--offline", "--data", str(tmp_path / "d"))
    assert (code, err) == (0, "")
    assert "→" in out
    assert "evidence" in out
    code, out, _ = run("doctor", "--config", str(tmp_path / "none.toml"), "--json")
    assert code == 1
    assert [check["status"] for check in json.loads(out)] == ["fail"]
