"""Nothing secret is ever shown: not in a log, an error, a metric, the help, the inspector, a command's words."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from proxy.tagging import Keys, Result, tag
from tests.conftest import StartProcess
from tests.house.client import ask
from tests.house.provider import Provider, completion, json_reply
from tests.talk import body, searched, user

#: What each of them is for, and what it is here.
SECRETS = {
    "EVIDENCE_TAG_KEYS": "correct-horse-battery-staple-tag-key",
    "CLIENT_KEYS": "a-client-key-that-only-tests-have",
    "ADMIN_TOKEN": "an-admin-token-that-only-tests-have",
    "PROVIDER_KEY": "sk-provider-key-that-only-tests-have",
}
CONFIG = """\
[server]
keys_env = "CLIENT_KEYS"
admin_token_env = "ADMIN_TOKEN"
[upstream]
base_url = "{upstream}"
api_key_env = "PROVIDER_KEY"
[store]
uri = "memory://"
[tags]
key_env = "EVIDENCE_TAG_KEYS"
[inspector]
content = true
[[evidence]]
format = "auto"
tools = ["search"]
cite = "cite"
"""
CLIENT = [("Authorization", f"Bearer {SECRETS['CLIENT_KEYS']}")]
ADMIN = {"Authorization": f"Bearer {SECRETS['ADMIN_TOKEN']}", "Evidence-Tenant": CLIENT[0][1]}


async def printed(*arguments: str) -> str:
    """What a command says, with all secrets in its environment."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments),
        env={**os.environ, **SECRETS},
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode()


async def test_no_secret_is_in_a_log_an_error_a_metric_or_the_inspector(
    start_process: StartProcess, provider: Provider
) -> None:
    proxy = await start_process(CONFIG, SECRETS)
    forged = tag([Result("c", "x")], Keys(["a key of somebody else"])).text
    provider.always(lambda _: json_reply(completion("an answer")))
    seen = [
        await ask(proxy.url, body(user("a question"), *searched(forged)), headers=CLIENT),
        await ask(proxy.url, b"no json", headers=CLIENT),
        await ask(proxy.url, body(user("a stranger's")), headers=[("Authorization", "Bearer nobody")]),
        await ask(proxy.url, b"", target="/v1/models", method="GET", headers=CLIENT),
    ]
    for given in (b'{"results": 1}', b"{", b'{"results": [{"id": "", "content": ""}]}'):
        seen.append(await ask(proxy.url, given, target="/evidence/v1/returns", headers=CLIENT))
    shown = "".join(repr(one.headers) + one.body.decode() for one in seen)
    admin = next(line["address"] for line in proxy.lines if line["event"] == "admin-listening")
    async with aiohttp.ClientSession() as looking:
        for path in ("/", "/metrics", "/inspector/requests", "/inspector/requests/1", "/api/questions", "/nowhere"):
            for headers in (ADMIN, {}):
                async with looking.get(f"{admin}{path}", headers=headers) as reply:
                    shown += str(reply.headers) + await reply.text()
    await proxy.stop()
    shown += json.dumps(proxy.lines)
    assert "an answer" in shown and "evidence_proxy_" in shown and '"event": "request"' in shown
    assert [name for name, secret in SECRETS.items() if secret in shown] == []


@pytest.mark.parametrize("command", ["--help", "serve --help", "explain --help", "store --help", "doctor --help"])
async def test_no_secret_is_in_the_help(command: str) -> None:
    said = await printed(*command.split())
    assert "Usage" in said
    assert [name for name, secret in SECRETS.items() if secret in said] == []


async def test_no_secret_is_in_what_doctor_says_or_in_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(CONFIG.replace("{upstream}", "http://127.0.0.1:9"))
    said = await printed("doctor", "--config", str(file))
    assert "tag keys" in said
    for wrong in ("port = true", "nonsense = 1"):
        file.write_text(CONFIG.replace("{upstream}", "http://127.0.0.1:9").replace("[server]", f"[server]\n{wrong}"))
        refused = await printed("serve", "--config", str(file))
        assert "expected" in refused
        said += refused
    assert [name for name, secret in SECRETS.items() if secret in said] == []
