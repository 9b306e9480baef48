"""The one request that asks for citations, and the reply that calls the client's cite tool: nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.policy import redirect
from proxy.wire import added, chat, responses
from proxy.wire.messages import Api, Call, Reply, splice
from tests.house.provider import completion, events
from tests.house.responding import response, response_events
from tests.talk import searched, user

CITE = {"type": "function", "function": {"name": "cite", "parameters": {}}}


def gone(body: bytes, *names: str) -> bytes:
    return splice(body, added.without(body, names))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a": 1, "b": 2, "c": 3}', b'{"a": 1, "c": 3}'),
        (b'{ "b": 2, "a": 1 }', b'{"a": 1 }'),
        (b'{"b": {"b": [1, "}"]}, "n": 1, "a": 1, "b" :\n2}', b'{"a": 1}'),
        (b'{"a": 1,"n": 2 , "b": 3 }', b'{"a": 1 }'),
        (b'{"b": 2}', b"{}"),
        (b'{"b": 1, "n": 2 }', b"{ }"),
        (b'{"a": {"b": 1}, "\\u0062": 2}', b'{"a": {"b": 1}}'),
        (b"{}", b"{}"),
    ],
)
def test_members_go_with_their_comma_and_all_else_keeps_its_bytes(before: bytes, after: bytes) -> None:
    assert gone(before, "b", "n") == after


def chat_body(**beside: Any) -> bytes:
    messages = [user("q — “é”"), *searched('[{"id": "c1", "text": "One."}]')]
    return json.dumps({"model": "m", "messages": messages, "tools": [CITE], **beside}, indent=1).encode()


def test_the_question_follows_the_conversation_and_the_answer_and_nothing_before_it_changes() -> None:
    body = chat_body()
    asked = redirect.asking(chat, body, Reply("Two 日本 \ud83d.", finish="stop"), "cite")
    messages = json.loads(asked)["messages"]
    came = json.loads(body)["messages"]
    assert messages[: len(came)] == came
    assert messages[len(came)] == {"role": "assistant", "content": "Two 日本 \ud83d."}
    (ask,) = messages[len(came) + 1 :]
    assert ask["role"] == "user" and "`cite`" in ask["content"] and redirect.TAG in ask["content"]
    last = chat.cut(body).messages[-1].span.end
    assert asked.startswith(body[:last]) and asked.endswith(body[last:])


def test_it_asks_for_one_whole_reply_in_no_set_form_in_which_the_tool_may_be_called() -> None:
    body = chat_body(
        stream=True,
        stream_options={"include_usage": True},
        n=3,
        response_format={"type": "json_object"},
        tool_choice="none",
        temperature=0.5,
    )
    asked = json.loads(redirect.asking(chat, body, Reply("So.", finish="stop"), "cite"))
    assert set(asked) == {"model", "messages", "tools", "temperature"}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_choice_that_lets_the_tool_be_called_stays(choice: str) -> None:
    body = chat_body(tool_choice=choice)
    assert json.loads(redirect.asking(chat, body, Reply("So."), "cite"))["tool_choice"] == choice


def test_an_output_tools_call_gets_a_return_so_that_none_stands_open() -> None:
    call = Call("call_1", "final_result", '{"value": 1}')
    asked = json.loads(redirect.asking(chat, chat_body(), Reply("", (call,), "tool_calls"), "cite"))["messages"]
    said, answered, _ = asked[-3:]
    assert said["content"] is None and said["tool_calls"][0]["function"]["arguments"] == '{"value": 1}'
    assert answered["role"] == "tool" and answered["tool_call_id"] == "call_1"


def test_the_same_in_the_shape_of_responses() -> None:
    items = [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "s", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "s", "output": "[c1] One."},
    ]
    body = json.dumps(
        {"model": "m", "input": items, "stream": True, "text": {"format": {"type": "json_object"}}}
    ).encode()
    call = Call("call_1", "final_result", "{}")
    asked = json.loads(redirect.asking(responses, body, Reply("So.", (call,), "tool_calls"), "cite"))
    assert set(asked) == {"model", "input"} and asked["input"][:3] == items
    assert asked["input"][3:6] == [
        {"role": "assistant", "content": "So."},
        {"type": "function_call", "call_id": "call_1", "name": "final_result", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Received; not sent yet."},
    ]
    assert redirect.TAG in asked["input"][6]["content"]


def test_an_input_that_was_one_text_becomes_a_list() -> None:
    body = b'{"input": "q\\u00e9", "model": "m"}'
    asked = json.loads(redirect.asking(responses, body, Reply("So."), None))
    assert asked["input"][0] == {"role": "user", "content": "qé"} and len(asked["input"]) == 3


def test_only_cite_calls_that_can_be_read_are_used_of_what_the_model_says() -> None:
    made = (Call("1", "search", "{}"), Call("2", "cite", '{"ids": ["c1"]}'), Call("3", "cite", '{"ids": ["c'))
    assert redirect.cite_calls([Reply("again", made, "tool_calls")], "cite") == (made[1],)
    assert redirect.cite_calls([Reply("again", finish="stop")], "cite") == ()
    assert redirect.cite_calls([], "cite") == ()


CALLS = (Call("call_a", "cite", '{"ids":["c1", "é"]}'), Call("call_b", "cite", "{}"))


def written(api: Api, like: list[bytes], streamed: bool) -> list[bytes]:
    return api.written_reply(CALLS, b"".join(like), streamed, 7, "0a")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("api", "whole", "pieces"), [(chat, completion("So."), events), (responses, response("So."), response_events)]
)
def test_a_reply_of_ours_says_the_calls_and_reads_like_the_providers_own(
    api: Api, whole: dict[str, Any], pieces: Any, streamed: bool
) -> None:
    like = pieces(whole) if streamed else [json.dumps(whole).encode()]
    body = json.dumps({api.MEMBER: [user("q")]}).encode()
    reader = api.reader(api.cut(body))
    for piece in written(api, like, streamed):
        reader.feed(piece)
    assert reader.finished() or not streamed
    reader.close(True)
    (said,) = reader.replies()
    assert said.calls == CALLS and said.text == "" and said.finish == "tool_calls"
    assert b"".join(written(api, like, streamed)).count(b'"scripted"') >= 1


def test_usage_is_told_in_a_stream_where_the_provider_told_it_and_is_nothing() -> None:
    assert b"usage" not in b"".join(written(chat, events(completion("So.")), True))
    told = [*events(completion("So."))[:-1], b'data: {"choices": [], "usage": {"total_tokens": 9}}\n\n']
    last = written(chat, told, True)[-2]
    assert json.loads(last[6:])["usage"]["total_tokens"] == 0


@pytest.mark.parametrize("api", [chat, responses])
@pytest.mark.parametrize("like", [b"", b"{", b"data: {\n\n", b"[1]", b'data: {"model": 3, "response": 4}\n\n'])
def test_whatever_the_providers_reply_was_ours_can_be_written(api: Api, like: bytes) -> None:
    assert written(api, [like], True) and written(api, [like], False)


def test_the_tools_of_a_request_are_known_in_every_shape() -> None:
    tools = [CITE, {"type": "custom", "custom": {"name": "a"}}, {"type": "odd"}, 3]
    body = json.dumps({"messages": [user("q")], "tools": tools, "functions": [{"name": "b"}]}).encode()
    assert chat.offered(chat.cut(body)) == ("cite", "a")  # the deprecated functions are called in another shape
    flat = [{"type": "function", "name": "cite"}, {"type": "web_search"}, None]
    body = json.dumps({"input": [user("q")], "tools": flat}).encode()
    assert responses.offered(responses.cut(body)) == ("cite",)
    assert chat.offered(chat.cut(b'{"messages": [], "tools": null}')) == ()


@pytest.mark.parametrize(
    ("api", "whole", "pieces"),
    [
        (chat, completion("One two", [("a", "search", {"q": 1})]), events),
        (responses, response("One two", [("a", "search", {"q": 1})]), response_events),
    ],
)
def test_a_held_reply_tells_what_was_said_so_far(api: Api, whole: dict[str, Any], pieces: Any) -> None:
    live = api.live_reader(api.cut(json.dumps({api.MEMBER: [user("q")]}).encode()))
    said: list[tuple[str, tuple[str, ...]]] = []
    for piece in pieces(whole, 4):
        live.feed(piece)
        said.append((live.news(), live.begun()))
    texts = [text for text, _ in said if text]
    assert texts == ["One ", "two"]
    first_call = next(index for index, (_, begun) in enumerate(said) if begun)
    assert said[first_call][1] == ("search",) and first_call > max(i for i, (text, _) in enumerate(said) if text)
    assert not any(begun for _, begun in said[:first_call])
