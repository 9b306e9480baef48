"""The command line starts a real process that answers at once, ends cleanly, and says what is wrong in one line."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import proxy
from tests.conftest import StartProcess
from tests.house.client import Client, ask, request
from tests.house.provider import Provider, Wait, completion, events, json_reply, sse_reply
from tests.house.running import ROOT


async def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """`python -m proxy ...` to its end: exit code, stdout, stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVIDENCE_PROXY_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *arguments),
        cwd=ROOT,
        env={**clean, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def one_line(err: str) -> str:
    assert "Traceback" not in err
    (line,) = err.splitlines()
    return line


async def test_a_started_proxy_serves_and_ends_cleanly_on_a_signal(
    provider: Provider, start_process: StartProcess
) -> None:
    running = await start_process()
    provider.reply(json_reply(completion("hi")))
    body = b'{"messages": [{"role": "user", "content": "hunter2"}]}'

    health = await ask(running.url, method="GET", target="/healthz")
    seen = await ask(running.url, body, target="/v1/chat/completions?k=hunter2", headers=[("Authorization", "hunter2")])
    code = await running.stop(signal.SIGTERM)

    assert health.json() == {"status": "ok"}
    assert (seen.status, seen.evidence) == (200, "untouched; reason=no-evidence")
    assert provider.requests[0].body == body
    assert code == 0
    lines = [line for line in running.lines if line["event"] == "request"]
    assert [line["path"] for line in lines] == ["/healthz", "/v1/chat/completions"]
    assert lines[1].keys() >= {"id", "method", "status", "outcome", "received", "sent", "ms", "end"}
    assert (lines[1]["outcome"], lines[1]["received"]) == ("untouched; reason=no-evidence", len(body))
    assert "hunter2" not in str(running.lines)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_a_stream_that_is_under_way_end(
    provider: Provider, start_process: StartProcess, number: signal.Signals
) -> None:
    running = await start_process()
    gate = Wait()
    chunks = events(completion("hello"))
    provider.reply(sse_reply([*chunks[:1], gate, *chunks[1:]]))
    client = await Client.connect(running.url)
    await client.send(request(body={"messages": []}))
    head = await client.head()
    await gate.reached.wait()

    assert running.process is not None
    running.process.send_signal(number)
    await running.line("stopping")
    gate.go()
    seen = await client.rest(head)

    assert seen.body == b"".join(chunks)
    assert await running.ended() == 0


async def test_the_environment_and_a_key_reach_a_real_process(provider: Provider, start_process: StartProcess) -> None:
    running = await start_process(
        '[upstream]\nbase_url = "{upstream}"\napi_key_env = "THE_KEY"\n',
        {"THE_KEY": "sk-proxy", "EVIDENCE_PROXY_COMPACTION__MODE": "off"},
    )
    provider.reply(json_reply(completion("hi")))

    seen = await ask(running.url, {"messages": []}, headers=[("Authorization", "Bearer sk-client")])

    assert seen.evidence == "untouched; reason=off"
    assert provider.requests[0].values("authorization") == [b"Bearer sk-proxy"]


async def test_flags_come_before_the_file(provider: Provider, start_process: StartProcess, tmp_path: Path) -> None:
    running = await start_process('[server]\nport = 1\nhost = "192.0.2.1"\n[store]\nuri = "memory://"\n', {
        "EVIDENCE_PROXY_SERVER__HOST": "127.0.0.1",
        "EVIDENCE_PROXY_UPSTREAM__BASE_URL": provider.url,
    })  # fmt: skip
    assert (await ask(running.url, method="GET", target="/healthz")).status == 200


async def test_the_version_and_the_help_come_without_the_server() -> None:
    assert await run("--version") == (0, f"evidence-proxy {proxy.__version__}\n", "")
    code, out, _ = await run("serve", "--help", COLUMNS="200")
    assert code == 0
    for flag in ("--config", "--host", "--port", "--upstream", "--data"):
        assert flag in out


async def test_the_command_line_imports_nothing_heavy() -> None:
    script = (
        "import sys, proxy.cli; print(sorted({'lancedb', 'pyarrow', 'aiohttp', 'pydantic', 'PIL'} & set(sys.modules)))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"[]\n"


async def test_the_server_does_not_import_lancedb_before_the_store_needs_it() -> None:
    script = (
        "import sys, proxy.cli, proxy.settings, proxy.store, proxy.gateway.app, proxy.gateway.conversation;"
        "print(sorted({'lancedb', 'pyarrow'} & set(sys.modules)))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"[]\n"


async def test_wrong_settings_end_with_2_and_one_line(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text('[compaction]\nmode = "of"')

    code, out, err = await run("serve", "--config", str(file))

    assert (code, out) == (2, "")
    assert one_line(err) == f'evidence-proxy: {file}: compaction.mode = "of": expected "on", "observe" or "off"'


async def test_a_missing_file_a_wrong_flag_and_broken_toml_end_with_2(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[server")

    missing = await run("serve", "--config", str(tmp_path / "none.toml"))
    flag = await run("serve", "--port", "70000")
    upstream = await run("serve", "--upstream", "ftp://x")
    toml = await run("serve", "--config", str(broken))

    assert (missing[0], flag[0], upstream[0], toml[0]) == (2, 2, 2, 2)
    assert "no such file" in one_line(missing[2])
    assert one_line(flag[2]) == "evidence-proxy: --port: server.port = 70000: expected a whole number from 0 to 65535"
    assert one_line(upstream[2]).startswith('evidence-proxy: --upstream: upstream.base_url = "ftp://x": expected')
    assert "not TOML" in one_line(toml[2])


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = await run("serve", "--port", str(port), "--data", str(tmp_path))

    assert code == 1
    assert one_line(err) == (
        f"evidence-proxy: 127.0.0.1:{port} is in use by another process: stop it, or listen elsewhere with --port P"
    )


async def test_a_data_directory_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    file.touch()

    code, _, err = await run("serve", "--data", str(file / "data"), "--port", "0")

    assert code == 1
    assert one_line(err).startswith(
        f"evidence-proxy: the data directory {file}/data cannot be written (Not a directory)"
    )
    assert "--data DIR" in err


async def test_the_data_flag_decides_where_records_are_kept(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    file = tmp_path / "a-file"
    file.touch()
    config.write_text('[store]\nuri = "memory://"')

    code, _, err = await run("serve", "--config", str(config), "--data", str(file), "--port", "0")

    assert code == 1
    assert f"the data directory {file} cannot be written" in one_line(err)
