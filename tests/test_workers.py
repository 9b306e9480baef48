"""Several processes behind one port: they share it, the records and the keys, and start and stop as one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartProcess
from tests.house.client import Client, ask, request
from tests.house.provider import Provider, Wait, completion, json_reply, sse_reply
from tests.house.running import ProxyProcess
from tests.test_cli import one_line, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

WORKERS = """\
[server]
workers = 2
drain_seconds = 20
[upstream]
base_url = "{upstream}"
[store]
data_dir = "DIR"
read_timeout_ms = 10000
[[evidence]]
format = "auto"
tools = ["search"]
cite = "cite"
"""


async def started(start_process: StartProcess, tmp_path: Path) -> ProxyProcess:
    running = await start_process(WORKERS.replace("DIR", str(tmp_path)))
    await running.line("listening", 1)
    return running


def workers_of(running: ProxyProcess) -> list[int]:
    """The process ids of a parent's workers."""
    assert running.process is not None
    pid = running.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_over(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def _ended(pid: int) -> None:
    """Wait until a process that is not ours is over."""
    with os.fdopen(os.pidfd_open(pid)) as process:
        select.select([process], [], [])


QUESTION: list[dict[str, Any]] = [
    {"role": "user", "content": "first?"},
    {"role": "assistant", "tool_calls": [
        {"id": "s", "type": "function", "function": {"name": "search", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "s", "content": "[c1] one\nfirst\n\n[c2] two\nsecond"},
    {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "cite", "arguments": '{"ids": ["c1"]}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "registered"},
]  # fmt: skip


async def test_a_clients_next_request_may_reach_any_worker(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    running = await started(start_process, tmp_path)
    provider.always(json_reply(completion("It is one.")))

    async def outcome(number: int) -> str:
        asked = [{"role": "user", "content": f"{number}: first?"}, *QUESTION[1:]]
        later = [*asked, {"role": "assistant", "content": "It is one."}, {"role": "user", "content": "second?"}]
        for messages in (asked, later):
            seen = await ask(running.url, {"messages": messages}, headers=[("Authorization", "Bearer a")])
        return seen.evidence.split(";")[0]

    opened = 0  # the first record makes each of them open the store, which takes as long as the machine needs for it
    for number in range(100):
        opened = opened + 1 if await outcome(number) == "compacted" else 0
        if opened == 8:
            break

    assert [await outcome(100 + number) for number in range(12)] == ["compacted"] * 12
    ids = {line.get("worker") for line in running.lines if line["event"] == "listening"}
    assert ids == {0, 1}


async def test_a_worker_that_ends_is_started_again_and_the_others_go_on(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    running = await started(start_process, tmp_path)
    first, second = workers_of(running)
    provider.always(json_reply(completion("hi")))

    os.kill(first, signal.SIGKILL)
    ended = await running.line("worker-ended")
    answers = [(await ask(running.url, {})).status for _ in range(20)]
    await running.line("listening", 2)

    assert ended["code"] == -signal.SIGKILL
    assert answers == [200] * 20
    assert second in workers_of(running) and first not in workers_of(running)


async def test_stopping_the_parent_lets_streams_end_in_every_worker(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    running = await started(start_process, tmp_path)
    gates = [Wait() for _ in range(8)]
    provider.reply(*(sse_reply([b"data: 1\n\n", gate, b"data: 2\n\n"]) for gate in gates))
    clients = [await Client.connect(running.url) for _ in gates]
    heads = []
    for client in clients:
        await client.send(request(body={}))
        heads.append(await client.head())

    assert running.process is not None
    running.process.send_signal(signal.SIGTERM)
    await running.line("stopping", 1)
    refused = False
    try:
        late = await Client.connect(running.url)
        refused = await late.ended()
    except OSError:
        refused = True
    for gate in gates:
        gate.go()

    for client, head in zip(clients, heads, strict=True):
        assert (await client.rest(head)).body == b"data: 1\n\ndata: 2\n\n"
    assert refused
    assert await running.ended() == 0


async def test_workers_do_not_outlive_a_parent_that_is_killed(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    running = await started(start_process, tmp_path)
    left = workers_of(running)
    assert running.process is not None and running.process.stderr is not None

    running.process.send_signal(signal.SIGKILL)
    await running.ended()  # their ends of the log are closed, too

    assert len(left) == 2
    for pid in left:  # a process lets go of its files a moment before it is over
        with contextlib.suppress(ProcessLookupError):
            await asyncio.wait_for(asyncio.to_thread(_ended, pid), 5)
        assert is_over(pid)


async def test_sighup_reaches_every_worker(provider: Provider, start_process: StartProcess, tmp_path: Path) -> None:
    running = await started(start_process, tmp_path)
    assert running.process is not None

    running.process.send_signal(signal.SIGHUP)

    await running.line("reloaded", 1)


async def test_several_workers_cannot_keep_their_records_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text('[store]\nuri = "memory://"')
    code, _, err = await run("serve", "--config", str(file), "--workers", "2", "--port", "0")
    assert code == 2
    assert "server.workers" in one_line(err)


async def test_a_port_in_use_is_refused_although_workers_share_theirs(
    provider: Provider, start_process: StartProcess, tmp_path: Path
) -> None:
    running = await started(start_process, tmp_path / "one")
    port = running.url.rpartition(":")[2]

    code, _, err = await run("serve", "--workers", "2", "--port", port, "--data", str(tmp_path / "two"))

    assert code == 1
    assert "is in use by another process" in one_line(err)


async def test_what_keeps_every_worker_from_starting_is_said_and_ends_it(tmp_path: Path) -> None:
    environ = {"EVIDENCE_PROXY_UPSTREAM__CA_FILE": str(tmp_path / "none.pem")}
    code, _, err = await asyncio.wait_for(
        run("serve", "--workers", "2", "--port", "0", "--data", str(tmp_path / "d"), **environ), 60
    )
    assert code == 1
    assert "upstream.ca_file cannot be read" in err
