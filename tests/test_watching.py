"""Whoever watches hears of each request once at its arrival and once at its end, and can disturb none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.compaction.outcome import Compacted, Reason, Untouched
from proxy.ledger import records
from proxy.visibility.watching import Watchers
from proxy.wire.messages import Usage
from tests.conftest import StartHere
from tests.house.client import Client, ask, request
from tests.house.provider import Break, Provider, completion, events, json_reply, sse_reply
from tests.house.watching import Listening
from tests.talk import body, cited, says, searched, user

TABLE = {"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}
KEY: list[tuple[str | bytes, str | bytes]] = [("Authorization", "Bearer tenant-1")]

FIRST = [user("what?"), *searched("[c1] one " + "word " * 100), *cited(["c1"])]
SECOND = [*FIRST, says("the answer"), user("and then?")]


def chat_usage(read: int, kept: int, wrote: int) -> dict[str, Any]:
    return {"prompt_tokens": read, "completion_tokens": wrote, "prompt_tokens_details": {"cached_tokens": kept}}


async def test_a_watcher_hears_what_the_wire_said(provider: Provider, start_here: StartHere) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE])
    provider.reply(json_reply({**completion("the answer"), "usage": chat_usage(90, 60, 7)}))
    provider.reply(json_reply({**completion("more"), "usage": chat_usage(40, 0, 5)}))

    await ask(proxy.url, body(*FIRST), headers=KEY)
    second = await ask(proxy.url, body(*SECOND), target="/v1/chat/completions?key=hunter2", headers=KEY)
    one, two = await watcher.told(2)

    assert [came.path for came in watcher.arrivals] == ["/v1/chat/completions"] * 2
    assert [(heard.status, heard.asked, heard.end) for heard in (one, two)] == [(200, 200, "complete")] * 2
    assert two.outcome == second.evidence
    assert (two.received, two.forwarded, two.sent) == (
        len(body(*SECOND)),
        len(provider.requests[1].body),
        len(second.body),
    )
    assert one.conversed is not None and two.conversed is not None
    assert one.conversed.went is one.conversed.came
    assert (one.conversed.question, two.conversed.question) == (1, 2)
    assert two.conversed.went == provider.requests[1].body
    assert isinstance(two.conversed.outcome, Compacted)
    assert two.conversed.outcome.figures.capsule == 1
    assert (one.conversed.usage, two.conversed.usage) == (Usage(90, 60, 7), Usage(40, 0, 5))
    assert one.conversed.model == two.conversed.model == "m"
    assert {n: table.name for n, table in two.conversed.evidence.items()} == {0: "kb"}
    (settled,) = one.conversed.settled
    record = records.decode(settled)
    assert record is not None
    assert [entry.id for entry in record.cited] == ["c1"]
    assert two.conversed.boundary.record is not None
    assert two.added > 0 and two.took >= two.added
    rooms = [stay.room for stay in two.stays]
    assert set(rooms) == {"wire", "ledger", "evidence", "store", "compaction", "provider", "settling"}
    assert rooms.index("wire") < rooms.index("compaction") < rooms.index("provider") < rooms.index("settling")
    assert all(stay.began <= stay.ended for stay in two.stays)
    assert two.conversed.tenant is not None and b"tenant-1" not in two.conversed.tenant


async def test_usage_that_a_stream_tells_after_its_finish_is_heard(provider: Provider, start_here: StartHere) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE])
    *chunks, done = events(completion("the answer"))
    last = {"id": "x", "choices": [], "usage": chat_usage(11, 3, 2)}
    provider.reply(sse_reply([*chunks, b"data: " + json.dumps(last).encode() + b"\n\n", done]))

    await ask(proxy.url, body(*FIRST, stream=True), headers=KEY)
    (heard,) = await watcher.told()

    assert heard.conversed is not None
    assert heard.conversed.usage == Usage(11, 3, 2)
    assert len(heard.conversed.settled) == 1


@pytest.mark.parametrize("kind, settles", [("completed", 1), ("incomplete", 0)])
async def test_a_response_tells_its_usage_even_where_it_was_cut_off(
    provider: Provider, start_here: StartHere, kind: str, settles: int
) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE])
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    used = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 4}
    response = {"id": "r", "status": kind, "model": "gpt-x", "output": [message], "usage": used}
    event = {"type": f"response.{kind}", "response": response}
    provider.reply(sse_reply([b"data: " + json.dumps(event).encode() + b"\n\n"]))
    call = {"type": "function_call", "call_id": "s", "name": "search", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "s", "output": "[c1] one"}

    asked = {"input": [{"role": "user", "content": "what?"}, call, output], "stream": True, "store": False}
    await ask(proxy.url, asked, target="/v1/responses", headers=KEY)
    (heard,) = await watcher.told()

    assert heard.conversed is not None
    assert (heard.conversed.usage, heard.conversed.model) == (Usage(20, 8, 4), "gpt-x")
    assert len(heard.conversed.settled) == settles


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        7,
        {"prompt_tokens": "many"},
        {"prompt_tokens": -1, "completion_tokens": True},
        {"prompt_tokens": 1e400},
    ],
)
async def test_usage_that_makes_no_sense_is_no_figure(provider: Provider, start_here: StartHere, told: Any) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE])
    provider.reply(json_reply({**completion("the answer"), "usage": told}))

    await ask(proxy.url, body(*FIRST), headers=KEY)
    (heard,) = await watcher.told()

    assert heard.conversed is not None
    assert heard.conversed.usage in (None, Usage())


async def test_observe_tells_what_would_have_gone_up(provider: Provider, start_here: StartHere) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE], compaction={"mode": "observe"})
    for text in ("the answer", "more"):
        provider.reply(json_reply(completion(text)))

    await ask(proxy.url, body(*FIRST), headers=KEY)
    seen = await ask(proxy.url, body(*SECOND), headers=KEY)
    _, two = await watcher.told(2)

    assert provider.requests[1].body == body(*SECOND)
    told = two.conversed
    assert told is not None and isinstance(told.outcome, Untouched) and told.outcome.figures is not None
    assert told.outcome.reason is Reason.OBSERVE
    assert told.would is not None and len(told.would) == told.outcome.figures.after
    assert json.loads(told.would)["messages"][2]["content"] != FIRST[2]["content"]
    assert f"after={len(told.would)}" in seen.evidence


async def test_what_is_no_conversation_is_heard_of_too(provider: Provider, start_here: StartHere) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher)
    provider.reply(json_reply({"data": []}, status=404, reason="Not Found"))

    await ask(proxy.url, method="GET", target="/v1/models")
    await ask(proxy.url, method="GET", target="/healthz")
    models, health = await watcher.told(2)

    assert (models.status, models.asked, models.conversed) == (404, 404, None)
    assert (health.status, health.asked, health.conversed) == (200, None, None)


async def test_a_request_that_breaks_off_is_heard_of_once(provider: Provider, start_here: StartHere) -> None:
    watcher = Listening()
    proxy = await start_here(watcher=watcher, evidence=[TABLE])
    provider.reply(sse_reply([*events(completion("the answer"))[:2], Break()]))
    client = await Client.connect(proxy.url)
    await client.send(request(body=body(*FIRST), headers=KEY))

    (heard,) = await watcher.told()
    client.close()
    await asyncio.sleep(0.05)

    assert (heard.end, heard.status) == ("upstream-broke", 200)
    assert heard.conversed is not None and heard.conversed.settled == ()
    assert len(watcher.heard) == 1


async def test_a_watcher_that_fails_disturbs_neither_the_request_nor_the_next_watcher(
    provider: Provider, start_here: StartHere
) -> None:
    failing, other = Listening(fails=True), Listening(lines=[(b"traceparent", b"00-ours-01")])
    proxy = await start_here(watcher=Watchers([failing, other]))
    provider.reply(json_reply(completion("hi")))

    seen = await ask(
        proxy.url, body(user("hi")), headers=[("traceparent", "00-theirs-01"), ("tracestate", "a=b"), ("X-Other", "1")]
    )
    await other.told()

    assert seen.json() == completion("hi")
    assert len(failing.heard) == len(other.heard) == 1
    assert other.arrivals[0].trace == ((b"traceparent", b"00-theirs-01"), (b"tracestate", b"a=b"))
    assert provider.requests[0].values("traceparent") == [b"00-ours-01"]
    assert provider.requests[0].values("tracestate") == []
    assert provider.requests[0].values("x-other") == [b"1"]


async def test_where_nobody_watches_a_trace_goes_on_as_it_came(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here()
    provider.reply(json_reply(completion("hi")))

    await ask(proxy.url, body(user("hi")), headers=[("traceparent", "00-theirs-01")])

    assert provider.requests[0].values("traceparent") == [b"00-theirs-01"]
