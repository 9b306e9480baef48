"""Wire: a body is cut to the byte and spliced to the byte, whatever JSON it is. Promise 1 of the design."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire import chat, spans
from proxy.wire.messages import Message, NotJson, OtherPart, Picture, Role, Span, Splice, Text, splice
from tests.talk import body, calls, grows_gently, returns, user

# JSON texts that know where their own pieces stand: an oracle that reads nothing.

SPACE = st.text(" \t\r\n", max_size=3)
CHARACTER = st.one_of(
    st.characters(min_codepoint=0x20, exclude_characters='"\\', exclude_categories=["Cs"]),
    st.sampled_from(
        ['\\"', "\\\\", "\\/", "\\n", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\uDFFF", "é", "😀"]
    ),
)
STRING = st.lists(CHARACTER, max_size=8).map(lambda characters: '"' + "".join(characters) + '"')
NUMBER = st.sampled_from(["0", "-0", "1.0", "1e5", "1E+400", "-2.50e-3", "123456789012345678901234567890", "9" * 400])
ODD = st.sampled_from(["NaN", "Infinity", "-Infinity"])  # what lenient servers read


def array(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda between, values: "[" + between + ",".join(between + value + between for value in values) + "]",
        SPACE,
        st.lists(items, max_size=3),
    )


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda between, pairs: "{" + between + ",".join(f"{between}{k}{between}:{between}{v}" for k, v in pairs) + "}",
        SPACE,
        st.lists(st.tuples(STRING, values), max_size=3),
    )


VALUE = st.recursive(
    st.one_of(STRING, NUMBER, ODD, st.sampled_from(["true", "false", "null"])),
    lambda inner: array(inner) | objects(inner),
    max_leaves=8,
)
KNOWN = st.sampled_from(
    ['"role"', '"content"', '"tool_call_id"', '"tool_calls"', '"r\\u006fle"', '"content"', '"name"', '"x"']
)
ROLE = st.sampled_from(['"user"', '"assistant"', '"tool"', '"system"', '"us\\u0065r"', '"other"', "7"])
MESSAGE = st.builds(
    lambda space, role, pairs: (
        "{" + space + f'"role"{space}:{role}' + "".join(f",{space}{k}:{space}{v}" for k, v in pairs) + space + "}"
    ),
    SPACE,
    ROLE,
    st.lists(st.tuples(KNOWN, VALUE), max_size=4),
)


class Written(NamedTuple):
    raw: bytes
    spans: list[Span]


@st.composite
def bodies(draw: st.DrawFn) -> Written:
    """A body, and where each element of its last `messages` stands."""
    text = draw(SPACE) + "{" + draw(SPACE)
    spans: list[Span] = []
    members = draw(st.lists(st.sampled_from(["messages", "messages", "other", "n", "m\\u0065ssages"]), max_size=4))
    for position, name in enumerate([*members, "messages"]):
        text += ("," if position else "") + draw(SPACE) + f'"{name}"' + draw(SPACE) + ":" + draw(SPACE)
        if name in ("other", "n"):
            text += draw(VALUE)
        else:
            spans = []
            text += "[" + draw(SPACE)
            for index, message in enumerate(draw(st.lists(MESSAGE, max_size=4))):
                text += "," + draw(SPACE) if index else ""
                start = len(text.encode())
                text += message
                spans.append(Span(start, len(text.encode())))
                text += draw(SPACE)
            text += "]"
        text += draw(SPACE)
    return Written((text + "}" + draw(SPACE)).encode(), spans)


def without_place(message: Message) -> tuple[Any, ...]:
    return message.role, repr(message.parts), message.plain, message.calls, message.call_id


@given(bodies())
def test_promise_1_cut_finds_each_message_where_it_stands(written: Written) -> None:
    assert [message.span for message in chat.cut(written.raw).messages] == written.spans


@given(bodies())
def test_promise_1_splicing_each_message_by_itself_gives_the_very_bytes(written: Written) -> None:
    spans = [message.span for message in chat.cut(written.raw).messages]
    same = [Splice(span.start, span.end, written.raw[span.start : span.end]) for span in spans]
    assert splice(written.raw, same) == splice(written.raw, []) == written.raw


@given(bodies())
def test_the_quick_and_the_careful_path_read_the_same(written: Written) -> None:
    forced = written.raw.rstrip()[:-1] + b',"only lenient readers take this":NaN}'
    quick, careful = chat.cut(written.raw), chat.cut(forced)
    assert [without_place(message) for message in quick.messages] == [without_place(m) for m in careful.messages]
    assert quick.choices == careful.choices


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_what_is_no_body_is_not_json_and_nothing_worse(raw: bytes) -> None:
    with pytest.raises(NotJson):
        chat.cut(b"x" + raw)


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b"{}", b'{"messages":null}', b'{"messages":"x"}', b'{"messages":[1]}', b'{"messages":[{}}',
     b'{"messages":[{"a":1},]}', b'\xef\xbb\xbf{"messages":[]}', b'{"messages":[{"content":"\xff"}]}',
     b'{"messages":[{"content":"a\nb"}]}', b'{"messages":[]'],
)  # fmt: skip
def test_a_body_of_another_shape_is_not_json(raw: bytes) -> None:
    with pytest.raises(NotJson):
        chat.cut(raw)


@pytest.mark.parametrize("tail", [b" x", b"}", b'{"messages":[]}', b"\x00"])
def test_a_body_with_something_after_it_is_not_json(tail: bytes) -> None:
    with pytest.raises(NotJson):
        chat.cut(body(user("q")) + tail)


def test_of_two_messages_members_the_last_counts_as_for_every_json_reader() -> None:
    assert chat.cut(b'{"messages":[{"role":"user","content":"a"}],"messages":[]}').messages == ()


def test_parts_are_read_by_their_kind() -> None:
    content = ["s", {"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "file"}]
    (message,) = chat.cut(body(user(content))).messages
    assert message.parts == (Text("s"), Text("t"), Picture("u"), OtherPart({"type": "file"}))


@pytest.mark.parametrize(
    ("spelled", "role"),
    [
        ("system", Role.SYSTEM),
        ("developer", Role.SYSTEM),
        ("tool", Role.TOOL),
        ("function", Role.TOOL),
        ("x", Role.OTHER),
    ],
)
def test_roles_are_read_in_all_their_spellings(spelled: str, role: Role) -> None:
    assert chat.cut(body({"role": spelled, "content": "x"})).messages[0].role is role


def test_an_unknown_kind_of_call_is_a_call_so_that_it_does_not_look_like_an_answer() -> None:
    raw = body(
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "n", "input": "i"}}]}
    )
    (call,) = chat.cut(raw).messages[0].calls
    assert (call.id, call.name, call.arguments) == ("a", "n", "i")


def test_promise_1_a_replaced_return_keeps_its_other_fields_to_the_byte() -> None:
    raw = b'{"messages":[{ "tool_call_id" :"a","x":1e5,"content" : "old" ,"role":"tool","z":"\\u00e9"}]}'
    request = chat.cut(raw)
    new = splice(raw, [chat.replace_content(request, request.messages[0], "new", [])])
    assert new == raw.replace(b'"old"', b'"new"')


def test_promise_1_of_two_contents_the_one_that_counts_is_replaced() -> None:
    raw = b'{"messages":[{"role":"tool","content":"first","content":"last"}]}'
    request = chat.cut(raw)
    assert splice(raw, [chat.replace_content(request, request.messages[0], "new", [])]) == raw.replace(b"last", b"new")


@given(st.text(st.characters()))
def test_any_text_is_written_so_that_it_reads_back(text: str) -> None:
    raw = body(returns("a", "old"))
    request = chat.cut(raw)
    new = splice(raw, [chat.replace_content(request, request.messages[0], text, [])])
    assert json.loads(new)["messages"][0]["content"] == text


def test_splices_that_overlap_are_refused_since_bytes_would_be_lost() -> None:
    with pytest.raises(ValueError, match="overlap"):
        splice(b"abcdef", [Splice(0, 3), Splice(2, 4)])


def test_an_insertion_comes_before_what_is_removed_at_its_place() -> None:
    assert splice(b"abc", [Splice(1, 2), Splice(1, 1, b"X")]) == b"aXc"


def test_the_cache_hint_of_a_replaced_part_is_kept() -> None:
    raw = body(returns("a", [{"type": "text", "text": "old", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]))
    request = chat.cut(raw)
    (message,) = json.loads(splice(raw, [chat.replace_content(request, request.messages[0], "new", [])]))["messages"]
    assert message["content"] == [{"type": "text", "text": "new", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


@pytest.mark.parametrize("extra", ["1" * 5000, "-" + "1" * 5000])
def test_an_integer_that_python_would_not_read_is_json_all_the_same(extra: str) -> None:
    raw = body(user("q")).replace(b'"model": "m"', b'"seed": ' + extra.encode())
    assert len(chat.cut(raw).messages) == 1


@pytest.mark.parametrize("extra", ["1" * 5000])
def test_a_return_beside_such_an_integer_can_be_replaced(extra: str) -> None:
    raw = body(returns("a", "old")).replace(b'"role": "tool"', b'"role": "tool", "v": ' + extra.encode())
    request = chat.cut(raw)
    assert chat.replace_content(request, request.messages[0], "new", []).data == b'"new"'


def test_cutting_many_messages_costs_by_the_byte() -> None:
    def work(n: int) -> Any:
        raw = body(*[user("x") for _ in range(n)])
        return lambda: chat.cut(raw)

    assert grows_gently(work, 4000)


def test_cutting_a_body_that_only_lenient_readers_take_costs_by_the_byte() -> None:
    def work(n: int) -> Any:
        raw = body(calls(("a", "s", "\ud800")), *[user("x") for _ in range(n)])
        return lambda: chat.cut(raw)

    assert grows_gently(work, 4000)


@given(array(VALUE))
def test_the_elements_of_an_array_stand_where_a_walk_over_it_finds_them(text: str) -> None:
    raw = text.encode()
    walked = spans.elements(raw.decode("latin-1"), 0)
    found = spans.element_spans(b"before" + raw + b"behind", Span(6, 6 + len(raw)))
    assert [(span.start - 6, span.end - 6) for span in found] == [(span.start, span.end) for span in walked]


def test_the_parts_of_a_message_are_found_once_for_all_requests_that_begin_with_it() -> None:
    url = "data:image/png;base64,AAAA"
    message = {
        "role": "tool",
        "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}],
    }
    first = chat.cut(body(message))
    again = chat.cut(body(message, user("?")), first)
    (held,) = first.messages
    assert again.messages[0] is held and held == chat.cut(first.body).messages[0]
    picture = chat.picture_again(first, held, 0, "label")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spans, "member_elements", None)
        assert chat.picture_again(again, held, 0, "label") == picture
    assert held == chat.cut(first.body).messages[0]


@pytest.mark.parametrize("content", ('[{"content": ["x"]}, 1]', '{"a": [1]}', "7", '["\\u0041", [ ], {}]'))
@pytest.mark.parametrize(
    "around", ('{"content":%s}', '{"x":{"content":[1]}, "content" : %s , "y":1}', '{"content":[],"content": %s}')
)
def test_a_value_and_its_elements_are_found_as_a_walk_finds_them(around: str, content: str) -> None:
    raw = (around % content).encode()
    found = spans.member_elements(b"before" + raw, Span(6, 6 + len(raw)), "content")
    assert found is not None and found[0] == spans.member_span(b"before" + raw, Span(6, 6 + len(raw)), "content")
    value = json.loads(content)
    read = [json.loads((b"before" + raw)[span.start : span.end]) for span in found[1]]
    assert read == (value if isinstance(value, list) else [])
