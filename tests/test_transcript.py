"""Keys: what of a conversation counts, and what clients may change. Section 4 of the design."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.ledger.transcript import read
from proxy.wire import chat
from tests.talk import body, calls, grows_gently, returns, says, transcript, user

ARGUMENTS = '{"a":1,"b":[1.5,"é"]}'
TALK = [
    user("q"),
    calls(("1", "search", ARGUMENTS), ("2", "search", "{}")),
    returns("1", "x"),
    returns("2", "y"),
    says("t"),
]


def key(*messages: dict[str, Any]) -> bytes:
    return transcript(*messages).key


def with_message(index: int, message: dict[str, Any]) -> list[dict[str, Any]]:
    return [message if position == index else old for position, old in enumerate(TALK)]


def picture(url: str, **more: Any) -> dict[str, Any]:
    return user([{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": url, **more}}])


SAME = {
    "assistant text": with_message(4, says("other")),
    "no assistant text": with_message(4, says(None)),
    "reasoning": with_message(4, {**says("t"), "reasoning_content": "because"}),
    "system message": [{"role": "system", "content": "be good"}, *TALK],
    "system message in the middle": [*TALK[:4], {"role": "developer", "content": "budget"}, *TALK[4:]],
    "one text part": with_message(0, user([{"type": "text", "text": "q"}])),
    "split text parts": with_message(0, user([{"type": "text", "text": ""}, {"type": "text", "text": "q"}])),
    "cache hint": with_message(0, user([{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}])),
    "name": with_message(0, {**user("q"), "name": "bob"}),
    "spelling of arguments": with_message(
        1, calls(("1", "search", '{ "b": [15e-1, "\\u00e9"], "a": 1.0 }'), ("2", "search", " { } "))
    ),
    "order of parallel returns": [*TALK[:2], TALK[3], TALK[2], TALK[4]],
    "text and calls in two messages": [TALK[0], says("I look."), *TALK[1:]],
    "part instead of string": with_message(2, returns("1", [{"type": "text", "text": "x"}])),
}

OTHER = {
    "user text": with_message(0, user("r")),
    "no text": with_message(0, user(None)),
    "argument": with_message(1, calls(("1", "search", '{"a":2}'), ("2", "search", "{}"))),
    "true for 1": with_message(1, calls(("1", "search", '{"a":true,"b":[1.5,"é"]}'), ("2", "search", "{}"))),
    "tool": with_message(1, calls(("1", "find", ARGUMENTS), ("2", "search", "{}"))),
    "return": with_message(2, returns("1", "z")),
    "returns exchanged": [*TALK[:2], returns("1", "y"), returns("2", "x"), TALK[4]],
    "one return less": [*TALK[:3], TALK[4]],
    "one more user message": [*TALK, user("r")],
}


@pytest.mark.parametrize("messages", SAME.values(), ids=SAME.keys())
def test_what_clients_change_freely_does_not_count(messages: list[dict[str, Any]]) -> None:
    assert key(*messages) == key(*TALK)


@pytest.mark.parametrize("messages", OTHER.values(), ids=OTHER.keys())
def test_what_was_asked_called_and_returned_counts(messages: list[dict[str, Any]]) -> None:
    assert key(*messages) != key(*TALK)


def test_messages_do_not_run_together() -> None:
    assert key(user("a"), user("b")) != key(user("ab")) != key(user("a"), says("x"), user("b"))


@pytest.mark.parametrize("other", ["data:image/png;base64,AA\r\n AA", "data:image/webp;base64,AAAA"])
def test_pictures_count_by_their_decoded_bytes(other: str) -> None:
    assert key(picture(other, detail="high")) == key(picture("data:image/png;base64,AAAA")) != key(picture("data:,x"))


def test_unknown_parts_count_by_their_value() -> None:
    one, two = ({"type": "file", "file": {"a": 1, "b": 2}}, {"file": {"b": 2, "a": 1}, "type": "file"})
    assert key(user([one])) == key(user([two])) != key(user([{**one, "file": {}}]))


def test_ids_are_scoped_to_the_reply_that_made_the_calls() -> None:
    again = transcript(*TALK[:4], calls(("1", "cite", "{}")), returns("1", "z"))
    assert [found.tool for found in again.returns] == ["search", "search", "cite"]


def test_of_repeated_ids_in_one_reply_the_first_return_is_the_first_calls() -> None:
    found = transcript(
        user("q"), calls(("1", "search", '{"q":1}'), ("1", "search", '{"q":2}')), returns("1", "a"), returns("1", "b")
    )
    assert [(ret.call.arguments, ret.message.text()) for ret in found.returns if ret.call] == [
        ('{"q":1}', "a"),
        ('{"q":2}', "b"),
    ]


def test_promise_1_a_return_that_answers_no_call_is_nobodys() -> None:
    found = transcript(user("q"), calls(("1", "search", "{}")), returns("1", "a"), returns("1", "b"), returns("9", "c"))
    assert [ret.tool for ret in found.returns] == ["search", None, None]


def test_a_return_before_any_reply_is_nobodys() -> None:
    assert [ret.tool for ret in transcript(returns("1", "a"), user("q")).returns] == [None]


def test_a_function_return_of_the_old_form_takes_the_call_that_is_free() -> None:
    made = {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}}
    found = transcript(user("q"), made, {"role": "function", "name": "search", "content": "a"})
    assert [ret.tool for ret in found.returns] == ["search"]


def test_arguments_that_are_no_json_count_as_they_stand() -> None:
    assert key(user("q"), calls(("1", "s", "{a"))) != key(user("q"), calls(("1", "s", "{ a")))


@pytest.mark.parametrize("depth", [600, 900])
def test_arguments_of_any_depth_have_a_key(depth: int) -> None:
    assert key(user("q"), calls(("1", "s", "[" * depth + "]" * depth)))


@pytest.mark.parametrize("depth", [100, 5000, 100_000])
def test_deep_arguments_have_a_key(depth: int) -> None:
    assert key(user("q"), calls(("1", "s", "[" * depth + "]" * depth)))


@pytest.mark.parametrize("shape", ["reversed", "unknown"])
def test_matching_returns_to_calls_costs_by_the_call(shape: str) -> None:
    def work(n: int) -> Any:
        ids = [str(number) for number in range(n)]
        answers = ids[::-1] if shape == "reversed" else ["x"] * n
        messages = [user("q"), calls(*[(i, "s", "{}") for i in ids]), *[returns(i, "x") for i in answers]]
        request = chat.cut(body(*messages))
        return lambda: read(request)

    assert grows_gently(work, 1500)


def test_many_replies_cost_by_the_reply() -> None:
    assert grows_gently(lambda n: lambda: transcript(*(TALK * n)), 200)


def test_nothing_is_a_transcript_too() -> None:
    assert transcript().returns == [] and json.dumps(transcript().key.hex())


LONG = [
    *TALK,
    user("r"),
    calls(("3", "search", "{}")),
    returns("3", "z"),
    calls(("4", "cite", "{}")),
    returns("4", "ok"),
]


@pytest.mark.parametrize("instead", [(), (user("and?"),), (returns("5", "x"),), (says("w"),), (says("w"), user("v"))])
@pytest.mark.parametrize("end", range(1, len(LONG) + 1))
@pytest.mark.parametrize("known", range(1, len(LONG) + 1))
def test_a_request_that_goes_on_from_any_point_of_another_reads_as_if_nobody_knew_that_one(
    known: int, end: int, instead: tuple[dict[str, Any], ...]
) -> None:
    """One that was sent again stops where the known one went on: nothing of it may be read twice."""
    earlier = read(chat.cut(body(*LONG[:known])))
    sent = body(*LONG[:end], *instead)
    again, fresh = read(chat.cut(sent, earlier.request), earlier), read(chat.cut(sent))
    assert (again.key, again.shown, again.shown_before) == (fresh.key, fresh.shown, fresh.shown_before)
    assert [step.shown for step in again.replies] == [step.shown for step in fresh.replies]
    assert [len(step.returns) for step in again.replies] == [len(step.returns) for step in fresh.replies]
    assert [len(step.users) for step in again.replies] == [len(step.users) for step in fresh.replies]
    whole = read(chat.cut(body(*LONG[:known])))
    assert replace(earlier, checkpoint=None, ended=None) == replace(whole, checkpoint=None, ended=None), (
        "what is known was changed"
    )


def test_what_was_found_out_of_the_last_replys_returns_is_known_in_the_next_request() -> None:
    first = [user("q"), calls(("1", "search", "{}")), returns("1", "x")]
    earlier = read(chat.cut(body(*first)))
    earlier.returns[0].told["outline"] = ("by these tables", "what it holds")
    sent = body(*first, calls(("2", "cite", "{}")), returns("2", "ok"))
    again = read(chat.cut(sent, earlier.request), earlier)
    assert [found.told for found in again.returns] == [earlier.returns[0].told, {}]


def test_what_was_found_out_of_a_return_does_not_count_where_it_answers_another_call() -> None:
    first = [user("q"), calls(("1", "search", "{}")), says("and"), returns("1", "x")]
    earlier = read(chat.cut(body(*first)))
    earlier.returns[0].told["outline"] = ("by these tables", "what it holds")
    other = [user("q"), calls(("1", "calc", "{}")), says("and"), returns("1", "x")]
    again = read(chat.cut(body(*other), earlier.request), earlier)
    assert [found.told for found in again.returns] == [{}]
