"""Where the current question begins, and on which record that rests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import structs

from proxy.evidence.tables import Tables
from proxy.ledger import records
from proxy.ledger.questions import Habits, Opening, opening_after, openings
from proxy.ledger.records import Record
from proxy.ledger.settling import cited_without_record
from proxy.ledger.transcript import Transcript


class Boundary(msgspec.Struct, frozen=True):
    """The current question begins after the reply `reply` (-1: at the start of the transcript).

    `record` is what it rests on; None where no record fits. `untouched` says why the question's requests go up as they
    came all the same: what the record needs could not be had for the first of them.
    """

    reply: int = -1
    record: Record | None = None
    untouched: str | None = None


#: What this process gave a request with exactly this transcript: looked up by `Transcript.shown` digests.
Given = Callable[[bytes], Boundary | None]
#: The records under a key (of a conversation's digest).
Known = Callable[[bytes], Sequence[Record]]


def may_hold(opening: Opening, question_id: str | None) -> bool:
    """Whether a record could stand behind this opening: one that continues its question opens another only where the
    host says so."""
    return question_id is not None or not opening.continues


def find(
    transcript: Transcript,
    habits: Habits,
    known: Known,
    given: Given,
    question_id: str | None = None,
    tables: Tables = (),
    settled: Callable[[bytes], bool] = lambda _: False,
) -> Boundary:
    """The newest opening behind which a record fits, unless an earlier request of the same question was given another.

    What was given to a request with exactly this transcript stands, and so does what the same question was given when
    it ended in fewer user messages. Else, going back reply by reply: a record that fits here begins a question that
    no earlier request was part of; else, if this process answered the request that this reply replied to, its boundary
    holds for the whole question. But where that reply `settled` its question, the record of it is gone: the question is
    over, and what it cited counts.
    """
    for shown in (transcript.shown, *reversed(transcript.shown_before)):
        same = given(shown)
        if same is not None:
            return same
    answered = False  # by a later opening, which no record fits
    gone = False  # it had one
    for index in range(len(transcript.replies) - 1, -1, -1):
        step = transcript.replies[index]
        opening = opening_after(transcript, index, habits)
        if opening is not None and may_hold(opening, question_id):
            fits = [record for record in known(step.key) if may_end(record, opening, question_id)]
            said = bool(step.text or step.calls)
            record = records.fitting(fits, step.digest, step.shown, said, called=bool(step.calls))
            if record is not None:
                if answered:
                    record = heeding_later(transcript, record, index, tables, habits)
                return Boundary(index, record)
            answered = answered or not opening.continues
            gone = gone or settled(step.shown)
        earlier = given(step.shown)
        if earlier is not None and earlier.reply < index:
            if gone and earlier.record is not None:
                heeding = heeding_later(transcript, earlier.record, earlier.reply, tables, habits)
                return structs.replace(earlier, record=heeding)
            return earlier
    return Boundary()


def heeding_later(transcript: Transcript, record: Record, reply: int, tables: Tables, habits: Habits) -> Record:
    """The record of a question that ended with `reply`, but for what later answers cited that have no record."""
    return records.keeping(record, cited_without_record(transcript, record, reply + 1, tables, habits))


def newest(transcript: Transcript, habits: Habits, question_id: str | None = None) -> Opening | None:
    """The newest opening behind which a record could stand."""
    return next((one for one in openings(transcript, habits) if may_hold(one, question_id)), None)


def in_question(transcript: Transcript, opening: Opening, given: Given) -> bool:
    """Whether an earlier request of the question that began there was given a boundary, which then holds."""
    later = transcript.replies[opening.reply + 1 :]
    return any(
        given(shown) is not None for shown in (transcript.shown, *transcript.shown_before, *(s.shown for s in later))
    )


def may_end(record: Record, opening: Opening, question_id: str | None) -> bool:
    """Whether the question of a record may have ended before this opening, by what the host says of its questions."""
    if question_id is not None and record.question_id is not None:
        return question_id != record.question_id
    return not opening.continues
