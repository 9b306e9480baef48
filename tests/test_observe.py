"""`compaction.mode = "observe"`: everything is computed, recorded and shown, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from proxy.ledger import records
from tests.house.client import ask
from tests.house.looking import Watched, total
from tests.house.provider import Provider, Reply, completion, events, json_reply, sse_reply
from tests.talk import Json, body, cited, says, searched, user
from tests.test_watching import KEY

Start = Callable[..., Awaitable[Watched]]

TABLE = {"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite", "undeclared": "receipt"}
CITE = {"type": "function", "function": {"name": "cite", "parameters": {"type": "object", "properties": {}}}}
FOUND = json.dumps([{"id": "c1", "content": "kept " * 50}, {"id": "c2", "content": "dropped " * 500}])


@pytest.fixture
async def start(provider: Provider) -> AsyncIterator[Start]:
    running: list[Watched] = []

    async def start(**sections: Any) -> Watched:
        chosen = {"evidence": [TABLE], "compaction": {"mode": "observe"}, **sections}
        running.append(Watched(provider.url, **chosen))
        return await running[-1].start()

    yield start
    for watched in running:
        await watched.stop()


def questions() -> list[list[Json]]:
    """The requests of three questions, each of which cites one of two chunks."""
    sent: list[list[Json]] = []
    messages: list[Json] = []
    for number in range(3):
        messages = [*messages, user(f"question {number}?"), *searched(FOUND, f"s{number}"), *cited(["c1"], call_id="c")]
        sent.append(messages)
        messages = [*messages, says(f"answer {number}")]
    return sent


def reply(text: str, stream: bool) -> Reply:
    return sse_reply(events(completion(text))) if stream else json_reply(completion(text))


def given(text: str, stream: bool) -> bytes:
    return b"".join(events(completion(text))) if stream else json.dumps(completion(text)).encode()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["off", "record", "enforce"])
@pytest.mark.parametrize("cite", ["cite", "inline", "managed"])
async def test_nothing_is_changed_whatever_else_is_set(
    provider: Provider, start: Start, stream: bool, policy: str, cite: str
) -> None:
    watched = await start(evidence=[{**TABLE, "cite": cite}], policy={"mode": policy})
    for number, messages in enumerate(questions()):
        raw = body(*messages, stream=stream, tools=[CITE])
        provider.reply(reply(f"answer {number}", stream))
        seen = await ask(watched.url, raw, headers=KEY)
        assert provider.requests[-1].body == raw
        assert seen.body == given(f"answer {number}", stream)
    assert len(provider.requests) == 3


async def test_what_would_have_been_done_is_said_and_counted(provider: Provider, start: Start) -> None:
    watched = await start()
    headers = []
    for number, messages in enumerate(questions()):
        provider.reply(reply(f"answer {number}", False))
        headers.append((await ask(watched.url, body(*messages), headers=KEY)).evidence)
    samples = await watched.scrape()
    totals = watched.lookout.tally.totals()

    assert headers[0] == "untouched; reason=nothing-earlier"
    assert all(header.startswith("untouched; reason=observe; question=") for header in headers[1:])
    figures = [dict(pair.split("=") for pair in header.split("; ")[1:]) for header in headers[1:]]
    assert (totals.observed_bytes.before, totals.observed_bytes.after) == (
        sum(int(found["before"]) for found in figures),
        sum(int(found["after"]) for found in figures),
    )
    assert totals.observed_bytes.after < totals.observed_bytes.before
    assert totals.observed_tokens.after < totals.observed_tokens.before
    assert totals.bytes.before == totals.bytes.after
    assert total(samples, "evidence_proxy_conversation_requests_total", outcome="observed", reason="observe") == 2
    assert total(samples, "evidence_proxy_questions_settled_total") == 3


async def test_what_was_observed_is_recorded_and_serves_when_it_is_turned_on(
    provider: Provider, start: Start, tmp_path: Any
) -> None:
    store = {"uri": None, "data_dir": str(tmp_path)}
    first, second, third = questions()
    watched = await start(store=store)
    for number, messages in enumerate((first, second)):
        provider.reply(reply(f"answer {number}", False))
        await ask(watched.url, body(*messages), headers=KEY)
    await watched.stop()

    on = await start(store=store, compaction={"mode": "on"})
    provider.reply(reply("answer 2", False))
    seen = await ask(on.url, body(*third), headers=KEY)

    assert seen.evidence.startswith("compacted; question=3; capsule=1;")
    assert b"dropped" not in provider.requests[-1].body.partition(b"question 2")[0]


async def test_a_violation_is_written_down_where_nobody_may_be_asked(provider: Provider, start: Start) -> None:
    watched = await start(policy={"mode": "enforce"})
    heard = []
    real = watched.lookout.tally.passed
    watched.lookout.tally.passed = lambda passed: (heard.append(passed), real(passed))[1]  # type: ignore[method-assign]
    provider.reply(reply("undeclared", False))

    seen = await ask(watched.url, body(user("q?"), *searched(FOUND), tools=[CITE]), headers=KEY)
    samples = await watched.scrape()

    assert seen.body == given("undeclared", False)
    (settled,) = heard[0].conversed.settled
    record = records.decode(settled)
    assert record is not None and record.verdict is not None
    assert record.verdict.violation == "undeclared"
    assert total(samples, "evidence_proxy_policy_violations_total", reason="undeclared") == 1
