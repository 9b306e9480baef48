"""Where a question's record stands in a history that its host trimmed or rewrote: found by the question's returns.

Only for conversations that the host names (Evidence-Conversation). A return is told by its call id and its content;
what users said does not count, and where two questions could own one return, it stays what it is: doubt never removes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence

import msgspec

from proxy.evidence.chunks import digest_text
from proxy.evidence.pictures import digest_of
from proxy.evidence.tables import Tables
from proxy.ledger import reading, records, settling
from proxy.ledger.boundary import Boundary, heeding_later, may_end, may_hold
from proxy.ledger.questions import Habits, Stretch, openings, stretches
from proxy.ledger.records import ASIDE, Cited, PicturePlace, Place, Record, Stand, Writing
from proxy.ledger.transcript import Return, Transcript, content_digest
from proxy.wire.messages import Part, Text

#: What tells one return from another.
_Mark = tuple[bytes, bytes]


def own_returns(transcript: Transcript, from_reply: int) -> list[int]:
    """The ordinals of the returns of the question that begins at a reply."""
    return [found.ordinal for step in transcript.replies[from_reply:] for found in step.returns]


def found_by_returns(record: Record, transcript: Transcript, from_reply: int) -> Record:
    """The record with the marks of its transcript's returns, so that it is found again by those of its question."""
    own = own_returns(transcript, from_reply)
    stands = tuple(Stand(*_mark(found), found.ordinal) for found in transcript.returns)
    return msgspec.structs.replace(record, stands=stands, own_from=min(own, default=len(stands)))


def restored(
    transcript: Transcript, from_reply: int, as_shown: Callable[[bytes], tuple[Part, ...] | None]
) -> tuple[Transcript, frozenset[int]]:
    """The transcript with those returns of its current question as the model was shown them that the host rewrote since
    then, and their ordinals. `as_shown` knows contents by `call_mark`."""
    own = own_returns(transcript, from_reply)
    calls = Counter(call_mark(transcript.returns[ordinal]) for ordinal in own)
    told: dict[int, Return] = {}
    for ordinal in own:
        found = transcript.returns[ordinal]
        parts = as_shown(call_mark(found)) if calls[call_mark(found)] == 1 else None
        if parts is not None and parts != found.message.parts:
            plain = len(parts) == 1 and isinstance(parts[0], Text)
            message = msgspec.structs.replace(found.message, parts=parts, plain=plain)
            told[ordinal] = Return(ordinal, message, found.call)
    if not told:
        return transcript, frozenset()
    replies = [
        msgspec.structs.replace(step, returns=[told.get(found.ordinal, found) for found in step.returns])
        for step in transcript.replies
    ]
    returns = [told.get(found.ordinal, found) for found in transcript.returns]
    return msgspec.structs.replace(transcript, replies=replies, returns=returns), frozenset(told)


def off_the_wire(record: Record, ordinals: Container[int]) -> Record:
    """The record of what was cited out of these returns, whose content is on the wire no more: it was kept aside."""

    def entry(cited: Cited) -> Cited:
        places = (msgspec.structs.replace(p, ret=ASIDE) if p.ret in ordinals else p for p in cited.places)
        pictures = (
            msgspec.structs.replace(p, ordinal=ASIDE, nth=0) if not p.in_user and p.ordinal in ordinals else p
            for p in cited.pictures
        )
        return msgspec.structs.replace(cited, places=tuple(places), pictures=tuple(pictures))

    return msgspec.structs.replace(
        record,
        cited=tuple(map(entry, record.cited)),
        writings=tuple(
            msgspec.structs.replace(w, chunks=tuple(map(entry, w.chunks)), again=tuple(map(entry, w.again)))
            for w in record.writings
        ),
    )


def find(
    transcript: Transcript,
    habits: Habits,
    known: Sequence[Record],
    tables: Tables,
    question_id: str | None = None,
    newer_than: int = -1,
) -> Boundary | None:
    """The newest opening behind which one of these records stands, with that record told in this transcript's terms.

    `known` are a conversation's records; only openings after the reply `newer_than` are looked at. None where no record
    stands, or where nobody can tell which.
    """
    told = [record for record in known if len(record.stands) > record.own_from]
    if not told:
        return None
    marks = [_mark(found) for found in transcript.returns]
    spans = {part.end_reply - 1: part for part in stretches(transcript, 0, habits) if part.answered}
    answered = False  # by a later opening, behind which nothing stands
    for opening in openings(transcript, habits):
        if opening.reply <= newer_than:
            return None
        part = spans.get(opening.reply)
        fits = (
            _standing_in(transcript, part, marks, told) if part is not None and may_hold(opening, question_id) else []
        )
        step = transcript.replies[opening.reply]
        fits = [record for record in fits if may_end(record, opening, question_id)]
        said = bool(step.text or step.calls)
        record = records.fitting(fits, step.digest, step.shown, said, called=bool(step.calls))
        if record is not None:
            last = max(found.ordinal for s in transcript.replies[: opening.reply + 1] for found in s.returns)
            rebased = _Rebased(transcript, record, marks, last, tables, habits).record()
            if answered:
                rebased = heeding_later(transcript, rebased, opening.reply, tables, habits)
            return Boundary(opening.reply, rebased)
        answered = answered or not opening.continues
    return None


def _standing_in(
    transcript: Transcript, part: Stretch, marks: list[_Mark], known: Sequence[Record]
) -> Sequence[Record]:
    """The records of the one question whose returns stand in a stretch; none where there is no such question."""
    # What the reply that ended it called for came after its record was written.
    shown = [marks[found.ordinal] for step in part.replies(transcript)[:-1] for found in step.returns]
    return _question_of(shown, known) or ()


def call_mark(found: Return) -> bytes:
    """What tells the call of a return from another."""
    call = hashlib.sha256(b"call" + (found.message.call_id or "").encode("utf-8", "surrogatepass"))
    return call.digest()[:8]


def _mark(found: Return) -> _Mark:
    return call_mark(found), content_digest(found.message)[:16]


def _own(record: Record) -> tuple[_Mark, ...]:
    return tuple((stand.call, stand.content) for stand in record.stands if stand.ordinal >= record.own_from)


def _question_of(shown: list[_Mark], known: Sequence[Record]) -> list[Record] | None:
    """The records of the one question whose returns these are, as far as they stand there still.

    Records of one question (it was answered twice) have the same returns, and follow the same record. A return that no
    record knows says that the question went on after it was recorded; one of a known call, that its content was
    rewritten. What two questions could own says nothing.
    """
    questions: dict[tuple[int, bytes | None, tuple[_Mark, ...]], list[Record]] = {}
    for record in known:
        questions.setdefault((record.ordinal, record.before, _own(record)), []).append(record)
    owners: dict[_Mark, set[tuple[int, bytes | None, tuple[_Mark, ...]]]] = {}
    for question in questions:
        for mark in question[2]:
            owners.setdefault(mark, set()).add(question)
    surely = {next(iter(own)) for mark in shown if len(own := owners.get(mark, set())) == 1}
    if len(surely) != 1:
        return None
    question = surely.pop()
    calls = {call for call, _ in question[2]}
    if any(mark not in owners and mark[0] not in calls for mark in shown):
        return None
    if any(mark in owners and question not in owners[mark] for mark in shown):
        return None
    return questions[question]


class _Rebased:
    """A record told in the terms of another transcript than the one that it was written for."""

    def __init__(
        self,
        transcript: Transcript,
        record: Record,
        marks: list[_Mark],
        last: int,
        tables: Tables,
        habits: Habits,
    ) -> None:
        self._transcript = transcript
        self._old = record
        self._last = last
        self._tables = tables
        self._habits = habits
        here = Counter(marks[: last + 1])
        there = Counter((stand.call, stand.content) for stand in record.stands)
        at = {mark: ordinal for ordinal, mark in enumerate(marks[: last + 1])}
        #: Where each return stands now: only what is there once, and was there once, is told for sure.
        self._now = {
            stand.ordinal: at[mark]
            for stand in record.stands
            if here[mark := (stand.call, stand.content)] == 1 and there[mark] == 1
        }
        #: Where its content stands, whoever's it is: one that nobody can tell apart stays, and shows what it shows.
        self._shown = {
            stand.ordinal: at[mark] for stand in record.stands if (mark := (stand.call, stand.content)) in at
        }
        self._pictures = self._picture_places()
        self._staying: dict[tuple[str, str, bytes], Place] | None = None

    def record(self) -> Record:
        old = self._old
        replaced, kept = self._replaced(), self._kept()
        return msgspec.structs.replace(
            old,
            cited=tuple(map(self._entry, old.cited)),
            replaced=tuple(sorted(replaced)),
            kept=tuple(sorted(kept)),
            attachments=settling.attachments_up_to(self._transcript, self._last, self._tables, self._habits),
            writings=self._writings(),
            stands=(),
            own_from=0,
        )

    def _replaced(self) -> set[int]:
        return {self._now[ordinal] for ordinal in self._old.replaced if ordinal in self._now}

    def _kept(self) -> set[int]:
        """The evidence before the boundary that this record does not account for: it stays."""
        returns = self._transcript.returns[: self._last + 1]
        evidence = {found.ordinal for found in returns if reading.evidence_table(found, self._tables) is not None}
        return evidence - self._replaced()

    def _entry(self, entry: Cited) -> Cited:
        return msgspec.structs.replace(
            entry,
            first=self._first(entry.first),
            places=tuple(self._place(entry, place) for place in entry.places),
            pictures=tuple(dict.fromkeys(map(self._picture, entry.pictures))),
        )

    def _first(self, first: tuple[int, int]) -> tuple[int, int]:
        """What is off the wire appeared before everything that is on it, in the order in which it did."""
        ordinal, index = first
        if ordinal in self._shown:
            return self._shown[ordinal], index
        return ordinal - len(self._old.stands) - 1, index

    def _place(self, entry: Cited, place: Place) -> Place:
        now = self._shown.get(place.ret)
        if now is not None:
            return msgspec.structs.replace(place, ret=now)
        # A host may also show again what it had taken away: then it stands there, and not in the capsule as well.
        if self._staying is None:
            self._staying = dict(self._content_that_stays())
        chunk_id = entry.id if place.chunk >= 0 else ""
        return self._staying.get((entry.table, chunk_id, place.digest), msgspec.structs.replace(place, ret=ASIDE))

    def _content_that_stays(self) -> Iterator[tuple[tuple[str, str, bytes], Place]]:
        for ordinal in sorted(self._kept()):
            read = reading.read(self._transcript.returns[ordinal], self._tables)
            for at, chunk in enumerate(read.evidence.chunks if read is not None else ()):
                assert read is not None
                yield (read.table.name, chunk.id, chunk.digest), Place(ordinal, at, chunk.digest)
            if read is not None and read.evidence.whole:
                digest = digest_text(read.evidence.text)
                yield (read.table.name, "", digest), Place(ordinal, -1, digest)

    def _picture_places(self) -> dict[tuple[bytes, str | None], PicturePlace]:
        """The pictures of user messages before the boundary, by digest: those that stand there once."""
        found: dict[bytes, list[PicturePlace]] = {}
        for ordinal, message in enumerate(self._transcript.users):
            for nth, picture in enumerate(message.pictures()):
                digest = digest_of(picture)
                found.setdefault(digest, []).append(PicturePlace(True, ordinal, nth, digest))
        return {(digest, None): places[0] for digest, places in found.items() if len(places) == 1}

    def _picture(self, place: PicturePlace) -> PicturePlace:
        now = None
        if place.ordinal >= 0 and place.in_user:
            now = self._pictures.get((place.digest, None))
        elif place.ordinal in self._shown:
            now = msgspec.structs.replace(place, ordinal=self._shown[place.ordinal])
        if now is None:
            return msgspec.structs.replace(place, ordinal=ASIDE, nth=0)
        return msgspec.structs.replace(now, reference=place.reference)

    def _writings(self) -> tuple[Writing, ...]:
        """What each question wrote. Where all that a question replaced is off the wire, the next one writes for it."""
        written: list[Writing] = []
        chunks: list[Cited] = []
        again: list[Cited] = []
        collections = False
        for old in self._old.writings:
            replaced = tuple(sorted(self._now[ordinal] for ordinal in old.replaced if ordinal in self._now))
            chunks += map(self._entry, old.chunks)
            again += map(self._entry, old.again)
            collections = collections or old.collections
            if replaced or (old.carrier is None and written):
                own = [self._transcript.returns[ordinal] for ordinal in replaced]
                carrier = max(own, key=lambda found: found.message.index).ordinal if own else None
                written.append(Writing(replaced, carrier, tuple(chunks), tuple(again), collections))
                chunks, again = [], []
        if chunks or again:
            written.append(Writing((), None, tuple(chunks), tuple(again), collections))
        return tuple(written)
