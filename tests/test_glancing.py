"""A request that can hold nothing of ours is only glanced at, and that is never seen: all that is told of it, and all
that comes after it, is as if it had been read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.gateway.watched import Conversed
from proxy.settings import Settings
from proxy.wire import chat, responses
from proxy.wire.messages import Api, Role
from tests import captures
from tests.fake_store import FakeStore
from tests.house.provider import completion
from tests.house.responding import item, response
from tests.talk import body, calls, cited, returns, says, searched, user
from tests.test_continuing import CONVERSATION, read_alike
from tests.test_wire import MESSAGE, SPACE, STRING, VALUE

# What a glance says is what a cut says.


def agrees(api: Api, raw: bytes) -> bool:
    """Whether a body is glanced at; then, that a cut says the same of it, and finds nothing that could be ours."""
    glanced = api.glance(raw)
    if glanced is None:
        return False
    cut = api.cut(raw)
    for name in ("api", "body", "choices", "history", "in_conversation", "stored", "in_background", "model"):
        assert getattr(glanced, name) == getattr(cut, name), name
    roles = {message.role for message in cut.messages}
    assert Role.USER in roles and Role.TOOL not in roles
    assert not any(message.calls for message in cut.messages)
    return True


TURN = st.builds(
    lambda between, role, content, beside: (
        "{" + between + f'"role":{between}{role},{between}"content":{content}' + beside + between + "}"
    ),
    SPACE,
    st.sampled_from(
        [*['"user"', '"user"', '"assistant"', '"system"', '"developer"'] * 3, '"us\\u0065r"', '"t\\u006fol"']
    ),
    st.one_of(*[st.sampled_from(['"Hi"', '"\\u00e9\u4e2d"', '[{"type":"text","text":""}]'])] * 4, STRING, VALUE),
    st.sampled_from(
        [*[""] * 30, ',"tool_calls":null', ',"tool_calls":[]', ',"tool_calls":[{"id":"s"}]', ',"role":"tool"',
         ',"r\\u006fle":"function"', ',"function_call":{"name":"f"}', ',"type":"message"', ',"type":"reasoning"',
         ',"type":"function_call_output"', ',"t\\u0079pe":"function_call"', ',"x":"\\"role\\":\\"tool\\""']
    ),
)  # fmt: skip
BESIDE = st.sampled_from(
    [*[""] * 20, '"n":2,', '"model":"m",', '"model":7,', '"model":"\\ud800",', '"store":false,', '"store":null,',
     '"background":true,', '"background":null,', '"previous_response_id":null,', '"previous_response_id":"r",',
     '"conv\\u0065rsation":"c",', '"messages":[{"role":"tool"}],', '"input":[],', '"prompt":{"id":"p"},', '"x":"\x01",']
)  # fmt: skip
DAMAGE = st.sampled_from([*[""] * 20, "}", ",", " x", "\ufeff"])


@st.composite
def a_body(draw: st.DrawFn, member: str) -> bytes:
    turns = draw(st.sampled_from([[], ['{"role":"user","content":"Hi"}']]))
    turns = turns + draw(st.lists(st.one_of(*[TURN] * 9, MESSAGE), max_size=4))
    array = draw(SPACE) + "[" + ",".join(turns) + "]" + draw(SPACE)
    if member == "input":
        array = draw(st.one_of(st.just(array), st.just(array), STRING))
    name = draw(st.sampled_from([member, member, member, member[:-1] + f"\\u{ord(member[-1]):04x}"]))
    text = "{" + draw(BESIDE) + draw(SPACE) + f'"{name}":{array}'
    behind = draw(BESIDE)
    raw = (text + ("," + behind[:-1] if behind else "") + "}" + draw(DAMAGE)).encode()
    if draw(st.integers(0, 19)) == 7 and raw:  # not UTF-8, or cut
        at = draw(st.integers(0, len(raw) - 1))
        return raw[:at] + draw(st.sampled_from([b"\xff", b"\xed\xa0\x80", b""])) + raw[at + 1 :]
    return raw


@given(a_body("messages"))
def test_what_a_glance_says_of_a_chat_is_what_a_cut_says(raw: bytes) -> None:
    agrees(chat, raw)


@given(a_body("input"))
def test_what_a_glance_says_of_a_response_is_what_a_cut_says(raw: bytes) -> None:
    agrees(responses, raw)


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TALK: list[Any] = [
    {"role": "system", "content": "Be kind."},
    user("Hi \u2019\U0001f600"),
    says("Hello"),
    user([{"type": "text", "text": '"role":"tool"'}, PICTURE]),
]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_plain_talk_needs_no_more_than_a_glance(ascii_only: bool) -> None:
    beside = {"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}]}
    for api in (chat, responses):
        whole = {**beside, api.MEMBER: TALK}
        assert agrees(api, json.dumps(whole, ensure_ascii=ascii_only).encode())
    assert agrees(responses, b'{"input":"Hi"}')
    assert agrees(responses, json.dumps({"input": [item("reasoning", "r", summary=[]), *TALK]}).encode())


HIDDEN: list[Any] = [
    *([*TALK, returns("s", "x")], [returns("s", "x"), *TALK], [*TALK, {"role": "function", "content": "x"}]),
    *([*TALK, calls(("s", "search", {}))], [*TALK, {"role": "assistant", "function_call": {"name": "f"}}]),
    *([*TALK, {"role": "ipython", "content": "x"}], [says("x")], []),
]


@pytest.mark.parametrize("messages", HIDDEN)
@pytest.mark.parametrize("escaped", [False, True])
def test_what_holds_a_call_a_return_or_no_question_is_cut(messages: Any, escaped: bool) -> None:
    raw = body(*messages)
    for word in (b"role", b"tool", b"function", b"tool_calls"):
        if escaped:
            raw = raw.replace(b'"%b"' % word, b'"%b\\u%04x"' % (word[:-1], word[-1]))
    assert chat.glance(raw) is None


ITEMS = [
    item("function_call_output", "s", call_id="s", output="x"),
    item("function_call", "s", call_id="s", name="f", arguments="{}"),
    item("file_search_call", "s", queries=[], results=[{"text": "x"}]),
    *({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, item("compaction", "c", encrypted_content="x"), {}),
]


@pytest.mark.parametrize("items", [*([*TALK, one] for one in ITEMS), [], [says("x")]])
def test_what_holds_any_other_item_is_cut(items: Any) -> None:
    assert responses.glance(json.dumps({"input": items}).encode()) is None


@pytest.mark.parametrize("beside", [{"previous_response_id": "r"}, {"conversation": {"id": "c"}}, {"background": True}])
def test_what_goes_on_where_the_provider_keeps_it_is_cut(beside: dict[str, Any]) -> None:
    assert responses.glance(json.dumps({"input": TALK, **beside}).encode()) is None


# And so is all that comes of it.

TABLES = [
    {"name": "kb", "format": "auto", "tools": ["search", "file_search"], "cite": "cite"},
    {"name": "rag", "format": "haiku", "tools": ["search_rag"]},
]
SETTINGS = [
    {},
    {"compaction": {"mode": "observe"}},
    {"policy": {"mode": "enforce"}},
    {"policy": {"mode": "record"}},
    {"compaction": {"layout": "append"}},
    {"compaction": {"strict": True}},
    {"evidence": [{**TABLES[0], "cite": "managed"}]},
]
REPLIES = [
    json.dumps(completion("Yes.")).encode(),
    json.dumps(completion(None, [("s", "search", '{"q":1}')])).encode(),
    b"data: " + json.dumps(completion("Yes.")).encode() + b"\n\ndata: [DONE]\n\n",
    b"no JSON",
]
ITEM_REPLIES = [
    json.dumps(response("Yes.")).encode(),
    json.dumps(response("Yes.", identity="resp_2", before=[item("reasoning", "r", summary=[])])).encode(),
    json.dumps(
        response("Yes.", before=[item("file_search_call", "s", status="completed", queries=["q"],
                                      results=[{"file_id": "a", "filename": "f", "text": "alpha", "score": 1}])])
    ).encode(),
    b"no JSON",
]  # fmt: skip


class Careful(Conversations):
    """Reads everything."""

    def _glance(self, asked: Asked) -> None:
        return None


def both(given_settings: dict[str, Any]) -> tuple[Conversations, Conversations, FakeStore, FakeStore]:
    settings = Settings.model_validate({"evidence": TABLES, **given_settings})
    stores = FakeStore(), FakeStore()
    return Conversations(settings, stores[0]), Careful(settings, stores[1]), *stores  # type: ignore[arg-type]


def same_told(one: Conversed, other: Conversed) -> None:
    for field in fields(Conversed):
        if field.name != "reads":
            mine, theirs = getattr(one, field.name), getattr(other, field.name)
            assert repr(mine) == repr(theirs), field.name
    assert (one.was_read, one.question) == (other.was_read, other.question)
    if one.transcript is not None and other.transcript is not None:
        assert read_alike(one.transcript, other.transcript)
        assert repr(one.transcript.request.messages) == repr(other.transcript.request.messages)


async def same(requests: Sequence[tuple[bytes, bytes, dict[str, Any]]], chosen: dict[str, Any]) -> int:
    """Send requests (body, reply, what else is asked) both ways; returns how many were only glanced at."""
    quick, careful, *stores = both(chosen)
    glances = 0
    for raw, reply, beside in requests:
        exchanges: list[Exchange] = []
        for conversations in (quick, careful):
            exchange = await conversations.ask(Asked(raw, beside.get("credential", "anna"), **beside.get("more", {})))
            exchanges.append(exchange)
        one, other = exchanges
        glances += one._read.later is not None
        assert (one.header, one.outcome, one.refusal) == (other.header, other.outcome, other.refusal)
        assert one.body == other.body and (one.body is raw) == (other.body is raw)
        assert type(one.steering) is type(other.steering) and (one.deciding is None) == (other.deciding is None)
        for exchange in exchanges:
            exchange.feed(reply)
            if exchange.finished():
                await exchange.settle()
            await exchange.ended(True)
        assert one.header == other.header
        same_told(one.told(), other.told())
        assert stores[0] == stores[1]
        assert quick.counts() == careful.counts()
    return glances


def growing(messages: Sequence[Any]) -> list[bytes]:
    """The requests of a conversation: one for each reply of its assistant, and its last."""
    ends = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at]
    return [body(*messages[:end]) for end in [*ends, len(messages)]]


@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize("reply", REPLIES)
async def test_a_conversation_that_begins_as_plain_talk_goes_on_as_if_all_of_it_had_been_read(
    chosen: dict[str, Any], reply: bytes
) -> None:
    talk = [*TALK, says("Look."), *CONVERSATION, says("C."), user("four"), *searched("[e] epsilon", "s4"),
            *cited(["e"], call_id="c4"), says("D."), user("five?")]  # fmt: skip
    for more in ({}, {"question_id": "q"}, {"conversation_id": "c"}, {"compaction_off": True}):
        requests = [(raw, reply, {"more": more}) for raw in growing(talk)]
        glances = await same(requests, chosen)
        read = "strict" in chosen.get("compaction", {}) or "evidence" in chosen or "compaction_off" in more
        assert (glances == 0) if read else (glances >= 2)
    assert await same([(raw, reply, {"credential": None}) for raw in growing(talk)], {}) >= 2


@pytest.mark.parametrize("reply", ITEM_REPLIES)
@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize("kept", [True, False, None])
async def test_what_the_provider_keeps_of_plain_talk_is_known_to_the_next_request(
    chosen: dict[str, Any], reply: bytes, kept: bool | None
) -> None:
    beside = {"model": "m"} if kept is None else {"model": "m", "store": kept}
    answered = [*TALK, says("Yes."), user("And then?")]
    bodies = [
        {**beside, "input": TALK},
        {**beside, "input": [user("more")], "previous_response_id": "resp_1"},
        {**beside, "input": answered},
        {**beside, "input": "Hi"},
        {**beside, "input": [user("more")], "previous_response_id": "resp_2"},
    ]
    requests = [(json.dumps(one).encode(), reply, {"more": {"api": "responses"}}) for one in bodies]
    assert (await same(requests, chosen) == 0) == ("strict" in chosen.get("compaction", {}) or "evidence" in chosen)


@settings(deadline=None)  # the first example imports
@given(st.lists(a_body("messages"), min_size=1, max_size=3), st.sampled_from(REPLIES), st.sampled_from(SETTINGS))
def test_whatever_a_chat_holds_comes_to_the_same(bodies: list[bytes], reply: bytes, chosen: dict[str, Any]) -> None:
    asyncio.run(same([(raw, reply, {}) for raw in bodies], chosen))


@settings(deadline=None)  # the first example imports
@given(st.lists(a_body("input"), min_size=1, max_size=3), st.sampled_from(ITEM_REPLIES), st.sampled_from(SETTINGS))
def test_whatever_a_response_holds_comes_to_the_same(bodies: list[bytes], reply: bytes, chosen: dict[str, Any]) -> None:
    asyncio.run(same([(raw, reply, {"more": {"api": "responses"}}) for raw in bodies], chosen))


@pytest.mark.parametrize("name", captures.each([*captures.clients("chat"), *captures.clients("responses")]))
async def test_every_captured_conversation_of_a_client_comes_to_the_same(name: str) -> None:
    api = "responses" if "-responses" in name else "chat"
    reply = ITEM_REPLIES[0] if api == "responses" else REPLIES[0]
    for chosen in SETTINGS[:3]:
        await same([(raw, reply, {"more": {"api": api}}) for raw in captures.client(name)], chosen)


@pytest.mark.parametrize("name", captures.each(captures.scenarios()))
async def test_every_captured_conversation_of_an_agent_comes_to_the_same(name: str) -> None:
    for arm in ("B", "P"):
        asked = [one for one in captures.scenario(name).arms.get(arm, []) if one.body is not None]
        requests = [(one.sent, json.dumps(one.completion).encode(), {}) for one in asked]
        await same(requests, {})
