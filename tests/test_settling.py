"""What a settled question leaves: citations, declaration, the fate of its returns. Promises 3, 5 and 8."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.evidence.tables import Table
from proxy.ledger.records import Record
from proxy.wire.messages import Call
from tests.talk import (
    AUTO,
    HAIKU,
    INLINE,
    asked_next,
    calls,
    cited,
    grows_gently,
    ids_of,
    returns,
    rewritten,
    says,
    searched,
    settled,
    user,
)

ONE = "[c1] one\n[c2] two"
TWO = "[c3] three\n[c4] four"
Q = user("q")


def fate(record: Record) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return record.declaration, record.replaced, record.kept


def test_a_cited_question_is_grounded_and_its_return_accounted_for() -> None:
    assert fate(settled(Q, *searched(ONE), *cited(["c1"]))) == ("grounded", (0,), ())


def test_an_empty_cite_call_is_a_declaration() -> None:
    assert fate(settled(Q, *searched(ONE), *cited([]))) == ("ungrounded", (0,), ())


def test_promise_3_a_question_that_never_declared_keeps_its_evidence_unless_the_host_says_otherwise() -> None:
    receipt = Table("kb", "auto", frozenset({"search"}), "cite", undeclared="receipt")
    assert fate(settled(Q, *searched(ONE))) == ("missing", (), (0,))
    assert fate(settled(Q, *searched(ONE), tables=(receipt,))) == ("missing", (0,), ())


def test_promise_3_a_cite_beside_its_search_does_not_declare_but_retains() -> None:
    record = settled(
        Q, calls(("s", "search", {}), ("c", "cite", {"ids": ["c1"]})), returns("s", ONE), returns("c", "ok")
    )
    assert (fate(record), ids_of(record)) == (("missing", (), (0,)), ["c1"])


def test_promise_3_a_search_after_a_cite_makes_it_stale_and_what_was_cited_stays_retained() -> None:
    record = settled(Q, *searched(ONE), *cited(["c1"]), *searched(TWO, "t"))
    assert (record.declaration, ids_of(record), record.kept) == ("missing", ["c1"], (0, 2))


def test_an_empty_second_thought_takes_nothing_back() -> None:
    record = settled(Q, *searched(ONE), *cited(["c1"]), *cited([], call_id="d"))
    assert (record.declaration, ids_of(record)) == ("grounded", ["c1"])


def test_citations_of_one_question_merge() -> None:
    assert ids_of(settled(Q, *searched(ONE), *cited(["c1"]), *cited(["c2"], call_id="d"))) == ["c1", "c2"]


def test_promise_3_a_cite_whose_ids_stand_nowhere_declares_nothing() -> None:
    assert fate(settled(Q, *searched(ONE), *cited(["zz"]))) == ("missing", (), (0,))


def test_promise_3_an_id_that_only_stands_in_a_return_keeps_that_return_alone() -> None:
    record = settled(Q, *searched('[{"id":"c1","text":"x"},{"key":"k9"}]'), *searched(TWO, "t"), *cited(["k9"]))
    assert (record.kept, record.replaced) == ((0,), (1,))


@pytest.mark.parametrize("answer", ["Error: no such id", '{"error": "no"}', "x\n\nFix the errors and try again."])
def test_a_cite_call_that_failed_declares_nothing(answer: str) -> None:
    assert settled(Q, *searched(ONE), *cited(["c1"], answer)).declaration == "missing"


def test_promise_3_a_cite_call_without_a_return_retains_and_does_not_declare() -> None:
    record = settled(Q, *searched(ONE), calls(("c", "cite", {"ids": ["c1"]})), user("go on"))
    assert (record.declaration, ids_of(record)) == ("missing", ["c1"])


def test_a_cite_beside_an_output_tool_counts() -> None:
    made = (Call("c", "cite", '{"ids":["c1"]}'), Call("f", "final_result", "{}"))
    assert ids_of(settled(Q, *searched(ONE), answer="", made=made)) == ["c1"]


@pytest.mark.parametrize(
    "content", [[{"type": "text", "text": ONE}, {"type": "file", "file": {}}], 7, {"a": 1}, None, []]
)
@pytest.mark.parametrize("table", [AUTO, HAIKU], ids=["auto", "haiku"])
def test_promise_3_a_return_that_holds_what_cannot_be_read_stays(content: Any, table: Table) -> None:
    record, sent = asked_next(Q, *searched(content), *searched(ONE, "t"), *cited([]), tables=(table,))
    assert 0 not in record.replaced and sent.returns[0] == content


# Identity.


def rows(*found: tuple[str, str, str | None]) -> str:
    return json.dumps([{"id": i, "text": t} | ({"collection": c} if c else {}) for i, t, c in found])


def places(record: Record) -> list[tuple[str, list[int]]]:
    return [(entry.id, [place.ret for place in entry.places]) for entry in record.cited]


def test_a_number_of_two_searches_means_both_texts() -> None:
    assert places(settled(Q, *searched("[1] one"), *searched("[1] two", "t"), *cited([1]))) == [("1", [0]), ("1", [1])]


def test_an_id_of_two_collections_is_two_chunks() -> None:
    record = settled(Q, *searched(rows(("a", "one", "x"), ("a", "two", "y"))), *cited(["a"]))
    assert [entry.collection for entry in record.cited] == ["x", "y"]


def test_promise_8_a_global_id_of_two_contents_keeps_both_and_one_that_holds_the_other_once() -> None:
    assert places(settled(Q, *searched("[a] one"), *searched("[a] two", "t"), *cited(["a"]))) == [("a", [0, 1])]
    assert places(settled(Q, *searched("[a] one"), *searched("[a] one and more", "t"), *cited(["a"]))) == [("a", [1])]


def second(*messages: dict[str, Any], first: str = ONE, ids: Any = ("c1",), answer: str = "b") -> Record:
    """The record of a second question, after a first one that cited these ids out of this return."""
    before = [Q, *searched(first), *cited(list(ids))]
    return settled(*before, says("a"), user("r"), *messages, answer=answer, before=settled(*before), from_reply=3)


def test_promise_8_what_is_cited_again_without_a_search_moves_to_the_newest_group() -> None:
    assert [(entry.id, entry.group) for entry in second(*cited(["c1"])).cited] == [("c1", 2)]


def test_promise_8_content_is_that_of_the_newest_question_that_retrieved_and_cited_it() -> None:
    assert places(second(*searched("[c1] new", "t"), *cited(["c1"]))) == [("c1", [2])]
    assert places(second(*searched("[c1] new", "t"), *cited([]))) == [("c1", [0])]


def test_promise_8_what_an_earlier_question_retrieved_and_nobody_cited_can_still_be_cited() -> None:
    assert places(second(*cited(["c2"]))) == [("c1", [0]), ("c2", [0])]


def test_promise_8_numbers_of_two_questions_are_two_chunks() -> None:
    assert places(second(*searched("[1] new", "t"), *cited([1]), first="[1] old", ids=[1])) == [("1", [0]), ("1", [2])]


# Conversations that were never recorded.

HALF = [Q, *searched(ONE), *cited(["c1"]), says("a"), user("r"), *searched(TWO, "t"), *cited(["c3"])]


def test_half_way_citations_that_stand_in_the_transcript_account_for_their_span() -> None:
    record = settled(*HALF)
    assert (ids_of(record), record.replaced, record.kept) == (["c1", "c3"], (0, 2), ())


def test_promise_3_half_way_evidence_without_citations_stays_for_good_whatever_the_host_says() -> None:
    receipt = Table("kb", "auto", frozenset({"search"}), "cite", undeclared="receipt")
    record = settled(Q, *searched(ONE), says("a"), user("r"), *searched(TWO, "t"), *cited(["c3"]), tables=(receipt,))
    assert (record.replaced, record.kept) == ((1,), (0,))


def test_half_way_ids_in_any_answer_account_for_their_span() -> None:
    record = settled(Q, *searched(ONE), says("so [c1]"), user("r"), *searched(TWO, "t"), *cited([]))
    assert (ids_of(record), record.kept) == (["c1"], ())


def test_promise_3_a_record_that_was_lost_in_the_middle_loses_nothing_cited() -> None:
    third = [*HALF, says("b"), user("s"), *searched("[c5] five", "u"), *cited(["c5"])]
    record = settled(*third, before=settled(*HALF[:5], answer="a"), from_reply=3)
    assert ids_of(record) == ["c1", "c3", "c5"] and record.kept == ()


@pytest.mark.parametrize("at", [0, 1])
def test_promise_3_what_a_lost_question_never_declared_stays(at: int) -> None:
    third = [*HALF[:7], *searched(TWO, "t"), says("b"), user("s"), *searched("[c5] five", "u"), *cited(["c5"])]
    assert rewritten(
        *third, says("c"), user("t"), record=settled(*third, before=settled(*HALF[:5]), from_reply=3)
    ).shows(["three", "four"][at])


# Several tables.

A = Table("a", "auto", frozenset({"find_a"}), "cite")
B = Table("b", "auto", frozenset({"find_b"}), "cite")


def both(a: str, b: str, ids: list[str]) -> list[dict[str, Any]]:
    made = calls(("1", "find_a", {}), ("2", "find_b", {}))
    return [Q, made, returns("1", a), returns("2", b), *cited(ids)]


def test_each_table_gets_its_own_citations() -> None:
    record = settled(*both("[x1] X", "[y1] Y", ["x1", "y1"]), tables=(A, B))
    assert [(entry.table, entry.id) for entry in record.cited] == [("a", "x1"), ("b", "y1")]


def test_promise_5_a_question_that_declared_has_declared_for_all_its_tables() -> None:
    assert fate(settled(*both("[x1] X", "[y1] Y", ["y1"]), tables=(A, B))) == ("grounded", (0, 1), ())


def test_an_id_that_is_exact_in_one_table_is_not_damaged_in_another() -> None:
    record = settled(
        *both("[manual-section-alpha] X", "[manual-section-alphb] Y", ["manual-section-alphb"]), tables=(A, B)
    )
    assert ids_of(record) == ["manual-section-alphb"]


def test_a_table_without_cite_is_never_accounted_for() -> None:
    none = Table("kb", "auto", frozenset({"search"}), None)
    assert fate(settled(Q, *searched(ONE), *cited(["c1"]), tables=(none,))) == ("missing", (), ())


def test_ordinals_count_questions() -> None:
    assert settled(Q, says("a"), user("r"), *searched(ONE), *cited(["c1"])).ordinal == 2
    assert second(*searched(TWO, "t"), *cited(["c3"])).ordinal == 2


def test_inline_citations_of_text_beside_calls_count() -> None:
    step = {**calls(("t", "other", {})), "content": "by [c1]"}
    assert ids_of(settled(Q, *searched(ONE), step, returns("t", "x"), tables=(INLINE,))) == ["c1"]


def test_equal_questions_leave_equal_records() -> None:
    assert settled(*HALF) == settled(*HALF)


def test_settling_a_conversation_seen_half_way_costs_by_the_message() -> None:
    def work(n: int) -> Any:
        talk = [m for i in range(n) for m in [user("q"), *searched(f"[d{i}] x"), *cited([f"d{i}"]), says("a")]]
        return lambda: settled(*talk, user("r"))

    assert grows_gently(work, 100)


def test_what_is_cited_again_before_another_output_shows_it_moves_to_the_newest_group() -> None:
    """The output that comes later is kept beside it, since that may have been meant: both were cited here."""
    name = "550e8400-e29b-41d4-a716-446655440000"
    first = [
        user("q1"),
        calls(("e", "execute_code", {})),
        returns("e", f"printed {name}"),
        *cited([name], "Registered 1"),
    ]
    before = settled(*first, tables=(HAIKU,))
    later = [*cited([name], "Registered 1", "c2"), calls(("e2", "execute_code", {})), returns("e2", f"again {name}")]
    record = settled(*first, says("the answer"), user("q2"), *later, tables=(HAIKU,), before=before, from_reply=3)
    ((entry, places),) = [(one, len(one.places)) for one in record.cited]
    assert (before.cited[0].group, entry.group, places) == (1, 2, 2)
