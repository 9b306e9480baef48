"""Tagged evidence in conversations: found in whatever clients made of it, and replaced to the character."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.evidence import tagged
from proxy.evidence.tables import Table
from proxy.evidence.tagged import Proof
from proxy.tagging import Keys, Picture, Result, tag
from proxy.wire import chat
from proxy.wire.messages import Part
from tests.talk import asked_next, body, calls, cited, ids_of, returns, rewritten, says, settled, user

KEYS = Keys(["a key that only these tests have"])
TAGGED = Table("tagged", "tagged", frozenset(), "cite", ids="global", undeclared="receipt", proof=Proof(KEYS))
NAMED = Table("kb", "auto", frozenset({"search"}), "cite")
PNG, OTHER = b"\x89PNG valve", b"\x89PNG gauge"
RECEIPT = "[From an earlier question; no longer shown. Search again if needed.]"


def result(chunk_id: str = "c1", content: str = "The pump runs at 3 bar.", **more: Any) -> Result:
    return Result(chunk_id, content, document_id="d1", title="Pump manual", **more)


ONE = tag([result()], KEYS)
DRAWN = tag(
    [
        result(pictures=[Picture(PNG, "#/pictures/0"), Picture(OTHER, "#/pictures/1")]),
        result("c2", "The gauge, in detail.", pictures=["#/pictures/1"]),
    ],
    KEYS,
)


def searched(content: Any, tool: str = "whatever", call_id: str = "s") -> list[dict[str, Any]]:
    return [calls((call_id, tool, {})), returns(call_id, content)]


def parts_of(content: Any) -> tuple[Part, ...]:
    return chat.cut(body(returns("s", content))).messages[0].parts


#: What clients make of a return, by name: each holds the tagged text, and nothing that is not ours.
SHAPES: dict[str, Any] = {
    "string": ONE.text,
    "parts": ONE.chat(),
    "trimmed": f"\n {ONE.text}\n\n",
    "json string": json.dumps(ONE.text),
    "wrapped": json.dumps({"result": ONE.text}),
    "wrapped in a part": [{"type": "text", "text": json.dumps({"result": ONE.text})}],
    "list of parts": json.dumps(ONE.chat()),
    "list of texts": json.dumps([ONE.text]),
    "escaped to ascii": json.dumps({"result": ONE.text}, ensure_ascii=True, indent=2),
    "repr": repr(ONE.text),
    "repr of parts": repr(ONE.chat()),
    "repr of objects": f"[TextContent(type='text', text={ONE.text!r}, annotations=None, meta=None)]",
    "mcp result": json.dumps(
        {"content": [{"type": "text", "text": ONE.text}], "structuredContent": None, "isError": False}
    ),
    "a string in a string": json.dumps({"result": json.dumps([{"type": "text", "text": ONE.text}])}),
    "a label without its picture": DRAWN.chat()[:2],
    "labels joined to it": DRAWN.text + "".join(picture.label for picture in DRAWN.pictures),
    "labels on lines of their own": "\n".join([DRAWN.text, *(picture.label for picture in DRAWN.pictures)]),
    "pictures in a JSON string": json.dumps(DRAWN.chat()),
    "pictures as files in a JSON string": json.dumps(
        [
            {"type": "text", "text": DRAWN.text},
            {"type": "text", "text": DRAWN.pictures[0].label},
            {"type": "file", "mediaType": "image/png", "data": {"type": "data", "data": DRAWN.pictures[0].url[22:]}},
        ]
    ),
    "with pictures": DRAWN.chat(),
}


@pytest.mark.parametrize("content", SHAPES.values(), ids=SHAPES.keys())
def test_a_tagged_return_is_found_whatever_a_client_makes_of_it_and_goes_whole(content: Any) -> None:
    _, sent = asked_next(user("?"), *searched(content), *cited([]), tables=(TAGGED,))
    (left, _) = sent.returns
    assert left == RECEIPT or left == [{"type": "text", "text": RECEIPT}]
    record, sent = asked_next(user("?"), *searched(content), *cited(["c1"]), tables=(TAGGED,))
    assert ids_of(record) == ["c1"]
    text = sent.returns[0] if isinstance(sent.returns[0], str) else sent.returns[0][0]["text"]
    assert text.endswith('[Group 1]\n\n[c1] Source: "Pump manual" | Document: d1\nThe pump runs at 3 bar.')
    assert not sent.shows("[evidence 1") and not sent.shows("[picture 1")


BESIDE: dict[str, tuple[Any, Any]] = {
    "text behind": (ONE.text + " (2 more)", f"{RECEIPT} (2 more)"),
    "text joined without a separator": (ONE.text + "next", f"{RECEIPT}\n\nnext"),
    "another field": (json.dumps({"result": ONE.text, "took": 1.50}), json.dumps({"result": RECEIPT, "took": 1.50})),
    "another part": (
        [*ONE.chat(), {"type": "text", "text": "own  notes", "x": 1e2}],
        [{"type": "text", "text": RECEIPT}, {"type": "text", "text": "own  notes", "x": 1e2}],
    ),
    "a part before": (
        [{"type": "text", "text": "Found:"}, *ONE.chat()],
        [{"type": "text", "text": "Found:"}, {"type": "text", "text": RECEIPT}],
    ),
    "a file": (
        [*ONE.chat(), {"type": "file", "file": {"file_id": "f"}}],
        [{"type": "text", "text": RECEIPT}, {"type": "file", "file": {"file_id": "f"}}],
    ),
    "a foreign picture": (
        [*ONE.chat(), {"type": "image_url", "image_url": {"url": "https://own.example/x.png"}}],
        [{"type": "text", "text": RECEIPT}, {"type": "image_url", "image_url": {"url": "https://own.example/x.png"}}],
    ),
    "a label above another picture": (
        [*DRAWN.chat()[:2], DRAWN.chat()[4]],
        [{"type": "text", "text": RECEIPT}, *DRAWN.chat()[1:2], DRAWN.chat()[4]],
    ),
    "a label of another return": (
        ONE.text + "\n" + DRAWN.pictures[1].label,
        f"{RECEIPT}\n{DRAWN.pictures[1].label}",
    ),
    "two returns": ([*ONE.chat(), {"type": "text", "text": ONE.text}], [{"type": "text", "text": RECEIPT}]),
    "two returns in one list": (json.dumps([ONE.text, DRAWN.text + " and"]), f"{RECEIPT}\n\n and"),
}


@pytest.mark.parametrize(("content", "left"), BESIDE.values(), ids=BESIDE.keys())
def test_promise_1_what_stands_unsigned_beside_it_stays(content: Any, left: Any) -> None:
    _, sent = asked_next(user("?"), *searched(content), *cited([]), tables=(TAGGED,))
    assert sent.returns[0] == left


def test_promise_1_what_stays_is_the_very_bytes_that_came() -> None:
    odd = b'{"type" : "text","text":"\\u0041 b", "n": 1e5 , "n":1.0}'
    before = body(user("?"), *searched([*ONE.chat(), {"type": "text", "text": "HERE"}]), *cited([]))
    came = before.replace(b'{"type": "text", "text": "HERE"}', odd)
    record = settled(user("?"), *searched([*ONE.chat(), json.loads(odd)]), *cited([]), tables=(TAGGED,))
    from proxy.compaction.rewrite import rewrite
    from proxy.ledger.transcript import read
    from proxy.wire.messages import splice

    done = rewrite(read(chat.cut(came)), record, (TAGGED,), lambda _: True)
    assert odd in splice(came, done.splices)


def test_a_tag_is_the_proof_whichever_tool_it_came_from_and_the_other_returns_are_their_tables() -> None:
    record, sent = asked_next(
        user("?"), *searched(ONE.text, "search"), *searched("[a1] plain", "search", "t"), *cited(["c1", "a1"]),
        tables=(NAMED, TAGGED),
    )  # fmt: skip
    assert [(entry.table, entry.id) for entry in record.cited] == [("kb", "a1"), ("tagged", "c1")] or [
        (entry.table, entry.id) for entry in record.cited
    ] == [("tagged", "c1"), ("kb", "a1")]
    assert sent.shows("[c1] Source") and sent.shows("plain") and not sent.shows("[evidence 1")


# Pictures.


def test_promise_6_a_cited_chunks_pictures_come_again_and_the_others_do_not() -> None:
    _, sent = asked_next(user("?"), *searched(DRAWN.chat()), *cited(["c1"]), tables=(TAGGED,))
    texts = [part.get("text", part["type"]) for part in sent.returns[0]]
    assert texts[1:] == [
        "Picture of cited evidence [c1] (#/pictures/0).", "image_url",
        "Picture of cited evidence [c1] (#/pictures/1).", "image_url",
    ]  # fmt: skip
    assert sent.returns[0][2] == DRAWN.chat()[2]


def test_promise_6_the_picture_that_only_an_overlapping_chunk_is_labelled_with_comes_with_the_cited_one() -> None:
    """`c2` shows the picture too, and says so in its signed head; the label names `c1`, which is not cited."""
    _, sent = asked_next(user("?"), *searched(DRAWN.chat()), *cited(["c2"]), tables=(TAGGED,))
    assert [part.get("text") for part in sent.returns[0]][1:] == [
        "Picture of cited evidence [c2] (#/pictures/1).",
        None,
    ]
    assert sent.returns[0][2] == DRAWN.chat()[4]
    attached = user(DRAWN.chat()[1:])
    _, sent = asked_next(user("?"), *searched(DRAWN.text), attached, *cited(["c2"]), tables=(TAGGED,))
    (shown,) = [m for m in sent.messages if m["role"] == "user" and isinstance(m["content"], list)]
    assert shown["content"][1:] == DRAWN.chat()[4:]


def test_a_picture_of_another_document_with_the_same_reference_does_not_come() -> None:
    other = tag([Result("c9", "x", document_id="d2", pictures=["#/pictures/1"])], KEYS)
    _, sent = asked_next(
        user("?"), *searched(DRAWN.chat()), *searched(other.text, call_id="t"), *cited(["c9"]), tables=(TAGGED,)
    )
    assert not sent.shows("image_url")


def test_promise_1_in_a_user_message_only_the_signed_pairs_go() -> None:
    own = [{"type": "text", "text": "and mine:"}, {"type": "image_url", "image_url": {"url": DRAWN.pictures[0].url}}]
    mixed = user([*DRAWN.chat()[1:3], *own, *DRAWN.chat()[3:]])
    _, sent = asked_next(user("?"), *searched(DRAWN.text), mixed, *cited([]), tables=(TAGGED,))
    (left,) = [m for m in sent.messages if m["role"] == "user" and isinstance(m["content"], list)]
    assert left["content"] == own


def test_promise_1_a_message_that_holds_nothing_else_goes_and_comes_again_behind_the_carriers_group() -> None:
    _, sent = asked_next(
        user("?"),
        *searched(DRAWN.text),
        user(DRAWN.chat()[1:3]),
        user(DRAWN.chat()[3:]),
        *cited(["c1"]),
        tables=(TAGGED,),
    )
    pictures = [m for m in sent.messages if m["role"] == "user" and isinstance(m["content"], list)]
    assert len(pictures) == 1 and len(pictures[0]["content"]) == 4


def test_promise_1_the_label_quoted_in_the_message_that_opens_a_question_removes_nothing() -> None:
    quoting = user(DRAWN.chat()[1:])
    _, sent = asked_next(quoting, *searched(DRAWN.text), *cited([]), tables=(TAGGED,))
    assert sent.messages[0] == quoting
    record = settled(user("?"), *searched(DRAWN.text), *cited([]), tables=(TAGGED,))
    sent = rewritten(user("?"), *searched(DRAWN.text), *cited([]), says("a"), quoting, record=record, tables=(TAGGED,))
    assert sent.messages[-1] == quoting


# Doubt.


def test_promise_3_a_key_that_was_rotated_out_leaves_its_evidence_in_place() -> None:
    said = [user("?"), *searched(ONE.text), *cited([])]
    record = settled(*said, tables=(TAGGED,))
    rotated = Table("tagged", "tagged", frozenset(), "cite", ids="global", proof=Proof(Keys(["another key, longer"])))
    sent = rewritten(*said, says("a"), user("next"), record=record, tables=(rotated,))
    assert sent.returns[0] == ONE.text and sent.done.kept == 1


def test_a_tag_that_does_not_fit_is_plain_text_and_counted_by_reason() -> None:
    heard: list[str] = []
    proof = Proof(KEYS, heard.append)
    for text in (
        ONE.text.replace("3 bar", "4 bar"),
        ONE.text[:-1],
        ONE.text.replace("[evidence 1 ", "[evidence 2 "),
        ONE.text.replace("[evidence 1 ", "[evidence 1  "),
    ):
        assert not tagged.is_ours(proof, parts_of(text))
    assert heard == ["signature", "truncated", "version", "malformed"]
    heard.clear()
    tagged.read(proof, parts_of([*DRAWN.chat()[:2], DRAWN.chat()[4]]))
    assert heard == ["picture"]


def test_what_a_host_cut_short_is_told_by_what_was_registered() -> None:
    long = tag([result(content="word " * 100), result("c2", "the other")], KEYS).text
    shown = long[:300] + "… [truncated]"
    proof = Proof(KEYS, registered={long[12:51]: long})
    assert not tagged.is_ours(Proof(KEYS), parts_of(shown))
    assert list(tagged.broken_tags(Proof(KEYS), parts_of(shown))) == [long[12:51]]
    assert [chunk.content for chunk in tagged.read(proof, parts_of(shown)).chunks] == [
        ("word " * 100).rstrip(),
        "the other",
    ]
    assert tagged.put(proof, parts_of(shown), "[R]")[0] == "[R]\n\n… [truncated]"
    lying = Proof(KEYS, registered={long[12:51]: long.replace("other", "wrong")})
    assert not tagged.is_ours(lying, parts_of(shown))


def test_reading_takes_no_longer_than_the_text_is_long() -> None:
    from tests.talk import grows_gently

    hostile = [
        "[evidence 1 ",
        "['[evidence 1 ",
        "[picture 1 ",
        "\n[x] Picture 1 of 2, found by a tool [picture 1 ",
        '"\\',
        "('",
    ]
    for piece in hostile:
        assert grows_gently(
            lambda n, piece=piece: lambda: tagged.read(TAGGED.proof, parts_of("[" + piece * n)), 2000
        ), piece  # type: ignore[misc, arg-type]
