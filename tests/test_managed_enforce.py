"""`policy.mode = "enforce"` with the proxy's own cite tool: asked once at the end, and the client sees its answer.

Through the running gateway; both APIs, whole and streamed. Text has gone out by then; only the end waits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.policy.cite_tool import NAME
from proxy.policy.redirect import TAG
from tests.conftest import StartHere
from tests.house.client import Client, Torn, request
from tests.house.provider import Break, Provider, Reply, Wait, completion, events, sse_reply
from tests.house.toolless import Agent, Says, went_up
from tests.test_managed import (
    EVERY,
    FOUND,
    MANAGED,
    NAMES,
    StartAgent,
    Watched,
    cite,
    no_trace,
    search,
    start,
    watched,
)

__all__ = ["start", "watched"]

ENFORCE = {"mode": "enforce", "redirect_timeout_ms": 400, "keep_alive_ms": 50}


def asked(provider: Provider) -> list[bool]:
    """Of each request, whether it asks what grounds an answer."""
    return [TAG.encode() in received.body for received in provider.requests]


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_model_that_never_cites_by_itself_is_asked_once_for_each_question(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed, policy=ENFORCE)
    got = [
        await agent.question("a?", FOUND, Says(None, [search("s1")]), Says("Alpha."), Says(None, [cite("c2")])),
        await agent.question("b?", FOUND, Says(None, [search("s2")]), Says("Beta."), Says("Again.", [cite("c3")])),
        await agent.question("thanks", FOUND, Says("Welcome."), Says(None, [cite()])),
    ]
    assert [(one.text, one.finish) for one in got] == [("Alpha.", "stop"), ("Beta.", "stop"), ("Welcome.", "stop")]
    no_trace(agent, *got)
    assert asked(provider) == [False, False, True, False, False, True, False, True]
    assert [record.declaration for record in watched.records] == ["grounded", "grounded", "ungrounded"]
    assert watched.cited() == ["c2", "c3"] and all(r.verdict and r.verdict.asked for r in watched.records)
    assert all(r.verdict and r.verdict.violation is None for r in watched.records)
    shown = json.dumps(went_up(provider.requests[-2])["messages"])
    assert "alpha is two" in shown and "alpha is one" not in shown
    # Asked on the same conversation, with our tool, for one whole reply in no stream.
    body = provider.requests[2].json()
    assert "stream" not in body and went_up(provider.requests[2])["tools"] == ["search", NAME]
    assert went_up(provider.requests[2])["messages"][-2]["content"] == "Alpha."


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_question_that_declared_is_not_asked(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed, policy=ENFORCE)
    await agent.question("a?", FOUND, Says(None, [search("s1")]), Says(None, [cite("c1")]), Says("Alpha."))
    await agent.question("b?", FOUND, Says(None, [search("s2")]), Says("Beta.", [cite("c3")]), Says("Beta."))
    assert asked(provider) == [False] * 6
    assert [record.declaration for record in watched.records] == ["grounded", "grounded"]


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
@pytest.mark.parametrize(
    "said, violation",
    [
        (Says("I will not."), "ignored"),
        (Says(None, [("x", "search", {})]), "ignored"),
        (Says(None, [cite("x9")]), "unresolved"),
        (Says(status=500), "provider"),
        (Says(status=400), "provider"),
        (Says("x" * 100, [cite("c1")], breaks=True), "provider"),
    ],
    ids=["ignored", "another tool", "unknown ids", "500", "400", "breaks"],
)
async def test_promise_10_whatever_comes_of_asking_the_first_answer_goes_out(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool, said: Says, violation: str
) -> None:
    agent = await start(api, streamed, policy=ENFORCE)
    got = await agent.question("a?", FOUND, Says(None, [search()]), Says("Alpha."), said)
    assert (got.text, got.finish, got.error) == ("Alpha.", "stop", None)
    verdict = watched.last.verdict
    assert verdict is not None and (verdict.violation, watched.last.kept) == (violation, (0,))
    assert asked(provider) == [False, False, True]
    # Nor is it asked for the same question again.
    await agent.question("Validation feedback: shorter", FOUND, Says("A."))
    assert asked(provider).count(True) == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_provider_that_takes_too_long_to_say_costs_the_citation_and_not_the_answer(
    start: StartAgent, watched: Watched, streamed: bool
) -> None:
    agent = await start(streamed=streamed, policy=ENFORCE)
    never = Reply(200, "OK", [("Content-Type", "application/json")], [Wait()])
    got = await agent.question("a?", FOUND, Says(None, [search()]), Says("Alpha."), never)
    assert got.text == "Alpha." and watched.last.verdict is not None
    assert watched.last.verdict.violation == "provider"


async def test_text_streams_through_live_and_only_the_end_waits(
    start: StartAgent, provider: Provider, watched: Watched
) -> None:
    agent = await start(streamed=True, policy=ENFORCE)
    agent.script(Says(None, [search()]))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    waits = Wait()
    pieces = events(completion("The whole answer, said at once."))
    asking = Reply(
        200, "OK", [("Content-Type", "application/json")], [waits, json.dumps(completion(None, [cite("c1")])).encode()]
    )
    agent.script(sse_reply(pieces), asking)
    client = await Client.connect(agent.url)
    await client.send(request(body=agent.body(), headers=[agent.credential]))
    head = await client.head()
    seen = b""
    while b": \n\n" not in seen:  # the text is all there, the end is not, and the client is kept alive
        seen += await client.chunk()
    assert waits.reached.is_set() and b"[DONE]" not in seen and b'"stop"' not in seen
    assert seen.replace(b": \n\n", b"") == b"".join(pieces[:-2])
    waits.go()
    rest = await client.rest(head)
    assert (seen + rest.body).replace(b": \n\n", b"") == b"".join(pieces)
    assert watched.cited() == ["c1"]


@pytest.mark.parametrize("mode, verdict", [("off", None), ("record", "undeclared")])
async def test_other_modes_ask_nothing(
    start: StartAgent, provider: Provider, watched: Watched, mode: str, verdict: str | None
) -> None:
    agent = await start(policy={"mode": mode})
    await agent.question("a?", FOUND, Says(None, [search()]), Says("Alpha."))
    assert asked(provider) == [False, False]
    told = watched.last.verdict
    assert (told.violation if told is not None else None) == verdict
    await agent.question("b?", FOUND, Says(None, [search("s2")]), Says(None, [cite("c3")]), Says("Beta."))
    told = watched.last.verdict
    assert watched.last.declaration == "grounded" and (told is None or told.violation is None)


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_note_that_cannot_be_found_has_the_model_asked_as_if_it_had_not_cited(
    provider: Provider, start_here: StartHere, watched: Watched, api: str, streamed: bool
) -> None:
    one = await start_here(evidence=[MANAGED], policy=ENFORCE)
    agent = Agent(one.url, provider, api, streamed)
    agent.script(
        Says(None, [search("s1")]),
        Says(None, [cite("c1"), ("o", "other", {})]),
        Says("Alpha."),
        Says(None, [cite("c2")]),
    )
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    await agent.asks()
    agent.returns({"o": "x"})
    agent.url = (await start_here(evidence=[MANAGED], policy=ENFORCE)).url  # its store knows nothing
    got = await agent.asks()
    assert (got.text, asked(provider)) == ("Alpha.", [False, False, False, True])
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["c2"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_output_tools_call_that_would_end_undeclared_is_asked_about(
    start: StartAgent, provider: Provider, watched: Watched, streamed: bool
) -> None:
    agent = await start(streamed=streamed, policy=ENFORCE, tools=("search", "final_result"))
    agent.script(Says(None, [search()]), Says(None, [("f", "final_result", {"x": 1})]), Says(None, [cite("c1")]))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    got = await agent.asks()
    assert (got.calls, got.finish) == ([("f", "final_result", '{"x": 1}')], "tool_calls")
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["c1"])


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_after_all_rounds_the_plain_answer_is_asked_about_too(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed, policy={**ENFORCE, "managed_rounds": 1})
    got = await agent.question(
        "a?", FOUND, Says(None, [search()]), Says(None, [cite("x9")]), Says("Alpha."), Says(None, [cite("c1")])
    )
    assert got.text == "Alpha." and watched.cited() == ["c1"]
    assert [NAME in went_up(received)["tools"] for received in provider.requests] == [True, True, False, True]


@pytest.mark.parametrize(
    "beside, refuses, violation",
    [({"n": 2}, False, "several-choices"), ({}, True, "no-cite-tool"), ({"functions": [{}]}, False, "no-cite-tool")],
)
async def test_where_our_tool_cannot_be_offered_the_answer_goes_out_as_a_violation(
    start: StartAgent, watched: Watched, beside: dict[str, Any], refuses: bool, violation: str
) -> None:
    agent = await start(policy=ENFORCE)
    agent.beside = beside
    first = [Says(status=400), Says(None, [search()])] if refuses else [Says(None, [search()])]
    got = await agent.question("a?", FOUND, *first, Says("Alpha."))
    assert got.text == "Alpha." and watched.last.verdict is not None
    assert (watched.last.verdict.asked, watched.last.verdict.violation) == (False, violation)


async def test_a_stream_that_breaks_off_asks_nothing(start: StartAgent, provider: Provider) -> None:
    agent = await start(streamed=True, policy=ENFORCE)
    agent.script(Says(None, [search()]), sse_reply([*events(completion("Alpha, and more."))[:2], Break()]))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    client = await Client.connect(agent.url)
    await client.send(request(body=agent.body(), headers=[agent.credential]))
    with pytest.raises(Torn):
        await asyncio.wait_for(client.reply(), 5)
    assert asked(provider) == [False, False]
