"""Bad input, in the rooms below the gateway: nothing crashes, loses evidence, or reaches another request. Promise 3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.ledger.transcript import read
from proxy.wire import chat
from proxy.wire.messages import NotJson
from tests.talk import (
    AUTO,
    HAIKU,
    asked_next,
    body,
    calls,
    cited,
    ids_of,
    returns,
    rewritten,
    says,
    searched,
    settled,
    transcript,
    user,
)

Q = user("q")
ONE = "[c1] one\n[c2] two"


@pytest.mark.parametrize("table", [AUTO, HAIKU], ids=["auto", "haiku"])
@pytest.mark.parametrize("arguments", ['{"ids": ["c1"', "", "null", "[]", "7", '"c1"', "{}{", "\x00", "[" * 5000])
def test_malformed_cite_arguments_lose_no_evidence_that_was_cited_well(arguments: str, table: Any) -> None:
    found = ONE if table is AUTO else "[c1] [rank 1 of 1]\nContent:\none"
    bad = [calls(("b", "cite", arguments)), returns("b", "no such thing")]
    assert asked_next(Q, *searched(found), *cited(["c1"]), *bad, tables=(table,))[1].shows("one")


@pytest.mark.parametrize("arguments", ['{"ids": ["c1"', "null", "[]", "7", '"c1"', "{}{", "\x00", "[" * 5000])
def test_malformed_cite_arguments_alone_declare_nothing_and_the_evidence_stays(arguments: str) -> None:
    bad = [calls(("b", "cite", arguments)), returns("b", "ok")]
    assert asked_next(Q, *searched(ONE), *bad)[1].returns[0] == ONE


def test_call_ids_that_repeat_in_every_reply_are_told_apart() -> None:
    messages = [Q, *searched(ONE, "x"), *cited(["c1"], call_id="x")]
    assert ids_of(settled(*messages)) == ["c1"] and asked_next(*messages)[1].done.capsule == 1


def test_promise_1_where_one_reply_repeats_an_id_for_two_tools_nothing_proves_whose_a_return_is() -> None:
    pair = [calls(("x", "search", {}), ("x", "weather", {})), returns("x", "[w1] sunny"), returns("x", ONE)]
    assert asked_next(Q, *pair, *cited([]))[1].shows("sunny")


def test_a_return_without_a_call_stays() -> None:
    _, sent = asked_next(Q, returns("z", "[c9] stray"), *searched(ONE), returns("s", "[c8] twice"), *cited(["c1"]))
    assert sent.shows("stray") and sent.shows("twice") and sent.done.capsule == 1


def test_a_call_without_a_return_costs_nothing_else() -> None:
    made = calls(("s", "search", {}), ("t", "search", {}))
    assert asked_next(Q, made, returns("s", ONE), *cited(["c1"]))[1].done.capsule == 1


@pytest.mark.parametrize("calls_value", [None, [], [None], [7], [{}], {"a": 1}, "x", [{"id": 7, "function": None}]])
def test_tool_calls_of_any_shape_are_read(calls_value: Any) -> None:
    assert transcript(Q, {"role": "assistant", "tool_calls": calls_value}, returns("s", "x")).returns


@pytest.mark.parametrize("content", [7, True, {"a": 1}, [7], [None], [{"type": "text"}], [{"type": "image_url"}], [[]]])
@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system", "x", None])
def test_content_of_any_shape_is_read_and_stays(role: Any, content: Any) -> None:
    odd = {"role": role, "content": content}
    messages = [Q, *searched(ONE), *cited(["c1"]), odd]
    assert odd in asked_next(*messages)[1].messages


def test_empty_messages_are_a_request() -> None:
    assert transcript().users == [] and chat.cut(b'{"messages":[]}').messages == ()


def test_fifty_thousand_messages_are_read() -> None:
    talk = [Q, *searched(ONE), *cited(["c1"])]
    many = [message for _ in range(8_400) for message in [*talk, says("a")]]
    assert len(many) > 50_000 and len(transcript(*many).replies) == 3 * 8_400


@pytest.mark.parametrize("depth", [1000, 100_000])
@pytest.mark.parametrize("place", ["beside", "in a message", "in a part"])
def test_nesting_of_a_thousand_is_read_or_is_no_body_of_ours(depth: int, place: str) -> None:
    deep = "[" * depth + "]" * depth
    raw = {
        "beside": '{"x":%s,"messages":[]}',
        "in a message": '{"messages":[{"role":"user","content":"q","x":%s}]}',
        "in a part": '{"messages":[{"role":"user","content":[{"type":"x","x":%s}]}]}',
    }[place] % deep
    with pytest.raises(NotJson):
        read(chat.cut(raw.encode()))


@pytest.mark.parametrize("depth", [100, 500, 1000, 5000])
def test_nesting_of_a_thousand_in_a_return_stays_or_is_kept_whole(depth: int) -> None:
    row = '{"id":"c1","text":"one","x":%s}' % ("[" * depth + "7" + "]" * depth)
    assert asked_next(Q, *searched(row), *cited(["c1"]))[1].shows("one")


@pytest.mark.parametrize(
    "url", ["data:image/png;base64,!!!", "data:", "", "\x00", "data:image/png;base64,iVBORw0KGgo="]
)
def test_a_picture_that_is_none_is_not_sent_again_and_its_text_is(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [Q, *searched([{"type": "text", "text": "[c1] one"}, part]), *cited(["c1"])]
    sent = rewritten(*messages, says("a"), user("r"), record=settled(*messages), decodes=lambda _: False)
    assert sent.shows("one") and not sent.shows("image_url")


@pytest.mark.parametrize("text", ["\x00", "\ud800", "\u2028", "\x7f", "\r"])
@pytest.mark.parametrize("where", ["user", "content", "id", "call id"])
def test_nul_bytes_and_half_characters_are_characters(text: str, where: str) -> None:
    chunk_id = f"a{text}b" if where == "id" else "c1"
    content = f"one{text}" if where == "content" else "one"
    call_id = f"s{text}" if where == "call id" else "s"
    row = json.dumps([{"id": chunk_id, "text": content}])
    _, sent = asked_next(user(f"q{text}" if where == "user" else "q"), *searched(row, call_id), *cited([chunk_id]))
    assert content in sent.returns[0] and sent.done.capsule == 1


def test_a_rewrite_leaves_nothing_behind_for_another_request() -> None:
    messages = [Q, *searched(ONE), *cited(["c1"])]
    before = rewritten(*messages, says("a"), user("r"), record=settled(*messages)).raw
    other = [Q, *searched("[c1] another text"), *cited(["c1"])]
    assert b"another text" in rewritten(*other, says("a"), user("r"), record=settled(*other)).raw
    assert rewritten(*messages, says("a"), user("r"), record=settled(*messages)).raw == before


def test_a_record_of_another_conversation_replaces_nothing_that_it_did_not_read() -> None:
    theirs = settled(Q, *searched(ONE), *cited(["c1"]))
    ours = [Q, *searched("[c1] ours"), *cited(["c1"]), says("a"), user("r")]
    assert json.loads(rewritten(*ours, record=theirs).raw) == json.loads(body(*ours))
