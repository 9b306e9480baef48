"""Citations that no history shows: made with the proxy's own tool, noted, and united when the question settles."""

from __future__ import annotations

import json

import pytest

from proxy.evidence.tables import Table
from proxy.ledger import boundary, notes, records, settling
from proxy.ledger.notes import Noted
from proxy.wire.messages import Call
from tests.talk import (
    HABITS,
    MANAGED,
    asked_next,
    calls,
    ids_of,
    returns,
    rewritten,
    says,
    searched,
    settled,
    transcript,
    user,
)
from tests.test_settling import fate

Q = user("q")
ONE = "[c1] one\n[c2] two"
TWO = "[c3] three\n[c4] four"
NAMELESS = "Nothing here says what it is called."
TABLES = (MANAGED,)


def test_a_noted_citation_grounds_its_question_and_the_rest_goes() -> None:
    record, sent = asked_next(Q, *searched(ONE), tables=TABLES, noted=(Noted(1, ("c2",)),))
    assert (fate(record), ids_of(record)) == (("grounded", (0,), ()), ["c2"])
    assert sent.shows("two") and not sent.shows("one")


def test_a_noted_nothing_is_a_declaration_and_takes_nothing_back() -> None:
    assert settled(Q, *searched(ONE), tables=TABLES, noted=(Noted(1, nothing=True),)).declaration == "ungrounded"
    record = settled(Q, *searched(ONE), tables=TABLES, noted=(Noted(1, ("c1",)), Noted(1, nothing=True)))
    assert (record.declaration, ids_of(record)) == ("grounded", ["c1"])


def test_promise_3_newer_evidence_starts_afresh_and_what_was_noted_before_stays_retained() -> None:
    record = settled(Q, *searched(ONE), *searched(TWO, "t"), tables=TABLES, noted=(Noted(1, ("c1",)),))
    assert (record.declaration, ids_of(record), record.kept) == ("missing", ["c1"], (0, 1))
    again = settled(Q, *searched(ONE), *searched(TWO, "t"), tables=TABLES, noted=(Noted(1, ("c1",)), Noted(2, ("c3",))))
    assert (again.declaration, ids_of(again), again.kept) == ("grounded", ["c1", "c3"], ())


def test_promise_3_a_note_beside_its_search_does_not_declare_but_retains() -> None:
    record = settled(Q, *searched(ONE), *searched(TWO, "t"), tables=TABLES, noted=(Noted(1, ("c2", "c3")),))
    assert (record.declaration, ids_of(record)) == ("missing", ["c2", "c3"])


def test_promise_3_without_a_note_nothing_was_declared() -> None:
    """A client's tool of whatever name, and brackets in the answer, are no citations here."""
    made = [calls(("c", "cite_evidence", {"ids": ["c1"]})), returns("c", "ok")]
    record = settled(Q, *searched(ONE), *made, answer="So it is [c1].", tables=TABLES)
    assert (fate(record), ids_of(record)) == (("missing", (), (0,)), [])


def test_promise_3_what_was_refused_counts_only_if_nothing_came_in_its_stead() -> None:
    found = json.dumps([{"id": "7", "text": t, "collection": c} for t, c in (("first", "A"), ("second", "B"))])
    table = Table("kb", "auto", frozenset({"search"}), "managed", ids="global")
    both = settled(Q, *searched(found), tables=(table,), noted=(Noted(1, refused=("7",)),))
    assert (both.declaration, [(e.id, e.collection) for e in both.cited]) == ("missing", [("7", "A"), ("7", "B")])
    other = json.dumps([*json.loads(found), {"id": "8", "text": "third", "collection": "A"}])
    one = settled(Q, *searched(other), tables=(table,), noted=(Noted(1, refused=("7",)), Noted(1, ("8",))))
    assert (one.declaration, ids_of(one)) == ("grounded", ["8"])


# Returns that show no id.


def test_a_return_that_shows_no_id_is_cited_by_its_tool_and_ordinal_and_retained_whole() -> None:
    record, sent = asked_next(
        Q, *searched(NAMELESS), *searched("Another one.", "t"), tables=TABLES, noted=(Noted(2, ("search 2",)),)
    )
    assert (fate(record), ids_of(record)) == (("grounded", (0, 1), ()), ["search 2"])
    assert sent.shows("Another one.") and sent.shows("[search 2]") and not sent.shows(NAMELESS)


def test_promise_3_a_return_that_shows_no_id_stays_where_nothing_was_declared() -> None:
    assert fate(settled(Q, *searched(NAMELESS), tables=TABLES)) == ("missing", (), (0,))


@pytest.mark.parametrize("written", ["search 2", "Search 2", "search_2", "search #2", "[search 2]", "search result 2"])
def test_a_return_is_found_by_its_name_however_it_is_spelled(written: str) -> None:
    record = settled(Q, *searched("One."), *searched("Two.", "t"), tables=TABLES, noted=(Noted(2, (written,)),))
    assert [(entry.id, entry.places[0].ret) for entry in record.cited] == [("search 2", 1)]


def test_promise_8_the_name_of_a_return_that_shows_ids_stands_for_all_its_chunks() -> None:
    record = settled(Q, *searched(ONE), *searched(TWO, "t"), tables=TABLES, noted=(Noted(2, ("search 2",)),))
    assert ids_of(record) == ["c3", "c4"]


def test_a_name_counts_the_returns_of_the_whole_conversation_and_is_known_again_later() -> None:
    first = [Q, *searched("One."), says("a"), user("next")]
    record = settled(Q, *searched("One."), answer="a", tables=TABLES, noted=(Noted(1, ("search 1",)),))
    later = settled(
        *first,
        *searched("Two.", "t"),
        before=record,
        from_reply=2,
        tables=TABLES,
        noted=(Noted(3, ("search 1", "search 2")),),
    )
    assert [(entry.id, entry.group) for entry in later.cited] == [("search 1", 2), ("search 2", 2)]
    sent = rewritten(*first, *searched("Two.", "t"), says("b"), user("third"), record=later, tables=TABLES)
    assert sent.shows("One.") and sent.shows("Two.")


def test_an_id_that_looks_like_a_name_is_an_id_first() -> None:
    found = json.dumps([{"id": "search 1", "text": "its own"}, {"id": "x", "text": "other"}])
    assert ids_of(settled(Q, *searched(found), tables=TABLES, noted=(Noted(1, ("search 1",)),))) == ["search 1"]


# What was never recorded.


def test_promise_3_what_was_answered_before_the_first_record_stays_for_good() -> None:
    before = [Q, *searched(ONE), says("As [c1] says."), user("next")]
    record = settled(*before, *searched(TWO, "t"), tables=TABLES, noted=(Noted(3, ("c3",)),))
    assert fate(record) == ("grounded", (1,), (0,))
    after = [*before, *searched(TWO, "t"), says("the answer"), user("third")]
    later = settled(*after, tables=TABLES, before=record, from_reply=4)
    assert 0 in later.kept


# Addresses.


def test_a_note_is_found_where_the_same_reply_stands_again_whatever_was_said_beside_it() -> None:
    """Clients edit what the assistant said, and replay arguments in another spelling."""
    found = (Call("x", "search", '{"q": 1.0}'),)
    asked = transcript(Q, *searched(ONE))
    later = transcript(
        Q, *searched(ONE), says("edited") | {"tool_calls": calls(("x", "search", '{"q":1}'))["tool_calls"]}
    )
    assert notes.address(asked.key, found) == notes.address_of(later.replies[1])
    other = transcript(Q, *searched(ONE), calls(("x", "search", '{"q":2}')))
    assert notes.address(asked.key, found) != notes.address_of(other.replies[1])


def test_a_note_is_no_record_and_a_record_no_note() -> None:
    noted = [Noted(3, ("c1",)), Noted(3, nothing=True), Noted(3, refused=("7",))]
    payload = notes.encode(noted)
    assert notes.decode(payload, 3) == noted and records.decode(payload) is None
    record = records.encode(settled(Q, *searched(ONE), tables=TABLES))
    assert notes.decode(record, 3) == [] and not notes.is_note(record)
    assert notes.decode(payload[:-1], 3) == []


# What an id means before it is taken.


def test_what_can_be_cited_says_what_an_id_means() -> None:
    shown = transcript(Q, *searched(ONE), *searched(NAMELESS, "t"))
    found = settling.citable(shown, None, boundary.Boundary().reply + 1, TABLES, HABITS)
    assert [one.id for one in found.resolve("c1")] == ["c1"]
    assert [one.id for one in found.resolve("search 2")] == ["search 2"]
    assert found.resolve("c9") == [] and found.nameless == ("search 2",)
