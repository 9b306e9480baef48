"""Layout `append`: each question's newest return carries what was cited there first, and keeps its bytes from then on.

Promises 1 to 4, 6, 7, 8 (whole, exact, once per content, under its id) and 10, and one of its own: from one question to
the next the forwarded body keeps its bytes up to the last question's first evidence return.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.costs import replay, tokens, traffic
from benchmarks.costs.prefixes import cut
from benchmarks.costs.replay import through_last_message
from proxy.compaction import append, wording
from proxy.evidence.tables import Table
from proxy.gateway.conversation import Asked, Conversations
from proxy.ledger import records
from proxy.ledger.records import Record
from proxy.ledger.transcript import read as read_transcript
from proxy.settings import Settings
from proxy.wire import chat
from proxy.wire.messages import Picture, splice
from tests.fake_store import FakeStore
from tests.house.provider import completion
from tests.talk import AUTO, HAIKU, Json, Sent, body, cited, returns, rewritten, says, searched, settled, user

PICTURE, OTHER = (f"data:image/png;base64,{letter * 4}" for letter in "AB")


@dataclass
class Talk:
    """A conversation that settles question by question, and what goes up at each one's first request."""

    tables: tuple[Table, ...] = (AUTO,)
    messages: list[Json] = field(default_factory=list)
    record: Record | None = None
    sent: list[Sent] = field(default_factory=list)
    asked: int = 0

    def question(self, *more: Json, answer: str = "so it is") -> Sent:
        """Ask, do this, answer; then what goes up when the next question is asked."""
        self.asked += 1
        from_reply = len(read_transcript(chat.cut(body(*self.messages))).replies) if self.messages else 0
        self.messages += [user(f"question {self.asked}"), *more]
        self.record = settled(
            *self.messages, answer=answer, before=self.record, from_reply=from_reply, tables=self.tables
        )
        self.messages.append(says(answer))
        self.sent.append(self.now())
        return self.sent[-1]

    def now(self, decodes: Callable[[Picture], bool] = lambda _: True) -> Sent:
        assert self.record is not None
        raw = body(*self.messages, user("next"))
        kept = records.decode(records.encode(self.record))  # as another process reads it
        assert kept is not None
        done = append.rewrite(read_transcript(chat.cut(raw)), kept, self.tables, decodes)
        return Sent(done, splice(raw, done.splices))


def found(**chunks: str) -> str:
    return "\n".join(f"[{chunk_id}] {content}" for chunk_id, content in chunks.items())


def pictured(*parts: str) -> list[Json]:
    """A content of texts and pictures."""
    return [
        {"type": "image_url", "image_url": {"url": part}}
        if part.startswith("data:")
        else {"type": "text", "text": part}
        for part in parts
    ]


def test_each_questions_newest_return_carries_what_it_cited_first_and_keeps_its_bytes() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="one", a2="two"), "s1"), *searched(found(a3="three"), "s2"), *cited(["a1", "a3"]))
    first = talk.sent[-1].returns
    assert first[0] == wording.RECEIPT
    assert first[1] == f"{wording.APPENDED}\n\n[a1]\none\n\n[a3]\nthree"
    talk.question(*searched(found(b1="more"), "s3"), *cited(["b1"], call_id="c2"))
    second = talk.sent[-1].returns
    assert second[:3] == first[:3]
    assert second[3] == f"{wording.APPENDED}\n\n[b1]\nmore"
    assert talk.sent[-1].done.capsule == 3 and talk.sent[-1].done.receipts == 1


def test_with_nothing_cited_there_are_only_receipts() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="one")), *cited([]))
    assert talk.sent[-1].returns == [wording.RECEIPT, "registered"]
    assert (talk.sent[-1].done.capsule, talk.sent[-1].done.receipts) == (0, 1)


def test_what_is_cited_again_with_the_same_content_is_named_and_not_repeated() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="the content")), *cited(["a1"]))
    talk.question(*searched(found(a1="the content", a9="new"), "s2"), *cited(["a1", "a9"], call_id="c2"))
    assert talk.sent[-1].returns[2] == f"{wording.APPENDED}\n\n[a9]\nnew\n\nStill above: [a1]"
    talk.question(*searched(found(z1="not it"), "s3"), *cited(["a1"], call_id="c3"))
    assert talk.sent[-1].returns[4] == f"{wording.RECEIPT}\n\nStill above: [a1]"
    assert talk.sent[-1].raw.count(b"the content") == 1


def test_what_is_cited_again_with_other_content_is_written_again() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="as it was")), *cited(["a1"]))
    talk.question(*searched(found(a1="as it is now"), "s2"), *cited(["a1"], call_id="c2"))
    assert talk.sent[-1].returns[0].endswith("[a1]\nas it was")
    assert talk.sent[-1].returns[2].endswith("[a1]\nas it is now")
    talk.question(*searched(found(a1="as it was"), "s3"), *cited(["a1"], call_id="c3"))
    assert talk.sent[-1].returns[4] == f"{wording.RECEIPT}\n\nStill above: [a1]"


def test_numbers_that_mean_a_chunk_only_with_its_content_are_not_named_again() -> None:
    talk = Talk()
    talk.question(*searched("[1] one\n[2] two"), *cited([1]))
    talk.question(*searched("[1] one\n[2] else", "s2"), *cited([1], call_id="c2"))
    assert talk.sent[-1].returns[2] == wording.RECEIPT
    talk.question(*searched("[1] other", "s3"), *cited([1], call_id="c3"))
    assert talk.sent[-1].returns[4].endswith("[1]\nother")


def test_a_question_without_a_return_of_its_own_adds_to_the_newest_carrier_behind_all_that_it_held() -> None:
    """Its content is in a return that was replaced before: the one rewrite that is allowed."""
    talk = Talk()
    talk.question(*searched(found(a1="one", a2="two", a3="three")), *cited(["a1"]))
    before = talk.sent[-1]
    talk.question(*cited(["a2"], call_id="c2"))
    assert talk.sent[-1].returns[0] == f"{before.returns[0]}\n\n{wording.ADDED_LATER}\n\n[a2]\ntwo"
    talk.question(*cited(["a1", "a2"], call_id="c3"))
    assert talk.sent[-1].returns[0] == talk.sent[-2].returns[0]  # nothing new, nothing rewritten
    talk.question(*cited(["a3"], call_id="c4"))
    assert talk.sent[-1].returns[0] == f"{talk.sent[-2].returns[0]}\n\n{wording.ADDED_LATER}\n\n[a3]\nthree"
    assert talk.sent[-1].done.capsule == 3 and talk.sent[-1].done.receipts == 0


def test_what_is_added_to_a_receipt_stands_behind_it() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="one")), *cited([]))
    talk.question(*cited(["a1"], call_id="c2"))
    assert talk.sent[-1].returns[0] == f"{wording.RECEIPT}\n\n{wording.ADDED_LATER}\n\n[a1]\none"


def test_promise_6_pictures_follow_the_chunks_and_what_is_added_later_follows_the_pictures() -> None:
    talk = Talk()
    parts = pictured("[a1] one", PICTURE, "[a2] two", OTHER)
    talk.question(*searched(parts), *cited(["a1"]))
    label = wording.label("a1", None, None)
    assert talk.sent[-1].returns[0] == pictured(f"{wording.APPENDED}\n\n[a1]\none", label, PICTURE)
    talk.question(*cited(["a2"], call_id="c2"))
    later = pictured(f"{wording.ADDED_LATER}\n\n[a2]\ntwo", wording.label("a2", None, None), OTHER)
    assert talk.sent[-1].returns[0] == [*talk.sent[-2].returns[0], *later]


def test_promise_6_a_picture_is_sent_once_and_a_new_one_of_a_known_chunk_comes_too() -> None:
    talk = Talk()
    talk.question(*searched(pictured("[a1] one", PICTURE)), *cited(["a1"]))
    talk.question(*searched(pictured("[a1] one", PICTURE, OTHER), "s2"), *cited(["a1"], call_id="c2"))
    text = f"{wording.RECEIPT}\n\nStill above: [a1]"
    assert talk.sent[-1].returns[2] == pictured(text, wording.label("a1", None, None), OTHER)
    nothing = talk.now(decodes=lambda _: False)
    assert nothing.returns[2] == pictured(text) and nothing.raw.count(b"data:") == 0


def test_promise_8_of_two_chunks_that_go_by_one_number_each_brings_its_own_picture() -> None:
    talk = Talk()
    talk.question(*searched("[1] one"), *cited([1]))
    talk.question(*searched("[1] else", "s2"), *searched(pictured("[1] one", PICTURE), "s3"), *cited([1], call_id="c2"))
    text = f"{wording.APPENDED}\n\n[1]\nelse"
    assert talk.sent[-1].returns[3] == pictured(text, wording.label("1", None, None), PICTURE)


def test_promise_3_a_kept_return_stays_and_shows_what_was_cited_of_it() -> None:
    """What it shows is not written again, then or later, though a later question finds it anew."""
    talk = Talk()
    kept = [*pictured("[a1] one"), {"type": "file", "file": {"file_id": "f"}}]
    talk.question(*searched(kept), *searched(found(a2="two"), "t"), *cited(["a1", "a2"]))
    assert talk.sent[-1].returns[0] == kept and talk.sent[-1].done.kept == 1
    assert talk.sent[-1].returns[1] == f"{wording.APPENDED}\n\n[a2]\ntwo"
    talk.question(*searched(found(a1="one"), "s2"), *cited(["a1"], call_id="c2"))
    assert talk.sent[-1].returns[3] == f"{wording.RECEIPT}\n\nStill above: [a1]"


def test_an_id_that_only_stands_in_a_return_that_was_replaced_brings_all_of_it_and_changes_nothing_above() -> None:
    """Layout `single` puts that return back; here what was written must keep its bytes."""
    talk = Talk()
    talk.question(*searched(found(a1="one; see also note-77 for more")), *cited(["a1"]))
    talk.question(*searched(found(b1="new"), "s2"), *cited(["note-77"], call_id="c2"))
    assert talk.sent[-1].returns[0] == talk.sent[-2].returns[0]
    assert "[a1] one; see also note-77 for more" in talk.sent[-1].returns[2]
    assert rewritten(*talk.messages, user("next"), record=talk.record).returns[0] == found(
        a1="one; see also note-77 for more"
    )


def test_promise_3_with_a_carrier_that_cannot_be_read_the_whole_question_stays() -> None:
    talk = Talk()
    talk.question(*searched(found(a1="one")), *searched(found(a2="two"), "t"), *cited(["a1", "a2"]))
    talk.question(*searched(found(b1="new"), "s2"), *cited(["b1"], call_id="c2"))
    assert talk.record is not None
    raw = body(*talk.messages, user("next")).replace(b"[a2] two", b"[a2] tw0")
    done = append.rewrite(read_transcript(chat.cut(raw)), talk.record, talk.tables, lambda _: True)
    sent = Sent(done, splice(raw, done.splices))
    assert sent.returns[:2] == [found(a1="one"), "[a2] tw0"] and done.kept == 2 and done.missing
    assert sent.returns[3] == f"{wording.APPENDED}\n\n[b1]\nnew"


def test_whether_collections_are_named_is_fixed_when_a_question_settles() -> None:
    def one(chunk_id: str, collection: str) -> str:
        return json.dumps([{"id": chunk_id, "text": f"of {chunk_id}", "collection": collection}])

    talk = Talk()
    talk.question(*searched(one("a1", "manuals")), *cited(["a1"]))
    talk.question(*searched(one("b1", "notes"), "s2"), *cited(["b1"], call_id="c2"))
    talk.question(*searched(one("d1", "notes"), "s3"), *cited(["d1"], call_id="c3"))
    texts = talk.sent[-1].returns
    assert "Collection" not in texts[0] and "Collection: notes" in texts[2] and "Collection: notes" in texts[4]


def test_one_output_that_several_ids_are_cited_out_of_is_written_once() -> None:
    first, second = (str(uuid.UUID(int=number + (1 << 120), version=4)) for number in (1, 2))
    output = f"{first} one\n{second} two"
    code = [*returnless("x1"), returns("x1", output)]
    talk = Talk(tables=(HAIKU,))
    talk.question(*code, *cited([first], "Registered 1 citation(s)."))
    assert talk.sent[-1].raw.count(b"two") == 1
    again = [*returnless("x2"), returns("x2", output)]
    talk.question(*again, *cited([first, second], "Registered 2 citation(s).", "c2"))
    assert talk.sent[-1].raw.count(b"two") == 1
    assert talk.sent[-1].returns[2].startswith(wording.RECEIPT)


def returnless(call_id: str) -> list[Json]:
    function = {"name": "execute_code", "arguments": "{}"}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }
    ]


def test_records_that_cannot_be_told_apart_are_united_and_lose_nothing() -> None:
    messages = [user("q"), *searched(found(a1="one", a2="two")), *searched(found(a3="three"), "t")]
    left = settled(*messages, *cited(["a1"]), answer="left")
    right = settled(*messages, *cited(["a2", "a3"]), answer="right")
    both = records.united([left, right])
    assert both is not None and both.writings == records.united([right, left, left]).writings  # type: ignore[union-attr]
    raw = body(*messages, *cited(["a1"]), says("?"), user("next"))
    done = append.rewrite(read_transcript(chat.cut(raw)), both, (AUTO,), lambda _: True)
    sent = Sent(done, splice(raw, done.splices))
    assert all(sent.shows(text) for text in ("one", "two", "three")) and len(both.writings) == 1


def test_a_record_without_what_append_writes_is_not_read() -> None:
    record = settled(user("q"), *searched(found(a1="one")), *cited(["a1"]))
    assert records.decode(records.encode(record)) == record and record.writings
    old = records.encode(record).replace(bytes([records.VERSION]), bytes([1]), 1)
    assert records.decode(old) is None


# Naming what stands above.


def named(chunk_id: str, *others: str) -> str | None:
    """How a chunk that was cited again is named, beside others that stand above."""
    talk = Talk()
    talk.question(*searched(found(**{c: f"of {c}" for c in (chunk_id, *others)})), *cited([chunk_id, *others]))
    talk.question(*searched(found(zz1="new"), "s2"), *cited([chunk_id], call_id="c2"))
    text = talk.sent[-1].returns[2]
    return text.rpartition("Still above: ")[2] if "Still above: " in text else None


def test_only_a_short_id_is_named_again() -> None:
    assert named("2381e911-5841-5dcc-a6c1-4bb4924c459d") is None
    assert named("handbook-3", "handbook-4") == "[handbook-3]"


def test_naming_costs_at_most_12_tokens_for_each_chunk() -> None:
    dice = random.Random(12)
    ids = [f"{word}-{number}" for word in ("doc", "handbook", "chunk", "manual-p") for number in range(0, 5000, 97)]
    ids += ["".join(dice.choices("abcdefghkmnpqrstuvwxyz0123456789", k=n)) for n in range(1, 8) for _ in range(50)]
    named_again = [chunk_id for chunk_id in ids if append._tokens(chunk_id) <= append._MOST_TOKENS]
    assert len(named_again) > 500
    for name in named_again:
        one = len(tokens.encode("so it is.\n\n" + wording.still_above([name]))) - len(tokens.encode("so it is."))
        more = len(tokens.encode(wording.still_above([name, name]))) - len(tokens.encode(wording.still_above([name])))
        assert one <= 12 and more <= 12, (name, one, more)
    assert len(tokens.encode(wording.APPENDED)) <= 40 and len(tokens.encode(wording.ADDED_LATER)) <= 40


async def test_an_id_that_is_cited_by_its_beginning_is_the_chunk() -> None:
    talk = Talk()
    long = "2381e911-5841-5dcc-a6c1-4bb4924c459d"
    talk.question(*searched(found(**{long: "the content"})), *cited([long]))
    talk.question(*searched(found(b1="new"), "s2"), *cited(["2381e9…"], call_id="c2"))
    assert talk.record is not None and talk.record.declaration == "grounded"


# Cache hints.

HINT = {"type": "ephemeral"}


@pytest.mark.parametrize("layout", ["single", "append"])
def test_cache_hints_stay_on_the_messages_that_carry_them(layout: str) -> None:
    parts = pictured("[a1] one", PICTURE)
    parts[1]["cache_control"] = {**HINT, "ttl": "1h"}
    on_message = [*searched(found(b1="two"), "t")]
    on_message[1]["cache_control"] = HINT
    messages = [user("q"), *searched(parts), *on_message, *cited(["a1", "b1"])]
    top = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "cache_control": HINT}
    raw = body(*messages, says("a"), user("next"), **top)
    record = settled(*messages)
    from proxy.compaction import rewrite

    write = append.rewrite if layout == "append" else rewrite.rewrite
    done = write(read_transcript(chat.cut(raw)), record, (AUTO,), lambda _: True)
    sent = json.loads(splice(raw, done.splices))
    assert {name: sent[name] for name in top} == top
    receipt, carrier = (
        message for message in sent["messages"] if message["role"] == "tool" and message["tool_call_id"] != "c"
    )
    assert receipt["content"] == [{"type": "text", "text": wording.RECEIPT, "cache_control": {**HINT, "ttl": "1h"}}]
    assert carrier["cache_control"] == HINT
    # Providers refuse more than a few: a picture that moves brings no second one along.
    assert all("cache_control" not in part for part in carrier["content"])
    assert carrier["content"][-1] == {"type": "image_url", "image_url": {"url": PICTURE}}


# Through the gateway's own decisions.


def settings(layout: str) -> Settings:
    table = {"name": "kb", "format": "haiku", "tools": ["search", "execute_code"]}
    return Settings.model_validate(
        {"store": {"uri": "memory://"}, "compaction": {"layout": layout}, "evidence": [table]}
    )


async def through(
    conversations: Conversations, steps: tuple[traffic.Step, ...], settle: bool = True
) -> list[tuple[str, bytes]]:
    told = []
    for step in steps:
        exchange = await conversations.ask(Asked(step.body, "k"))
        told.append((exchange.header, exchange.body))
        exchange.feed(json.dumps(step.reply).encode())
        await exchange.ended(settle)
    return told


def firsts(steps: tuple[traffic.Step, ...]) -> list[int]:
    return [at for at, step in enumerate(steps) if at == 0 or steps[at - 1].question != step.question]


def first_evidence(body: bytes, question: int) -> bytes:
    """A body up to a question's first evidence return."""
    head, messages, _ = cut(body)
    opened = False
    for at, raw in enumerate(messages):
        message: dict[str, Any] = json.loads(raw)
        opened = opened or (message["role"] == "user" and str(message["content"]).startswith(f"Question {question}:"))
        if opened and message["role"] == "tool":
            return head + b",".join(messages[:at])
    return head + b",".join(messages)


SIXTY = traffic.Shape(questions=60, calls=2, results=4, characters=250, pictures=1, cites=3, again=0.4, answer=80)


@pytest.mark.parametrize("format", ["haiku", "auto"])
async def test_promise_7_sixty_questions_replayed_on_a_fresh_replica_are_the_same_bytes(format: str) -> None:
    """And its own promise: each question's first request begins with what the one before it sent, up to the last
    question's first evidence return."""
    conversation = traffic.generated(traffic.Shape(**{**SIXTY.__dict__, "format": format}), 60)
    chosen = replay.settings(conversation, "append")
    store = FakeStore()
    told = await through(Conversations(chosen, store), conversation.steps)  # type: ignore[arg-type]
    starts = firsts(conversation.steps)
    assert len(starts) == 60 and all(header.startswith("compacted") for header, _ in told[starts[1] :])
    for number, (before, at) in enumerate(pairwise(starts[1:]), 2):
        kept = first_evidence(told[at - 1][1], number)
        assert told[at][1].startswith(kept) and told[before][1].startswith(
            kept[: len(through_last_message(told[before][1]))]
        )
    replica = Conversations(chosen, store.elsewhere())  # type: ignore[arg-type]
    for at in (starts[-1], starts[30], starts[7], len(told) - 1):
        assert (await through(replica, (conversation.steps[at],), settle=False))[0] == told[at]


async def test_a_store_serves_either_layout_and_switching_between_runs_is_safe() -> None:
    conversation = traffic.generated(
        traffic.Shape(questions=8, calls=2, results=3, characters=200, cites=2, again=0.4), 5
    )
    alone = {}
    for layout in ("single", "append"):
        alone[layout] = await through(Conversations(settings(layout), FakeStore()), conversation.steps)  # type: ignore[arg-type]
    store = FakeStore()
    starts = firsts(conversation.steps)
    for number, at in enumerate(starts):
        layout = ("single", "append")[number % 2]
        end = starts[number + 1] if number + 1 < len(starts) else len(conversation.steps)
        run = Conversations(settings(layout), store.elsewhere())  # type: ignore[arg-type]
        run._store = store  # type: ignore[assignment]
        assert await through(run, conversation.steps[at:end]) == alone[layout][at:end]


async def test_promise_7_only_the_first_and_last_request_of_a_question_need_deciding_to_know_the_others() -> None:
    """What lets the benchmark be quick is this promise; here every request is decided."""
    conversation = traffic.generated(
        traffic.Shape(questions=6, calls=4, results=3, characters=300, pictures=2, cites=3), 8
    )
    for way in ("single", "append"):
        assert await replay.forwarded(conversation, way, every=True) == await replay.forwarded(conversation, way)


async def test_promise_2_the_reply_is_not_needed_to_know_the_current_question() -> None:
    raw = body(user("q"), *searched(found(a1="one")))
    exchange = await Conversations(settings("append"), FakeStore()).ask(Asked(raw, "k"))  # type: ignore[arg-type]
    exchange.feed(json.dumps(completion("a")).encode())
    await exchange.ended(True)
    assert exchange.body is raw
