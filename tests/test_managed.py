"""Agents without a cite tool: the proxy offers its own, answers its calls, and the client sees an ordinary reply.

Each row of the table in docs/policy.md is a test here. Through the running gateway; both APIs, whole and streamed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy.gateway.conversation import Conversations
from proxy.ledger import notes, records
from proxy.ledger.records import Record
from proxy.policy.cite_tool import NAME
from proxy.store import StoredRecord
from proxy.tagging import Result, tag
from tests.conftest import StartHere
from tests.house.client import Client, Torn, request
from tests.house.keys import KEYS
from tests.house.provider import Break, Provider, Reply, Wait, completion, events, json_reply, sse_reply
from tests.house.responding import response, response_events
from tests.house.toolless import Agent, Got, Says, went_up

MANAGED = {"format": "auto", "tools": ["search"], "cite": "managed"}
#: What a search finds, by its call's id.
FOUND = {
    "s1": json.dumps([{"id": "c1", "text": "alpha is one"}, {"id": "c2", "text": "alpha is two"}]),
    "s2": json.dumps([{"id": "c3", "text": "beta is three"}, {"id": "c4", "text": "beta is four"}]),
    "s3": json.dumps([{"id": "c5", "text": "gamma is five"}, {"id": "c6", "text": "gamma is six"}]),
}
EVERY = [("chat", False), ("chat", True), ("responses", False), ("responses", True)]
NAMES = ["chat", "chat streamed", "responses", "responses streamed"]


def search(call_id: str = "s1") -> tuple[str, str, Any]:
    return (call_id, "search", {"q": call_id})


def cite(*ids: str, call_id: str = "own", tool: str = NAME) -> tuple[str, str, Any]:
    return (call_id, tool, {"ids": list(ids)})


StartAgent = Callable[..., Awaitable[Agent]]


class Watched:
    """The records that a proxy made, in order."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    @property
    def records(self) -> list[Record]:
        return [record for payload in self.payloads if (record := records.decode(payload)) is not None]

    @property
    def last(self) -> Record:
        return self.records[-1]

    def cited(self) -> list[str]:
        return [entry.id for entry in self.last.cited]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    original = Conversations.keep

    async def keep(self: Conversations, *told: Any) -> list[StoredRecord]:
        rows = await original(self, *told)
        found.payloads += [row.payload for row in rows]
        return rows

    monkeypatch.setattr(Conversations, "keep", keep)
    return found


@pytest.fixture
async def start(provider: Provider, start_here: StartHere) -> StartAgent:
    async def begin(
        api: str = "chat",
        streamed: bool = False,
        table: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        tools: tuple[str, ...] = ("search",),
        **sections: Any,
    ) -> Agent:
        evidence = [{**MANAGED, **(table or {})}]
        proxy = await start_here(evidence=evidence, policy=policy or {}, **sections)
        return Agent(proxy.url, provider, api, streamed, tools)

    return begin


def no_trace(agent: Agent, *got: Got) -> None:
    """The client never saw our tool, in a call, in a history, or in a word of ours."""
    for one in got:
        assert NAME.encode() not in one.seen.body
        assert NAME not in one.tools
    assert NAME not in json.dumps(agent.history)


# The ordinary way.


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_three_questions_are_cited_through_our_tool_and_each_next_one_is_compacted(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    first = await agent.question("a?", FOUND, Says(None, [search("s1")]), Says(None, [cite("c2")]), Says("Alpha."))
    second = await agent.question("b?", FOUND, Says(None, [search("s2")]), Says(None, [cite("c3")]), Says("Beta."))
    third = await agent.question("c?", FOUND, Says(None, [search("s3")]), Says(None, [cite()]), Says("Gamma."))

    assert [got.text for got in (first, second, third)] == ["Alpha.", "Beta.", "Gamma."]
    assert [record.declaration for record in watched.records] == ["grounded", "grounded", "ungrounded"]
    assert watched.cited() == ["c2", "c3"]
    no_trace(agent, first, second, third)
    last = went_up(provider.requests[-1])
    shown = json.dumps(last["messages"])
    assert "alpha is two" in shown and "beta is three" in shown and "gamma is five" in shown
    assert "alpha is one" not in shown and "beta is four" not in shown
    assert third.seen.evidence.startswith("compacted; question=3; capsule=2; receipts=1")
    assert agent.unsaid == 0


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_promise_7_the_tool_stands_last_in_the_same_bytes_in_every_request(
    start: StartAgent, provider: Provider, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed, tools=("search", "other"))
    for subject, found in (("a?", "s1"), ("b?", "s2")):
        await agent.question(subject, FOUND, Says(None, [search(found)]), Says(None, [cite()]), Says("So."))
    tools = [received.json()["tools"] for received in provider.requests]
    assert len(provider.requests) == 6 and all(one == tools[0] for one in tools)
    assert went_up(provider.requests[0])["tools"] == ["search", "other", NAME]
    for before, after in zip(provider.requests, provider.requests[1:3], strict=False):
        # Inside a question, what went up before is the beginning of what goes up now.
        cut = before.body.rindex(b"]", 0, before.body.index(b'"tools"'))
        assert after.body.startswith(before.body[:cut])


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_promise_10_a_model_that_ignores_the_tool_is_passed_on_as_it_is(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    replies: list[Reply] = []

    def keep(said: Says) -> Callable[..., Reply]:
        def give(received: Any) -> Reply:
            replies.append(said.reply(agent.responses, agent.streamed, 1))
            return replies[-1]

        return give

    agent.script(keep(Says("So.", [search("s1")])), keep(Says("Alpha is one.")))
    agent.says("a?")
    got = [await agent.asks()]
    agent.returns({"s1": FOUND["s1"]})
    got.append(await agent.asks())
    for one, reply in zip(got, replies, strict=True):
        assert one.seen.body == b"".join(step for step in reply.steps if isinstance(step, bytes))
    assert (watched.last.declaration, watched.last.kept) == ("missing", (0,))
    assert len(provider.requests) == 2


async def test_the_tool_is_offered_only_where_evidence_is(start: StartAgent, provider: Provider) -> None:
    agent = await start(tools=("other",))
    agent.script(Says("Hi."))
    agent.says("hello")
    await agent.asks()
    assert provider.requests[0].body == json.dumps(json.loads(provider.requests[0].body)).encode()
    assert went_up(provider.requests[0])["tools"] == ["other"]


async def test_a_request_without_tools_that_holds_evidence_offers_it_too(start: StartAgent, provider: Provider) -> None:
    """Agents take their tools away for the last step."""
    agent = await start()
    agent.script(Says(None, [search("s1")]), Says(None, [cite("c1")]), Says("Alpha."))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    agent.tools = []
    got = await agent.asks()
    assert got.text == "Alpha." and went_up(provider.requests[-1])["tools"] == [NAME]


# What the model does.


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_citation_beside_a_search_is_noted_and_the_client_sees_only_its_own_call(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    agent.script(
        Says(None, [search("s1")]), Says("Wait.", [cite("c1"), search("s2")]), Says(None, [cite("c4")]), Says("Both.")
    )
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    mixed = await agent.asks()
    assert (mixed.text, mixed.tools, mixed.finish) == ("Wait.", ["search"], "tool_calls")
    agent.returns({"s2": FOUND["s2"]})
    last = await agent.asks()
    no_trace(agent, mixed, last)
    # Our call was dropped, not put back, and the two citations are united.
    assert NAME not in json.dumps(went_up(provider.requests[2])["messages"])
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["c1", "c4"])


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_unknown_ids_are_named_back_and_the_model_tries_again(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    got = await agent.question(
        "a?",
        FOUND,
        Says(None, [search("s1")]),
        Says(None, [cite("x9", "c1")]),
        Says(None, [cite("C2")]),
        Says("Alpha."),
    )
    answers = [m["content"] for m in went_up(provider.requests[-1])["messages"] if m.get("tool_call_id") == "own"]
    assert '"x9"' in answers[0] and "[c1]" in answers[0] and '[c2] (for "C2")' in answers[1]
    assert (got.text, watched.cited()) == ("Alpha.", ["c1", "c2"])


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_model_that_cites_only_unknown_ids_gets_its_plain_reply_through_in_the_end(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    got = await agent.question("a?", FOUND, Says(None, [search("s1")]), *[Says(None, [cite("x9")])] * 3, Says("Alpha."))
    assert (got.text, got.finish) == ("Alpha.", "stop")
    assert [NAME in went_up(received)["tools"] for received in provider.requests] == [True] * 4 + [False]
    assert provider.requests[-1].body == agent_body_without_answer(agent)
    assert (watched.last.declaration, watched.last.kept) == ("missing", (0,))


def agent_body_without_answer(agent: Agent) -> bytes:
    """The client's request as it was, before the answer came into its history."""
    history = agent.history
    agent.history = history[:-1]
    body = agent.body()
    agent.history = history
    return body


async def test_an_id_of_two_collections_is_refused_with_a_request_for_another(
    start: StartAgent, provider: Provider, watched: Watched
) -> None:
    agent = await start(table={"ids": "global"})
    rows = [("7", "one", "A"), ("7", "two", "B"), ("8", "three", "B")]
    found = {"s1": json.dumps([{"id": i, "text": t, "collection": c} for i, t, c in rows])}
    await agent.question(
        "a?", found, Says(None, [search()]), Says(None, [cite("7")]), Says(None, [cite("8")]), Says("So.")
    )
    answer = went_up(provider.requests[2])["messages"][-1]["content"]
    assert '"7" stands in the collections "A" and "B"' in answer and "another" in answer
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["8"])


async def test_a_result_that_shows_no_id_is_cited_by_its_tool_and_number(
    start: StartAgent, provider: Provider, watched: Watched
) -> None:
    agent = await start()
    found = {"s1": "Just words about alpha.", "s2": "Just words about beta."}
    await agent.question(
        "a?",
        found,
        Says(None, [search("s1"), search("s2")]),
        Says(None, [cite("what")]),
        Says(None, [cite("search 2")]),
        Says("So."),
    )
    assert "search 1, search 2" in went_up(provider.requests[2])["messages"][-1]["content"]
    assert (watched.cited(), watched.last.replaced) == (["search 2"], (0, 1))
    await agent.question("b?", FOUND, Says("Still so."))
    shown = json.dumps(went_up(provider.requests[-1])["messages"])
    assert "[search 2]" in shown and "words about beta" in shown and "words about alpha" not in shown


@pytest.mark.parametrize("arguments", ["{", '{"ids": "c1"}', "", '{"ids": [1, null]}', "[]", '"c1"'])
async def test_arguments_of_any_kind_end_in_an_answer(start: StartAgent, arguments: str) -> None:
    agent = await start()
    got = await agent.question(
        "a?", FOUND, Says(None, [search()]), Says(None, [("own", NAME, arguments)]), Says("Alpha.")
    )
    assert got.text == "Alpha."


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
@pytest.mark.parametrize(
    "rounds, text",
    [
        ((Says("The answer.", [cite("c1")]), Says("")), "The answer."),
        ((Says("The answer.", [cite("c1")]), Says("The answer.")), "The answer."),
        ((Says("The answer.", [cite("c1")]), Says("The answer. And more.")), "The answer. And more."),
        ((Says("Let me see.", [cite("c1")]), Says("The answer.")), "Let me see.\n\nThe answer."),
        ((Says(None, [cite("c1")]), Says(""), Says("The answer.")), "The answer."),
    ],
    ids=["empty", "again", "again and more", "preamble", "never said"],
)
async def test_what_a_further_round_says_again_is_not_said_twice(
    start: StartAgent, watched: Watched, api: str, streamed: bool, rounds: tuple[Says, ...], text: str
) -> None:
    agent = await start(api, streamed)
    got = await agent.question("a?", FOUND, Says(None, [search()]), *rounds)
    shown = got.text.replace(".\n\n And", ". And")  # a response has an item for each
    assert (shown, got.finish, watched.cited(), agent.unsaid) == (text, "stop", ["c1"], 0)
    # The record knows the reply as the client has it: the next question is compacted.
    following = await agent.question("b?", FOUND, Says("So."))
    assert following.seen.evidence.startswith("compacted; question=2; capsule=1")


# What breaks.


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
@pytest.mark.parametrize(
    "how", [Says(status=500), Says(status=429), Says("x" * 200, breaks=True)], ids=["500", "429", "breaks"]
)
async def test_where_a_further_round_fails_what_was_said_is_the_answer(
    start: StartAgent, watched: Watched, api: str, streamed: bool, how: Says
) -> None:
    agent = await start(api, streamed)
    broken = Says(None, [cite("c2", call_id="never")], breaks=True) if how.breaks else how
    got = await agent.question("a?", FOUND, Says(None, [search()]), Says("The answer.", [cite("c1")]), broken)
    assert (got.text, got.finish, got.error) == ("The answer.", "stop", None)
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["c1"])
    no_trace(agent, got)


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
@pytest.mark.parametrize("how", ["500", "breaks"])
async def test_where_nothing_was_said_the_client_gets_the_plain_reply(
    start: StartAgent, provider: Provider, watched: Watched, api: str, streamed: bool, how: str
) -> None:
    agent = await start(api, streamed)
    broken = Says(None, [cite("c2")], breaks=True) if how == "breaks" else Says(status=500)
    got = await agent.question("a?", FOUND, Says(None, [search()]), Says(None, [cite("c1")]), broken, Says("Plain."))
    assert (got.text, got.finish) == ("Plain.", "stop")
    assert provider.requests[-1].body == agent_body_without_answer(agent)
    assert watched.cited() == ["c1"]


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_where_even_that_fails_the_client_gets_the_providers_own_error(
    start: StartAgent, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    agent.script(Says(None, [search()]), Says(None, [cite("c1")]), Says(status=503), Says(status=429))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    got = await agent.asks()
    assert got.error is not None and got.error["message"] == "status 429"
    assert got.seen.status == (200 if streamed else 429)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "further"])
async def test_a_stream_that_breaks_off_after_text_of_it_was_sent_breaks_off_for_the_client(
    start: StartAgent, watched: Watched, api: str, first: bool
) -> None:
    agent = await start(api, True)
    agent.script(Says(None, [search()]), *([] if first else [Says(None, [cite("c1")])]))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    said = "A long answer that never comes to its end."
    pieces = events(completion(said)) if api == "chat" else response_events(response(said))
    seen = Wait()
    agent.script(sse_reply([*pieces[:5], seen, Break()]))
    client = await Client.connect(agent.url)
    target = "/v1/responses" if api == "responses" else "/v1/chat/completions"
    await client.send(request(target=target, body=agent.body(), headers=[agent.credential]))
    head = await client.head()
    while b"A long answe" not in head.body:
        head.chunks.append(await client.chunk())
    seen.go()
    with pytest.raises(Torn):
        await client.rest(head)
    assert watched.records == []


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_reply_that_ends_by_length_is_the_clients_without_our_calls(
    start: StartAgent, provider: Provider, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    agent.script(Says(None, [search()]), Says("Alpha is", [cite("c1")], ends="length"))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    got = await agent.asks()
    assert (got.text, got.tools, got.finish) == ("Alpha is", [], "length")
    assert len(provider.requests) == 2
    no_trace(agent, got)


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_provider_that_refuses_the_tool_is_asked_without_it_from_then_on(
    start: StartAgent, provider: Provider, api: str, streamed: bool
) -> None:
    agent = await start(api, streamed)
    agent.script(Says(status=400), Says(None, [search()]), Says("Alpha."))
    agent.says("a?")
    got = await agent.asks()
    assert got.tools == ["search"] and got.seen.status == 200
    agent.returns({"s1": FOUND["s1"]})
    assert (await agent.asks()).text == "Alpha."
    assert [NAME in went_up(received)["tools"] for received in provider.requests] == [True, False, False]


async def test_a_request_that_is_refused_without_our_tool_too_is_the_clients_own(
    start: StartAgent, provider: Provider
) -> None:
    agent = await start()
    agent.script(Says(status=400), Says(status=400), Says(None, [search()]))
    agent.says("a?")
    assert (await agent.asks()).error == {
        "message": "status 400",
        "type": "provider_error",
        "param": None,
        "code": "scripted",
    }
    await agent.asks()
    assert [NAME in went_up(received)["tools"] for received in provider.requests] == [True, False, True]


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_other_refusals_are_passed_on(start: StartAgent, provider: Provider, status: int) -> None:
    agent = await start()
    agent.script(Says(status=status))
    agent.says("a?")
    assert (await agent.asks()).seen.status == status and len(provider.requests) == 1


# Bounds.


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
async def test_a_model_that_never_stops_citing_is_asked_so_often_and_then_plainly(
    start: StartAgent, provider: Provider, api: str, streamed: bool, rounds: int
) -> None:
    agent = await start(api, streamed, policy={"managed_rounds": rounds})
    await agent.question("a?", FOUND, Says(None, [search()]), *[Says(None, [cite("c1")])] * rounds, Says("Alpha."))
    assert len(provider.requests) == 2 + rounds and agent.unsaid == 0
    assert NAME not in went_up(provider.requests[-1])["tools"]


async def test_rounds_add_only_so_many_tokens(start: StartAgent, provider: Provider) -> None:
    agent = await start(policy={"managed_tokens": 0})
    said = "w" * 2000
    got = await agent.question(
        "a?", FOUND, Says(None, [search()]), Says(said, [cite("c1")]), Says(None, [cite("c1")]), Says("Alpha.")
    )
    assert got.text == said + "\n\nAlpha."
    assert [NAME in went_up(received)["tools"] for received in provider.requests] == [True, True, True, False]


# What else a request asks for.


@pytest.mark.parametrize(
    "beside",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "search"}}},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}}},
        {"n": 1},
    ],
    ids=lambda beside: next(iter(beside)),
)
async def test_promise_1_what_else_was_asked_goes_up_as_it_came(
    start: StartAgent, provider: Provider, beside: dict[str, Any]
) -> None:
    agent = await start()
    agent.beside = beside
    got = await agent.question("a?", FOUND, Says(None, [search()]), Says(None, [cite("c1")]), Says("Alpha."))
    assert got.text == "Alpha."
    for received in provider.requests:
        body = received.json()
        assert {name: body[name] for name in beside} == beside and went_up(received)["tools"][-1] == NAME


@pytest.mark.parametrize("beside", [{"n": 2}, {"functions": [{"name": "search"}], "tools": None}])
async def test_promise_1_requests_that_cannot_take_a_tool_go_up_as_they_came(
    start: StartAgent, provider: Provider, beside: dict[str, Any]
) -> None:
    agent = await start()
    agent.beside = beside
    body = agent.body()
    agent.says("a?")
    body = agent.body()
    agent.script(Says("Hi."))
    await agent.asks()
    assert provider.requests[0].body == body


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_tool_of_the_same_name_is_the_clients(
    start: StartAgent, provider: Provider, watched: Watched, streamed: bool
) -> None:
    agent = await start(streamed=streamed, tools=("search", NAME))
    got = await agent.question(
        "a?",
        FOUND | {"theirs": "ok"},
        Says(None, [search()]),
        Says(None, [cite("c1", call_id="theirs")]),
        Says(None, [cite("c2", tool=f"{NAME}_2")]),
        Says("Alpha."),
    )
    assert went_up(provider.requests[0])["tools"] == ["search", NAME, f"{NAME}_2"]
    assert [m["content"] for m in agent.history if m["role"] == "tool"] == [FOUND["s1"], "ok"]
    assert (got.text, watched.cited()) == ("Alpha.", ["c2"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_output_tools_call_ends_the_question_and_is_the_clients(
    start: StartAgent, watched: Watched, streamed: bool
) -> None:
    agent = await start(streamed=streamed, tools=("search", "final_result"))
    agent.script(Says(None, [search()]), Says(None, [cite("c1"), ("f", "final_result", {"x": 1})]))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    got = await agent.asks()
    assert (got.tools, watched.last.declaration, watched.cited()) == (["final_result"], "grounded", ["c1"])


async def test_a_reply_that_is_only_promised_is_left_alone(start: StartAgent, provider: Provider) -> None:
    agent = await start("responses")
    agent.beside = {"background": True}
    agent.says("a?")
    agent.script(Says("Hi."))
    body = agent.body()
    await agent.asks()
    assert provider.requests[0].body == body


async def test_a_history_on_the_providers_side_is_left_alone(start: StartAgent, provider: Provider) -> None:
    agent = await start("responses")
    agent.beside = {"previous_response_id": "resp_x"}
    agent.says("a?")
    agent.script(Says("Hi."))
    got = await agent.asks()
    assert provider.requests[0].json()["tools"] == json.loads(agent.body())["tools"]
    assert got.seen.evidence == "untouched; reason=server-side-history"


@pytest.mark.parametrize(
    "headers, sections",
    [
        ((("Evidence-Compaction", "off"),), {}),
        ((), {"compaction": {"mode": "off"}}),
        ((), {"compaction": {"mode": "observe"}}),
    ],
)
async def test_promise_1_what_may_not_be_changed_is_not(
    start: StartAgent, provider: Provider, headers: tuple[tuple[str, str], ...], sections: dict[str, Any]
) -> None:
    agent = await start(**sections)
    agent.says("a?")
    agent.script(Says("Hi."))
    body = agent.body()
    await agent.asks(*headers)
    assert provider.requests[0].body == body


# Notes.


@pytest.mark.parametrize("api, streamed", EVERY, ids=NAMES)
async def test_a_note_survives_the_process_and_is_found_by_another(
    provider: Provider, start_here: StartHere, watched: Watched, tmp_path: Any, api: str, streamed: bool
) -> None:
    store = {"uri": None, "data_dir": str(tmp_path)}
    one = await start_here(evidence=[MANAGED], store=store)
    agent = Agent(one.url, provider, api, streamed)
    agent.script(
        Says(None, [search("s1")]), Says(None, [cite("c1"), search("s2")]), Says(None, [cite("c4")]), Says("Both.")
    )
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    await agent.asks()
    agent.returns({"s2": FOUND["s2"]})
    await one.store.records.flush()
    other = await start_here(evidence=[MANAGED], store=store)
    agent.url = other.url
    await agent.asks()
    assert (watched.last.declaration, watched.cited()) == ("grounded", ["c1", "c4"])


async def test_promise_3_a_note_that_cannot_be_found_costs_a_citation_and_no_evidence(
    provider: Provider, start_here: StartHere, watched: Watched
) -> None:
    one = await start_here(evidence=[MANAGED], store={"uri": "memory://"})
    agent = Agent(one.url, provider)
    agent.script(Says(None, [search("s1")]), Says(None, [cite("c1"), ("o", "other", {})]), Says("Alpha."))
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    await agent.asks()
    agent.returns({"o": "x"})
    other = await start_here(evidence=[MANAGED], store={"uri": "memory://"})
    agent.url = other.url
    await agent.asks()
    assert (watched.last.declaration, watched.last.kept) == ("missing", (0,))


async def test_promise_9_a_note_of_one_tenant_is_no_others(
    provider: Provider, start_here: StartHere, watched: Watched
) -> None:
    proxy = await start_here(evidence=[MANAGED])
    agents = [Agent(proxy.url, provider, credential=("Authorization", f"Bearer {who}")) for who in ("one", "two")]
    for agent, ids in zip(agents, (("c1",), ()), strict=True):
        provider.always(agent._next)
        made = [cite(*ids)] if ids else []
        agent.script(Says(None, [search("s1")]), Says(None, [*made, ("o", "other", {})]), Says("Alpha."))
        agent.says("a?")
        await agent.asks()
        agent.returns({"s1": FOUND["s1"]})
        await agent.asks()
        agent.returns({"o": "x"})
        await agent.asks()
    assert [record.declaration for record in watched.records] == ["grounded", "missing"]


async def test_a_question_that_goes_on_after_its_answer_keeps_what_it_cited(
    start: StartAgent, watched: Watched
) -> None:
    """A framework that asks for a correction continues the question: it need not be cited twice."""
    agent = await start()
    await agent.question("a?", FOUND, Says(None, [search()]), Says(None, [cite("c1")]), Says("Alpha."))
    got = await agent.question("Validation feedback:\nshorter", FOUND, Says("A."))
    assert (got.text, watched.last.declaration, watched.cited()) == ("A.", "grounded", ["c1"])


def test_a_note_never_stands_for_a_record() -> None:
    assert records.decode(notes.encode([])) is None


async def test_a_reply_that_is_no_json_is_passed_on(start: StartAgent) -> None:
    agent = await start()
    agent.script(Reply(200, "OK", [("Content-Type", "text/plain")], [b"hello"], framing="length"))
    agent.says("a?")
    seen = (await _raw(agent)).body
    assert seen == b"hello"


async def _raw(agent: Agent) -> Any:
    from tests.house.client import ask

    return await ask(agent.url, agent.body(), headers=[agent.credential])


async def test_a_compressed_reply_is_read_all_the_same(start: StartAgent, watched: Watched) -> None:
    agent = await start()
    agent.script(
        Says(None, [search()]),
        json_reply(completion(None, [cite("c1")]), zipped=True),
        json_reply(completion("Alpha."), zipped=True),
    )
    agent.says("a?")
    await agent.asks()
    agent.returns({"s1": FOUND["s1"]})
    assert (await agent.asks()).text == "Alpha." and watched.cited() == ["c1"]


# A history on the provider's side.


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_names_its_last_reply_goes_on_from_what_the_provider_has(
    start: StartAgent, provider: Provider, streamed: bool
) -> None:
    """A stream calls itself by one name from its first event on; the provider has the rest under another one."""
    agent = await start("responses", streamed)
    agent.beside = {"store": True}
    agent.says("a?")
    agent.script(Says(None, [cite()]), Says("Hello."), Says("Hi."))
    got = await agent.asks()
    named = (
        json.loads(got.seen.body.decode().split("data: ")[-1])["response"]["id"] if streamed else got.seen.json()["id"]
    )
    assert named == ("resp_1" if streamed else "resp_2")
    agent.history = [{"role": "user", "content": "and?"}]
    agent.beside = {"previous_response_id": named}
    await agent.asks()
    assert provider.requests[-1].json()["previous_response_id"] == "resp_2"
    assert provider.requests[-1].json()["input"] == [{"role": "user", "content": "and?"}]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_of_ours_that_stands_open_in_a_kept_reply_is_answered_there(
    start: StartAgent, provider: Provider, streamed: bool
) -> None:
    """Where the client carries its history our call is not put back; here the provider has it, and wants its answer."""
    agent = await start("responses", streamed)
    agent.says("a?")
    agent.beside = {"store": True}
    agent.script(Says(None, [cite("c1"), search("s1")]), Says("Alpha."))
    assert (await agent.asks()).tools == ["search"]
    agent.history = []
    agent.returns({"s1": FOUND["s1"]})
    agent.beside = {"previous_response_id": "resp_1"}
    await agent.asks()
    outputs = provider.requests[-1].json()["input"]
    assert [one["call_id"] for one in outputs] == ["own", "s1"] and outputs[1]["output"] == FOUND["s1"]


# Evidence of every format, and either layout.


def haiku(*found: tuple[str, str]) -> str:
    """What haiku.rag's search returns."""
    return "\n\n---\n\n".join(
        f"[{chunk_id}] [rank {rank} of {len(found)}]\nType: text\nContent:\n{text}"
        for rank, (chunk_id, text) in enumerate(found, 1)
    )


def tagged(*found: tuple[str, str]) -> str:
    return tag([Result(chunk_id, text) for chunk_id, text in found], KEYS).text


@pytest.mark.parametrize("layout", ["single", "append"])
@pytest.mark.parametrize(
    "table, written",
    [
        ({"format": "haiku"}, haiku),
        ({"format": "tagged", "tools": []}, tagged),
        ({}, lambda *found: "\n".join(f"[{chunk_id}] {text}" for chunk_id, text in found)),
    ],
    ids=["haiku", "tagged", "auto"],
)
async def test_evidence_of_every_format_is_cited_so(
    start: StartAgent, provider: Provider, watched: Watched, table: Any, written: Callable[..., str], layout: str
) -> None:
    agent = await start(table=table, compaction={"layout": layout})
    ids = [f"{n}0000000-0000-4000-8000-0123456789ab" for n in range(1, 5)]
    found = {
        "s1": written((ids[0], "alpha one"), (ids[1], "alpha two")),
        "s2": written((ids[2], "b"), (ids[3], "beta")),
    }
    await agent.question("a?", found, Says(None, [search("s1")]), Says(None, [cite(ids[1])]), Says("Alpha."))
    await agent.question("b?", found, Says(None, [search("s2")]), Says(None, [cite(ids[3])]), Says("Beta."))
    await agent.question("c?", found, Says("So."))
    assert [record.declaration for record in watched.records[:2]] == ["grounded", "grounded"]
    shown = json.dumps(went_up(provider.requests[-1])["messages"])
    assert "alpha two" in shown and "beta" in shown and "alpha one" not in shown


@pytest.mark.parametrize("layout", ["single", "append"])
async def test_promise_8_results_without_ids_stay_whole_in_either_layout(
    start: StartAgent, provider: Provider, watched: Watched, layout: str
) -> None:
    agent = await start(compaction={"layout": layout})
    found = {call_id: f"Words about {call_id}." for call_id in ("s1", "s2", "s3")}
    await agent.question(
        "a?", found, Says(None, [search("s1"), search("s2")]), Says(None, [cite("search 2")]), Says("A.")
    )
    await agent.question(
        "b?", found, Says(None, [search("s3")]), Says(None, [cite("search 3", "search 2")]), Says("B.")
    )
    await agent.question("c?", found, Says("C."))
    shown = json.dumps(went_up(provider.requests[-1])["messages"])
    assert [shown.count(text) for text in ("Words about s1.", "Words about s2.", "Words about s3.")] == [0, 1, 1]
    assert watched.records[1].declaration == "grounded"
