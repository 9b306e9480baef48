"""Who may use the proxy, what goes up for whom, and whom the proxy trusts and contacts."""

from __future__ import annotations

import hmac
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from proxy.gateway.access import ClientKeys, Grant, client_keys
from proxy.settings import Settings, SettingsError, load
from tests.conftest import StartHere, StartProcess
from tests.house.client import Client, Seen, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Wait, completion, json_reply, sse_reply

TLS = Path(__file__).parent / "vectors" / "tls"
ANSWER = json_reply(completion("hi"))
KEYS = ClientKeys.parse(
    '[{"key": "key-a", "tenant": "team", "upstream_key": "sk-a"}, {"key": "key-b", "tenant": "team"}, "key-c"]'
)
Lines = list[tuple[str | bytes, str | bytes]]


def bearer(key: str) -> Lines:
    return [("Authorization", f"Bearer {key}")]


# Keys.


@pytest.mark.parametrize(
    "text, known",
    [
        ("one,two", ["one", "two"]),
        (" one , two\nthree\n", ["one", "two", "three"]),
        ('["one", {"key": "two"}]', ["one", "two"]),
    ],
)
def test_keys_are_written_with_commas_lines_or_as_json(text: str, known: list[str]) -> None:
    keys = ClientKeys.parse(text)

    assert [keys.grant(((b"api-key", key.encode()),)) for key in known] == [Grant()] * len(known)
    for unknown in ("", "on", "onetwo", "four", "ONE"):
        assert keys.grant(((b"Authorization", b"Bearer " + unknown.encode()),)) is None


@pytest.mark.parametrize(
    "text", ["", " , \n", "[]", "[1]", '[{"tenant": "KK"}]', '[{"key": "KK", "KK": 1}]', "[KK", "a KK", "éKK", "KK,KK",
             '[""]', '[{"key": "KK", "tenant": ""}]', '[{"key": "KK", "upstream_key": "a KK"}]']
)  # fmt: skip
def test_unusable_keys_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        ClientKeys.parse(text.replace("KK", "hunter2"))
    assert "hunter2" not in str(refused.value)


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    for shown in (b"key-a", b"key-c", b"unknown"):
        KEYS.grant(((b"api-key", shown),))
    assert compared == [32] * 9


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/models", "/evidence/v1/returns", "/"])
@pytest.mark.parametrize(
    "shown", [[], bearer("key-d"), bearer(""), [("Authorization", "Basic key-a")], [("X-Key", "key-a")]]
)
async def test_without_a_known_key_it_is_401_and_goes_nowhere(
    provider: Provider, start_here: StartHere, target: str, shown: Lines
) -> None:
    proxy = await start_here(keys=KEYS)

    seen = await ask(proxy.url, {}, target=target, headers=shown)

    assert (seen.status, seen.json()["error"]["code"]) == (401, "invalid_api_key")
    assert seen.value("www-authenticate") == b"Bearer"
    assert provider.requests == []


@pytest.mark.parametrize("target", ["/healthz", "/readyz"])
async def test_health_needs_no_key(start_here: StartHere, target: str) -> None:
    proxy = await start_here(Conversation(), keys=KEYS)
    assert (await ask(proxy.url, method="GET", target=target)).status == 200


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize(
    "key, own, goes_up",
    [
        ("key-a", "sk-proxy", [b"Bearer sk-a"]),
        ("key-b", "sk-proxy", [b"Bearer sk-proxy"]),
        ("key-a", None, [b"Bearer sk-a"]),
        ("key-b", None, []),
        ("key-c", None, []),
    ],
)
@pytest.mark.parametrize("header", ["Authorization", "api-key", "X-Api-Key"])
async def test_a_key_of_the_proxy_never_goes_up(
    provider: Provider,
    start_here: StartHere,
    target: str,
    key: str,
    own: str | None,
    goes_up: list[bytes],
    header: str,
) -> None:
    proxy = await start_here(Conversation(), key=own, keys=KEYS)
    provider.reply(ANSWER)
    value = f"bearer  {key}" if header == "Authorization" else key

    seen = await ask(proxy.url, {}, target=target, headers=[(header, value), ("Cookie", "c=1")])

    assert seen.status == 200
    (received,) = provider.requests
    assert received.values("authorization") == goes_up
    assert received.values("api-key") == received.values("x-api-key") == []
    assert received.values("cookie") == [b"c=1"]


async def test_promise_9_keys_of_one_tenant_share_it_and_no_header_can_name_it(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, keys=KEYS, tenant={"by": "header:X-Team"})
    provider.always(ANSWER)
    for key, team in (("key-a", "x"), ("key-b", "y"), ("key-c", "team"), ("key-c", "\\0tenant team")):
        await ask(proxy.url, {}, headers=[*bearer(key), ("X-Team", team)])

    credentials = [told.asked.credential for told in conversation.told]
    assert credentials[0] == credentials[1]
    assert len(set(credentials)) == 3
    assert credentials[2] == "team"


async def test_a_key_that_names_no_tenant_is_one_by_itself(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, keys=ClientKeys.parse("one,two"))
    provider.always(ANSWER)
    for key in ("one", "two"):
        await ask(proxy.url, {}, headers=bearer(key))
    assert [told.asked.credential for told in conversation.told] == ["Bearer one", "Bearer two"]


def settings_of(tmp_path: Path, text: str, **environ: str) -> Settings:
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    return load(file, None, environ)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "proxy.test"])
def test_an_address_beyond_this_machine_needs_keys_or_the_word_of_the_operator(tmp_path: Path, host: str) -> None:
    plain = settings_of(tmp_path, f'[server]\nhost = "{host}"\n')
    meant = settings_of(tmp_path, f'[server]\nhost = "{host}"\nallow_anyone = true')
    keyed = settings_of(tmp_path, f'[server]\nhost = "{host}"\nkeys_env = "K"')
    unix = settings_of(tmp_path, f'[server]\nhost = "{host}"\nunix_socket = "/tmp/s"')

    with pytest.raises(SettingsError, match="--allow-anyone"):
        client_keys(plain, {})
    assert client_keys(meant, {}) is None
    assert client_keys(keyed, {"K": "a"}) is not None
    assert client_keys(unix, {}) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_this_machines_own_addresses_need_none(tmp_path: Path, host: str) -> None:
    assert client_keys(settings_of(tmp_path, f'[server]\nhost = "{host}"'), {}) is None


def test_keys_are_read_from_a_variable_or_a_file_and_must_be_there(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    variable = settings_of(tmp_path, '[server]\nkeys_env = "THE_KEYS"')
    file = settings_of(tmp_path, f'[server]\nkeys_file = "{keys}"')
    for settings, environ in ((variable, {}), (variable, {"THE_KEYS": "hun ter2"}), (file, {})):
        with pytest.raises(SettingsError) as refused:
            client_keys(settings, environ)
        assert "ter2" not in str(refused.value) and "THE_KEYS" not in str(refused.value)
    keys.write_text("one\ntwo\n")
    for found in (client_keys(file, {}), client_keys(variable, {"THE_KEYS": "one"})):
        assert found is not None and found.grant(((b"api-key", b"one"),)) == Grant()
    with pytest.raises(SettingsError, match="expected keys_env or keys_file, not both"):
        settings_of(tmp_path, '[server]\nkeys_env = "A"\nkeys_file = "b"')


# A unix socket.


async def test_it_listens_on_a_unix_socket_for_owner_and_group(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    config = f'[server]\nunix_socket = "{path}"\n[upstream]\nbase_url = "{{upstream}}"\n[store]\nuri = "memory://"'
    provider.reply(ANSWER)

    running = await start_process(config)
    seen = await ask(running.url, {})
    mode = stat.S_IMODE(path.stat().st_mode)
    second = await ask_refused(config, provider, tmp_path)
    code = await running.stop()

    assert (running.url, seen.status, mode, code) == (f"unix:{path}", 200, 0o660, 0)
    assert "is in use by another process" in second
    assert not path.exists()


async def ask_refused(config: str, provider: Provider, directory: Path) -> str:
    from tests.test_cli import run

    file = directory / "second.toml"
    file.write_text(config.replace("{upstream}", provider.url))
    code, _, err = await run("serve", "--config", str(file))
    assert code == 1
    return err


async def test_a_socket_that_a_killed_process_left_is_taken_over(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    import signal

    path = tmp_path / "socket"
    config = f'[server]\nunix_socket = "{path}"\n[upstream]\nbase_url = "{{upstream}}"\n[store]\nuri = "memory://"'
    killed = await start_process(config)
    await killed.stop(signal.SIGKILL)
    assert path.exists()

    running = await start_process(config)

    assert (await ask(running.url, method="GET", target="/healthz")).status == 200


# The provider.


@pytest.mark.parametrize("upgrade", [False, True])
async def test_a_certificate_is_checked_and_another_authority_must_be_named(
    start_here: StartHere, upgrade: bool
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    provider = await Provider().start(tls)
    provider.always(ANSWER)
    url = provider.url.replace("http:", "https:")
    strict = await start_here(Conversation(), upstream={"base_url": url})
    trusting = await start_here(Conversation(), upstream={"base_url": url, "ca_file": TLS / "certificate.pem"})
    elsewhere = await start_here(
        Conversation(),
        upstream={"base_url": url.replace("127.0.0.1", "localhost"), "ca_file": TLS / "certificate.pem"},
    )

    async def asked(proxy: Any) -> Seen:
        if not upgrade:
            return await ask(proxy.url, {})
        lines: Lines = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
        return await ask(proxy.url, method="GET", target="/v1/realtime", headers=lines)

    assert [(await asked(proxy)).status for proxy in (strict, trusting, elsewhere)] == [502, 200, 502]
    assert len(provider.requests) == 1
    await provider.stop()


async def test_a_ca_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    from tests.test_cli import one_line, run

    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    for path, says in ((broken, "holds no certificates that can be read"), (tmp_path / "none.pem", "cannot be read")):
        environ = {"EVIDENCE_PROXY_UPSTREAM__CA_FILE": str(path)}
        code, _, err = await run("serve", "--port", "0", "--data", str(tmp_path / "d"), **environ)
        assert code == 1
        assert f"upstream.ca_file {says}" in one_line(err)


# Renewing.

RENEWED = """\
[server]
keys_file = "{dir}/keys"
[upstream]
base_url = "{{upstream}}"
api_key_file = "{dir}/provider-key"
[store]
data_dir = "{dir}/data"
"""
TABLE = '[[evidence]]\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n'


async def test_sighup_reads_keys_and_tables_again_and_requests_under_way_keep_theirs(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    import signal

    (tmp_path / "keys").write_text("old-key")
    (tmp_path / "provider-key").write_text("sk-old\n")
    running = await start_process(RENEWED.format(dir=tmp_path))
    gate = Wait()
    provider.reply(sse_reply([b"data: 1\n\n", gate, b"data: 2\n\n"]))
    client = await Client.connect(running.url)
    searched = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [
                {"id": "s", "type": "function", "function": {"name": "search", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "s", "content": "[c1] one"},
        ]
    }  # fmt: skip
    await client.send(request(body=searched, headers=bearer("old-key")))
    head = await client.head()
    assert head.evidence == "untouched; reason=no-evidence"

    async def renewed(event: str, number: int = 0) -> dict[str, Any]:
        assert running.process is not None
        running.process.send_signal(signal.SIGHUP)
        return await running.line(event, number)

    (tmp_path / "keys").write_text("new-key")
    (tmp_path / "provider-key").write_text("sk-new")
    file = running.file.read_text()
    running.file.write_text(file + '[compaction]\nmode = "off"\n' + TABLE)
    told = await renewed("reloaded")
    provider.always(ANSWER)
    new = await ask(running.url, searched, headers=bearer("new-key"))
    old = await ask(running.url, searched, headers=bearer("old-key"))
    gate.go()
    rest = await client.rest(head)

    assert told["need_a_restart"] == ["compaction.mode"]
    assert (new.status, old.status) == (200, 401)
    assert new.evidence == "untouched; reason=nothing-earlier"
    assert [received.value("authorization") for received in provider.requests] == [b"Bearer sk-old", b"Bearer sk-new"]
    assert rest.body == b"data: 1\n\ndata: 2\n\n"

    (tmp_path / "keys").write_text("")
    refused = await renewed("reload-refused")
    assert "without usable keys" in refused["why"][0]
    running.file.write_text("[server\n")
    assert "not TOML" in (await renewed("reload-refused", 1))["why"][0]
    assert (await ask(running.url, {}, headers=bearer("new-key"))).status == 200
    client.close()


async def test_sighup_reads_the_tag_keys_of_the_data_directory_again(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    import signal

    config = f'[upstream]\nbase_url = "{{upstream}}"\n[store]\ndata_dir = "{tmp_path}"\n'
    running = await start_process(config)
    results = {"results": [{"id": "c1", "content": "one"}], "shape": "text"}

    async def tag() -> str:
        return str((await ask(running.url, results, target="/evidence/v1/returns")).json()["text"])

    first, again = await tag(), await tag()
    (tmp_path / "tag-keys").write_text("5e" * 32 + "\n")
    assert running.process is not None
    running.process.send_signal(signal.SIGHUP)
    await running.line("reloaded")

    assert first == again != await tag()
