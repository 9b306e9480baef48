"""A chat reply, whole or streamed, is read for what it says, in any cut, and never fails. Promise 10 and section 4."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ledger.settling import settles
from proxy.ledger.transcript import reply_digest
from proxy.wire.chat_reply import ChatReplyReader
from proxy.wire.events import EventReader
from proxy.wire.messages import Call, Reply
from tests.talk import HABITS, grows_gently, says, transcript, user

ENDS = ["\n", "\r\n", "\r"]


def delta(content: str | None = None, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    said = {"content": content, **more} if content is not None else more
    return {"choices": [{"index": index, "delta": said, "finish_reason": finish}]}


def stream(*events: Any, end: str = "\n") -> bytes:
    lines = [f"data: {event if isinstance(event, str) else json.dumps(event)}{end}{end}" for event in events]
    return "".join(lines).encode()


def whole(*choices: dict[str, Any]) -> bytes:
    return json.dumps({"object": "chat.completion", "choices": list(choices)}).encode()


def read(raw: bytes, choices: int = 1, size: int | None = None, complete: bool = True) -> ChatReplyReader:
    reader = ChatReplyReader(choices)
    for at in range(0, len(raw), size or len(raw)):
        reader.feed(raw[at : at + (size or len(raw))])
    reader.close(complete)
    return reader


def only(reader: ChatReplyReader) -> Reply:
    (reply,) = reader.replies()
    return reply


CALLING = [
    delta("I look. "),
    delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "search", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"q":'}}]),
    delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "cite", "arguments": "{}"}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ' "é😀"}'}}]),
    delta(finish="tool_calls"),
    "[DONE]",
]
CALLED = (Call("a", "search", '{"q": "é😀"}'), Call("b", "cite", "{}"))


@given(st.sampled_from(ENDS), st.lists(st.integers(1, 40), max_size=60))
def test_a_stream_reads_the_same_in_any_cut_and_with_any_line_ends(end: str, sizes: list[int]) -> None:
    raw, reader, at = stream(*CALLING, end=end), ChatReplyReader(), 0
    for size in [*sizes, len(stream(*CALLING, end=end))]:
        reader.feed(raw[at : at + size])
        at += size
    reader.close(True)
    assert only(reader) == Reply("I look. ", CALLED, "tool_calls")


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_fed_byte_by_byte_is_finished_with_its_finish_and_not_before(end: str) -> None:
    reader, done = ChatReplyReader(), []
    for byte in stream(delta("hi"), delta(finish="stop"), end=end):
        reader.feed(bytes([byte]))
        done.append(reader.finished())
    assert done.count(True) in (1, 2) and done[-1]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_promise_10_whatever_a_provider_sends_reading_it_never_raises(chunks: list[bytes]) -> None:
    reader = ChatReplyReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close(True)
    assert not reader.finished() or reader.replies()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["choices", "delta", "message", "index", "error", "tool_calls"]), inner)
), max_leaves=12))  # fmt: skip
def test_promise_10_no_json_makes_the_reader_raise(value: Any) -> None:
    assert read(stream(value, {"choices": value})).replies() is not None


def test_a_whole_reply_reads_like_the_same_stream() -> None:
    message = {"content": "hi", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    assert only(read(whole({"index": 0, "message": message, "finish_reason": "tool_calls"}), size=3)) == Reply(
        "hi", (Call("a", "f", "{}"),), "tool_calls"
    )


@pytest.mark.parametrize(
    "before",
    [b": keep-alive\n\n", b"\n\n", b"event: message\nid: 7\nretry: 1\n", b"data: [DONE]\n\n", stream({"choices": None}),
     stream({"choices": [], "usage": {"total_tokens": 1}}), stream({"error": None, "choices": []})],
)  # fmt: skip
def test_what_says_nothing_in_a_stream_is_passed_over(before: bytes) -> None:
    assert only(read(before + stream(delta("hi"), delta(finish="stop")))).text == "hi"


def test_the_last_event_counts_without_its_blank_line() -> None:
    assert read(stream(delta("hi"), delta(finish="stop"))[:-2]).finished()


def test_an_error_in_the_stream_settles_nothing() -> None:
    reader = read(stream(delta("hi"), {"error": {"message": "overloaded"}}, delta(finish="stop")))
    assert not reader.finished() and reader.replies() == []


def test_a_stream_that_broke_off_before_its_finish_settles_nothing() -> None:
    assert not read(stream(delta("hi")), complete=False).finished()


def test_a_whole_reply_that_broke_off_settles_nothing() -> None:
    raw = whole({"message": {"content": "hi"}, "finish_reason": "stop"})
    assert not read(raw, complete=False).finished() and not read(raw[:-3]).finished()


def test_each_choice_is_a_reply_of_its_own() -> None:
    raw = stream(delta("a", index=1), delta("b"), delta(finish="stop"), delta(finish="stop", index=1))
    assert [reply.text for reply in read(raw, choices=2).replies()] == ["b", "a"]


def test_with_several_choices_the_reply_is_finished_with_the_last_one() -> None:
    assert not read(stream(delta("a"), delta(finish="stop"), delta("b", index=1)), choices=2).finished()


def test_a_complete_reply_with_fewer_choices_than_asked_for_is_finished() -> None:
    assert read(whole({"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}), choices=2).finished()


@pytest.mark.parametrize("finish", ["stop", "STOP", "end_turn", "stop_sequence", "eos", "eos_token", "COMPLETE"])
def test_a_normal_end_in_any_spelling_settles(finish: str) -> None:
    assert settles(Reply("hi", (), finish), HABITS)


@pytest.mark.parametrize("finish", ["length", "max_tokens", "content_filter", "SAFETY", "error", "abort", "x", None])
def test_any_other_end_settles_nothing_even_with_an_output_tool(finish: str | None) -> None:
    assert not settles(Reply("hi", (), finish), HABITS)
    assert not settles(Reply("", (Call("a", "final_result", "{}"),), finish), HABITS)


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "tool_use"])
def test_an_output_tool_settles_and_no_other_call_does(finish: str) -> None:
    assert settles(Reply("", (Call("a", "final_result", "{}"),), finish), HABITS)
    assert not settles(Reply("hi", (Call("a", "search", "{}"),), finish), HABITS)


@pytest.mark.parametrize("said", ["hi", "<think>hm\n</think>\n\nhi", " hi\n", "<thinking>a</thinking>hi"])
def test_a_reply_is_known_again_in_a_transcript_without_its_thinking(said: str) -> None:
    assert reply_digest(said, ()) == transcript(user("q"), says("hi"), user("z")).replies[0].digest


def test_a_byte_order_mark_before_a_stream_is_no_part_of_it() -> None:
    assert only(read(b"\xef\xbb\xbf" + stream(delta("hi"), delta(finish="stop")))).text == "hi"


@pytest.mark.parametrize("text", ["\\ud83d", "a\\udc00"])
def test_a_reply_with_half_a_character_is_read_like_any_other(text: str) -> None:
    raw = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % text.encode() + stream(delta(finish="stop"))
    assert read(raw).finished()


def test_an_event_that_comes_in_many_cuts_costs_by_the_byte() -> None:
    def work(n: int) -> Any:
        line = b"data: " + b"x" * n + b"\n\n"
        cuts = [line[at : at + 200] for at in range(0, len(line), 200)]

        def run() -> None:
            reader = EventReader(1 << 30)
            for piece in cuts:
                list(reader.feed(piece))

        return run

    assert grows_gently(work, 100_000)


def test_thinking_that_never_ends_costs_by_the_byte() -> None:
    assert grows_gently(lambda n: lambda: reply_digest("<think>" * n, ()), 500)
