"""What goes instead: one capsule, receipts, labels, to the byte and within its budget. Promises 1, 4, 5, 7 and 8."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.costs import tokens as vocabulary
from proxy.compaction import wording
from proxy.ledger.records import decode, encode
from tests.talk import AUTO, HAIKU, asked_next, body, calls, cited, returns, rewritten, says, searched, settled, user

Q = user("q")
ONE = "[c1] one\n[c2] two"


def test_promise_5_the_newest_return_carries_and_the_others_are_receipts() -> None:
    _, sent = asked_next(Q, *searched(ONE), *searched("[c3] three", "t"), *cited(["c1"]))
    assert sent.returns[0] == wording.RECEIPT and "one" in sent.returns[1] and "three" not in sent.returns[1]


def test_promise_5_with_nothing_cited_there_are_only_receipts() -> None:
    assert asked_next(Q, *searched(ONE), *cited([]))[1].returns == [wording.RECEIPT, "registered"]


def test_promise_2_what_comes_after_the_question_is_untouched() -> None:
    messages = [Q, *searched(ONE), *cited(["c1"])]
    more = [says("a"), user("r"), *searched(ONE, "t")]
    assert rewritten(*messages, *more, record=settled(*messages)).raw.endswith(body(*more)[len(body()) - 2 :])


def test_promise_7_within_a_question_what_goes_up_only_grows() -> None:
    messages = [Q, *searched(ONE), *cited(["c1"])]
    record, head = settled(*messages), [*messages, says("a"), user("r")]
    first = rewritten(*head, record=record).raw
    assert rewritten(*head, *searched(ONE, "t"), record=decode(encode(record)) or record).raw.startswith(first[:-2])


def test_promise_8_newest_group_first_and_in_a_group_by_first_appearance() -> None:
    first = [Q, *searched("[b] B\n[a] A"), *cited(["a", "b"])]
    second = [*first, says("a"), user("r"), *searched("[d] D\n[c] C", "t"), *cited(["c", "d"])]
    record = settled(*second, before=settled(*first), from_reply=3)
    text = rewritten(*second, says("b"), user("s"), record=record).returns[2]
    assert [text.index(f"[{name}]") for name in "dcba"] == sorted(text.index(f"[{name}]") for name in "abcd")


def test_promise_8_content_is_whole_and_exact() -> None:
    content = "  leading\n\n---\n[Group 1]\n" + wording.HEADER + "\t\x00\ud800 end  "
    _, sent = asked_next(Q, *searched(json.dumps([{"id": "c1", "text": content}])), *cited(["c1"]))
    assert content in sent.returns[0]


def test_collections_are_named_where_entries_span_more_than_one() -> None:
    found = json.dumps([{"id": "a", "text": "x", "collection": "kb1"}, {"id": "b", "text": "y", "collection": "kb2"}])
    assert "Collection: kb1" in asked_next(Q, *searched(found), *cited(["a", "b"]))[1].returns[0]
    assert "Collection" not in asked_next(Q, *searched(found), *cited(["a"]))[1].returns[0]


def test_promise_8_one_output_that_two_ids_were_cited_out_of_is_shown_once() -> None:
    one, two = "1" * 24, "2" * 24
    printed = [calls(("x", "execute_code", {})), returns("x", f"{one} and {two}")]
    _, sent = asked_next(Q, *printed, *cited([one, two]), tables=(HAIKU,))
    assert sent.returns[0].count(" and ") == 1 and sent.done.capsule == 2


def test_promise_3_a_cited_chunk_that_cannot_be_read_any_more_stays_while_the_rest_is_compacted() -> None:
    messages = [Q, *searched(ONE), *searched("[c3] three", "t"), *cited(["c1", "c3"])]
    changed = [Q, *searched("[c1] changed"), *messages[3:], says("a"), user("r")]
    sent = rewritten(*changed, record=settled(*messages))
    assert (
        sent.returns[0] == "[c1] changed" and "three" in sent.returns[1] and sent.done.missing and sent.done.kept == 1
    )


def test_promise_3_a_kept_return_is_not_shown_twice() -> None:
    found = '[{"id":"c1","text":"one"},{"key":"k9"}]'
    _, sent = asked_next(Q, *searched(found), *cited(["c1", "k9"]))
    assert sent.raw == body(*sent.messages) and sent.raw.count(b"one") == 1


def test_promise_4_pairs_stay_pairs_and_nothing_moves() -> None:
    both = [calls(("1", "search", {}), ("2", "other", {}), ("3", "search", {}))]
    came = [Q, *both, returns("3", "[c3] x"), returns("2", "kept"), returns("1", ONE), *cited(["c1"])]
    _, sent = asked_next(*came)
    assert [m.get("tool_call_id") for m in sent.messages[: len(came)]] == [m.get("tool_call_id") for m in came]
    assert sent.returns[1] == "kept" and "one" in sent.returns[2]


@pytest.mark.parametrize("content", [ONE, [{"type": "text", "text": ONE}]])
def test_a_string_stays_a_string_and_parts_stay_parts(content: Any) -> None:
    assert type(asked_next(Q, *searched(content), *cited(["c1"]))[1].returns[0]) is type(content)


def test_the_cache_hint_of_a_return_is_kept_on_its_receipt() -> None:
    part = {"type": "text", "text": ONE, "cache_control": {"type": "ephemeral"}}
    assert asked_next(Q, *searched([part]), *cited([]))[1].returns[0][0]["cache_control"] == {"type": "ephemeral"}


# The budget, by the vocabulary of o200k_base.


def tokens() -> Callable[[str], int]:
    return lambda text: len(vocabulary.encode(text))


def test_a_receipt_costs_at_most_25_tokens() -> None:
    assert tokens()(wording.RECEIPT) <= 25


UUID = "550e8400-e29b-41d4-a716-446655440000"


@pytest.mark.parametrize("chunk_id", ["c1", "1", UUID, "docs/manual.pdf#page=3"])
@pytest.mark.parametrize("collections", [1, 2])
@pytest.mark.parametrize(("groups", "each"), [(1, 1), (1, 10), (8, 1), (12, 5)])
def test_the_capsules_frame_keeps_to_its_budget(chunk_id: str, collections: int, groups: int, each: int) -> None:
    content, source, collection = (
        "Water boils at 100 degrees.",
        '"Manual" > Safety',
        ("kb" if collections > 1 else None),
    )
    entry = wording.entry([chunk_id], source, collection, content, None)
    pieces = [wording.HEADER]
    for group in range(1, groups + 1):
        pieces += [wording.group(group), *[entry] * each]
    count, own = tokens(), sum(map(tokens(), (chunk_id, source, content, collection or "")))
    assert count("\n\n".join(pieces)) - groups * each * own <= 40 + 8 * groups + 12 * groups * each


def test_tables_are_not_needed_for_receipts() -> None:
    messages = [Q, *searched(ONE), *cited([])]
    assert rewritten(*messages, says("a"), user("r"), record=settled(*messages), tables=(AUTO,)).done.receipts == 1
