"""What a cite call or an answer names, however it is written, and what a damaged id stands for. Section 3, "Citing"."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import pytest

from proxy.evidence import citing
from proxy.evidence.citing import NEAR_RANDOM, recovered
from tests.talk import INLINE, asked_next, calls, cited, grows_gently, ids_of, returns, searched, settled, user

UUIDS = [str(uuid.UUID(int=random.Random(seed).getrandbits(128), version=4)) for seed in range(4)]
CHUNKS = "[c1] one\n[c2] two\n[c3] three"


def random_uuid(source: random.Random) -> str:
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [('{"ids": ["c1", "c3"]}', ["c1", "c3"]), ('{"chunk_id": "c1"}', ["c1"]), ('{"ids": [1, 2.0]}', ["1", "2"]),
     ('{"ids": "[\\"c1\\", \\"c2\\"]"}', ["c1", "c2"]), ('{"citations": [{"id": "c1", "why": "x"}]}', ["c1"]),
     ('{"ids": ["c1", "c1"]}', ["c1"]), ('{"ids": []}', []), ("{}", []), ("", []), ('{"ids": null}', []),
     ('{"ids": ["", " "]}', []), ('{"ids": ["a\\u0000b"]}', ["a\x00b"]), ('{"ids": ["\\ud800"]}', ["\ud800"])],
)  # fmt: skip
def test_a_cite_calls_arguments_name_ids(arguments: str, ids: list[str]) -> None:
    assert list(citing.written(arguments).ids) == [one for one in ids if one.strip()]
    assert citing.written(arguments).nothing == (not ids)


@pytest.mark.parametrize(
    "arguments", ['{"ids": ["c1"', "nonsense", "[" * 100_000, '{"ids": ' + "1" * 5000 + "}", "\x00"]
)
def test_malformed_arguments_declare_nothing(arguments: str) -> None:
    assert not citing.written(arguments).clear and not citing.written(arguments).nothing


@pytest.mark.parametrize("ids", ["1" * 400, json.dumps("[" * 5000 + "]" * 5000)])
def test_no_argument_stops_the_reading(ids: str) -> None:
    assert citing.written(f'{{"ids": {ids}}}').ids


WRITTEN = ["c1", " c1 ", "'c1'", '"c1"', "`c1`", "c1,", ["c1"], "<c1>", "{c1}", "“c1”", "【c1】"]


@pytest.mark.parametrize("written", WRITTEN)
def test_an_id_is_known_in_brackets_quotes_and_spaces(written: Any) -> None:
    assert ids_of(settled(user("q"), *searched(CHUNKS), *cited(written))) == ["c1"]


@pytest.mark.parametrize("written", ["[c1]", ["[c1]", "[c2]"], "[c1]\n"])
def test_an_id_in_the_brackets_in_which_it_was_shown_is_that_chunk(written: Any) -> None:
    assert "c1" in ids_of(settled(user("q"), *searched(CHUNKS), *cited(written)))


def test_an_id_in_the_quotes_in_which_it_was_shown_is_that_chunk() -> None:
    assert ids_of(settled(user("q"), *searched('[{"id":"c1","text":"one"}]'), *cited(['"c1"']))) == ["c1"]


@pytest.mark.parametrize("written", ["c1, c3", "c1 c3", "[c1, c3]", "[c1][c3]", "c1;c3", '["c1","c3"]', ["c1", "c3"]])
def test_a_list_that_is_written_as_a_string_is_a_list(written: Any) -> None:
    assert ids_of(settled(user("q"), *searched(CHUNKS), *cited(written))) == ["c1", "c3"]


# Calls that name something in a way that is not known must not count as the declaration that nothing grounds an answer.

UNKNOWN = [
    '{"document": "c1"}',
    '{"passage": "c1"}',
    '{"evidence": "c1"}',
    '{"ids": {"c1": "why"}}',
    '{"used": "c1, c2"}',
]


@pytest.mark.parametrize("arguments", UNKNOWN)
def test_promise_3_a_cite_call_with_an_unknown_argument_does_not_declare_that_nothing_was_used(arguments: str) -> None:
    messages = [user("q"), *searched(CHUNKS), calls(("c", "cite", arguments)), returns("c", "ok")]
    assert asked_next(*messages)[1].shows("one")


def beside_a_good_one(arguments: str, answer: str) -> bool:
    """Whether the text of c2 is still sent, where c1 was cited well and c2 by another call."""
    pair = [calls(("a", "cite", {"ids": ["c1"]}), ("b", "cite", arguments)), returns("a", "ok"), returns("b", answer)]
    return asked_next(user("q"), *searched(CHUNKS), *pair)[1].shows("two")


@pytest.mark.parametrize("arguments", ['["c2"]', '{"ids": ["c2"', '"{\\"ids\\": [\\"c2\\"]}"', '{"passage": "c2"}'])
def test_promise_3_what_an_unreadable_cite_call_named_is_not_lost_beside_a_good_one(arguments: str) -> None:
    assert beside_a_good_one(arguments, "ok")


@pytest.mark.parametrize("answer", ['{"error": null, "cited": 1}', "Error-free: 1 cited", '{"error": false}'])
def test_promise_3_a_cite_call_that_went_well_counts_whatever_its_return_mentions(answer: str) -> None:
    assert beside_a_good_one('{"ids": ["c2"]}', answer)


# Damage.


def test_two_unrelated_uuids_are_never_near() -> None:
    source = random.Random(7)
    pairs = ((random_uuid(source), random_uuid(source)) for _ in range(100_000))
    assert not any(recovered(one, [other]) for one, other in pairs)


def test_the_measure_is_stated_and_its_threshold_lies_between_chance_and_damage() -> None:
    assert 0.5 < NEAR_RANDOM < 0.64


@pytest.mark.parametrize(
    "damage",
    [lambda u: u[:-1], lambda u: u[1:], lambda u: u[:-4], lambda u: u.upper(), lambda u: u.replace("-", ""),
     lambda u: u[:10] + "x" + u[11:], lambda u: u[:9] + u[10] + u[9] + u[11:], lambda u: u[:23]],
)  # fmt: skip
def test_a_damaged_uuid_is_recovered(damage: Any) -> None:
    source = random.Random(3)
    known = [random_uuid(source) for _ in range(50)]
    assert all(recovered(damage(one), known) == one for one in known)


def test_an_ambiguous_near_miss_is_refused() -> None:
    one = UUIDS[0]
    assert recovered(one[:-1] + "x", [one, one[:-1] + "9"]) is None


@pytest.mark.parametrize(
    ("written", "known"),
    [("2", "1"), ("c2", "c1"), ("manual-p4", "manual-p3"), ("annual-report-2024-page-13", "annual-report-2024-page-12"),
     ("report-1-section-11", "report-1-section-1"), ("doc_0000000000001", "doc_0000000000002")],
)  # fmt: skip
def test_a_numbered_id_never_recovers_to_its_neighbour(written: str, known: str) -> None:
    assert recovered(written, [known]) is None


@pytest.mark.parametrize(
    ("written", "known"),
    [("000000000000000000000002", "000000000000000000000001"),
     ("00000000-0000-0000-0000-000000000002", "00000000-0000-0000-0000-000000000001"),
     ("65f1a2b3c4d5e6f708091a2c", "65f1a2b3c4d5e6f708091a2b")],
)  # fmt: skip
def test_a_counted_id_never_recovers_to_its_neighbour_however_long_it_is(written: str, known: str) -> None:
    assert recovered(written, [known]) is None


def test_a_uuid_with_a_stray_space_inside_is_recovered() -> None:
    written = UUIDS[0][:24] + " " + UUIDS[0][24:]
    assert ids_of(settled(user("q"), *searched(f"[{UUIDS[0]}] one"), *cited([written]))) == [UUIDS[0]]


def test_promise_3_an_id_in_another_case_is_the_one_it_can_only_be() -> None:
    assert asked_next(user("q"), *searched(CHUNKS), *cited(["C1", "c2"]))[1].shows("one")


def test_recovering_costs_by_the_byte() -> None:
    assert grows_gently(lambda n: lambda: recovered("x" * n, UUIDS), 20_000)


# Inline.


@pytest.mark.parametrize(
    ("answer", "ids"),
    [("so [c1]", ["c1"]), ("so [c1, c3]", ["c1", "c3"]), ("so [c1][c2]", ["c1", "c2"]), ("so [ 'c1' ]", ["c1"]),
     ("so [[c2]]", ["c2"]), ("so 【c1】", ["c1"]), ("so [^c1]", ["c1"]), ("so [doc c1; doc c2]", ["c1", "c2"]),
     ("so c1", []), ("so [c9]", []), ("so []", [])],
)  # fmt: skip
def test_ids_in_brackets_of_an_answer_are_cited(answer: str, ids: list[str]) -> None:
    record = settled(user("q"), *searched(CHUNKS), answer=answer, tables=(INLINE,))
    assert sorted(ids_of(record)) == sorted(ids)


@pytest.mark.parametrize(
    "answer", ["[1] and 【2†source】", "[1] and [2: p. 4]x [3:1]", "[3] and [1-2]", "[1] and [id:2]"]
)
def test_promise_3_an_id_with_a_mark_at_it_is_not_lost(answer: str) -> None:
    messages = [user("q"), *searched("[1] one\n[2] two\n[3] three")]
    sent = asked_next(*messages, answer=answer, tables=(INLINE,))[1]
    assert all(sent.shows(word) for digit, word in zip("123", ("one", "two", "three"), strict=True) if digit in answer)


def test_promise_3_an_id_that_holds_brackets_is_not_lost() -> None:
    rows = json.dumps([{"id": "a[1]", "text": "one"}, {"id": "c2", "text": "two"}])
    assert asked_next(user("q"), *searched(rows), answer="so [a[1]] and [c2]", tables=(INLINE,))[1].shows("one")


def test_promise_3_an_inline_id_that_only_stands_in_a_return_keeps_it() -> None:
    rows = json.dumps([{"id": "c1", "text": "one"}, {"key": "c2", "lines": ["two"]}])
    assert asked_next(user("q"), *searched(rows), answer="so [c1] and [c2]", tables=(INLINE,))[1].shows("two")


@pytest.mark.parametrize("unit", ["[", "[a", "]", "【", "[a]", "[c1, "])
def test_reading_an_answer_costs_by_the_byte(unit: str) -> None:
    assert grows_gently(lambda n: lambda: citing.bracketed(unit * n), 8000)
