"""A request has one line, whatever it holds; lines are written together, in order, and none is lost at the end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy.gateway.watched import Arrived, Passed
from proxy.visibility import logs
from tests.conftest import StartProcess
from tests.house.client import ask
from tests.house.provider import Provider, completion, json_reply
from tests.talk import body, user

ARRIVED = Arrived("id", 0, 0, "POST", "/v1/chat/completions", "chat")
PASSED = Passed(ARRIVED, 200, "complete", 0.123456, outcome="untouched; reason=no-evidence", received=7, sent=9)


@contextmanager
def served() -> Iterator[io.StringIO]:
    """What is written, as `serve` has logs written. Not a fixture: pytest would put handlers of its own beside it."""
    root, ours, stream = logging.getLogger(), logging.getLogger("proxy"), io.StringIO()
    before = root.handlers[:], root.level, ours.level
    logs.configure(stream)
    try:
        yield stream
    finally:
        root.handlers[:], root.level, ours.level = before


def written(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    "passed",
    [
        PASSED,
        replace(PASSED, status=0, outcome=None, end="client-gone", took=0.0, added=12345.678),
        replace(PASSED, provider_id='req "1"\n' + "x" * 200, added=0.0000049, took=59.99996),
        replace(PASSED, arrived=replace(ARRIVED, id='a"b\\', method="GE\tT", path='/\x00/é/日本/\ud800/\u2028"}')),
    ],
)
async def test_a_requests_line_is_the_one_that_logging_makes(passed: Passed) -> None:
    with served() as out:
        logs.request(passed)
        logs.flush()
        slow = logging.LogRecord("proxy", logging.INFO, "", 0, "request", (), None)
        slow.values = logs.values(passed)
        line = logs.JsonLines().format(slow)
        start = line.index('"level"')
        assert out.getvalue()[start:] == line[start:] + "\n"
        assert len(written(out)[0]["time"]) == len("2026-01-01T00:00:00.000Z")


async def test_lines_wait_a_moment_and_whatever_else_is_said_comes_after_them() -> None:
    with served() as out:
        for number in range(3):
            logs.request(replace(PASSED, sent=number))
        assert out.getvalue() == ""
        logs.fault("broken", RuntimeError("hunter2"))
        logs.request(replace(PASSED, sent=3))
        logging.getLogger("a.library").warning("said")
        logs.request(replace(PASSED, sent=4))
        await asyncio.sleep(3 * logs._MOMENT)
        told = [line.get("sent", line["event"]) for line in written(out)]
        assert told == [0, 1, 2, "broken", 3, "said", 4]
        logs.request(replace(PASSED, sent=5))
        await asyncio.sleep(3 * logs._MOMENT)
        assert len(written(out)) == 8


async def test_no_more_lines_wait_than_may_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as out:
        monkeypatch.setattr(logs, "_MOST_WAITING", 4)
        for number in range(11):
            logs.request(replace(PASSED, sent=number))
        assert [line["sent"] for line in written(out)] == list(range(8))
        logs.flush()
        assert [line["sent"] for line in written(out)] == list(range(11))


async def test_nobody_who_reads_lines_is_no_request_s_fault() -> None:
    with served() as out:
        out.close()
        logs.request(PASSED)
        logs.flush()


def test_lines_of_one_event_loop_do_not_wait_for_another() -> None:
    with served() as out:

        async def one() -> None:
            logs.request(PASSED)

        async def other() -> None:
            logs.request(PASSED)
            await asyncio.sleep(3 * logs._MOMENT)

        asyncio.run(one())
        asyncio.run(other())
        assert len(written(out)) == 2


async def test_a_proxy_that_stops_has_written_every_line(provider: Provider, start_process: StartProcess) -> None:
    running = await start_process()
    provider.always(lambda _: json_reply(completion("hi")))
    for _ in range(20):
        await ask(running.url, body(user("hi")))
    await running.stop()
    assert len([line for line in running.lines if line["event"] == "request"]) == 20
