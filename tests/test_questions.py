"""Where questions begin: openings, corrections, the boundary, and which record fits. Promises 2, 3 and 7."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.ledger import boundary, records
from proxy.ledger.boundary import Boundary
from proxy.ledger.questions import follows_answer, opening_after, stretches
from proxy.ledger.records import Record
from proxy.settings import Settings
from proxy.store import StoredRecord, StoreSlow
from proxy.wire.messages import Call
from tests.talk import (
    HABITS,
    INLINE,
    asked_next,
    body,
    calls,
    cited,
    returns,
    rewritten,
    says,
    searched,
    settled,
    transcript,
    user,
)

CHUNKS = "[c1] one\n[c2] two"
FIRST = [user("q"), *searched(CHUNKS), *cited(["c1"])]
SECOND = [*FIRST, says("a"), user("r")]


def opens(*messages: dict[str, Any]) -> bool:
    read = transcript(*messages)
    return opening_after(read, len(read.replies) - 1, HABITS) is not None


FINAL = calls(("f", "final_result", {"x": 1}))


def test_a_user_message_after_an_answer_opens_a_question() -> None:
    assert opens(user("q"), says("a"), user("r"))


@pytest.mark.parametrize(
    "after",
    [[says("a")], [FINAL, user("r")], [*searched("x"), user("r")], [FINAL, user("r"), returns("f", "ok")],
     [says("a"), {"role": "system", "content": "n"}], [calls(("t", "x", {})), user("r")]],
)  # fmt: skip
def test_promise_3_anything_else_opens_none(after: list[dict[str, Any]]) -> None:
    assert not opens(user("q"), *after)


def test_an_output_tools_call_with_its_return_ends_a_question() -> None:
    assert opens(user("q"), FINAL, returns("f", "ok"), user("r"))


@pytest.mark.parametrize(
    "text",
    ["Validation feedback:\nno", "1 validation error:\n", "12 validation errors", " Validation feedback: x",
     "Please cite. [haiku.rag/citation-redirect]"],
)  # fmt: skip
def test_a_correction_continues_the_question(text: str) -> None:
    assert HABITS.continues(transcript(user(text)).users[0])


@pytest.mark.parametrize("text", ["What about Validation feedback:", "validation error", "one validation error", ""])
def test_other_words_do_not(text: str) -> None:
    assert not HABITS.continues(transcript(user(text)).users[0])


def test_a_conversation_is_cut_where_questions_begin() -> None:
    cut = stretches(transcript(*SECOND, *searched("x", "t")), 0, HABITS)
    assert [(part.first_reply, part.end_reply, part.answered) for part in cut] == [(0, 3, True), (3, 4, False)]


def test_evidence_before_an_answered_message_should_have_a_record() -> None:
    assert set(follows_answer(transcript(*SECOND, *searched("x", "t")), HABITS)) == {0, 1}


def find(*messages: dict[str, Any], known: list[Record], given: Any = None, question_id: str | None = None) -> Boundary:
    """The boundary where these records stand under the key of every reply."""
    return boundary.find(transcript(*messages), HABITS, lambda _: known, given or (lambda _: None), question_id)


RECORD = settled(*FIRST, answer="a")


def test_promise_2_the_current_question_begins_after_the_newest_answer() -> None:
    assert find(*SECOND, *searched("x", "t"), known=[RECORD]) == Boundary(2, RECORD)


def test_promise_3_a_record_behind_a_tool_call_does_not_fit() -> None:
    assert find(*FIRST, *searched("x", "t"), known=[RECORD]) == Boundary()


def test_promise_3_a_record_before_a_correction_does_not_fit() -> None:
    assert find(*FIRST, says("a"), user("Validation feedback: no"), known=[RECORD]) == Boundary()


def test_promise_7_a_process_keeps_the_boundary_of_a_questions_first_request() -> None:
    first = transcript(*SECOND)
    given = {first.shown: Boundary()}.get
    assert find(*SECOND, *searched("x", "t"), known=[RECORD], given=given) == Boundary()


@pytest.mark.parametrize(("now", "fits"), [("A", False), ("B", True), (None, True)])
def test_requests_with_one_question_id_are_one_question(now: str | None, fits: bool) -> None:
    record = msgspec.structs.replace(RECORD, question_id="A")
    assert (find(*SECOND, known=[record], question_id=now).record is not None) is fits


def test_another_question_id_opens_a_question_even_with_a_correction() -> None:
    record = msgspec.structs.replace(RECORD, question_id="A")
    assert find(*FIRST, says("a"), user("Validation feedback: no"), known=[record], question_id="B").record == record


# Which of several records.


def regenerated(*answers: str, shown: str | None) -> tuple[Record | None, list[Record]]:
    messages = [user("q"), *searched(CHUNKS)]
    all_of = [settled(*messages, answer=answer, tables=(INLINE,)) for answer in answers]
    step = transcript(*messages, says(shown), user("r")).replies[-1]
    return records.fitting(all_of, step.digest, step.shown, bool(step.text)), all_of


@pytest.mark.parametrize("shown", ["so [c1]", "so [c2]"])
def test_the_record_whose_reply_is_shown_is_taken(shown: str) -> None:
    fits, _ = regenerated("so [c1]", "so [c2]", shown=shown)
    assert fits is not None and [entry.id for entry in fits.cited] == [shown[4:6]]


def test_promise_3_where_no_reply_is_shown_their_citations_are_united() -> None:
    fits, _ = regenerated("so [c1]", "so [c2]", shown=None)
    assert fits is not None and {entry.id for entry in fits.cited} == {"c1", "c2"}


def test_promise_3_citations_read_out_of_another_text_do_not_fit() -> None:
    assert regenerated("so [c1]", shown="so, edited")[0] is None


def test_promise_3_united_records_replace_only_what_all_of_them_replace() -> None:
    kept = msgspec.structs.replace(RECORD, replaced=(), kept=(0,), reply=b"x" * 16)
    united = records.united([RECORD, kept])
    assert united is not None and (united.replaced, united.kept) == ((), (0,))


def test_promise_7_the_order_in_which_records_are_found_does_not_matter() -> None:
    fits, all_of = regenerated("so [c1]", "so [c2]", "so [c1] [c2]", shown=None)
    assert records.fitting(all_of[::-1], b"", b"", False) == fits


def test_a_damaged_record_is_none() -> None:
    raw = records.encode(RECORD)
    assert records.decode(raw) == RECORD and records.decode(raw[:-1]) is None and records.decode(b"") is None


# Through a whole exchange.


class Store:
    """A store that a test can make slow."""

    def __init__(self) -> None:
        self.rows: dict[bytes, list[bytes]] = {}
        self.slow = False

    async def find(self, keys: list[bytes], **_: object) -> dict[bytes, tuple[bytes, ...]]:
        if self.slow:
            raise StoreSlow
        return self.cached(keys)

    def cached(self, keys: list[bytes], **_: object) -> dict[bytes, tuple[bytes, ...]]:
        return {} if self.slow else {key: tuple(self.rows[key]) for key in keys if key in self.rows}

    def add(self, record: StoredRecord) -> None:
        self.rows.setdefault(record.key, []).append(record.payload)


class Proxy:
    def __init__(self, store: Store | None = None, cite: str = "cite", **sections: Any) -> None:
        table = {"format": "auto", "name": "kb", "tools": ["search"], "cite": cite}
        self.store = store or Store()
        self._told: Any = Conversations(Settings.model_validate({"evidence": [table], **sections}), self.store)  # type: ignore[arg-type]

    async def ask(self, *messages: dict[str, Any], answer: str | None = None, **more: Any) -> Exchange:
        exchange: Exchange = await self._told.ask(Asked(body(*messages), "tenant", **more))
        if answer is not None:
            exchange.feed(body(choices=[{"index": 0, "message": {"content": answer}, "finish_reason": "stop"}]))
            await exchange.ended(True)
        return exchange


async def test_promise_7_a_slow_store_changes_nothing_inside_a_question() -> None:
    proxy = Proxy()
    await proxy.ask(*FIRST, answer="a")
    proxy.store.slow = True
    assert (await proxy.ask(*SECOND)).header == "untouched; reason=store-slow"
    proxy.store.slow = False
    assert (await proxy.ask(*SECOND, *searched("x", "t"))).header.startswith("untouched")


async def test_promise_7_a_side_request_does_not_change_a_questions_boundary() -> None:
    proxy = Proxy()
    await proxy.ask(*FIRST, answer="a")
    proxy.store.slow = True
    assert (await proxy.ask(*SECOND)).header == "untouched; reason=store-slow"
    proxy.store.slow = False
    await proxy.ask(*SECOND)  # a guard, a title, a retry
    assert (await proxy.ask(*SECOND, *searched("x", "t"))).header.startswith("untouched")


async def test_strict_refuses_where_the_store_is_slow_although_the_question_was_settled_here() -> None:
    proxy = Proxy(compaction={"strict": True})
    await proxy.ask(*FIRST, answer="a")
    proxy.store.slow = True
    assert (await proxy.ask(*SECOND)).refusal is not None


async def test_strict_does_not_refuse_a_question_that_it_saw_break_off() -> None:
    proxy = Proxy(compaction={"strict": True})
    await (await proxy.ask(*FIRST)).ended(False)
    assert (await proxy.ask(*SECOND)).refusal is None


async def test_strict_refuses_a_conversation_that_it_never_saw() -> None:
    refusal = (await Proxy(compaction={"strict": True}).ask(*SECOND)).refusal
    assert refusal is not None and refusal.status == 422 and ("x-should-retry", "false") in refusal.headers


async def test_strict_does_not_refuse_what_the_host_says_is_one_question() -> None:
    store = Store()
    first, other = Proxy(store, compaction={"strict": True}), Proxy(store, compaction={"strict": True})
    await first.ask(*FIRST, answer="a", question_id="A")
    assert (await other.ask(*SECOND, question_id="A")).refusal is None


LATER = [user("q"), *searched(CHUNKS), says("so [c1]"), user("r")]


async def test_promise_3_an_inline_citation_of_what_an_earlier_question_retrieved_is_not_lost() -> None:
    store = Store()
    watching = Proxy(store, "inline", compaction={"mode": "observe"})  # the model sees both chunks all the time
    await watching.ask(*LATER[:3], answer="so [c1]")
    await watching.ask(*LATER, answer="but [c2]")
    assert b"two" in (await Proxy(store, "inline").ask(*LATER, says("but [c2]"), user("s"))).body


def test_promise_3_an_inline_citation_in_a_question_without_a_record_is_not_lost() -> None:
    first = settled(*LATER[:3], answer="so [c1]", tables=(INLINE,))
    third = [*LATER, says("but [c2]"), user("s"), *searched("[c3] three", "t")]
    record = settled(*third, answer="[c3]", tables=(INLINE,), before=first, from_reply=2)
    assert rewritten(*third, says("[c3]"), user("t"), record=record, tables=(INLINE,)).shows("two")


async def test_promise_9_another_tenants_record_does_not_fit() -> None:
    proxy = Proxy()
    await proxy.ask(*FIRST, answer="a")
    theirs = await proxy._told.ask(Asked(body(*SECOND), "another"))
    nobodys = await proxy._told.ask(Asked(body(*SECOND), None))
    assert theirs.header == nobodys.header == "untouched; reason=no-record"


async def test_promise_3_a_side_request_that_got_an_answer_does_not_end_the_live_question() -> None:
    proxy = Proxy()
    await proxy.ask(*FIRST, answer="search again")  # a router
    live = await proxy.ask(*FIRST, *searched("[c3] three", "t"))
    assert live.body is not None and live.header == "untouched; reason=nothing-earlier"


def test_promise_5_an_output_tool_settles_its_question() -> None:
    _, sent = asked_next(*FIRST, answer="", made=(Call("f", "final_result", "{}"),))
    assert sent.done.capsule == 1
