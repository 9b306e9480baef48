"""What a question declared: derived from what the transcript shows, whoever asks, and one decision for all sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.evidence.tables import Table
from proxy.ledger.settling import Standing, standing, surely_declared
from proxy.wire.messages import Reply
from tests.talk import AUTO, HABITS, HAIKU, INLINE, cited, returns, says, searched, transcript, user
from tests.talk import calls as called

OTHER = Table("web", "auto", frozenset({"browse"}), "ref")

FOUND = json.dumps([{"id": "c1", "text": "One."}, {"id": "c2", "text": "Two."}])


def stands(*messages: Any, answer: str = "So.", tables: tuple[Table, ...] = (AUTO,)) -> Standing:
    shown = transcript(*messages)
    reply = Reply(text=answer, finish="stop")
    assert not surely_declared(shown, None, 0, tables, HABITS) or not shown.returns, "nothing was read yet"
    found = standing(shown, reply, previous=None, from_reply=0, tables=tables, habits=HABITS)
    at_once = surely_declared(shown, None, 0, tables, HABITS)
    assert not at_once or found.declaration != "missing"
    called = tables[0].cite != "inline" and found.declaration != "missing"
    assert at_once or not called, "it could be told at once"
    return found


def test_a_question_that_found_something_and_says_nothing_of_it_is_missing_its_declaration() -> None:
    found = stands(user("q"), *searched(FOUND))
    assert found == Standing("missing", retrieved=True, cited=False, ways=("cite",))


def test_ids_that_were_shown_ground_it() -> None:
    assert stands(user("q"), *searched(FOUND), *cited(["c1"])).declaration == "grounded"


def test_an_empty_cite_call_says_that_nothing_does() -> None:
    assert stands(user("q"), *searched(FOUND), *cited([])).declaration == "ungrounded"


def test_ids_that_stand_nowhere_say_nothing() -> None:
    assert stands(user("q"), *searched(FOUND), *cited(["c9"])).declaration == "missing"


def test_citing_again_merges_and_an_empty_second_thought_does_not_narrow() -> None:
    assert stands(user("q"), *searched(FOUND), *cited(["c1"]), *cited([], call_id="d")).declaration == "grounded"
    assert stands(user("q"), *searched(FOUND), *cited([]), *cited(["c1"], call_id="d")).declaration == "grounded"


def test_newer_evidence_starts_afresh() -> None:
    again = searched(FOUND, call_id="t")
    assert stands(user("q"), *searched(FOUND), *cited(["c1"]), *again).declaration == "missing"
    assert stands(user("q"), *searched(FOUND), *cited(["c1"]), *again, *cited([], call_id="d")).declaration == (
        "ungrounded"
    )


def test_a_citation_in_the_same_reply_as_a_search_does_not_count_for_it() -> None:
    both = called(("s", "search", {"q": "s"}), ("c", "cite", {"ids": ["c1"]}))
    found = stands(user("q"), both, returns("s", FOUND), returns("c", "registered"))
    assert found.declaration == "missing"


@pytest.mark.parametrize(
    "content",
    [
        '{"error": "Search limit reached. Answer with what you have."}',
        "Error: no connection",
        "x\n\nFix the errors and try again.",
    ],
)
def test_what_only_failed_retrieved_nothing_and_makes_no_citation_stale(content: str) -> None:
    failed = searched(content, call_id="t")
    assert not stands(user("q"), *failed).retrieved
    assert stands(user("q"), *searched(FOUND), *cited(["c1"]), *failed).declaration == "grounded"


@pytest.mark.parametrize("content", ["No results found.", "[]", '{"results": []}', ""])
def test_an_empty_result_is_evidence_too(content: str) -> None:
    assert stands(user("q"), *searched(content)).retrieved


@pytest.mark.parametrize(
    ("error", "counts"), [("boom\n\nOutput: 1\n", True), ("boom", False), ("boom\n\nOutput: \n", False)]
)
def test_a_program_that_failed_counts_if_it_had_printed(error: str, counts: bool) -> None:
    ran = [called(("p", "execute_code", {"code": "1"})), returns("p", json.dumps({"error": error}))]
    assert stands(user("q"), *ran, tables=(HAIKU,)).retrieved is counts


def test_several_sources_make_one_decision() -> None:
    browsed = [called(("b", "browse", {"q": "b"})), returns("b", json.dumps([{"id": "w1", "text": "Web."}]))]
    referred = [called(("r", "ref", {"ids": ["w1"]})), returns("r", "registered")]
    asked = [user("q"), *searched(FOUND), *cited(["c1"])]
    both = (AUTO, OTHER)
    assert stands(*asked, *browsed, tables=both) == Standing("missing", True, True, ("ref", "cite"))
    assert stands(*asked, *browsed, *referred, tables=both).declaration == "grounded"
    assert stands(*asked, tables=both).declaration == "grounded"


def test_a_greeting_before_anything_was_cited_owes_nothing_and_one_after_it_does() -> None:
    assert stands(user("hello")) == Standing("missing", retrieved=False, cited=False)
    before = [user("q"), *searched(FOUND), *cited(["c1"]), says("So."), user("thanks")]
    assert stands(*before) == Standing("missing", retrieved=False, cited=True, ways=("cite",))


def test_evidence_of_the_question_before_is_not_this_ones() -> None:
    assert not stands(user("q"), *searched(FOUND), says("So."), user("r")).retrieved


def test_ids_in_brackets_ground_an_answer_that_is_cited_inline() -> None:
    asked = [user("q"), *searched(FOUND)]
    assert stands(*asked, answer="One [c1].", tables=(INLINE,)).declaration == "grounded"
    assert stands(*asked, answer="One [c9].", tables=(INLINE,)).declaration == "missing"
