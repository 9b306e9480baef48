"""What tools of any framework return is read as chunks: safely, bounded, and nothing cut short. Promises 3 and 8."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.evidence import auto, returns
from proxy.evidence.chunks import Chunk
from proxy.evidence.tables import FieldNames
from proxy.wire.messages import Text
from tests.talk import AUTO, asked_next, cited, grows_gently, searched, user

FIELDS = FieldNames()
UUID = "550e8400-e29b-41d4-a716-446655440000"


def read(text: Any) -> list[Chunk]:
    return auto.read(text if isinstance(text, str) else json.dumps(text), FIELDS)


def shown(text: Any) -> dict[str, str]:
    return {chunk.id: chunk.content for chunk in read(text)}


ROW = {"id": "c1", "text": 'it\'s "so"\n\\', "score": 0.5, "note": None, "ok": True, "deep": {"a": [1, (2,)]}}


@pytest.mark.parametrize(
    "text",
    [json.dumps([ROW]), json.dumps(ROW), repr([ROW]), repr(ROW), repr((ROW,)), json.dumps({"result": [ROW]}),
     json.dumps({"result": json.dumps([ROW])}), json.dumps({"result": repr([ROW])}), json.dumps(json.dumps([ROW])),
     json.dumps([{"type": "text", "text": json.dumps(ROW)}]), "\n " + json.dumps([ROW], indent=2) + "\n",
     json.dumps({"results": [ROW], "total": 1}), json.dumps({"a": {"b": {"c": [ROW]}}})],
)  # fmt: skip
def test_promise_8_a_row_is_read_whole_however_it_is_wrapped(text: str) -> None:
    assert shown(text) == {"c1": ROW["text"]}


def test_the_contract_of_chatgpt_connectors_is_read() -> None:
    (chunk,) = read({"results": [{"id": "d", "title": "T", "url": "https://x", "text": "t"}]})
    assert (chunk.id, chunk.content, chunk.source) == ("d", "t", '"T" (https://x)')


def test_langchain_documents_are_read_with_their_metadata() -> None:
    row = {
        "page_content": "t",
        "metadata": {"source": "s.pdf", "page": 3, "author": "A"},
        "id": "d",
        "type": "Document",
    }
    (chunk,) = read([row])
    assert (chunk.id, chunk.content, chunk.source, chunk.details) == ("d", "t", "s.pdf, p. 3", '{"author":"A"}')


def test_promise_8_what_stands_beside_the_content_is_kept_and_scores_are_not() -> None:
    (chunk,) = read({"id": "c1", "text": "t", "snippet": "s", "year": 2020, "score": 0.7, "embedding": [0.1]})
    assert json.loads(chunk.details or "") == {"snippet": "s", "year": 2020}


def test_promise_8_a_long_text_in_a_script_without_spaces_is_a_text() -> None:
    (chunk,) = read({"id": "c1", "text": "t", "notes": "漢" * 1001})
    assert "漢" in (chunk.details or "")


def test_promise_8_a_document_whose_id_stands_in_its_metadata_is_one_chunk() -> None:
    assert len(read([{"page_content": "t", "lang": "en", "id": None, "metadata": {"id": "c9", "source": "s"}}])) == 1


@pytest.mark.parametrize("value", [1, 0, -1, 2**63])
def test_ids_may_be_numbers(value: int) -> None:
    assert shown([{"id": value, "text": "t"}]) == {str(value): "t"}


def test_promise_8_an_integer_of_thirty_digits_is_kept_as_it_stands() -> None:
    assert shown([{"id": 10**29 + 1, "text": "t"}]) == {str(10**29 + 1): "t"}


@pytest.mark.parametrize(
    "text", ["", "no ids here", "[]", "{}", "[1, 2]", "null", '{"text": "x"}', "[c1](https://x) y"]
)
def test_what_shows_no_id_has_no_chunks(text: str) -> None:
    assert read(text) == []


def test_bracketed_text_opens_a_chunk_at_each_line_that_starts_with_an_id() -> None:
    assert shown("[c1] one\nmore [c9] of it\n\n[c2] two\r\n") == {"c1": "one\nmore [c9] of it", "c2": "two"}


def test_each_text_part_is_read_alone() -> None:
    parts = (Text("[1] one"), Text("[1] another"), Text("no id"))
    assert [(chunk.id, chunk.part) for chunk in returns.read(AUTO, "search", parts).chunks] == [("1", 0), ("1", 1)]


def test_promise_8_a_numbered_line_inside_a_chunk_cuts_nothing_off_when_numbers_do_not_follow() -> None:
    assert shown("[1] one\n[7] a footnote\nrest\n[2] two") == {"1": "one\n[7] a footnote\nrest", "2": "two"}


def test_promise_3_an_id_that_opens_twice_leaves_it_unclear_where_chunks_end() -> None:
    assert read("[c1] one\n[c2] quoted\nrest of one\n[c2] two") == []


def test_promise_3_a_number_that_opens_twice_leaves_it_unclear_where_chunks_end() -> None:
    assert read("[1] one\n[2] a reference\nrest of one\n[2] two\n[3] three") == []


def test_promise_8_a_reference_list_inside_a_cited_chunk_is_not_lost() -> None:
    text = "[1] one\n[2] a reference\nrest of one\n[2] two\n[3] three"
    assert asked_next(user("q"), *searched(text), *cited(["1"]))[1].shows("rest of one")


def test_promise_8_a_footnote_number_cuts_no_chunk_whose_id_is_a_word() -> None:
    assert shown("[c1] one\n[2] a reference\nrest of one\n[c2] two")["c1"] == "one\n[2] a reference\nrest of one"


def test_promise_8_a_figure_in_brackets_cuts_no_chunk_whose_id_is_a_uuid() -> None:
    assert list(shown(f"[{UUID}] one\n[fig2] a caption\nrest of one")) == [UUID]


def test_digits_of_other_scripts_do_not_stop_the_reading() -> None:
    assert "²" in shown("[²] one\n[³] two")


UNREAD = [
    "[{'id': 'c1', 'text': 'one', 'at': <object object at 0x7f>}]",
    "[Document('c1', 'one')]",
]


def test_what_is_no_literal_beside_a_content_is_kept_as_it_is_written() -> None:
    text = "[{'id': 'c1', 'text': 'one', 'at': datetime.datetime(2020, 1, 1), 'of': nan}]"
    assert shown(text) == {"c1": "one"}
    assert read(text)[0].details == '{"at":"datetime.datetime(2020, 1, 1)","of":"nan"}'


@pytest.mark.parametrize("text", UNREAD)
def test_promise_3_a_repr_that_cannot_be_read_has_no_chunks_and_stays(text: str) -> None:
    assert read(text) == []
    assert asked_next(user("q"), *searched(text), *cited([]))[1].shows("one")


def test_promise_3_a_cited_id_in_a_repr_that_cannot_be_read_keeps_the_return() -> None:
    assert asked_next(user("q"), *searched(UNREAD[0]), *cited(["c1"]))[1].shows("one")


def test_no_code_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for call in (
        f"open({str(mark)!r}, 'w')",
        f"__import__('os').system('touch {mark}')",
        f"(lambda: open({str(mark)!r}, 'w'))()",
    ):
        read(f"[{call}]")
        read(f"[{{'id': {call}, 'text': 'x'}}]")
    assert not mark.exists()


HOSTILE = {
    "brackets": "[" * 200_000 + "]" * 200_000,
    "parentheses": "[" + "(" * 150 + "x y" + ")" * 150 + "]",
    "signs": "[" + "-" * 100_000 + "1]",
    "sums": "[" + "1+" * 100_000 + "1]",
    "calls": "[a" + "()" * 100_000 + "]",
    "attributes": "[a" + ".a" * 200_000 + "]",
    "comparisons": "[" + "1<" * 50_000 + "1]",
    "lambdas": "[" + "lambda:" * 5_000 + "1]",
    "objects": '{"a":' * 2_000 + "1" + "}" * 2_000,
    "strings": "[" + "'a' " * 100_000 + "]",
    "openers": "[c1]\n" * 50_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_nesting_is_read_in_bounds_and_never_ends_the_process(text: str) -> None:
    program = (
        "import sys; from proxy.evidence import auto; from proxy.evidence.tables import FieldNames; "
        "auto.read(sys.stdin.read(), FieldNames())"
    )
    done = subprocess.run([sys.executable, "-c", program], input=text.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_row_with_a_deeply_nested_field_is_read_or_has_no_chunk() -> None:
    assert shown('{"id":"c1","text":"t","z":%s}' % ("[" * 90 + "1" + "]" * 90)) == {"c1": "t"}
    assert shown('{"id":"c1","text":"t","z":%s}' % ("[" * 5000 + "1" + "]" * 5000)) in ({}, {"c1": "t"})


@pytest.mark.parametrize("unit", ["[c1]\n", "[1]\n", "{'a': None}, ", "[[", "\\", '["', "[c1](", "\n[", "[ "])
def test_reading_costs_by_the_byte(unit: str) -> None:
    assert grows_gently(lambda n: lambda: read("[" + unit * n + "]"), 1000)


@given(st.text())
def test_no_text_stops_the_reading(text: str) -> None:
    assert all(chunk.id for chunk in read(text)) or "²" in text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "text", "title", "results", "metadata", "x"]), inner)
    ),
    max_leaves=10,
)


def test_a_repr_of_bare_names_is_no_chunk() -> None:
    assert read("[None]") == []


@given(VALUES)
def test_json_and_repr_of_one_value_read_the_same(value: Any) -> None:
    if isinstance(value, dict):
        assert read(repr(value)) == read(value)


@pytest.mark.parametrize(
    "ids",
    [
        ["91b7584a2265b1f5", "025b413f8a9a021e", "0123456789012345", "ffffffffffffffff"],
        ["91b7584a", "12345678", "feedbabe"],
        ["12345678", "91b7584a", "feedbabe"],
        ["91B7584A2265", "025B413F8A9A"],
    ],
)
def test_digests_that_were_cut_short_are_ids_alike(ids: list[str]) -> None:
    text = "\n\n".join(f"[{one}] What {one} says." for one in ids)
    assert [chunk.id for chunk in auto.read(text, FieldNames())] == ids


def test_a_word_in_brackets_is_no_digest_of_another_length() -> None:
    (chunk,) = auto.read("[91b7584a2265b1f5] One.\n[decade] Of it.\n[20240102] And then.", FieldNames())
    assert chunk.content == "One.\n[decade] Of it.\n[20240102] And then."


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["", "c1", "c2", "[c1] text", "a\n[c2] b"])
)
ELEMENT = st.recursive(
    st.one_of(
        SCALAR,
        st.dictionaries(
            st.sampled_from(["id", "id_", "chunk_id", "content", "text", "title", "uri", "metadata", "other"]), SCALAR
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["id", "content", "metadata", "items", "results"]), inner, max_size=4),
    ),
    max_leaves=6,
)


@given(st.lists(ELEMENT, max_size=5), st.sampled_from(["c1", "c2", "1", "-1"]))
def test_one_chunk_read_alone_is_that_which_reading_all_of_it_gives(value: list[Any], chunk_id: str) -> None:
    for text in (json.dumps(value), repr(value), json.dumps({"results": value})):
        assert auto.find(text, FIELDS, 0, {chunk_id}) == [
            chunk for chunk in auto.read(text, FIELDS) if chunk.id == chunk_id
        ]
