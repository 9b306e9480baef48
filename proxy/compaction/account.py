"""The account of a decision: what became of each message of a request, and why, for whoever wants to look at it.

Nothing here decides anything. The fates are read off what was decided (the record, the rewrite and its splices), so
that the account cannot say something else than the bytes that went up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from proxy.compaction.capsule import Capsule
from proxy.compaction.outcome import Compacted, Outcome, Reason, Untouched
from proxy.compaction.replacing import Rewrite
from proxy.evidence import returns
from proxy.evidence.tables import Table
from proxy.ledger.boundary import Boundary
from proxy.ledger.questions import Habits, question_ends
from proxy.ledger.records import Declaration, Record
from proxy.ledger.transcript import Return, Transcript, read
from proxy.wire.messages import Api, Message, NotJson, Part, Role, Span, Splice


class Fate(StrEnum):
    """What became of a message."""

    SAME = "same"
    CURRENT = "current"
    RECEIPT = "receipt"
    CARRIER = "carrier"
    KEPT = "kept"
    CUT = "cut"
    REMOVED = "removed"
    ADDED = "added"


class Why(StrEnum):
    """Why it did. `WORDS` says each in a sentence."""

    NO_EVIDENCE = "no-evidence"
    NOT_OURS = "not-ours"
    ASKS_AGAIN = "asks-again"
    CITES = "cites"
    NO_CITE = "no-cite"
    CURRENT = "current"
    REPLACED = "replaced"
    MOVED = "moved"
    CARRIES = "carries"
    UNRECORDED = "unrecorded"
    UNDECIDED = "undecided"
    UNDECLARED = "undeclared"
    CITED_AS_TEXT = "cited-as-text"
    NO_IDS = "no-ids"
    UNREADABLE = "unreadable"
    UNREAD = "unread"
    NO_LONGER_OURS = "no-longer-ours"
    ITS_PICTURES = "its-pictures"
    PICTURES_AGAIN = "pictures-again"


WORDS: dict[Why, str] = {
    Why.NO_EVIDENCE: "no tool's return: never changed",
    Why.NOT_OURS: "no table names this tool, and no tag of this proxy stands in it: never changed",
    Why.CITES: "the cite tool's own return: never changed",
    Why.ASKS_AGAIN: "asks the model to try again: no return of a tool",
    Why.NO_CITE: "its table has no `cite`, so nobody can say what was needed of it: never changed",
    Why.CURRENT: "belongs to the current question, which is never changed",
    Why.REPLACED: "an earlier question retrieved it, and no answer rests on it",
    Why.MOVED: "an earlier question retrieved it; what was cited of it stands in a capsule now",
    Why.CARRIES: "the newest earlier evidence that goes: it holds the capsule",
    Why.UNRECORDED: "no record accounts for it, so it stays",
    Why.UNDECIDED: "earlier evidence, in a request that goes up as it came",
    Why.UNDECLARED: "its question never said what it rests on, and its table keeps such evidence (undeclared)",
    Why.CITED_AS_TEXT: "an id that was cited stands in it and names no chunk, or what was cited was not clear: all of "
    "it stays",
    Why.NO_IDS: "it shows the model no id that could be cited, so it stays",
    Why.UNREADABLE: "it does not hold to its table's format, so it stays",
    Why.UNREAD: "what was cited of it could not be read back, so it stays",
    Why.NO_LONGER_OURS: "it was evidence when its question settled and is none by today's tables or keys, so it stays",
    Why.ITS_PICTURES: "held pictures of evidence that goes",
    Why.PICTURES_AGAIN: "the pictures of what was cited, each behind its label",
}


#: Why a request went up untouched, in a sentence.
REASONS: dict[Reason, str] = {
    Reason.OFF: "compaction is off, by configuration or by this request's own header",
    Reason.NOT_JSON: "the body is no JSON of the expected shape; the provider's own error is the right answer",
    Reason.SERVER_SIDE_HISTORY: "the provider keeps the conversation's history, so none of it is in the request",
    Reason.BACKGROUND: "the reply is to be fetched later, so nothing of it goes by here",
    Reason.NO_EVIDENCE: "no tool's return in it is evidence by any table or tag",
    Reason.NO_CITATIONS: "its evidence has no way of being cited, so nobody can say what was needed of it",
    Reason.STORE_SLOW: "the records could not be read in time",
    Reason.STORE_ERROR: "the records could not be read",
    Reason.NO_RECORD: "it holds evidence of answered questions, and no record fits the conversation as it was sent",
    Reason.NOTHING_EARLIER: "all of its evidence belongs to the current question",
    Reason.MISSING_CONTENT: "something that was cited cannot be read back, and so nothing could be replaced",
    Reason.OBSERVE: "the mode observes: the figures and fates are what would have been",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A chunk in a capsule: its ids, its source, and the message that it was read from."""

    ids: tuple[str, ...]
    source: str | None
    collection: str | None
    message: int


@dataclass(frozen=True, slots=True)
class Group:
    """What a capsule holds for one question (by its ordinal in the records)."""

    question: int
    chunks: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One message (or item) of a request, as it came and as it went.

    `span` is where it stood in the body that came, None for one that was added; `went` are its bytes as they went, None
    where those are the ones that came, and empty where it was taken out. `index` counts the messages that came; one
    that was added has the index of the one it stands behind. `question` counts from 1.
    """

    index: int
    role: Role
    span: Span | None
    went: bytes | None
    fate: Fate
    why: Why
    question: int
    tool: str | None = None
    table: str | None = None
    shows: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    pictures: int = 0
    opens: bool = False

    @property
    def before(self) -> int:
        """Its bytes as it came."""
        return self.span.end - self.span.start if self.span is not None else 0

    @property
    def after(self) -> int:
        """Its bytes as it went."""
        return self.before if self.went is None else len(self.went)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a return shows the model: the ids of its chunks, whether any of it could be cited, and whether it holds to
    its table's format."""

    ids: tuple[str, ...]
    citable: bool
    readable: bool


def look(found: Return, table: Table) -> Shown:
    """Read an evidence return. The same return shows the same in every request of its conversation."""
    read = returns.read(table, found.tool or "", found.message.parts)
    return Shown(tuple(dict.fromkeys(chunk.id for chunk in read.chunks)), read.shows_ids(), read.readable)


Look = Callable[[Return, Table], Shown]


@dataclass(frozen=True, slots=True)
class Account:
    """All lines, in the order in which they went. `current` is the index of the message that opens the current
    question (None: the request has no user message there); `beside` are the bytes that were added outside of the
    messages."""

    lines: tuple[Line, ...]
    current: int | None
    beside: int = 0

    @property
    def capsule_bytes(self) -> int:
        """How many bytes the messages take that hold capsules or their pictures."""
        return sum(line.after for line in self.lines if line.fate in (Fate.CARRIER, Fate.ADDED))


def account(
    transcript: Transcript,
    evidence: Mapping[int, Table],
    habits: Habits,
    boundary: Boundary,
    outcome: Outcome,
    undeclared: Iterable[int] = (),
    look: Look = look,
    went: int | None = None,
) -> Account:
    """What became of each message of a request that was decided so.

    `evidence` are the tables of its evidence returns, by ordinal. Under `observe` the fates are those that would have
    been. `undeclared` are the ordinals of questions that are known to have
    declared nothing. `look` may remember what returns show.
    `went` is how many bytes went up: more than the splices account for where a tool was offered beside the messages.
    """
    if transcript.request.history is not None:
        # What the provider keeps was put before it, and stands in no body of this request's.
        transcript, evidence = read(transcript.request.api.cut(transcript.request.body)), {}
    told = _Telling(transcript, evidence, habits, boundary, outcome, frozenset(undeclared), look).tell()
    if went is None:
        return told
    done = outcome.done.splices if outcome.done is not None and changes(outcome) else ()
    spliced = len(transcript.request.body) + sum(len(s.data) - (s.end - s.start) for s in done)
    return replace(told, beside=went - spliced)


def changes(outcome: Outcome) -> bool:
    """Whether an outcome's splices were applied, or would have been."""
    return isinstance(outcome, Compacted) or outcome.reason is Reason.OBSERVE


@dataclass(frozen=True, slots=True)
class Asking:
    """One question of a conversation: its ordinal, the message that opens it (None: not in this request), what its
    record says that its answer rests on, and the evidence returns (by message) between its opening and its end.

    `declaration` is None where no record of it is known: it is the current one, or nobody saw it settle.
    """

    question: int
    message: int | None
    declaration: Declaration | None
    cited: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()


def asking(
    transcript: Transcript,
    evidence: Mapping[int, Table],
    habits: Habits,
    boundary: Boundary,
    chain: Iterable[Record] = (),
) -> tuple[Asking, ...]:
    """The questions that a transcript shows, oldest first. `chain` are the records that are known of them.

    What an earlier question cited is told by the newest record alone, but for what was cited again later.
    """
    numbers = _Numbers(transcript, habits, boundary.record, boundary.reply)
    known = {record.ordinal: record for record in chain}
    if boundary.record is not None:
        known.setdefault(boundary.record.ordinal, boundary.record)
    cited: dict[int, list[str]] = {}
    for record in known.values():
        for entry in record.cited:
            if entry.group == record.ordinal or entry.group not in known:
                cited.setdefault(entry.group, []).append(entry.id)
    found: dict[int, list[int]] = {}
    for ret in transcript.returns:
        if ret.ordinal in evidence:
            found.setdefault(numbers.of(ret.message), []).append(ret.message.index)
    opens = {
        numbers.of(message): message.index for message in reversed(transcript.users) if message.index in numbers.opens
    }
    return tuple(
        Asking(
            question=number,
            message=opens.get(number),
            declaration=known[number].declaration if number in known else None,
            cited=tuple(dict.fromkeys(cited.get(number, ()))),
            evidence=tuple(found.get(number, ())),
        )
        for number in sorted({*opens, *found, *cited})
    )


class _Telling:
    def __init__(
        self,
        transcript: Transcript,
        evidence: Mapping[int, Table],
        habits: Habits,
        boundary: Boundary,
        outcome: Outcome,
        undeclared: frozenset[int],
        look: Look,
    ) -> None:
        self.look = look
        self.transcript = transcript
        self.evidence = evidence
        self.record = boundary.record
        known = self.record
        self.accounted = frozenset((*known.replaced, *known.kept)) if known is not None else frozenset()
        self.boundary = boundary
        self.reason = outcome.reason if isinstance(outcome, Untouched) else None
        self.changed = changes(outcome)
        done = self.done = outcome.done or Rewrite()
        self.undeclared = undeclared
        held = [capsule for capsules in done.carried.values() for capsule in capsules]
        self.moved = frozenset(entry.ret for capsule in held for entry in capsule.entries)
        self.cite_tools = {table.cite_tool for table in evidence.values()} - {None}
        self.returns = {found.message.index: found for found in transcript.returns}
        self.step_of = {f.ordinal: i for i, step in enumerate(transcript.replies) for f in step.returns}
        self.numbers = _Numbers(transcript, habits, boundary.record, boundary.reply)
        self.splices = _BySpan(done.splices if self.changed else ())

    def tell(self) -> Account:
        messages = self.transcript.request.messages
        lines: list[Line] = []
        opens = self.numbers.opens
        for position, message in enumerate(messages):
            if position + 1 < len(messages) and messages[position + 1].span == message.span:
                continue  # a call that stands in one item with its return
            lines.append(self._line(message, message.index in opens))
            added = self.splices.behind(message.span)
            if added:
                lines.append(self._added(message, added))
        return Account(tuple(lines), self._current(), self.splices.beside())

    def _current(self) -> int | None:
        at = self.boundary.reply
        users = self.transcript.first_users if at < 0 else self.transcript.replies[at].users
        return users[0][1].index if users else None

    def _line(self, message: Message, opens: bool) -> Line:
        found = self.returns.get(message.index)
        went = self.splices.rewritten(self.transcript.request.body, message.span)
        number = self.numbers.of(message)
        if found is None:
            fate = Fate.SAME if went is None else Fate.CUT if went else Fate.REMOVED
            why = Why.NO_EVIDENCE if went is None else Why.ITS_PICTURES
            tool = ", ".join(call.name for call in message.calls) or None
            return Line(message.index, message.role, message.span, went, fate, why, number, tool, opens=opens,
                        pictures=len(message.pictures()))  # fmt: skip
        table = self.evidence.get(found.ordinal)
        shown = self.look(found, table) if table is not None else None
        fate, why = self._fate(found, table, shown, went is not None)
        return Line(
            index=message.index,
            role=message.role,
            span=message.span,
            went=went,
            fate=fate,
            why=why,
            question=number,
            tool=found.tool,
            table=table.name if table is not None else None,
            shows=shown.ids if shown is not None else (),
            groups=self._groups(self.done.carried.get(found.ordinal, ())) if went is not None else (),
            pictures=len(message.pictures()),
        )

    def _added(self, after: Message, data: bytes) -> Line:
        pictures = data.count(b'"image_url"') + data.count(b'"input_image"')
        return Line(after.index, Role.USER, None, data.lstrip(b","), Fate.ADDED, Why.PICTURES_AGAIN,
                    self.numbers.of(after), pictures=pictures)  # fmt: skip

    def _fate(self, found: Return, table: Table | None, shown: Shown | None, went: bool) -> tuple[Fate, Why]:
        """What became of a return, and the first reason that applies."""
        accounted = found.ordinal in self.accounted
        if went:
            if self.done.carried.get(found.ordinal):
                return Fate.CARRIER, Why.CARRIES
            return Fate.RECEIPT, Why.MOVED if found.ordinal in self.moved else Why.REPLACED
        if returns.is_retry_prompt(found.message.parts):
            return Fate.SAME, Why.ASKS_AGAIN
        if table is None:
            if accounted:
                return Fate.KEPT, Why.NO_LONGER_OURS
            return Fate.SAME, Why.CITES if found.tool in self.cite_tools else Why.NOT_OURS
        if table.cite is None:
            return Fate.SAME, Why.NO_CITE
        if self._step(found) > self.boundary.reply and self._is_current(found):
            return Fate.CURRENT, Why.CURRENT
        if self.record is None or not accounted:
            return Fate.KEPT if self.changed else Fate.SAME, Why.UNRECORDED
        if found.ordinal in self.done.stays or found.ordinal in self.record.kept:
            return Fate.KEPT, self._stays(found, table, shown, self.record)
        return Fate.SAME, Why.UNDECIDED

    def _is_current(self, found: Return) -> bool:
        """With a record, all that stands behind it is current; without one, what no answer followed yet."""
        if self.record is not None or self.reason is Reason.NOTHING_EARLIER:
            return True
        return self._step(found) > self.numbers.last_end

    def _step(self, found: Return) -> int:
        """The reply that a return answers; -1 where it stands before any."""
        return self.step_of.get(found.ordinal, -1)

    def _stays(self, found: Return, table: Table, shown: Shown | None, record: Record) -> Why:
        if found.ordinal not in record.kept:
            return Why.UNREAD
        if shown is None or not shown.readable:
            return Why.UNREADABLE
        if table.format == "auto" and not shown.citable:
            return Why.NO_IDS
        number = self.numbers.of(found.message)
        undeclared = number in self.undeclared or number not in self._grounded(table)
        return Why.UNDECLARED if undeclared and table.undeclared == "keep" else Why.CITED_AS_TEXT

    def _grounded(self, table: Table) -> set[int]:
        """The questions of whose evidence, by this table, anything was cited."""
        places = [
            place for e in (self.record.cited if self.record else ()) if e.table == table.name for place in e.places
        ]
        shown = self.transcript.returns
        return {self.numbers.of(shown[place.ret].message) for place in places if place.ret < len(shown)}

    def _groups(self, capsules: Sequence[Capsule]) -> tuple[Group, ...]:
        by_question: dict[int, list[Held]] = {}
        for capsule in capsules:
            for entry in capsule.entries:
                stood = self.transcript.returns[entry.ret].message.index
                held = Held(entry.ids, entry.source, entry.collection, stood)
                by_question.setdefault(entry.group, []).append(held)
        return tuple(Group(question, tuple(chunks)) for question, chunks in by_question.items())


class _Numbers:
    """Which question each message belongs to: counted on from the record's question, and back from it.

    Without a record, as the transcript shows them, from 1.
    """

    def __init__(self, transcript: Transcript, habits: Habits, record: Record | None, reply: int) -> None:
        ends = sorted(question_ends(transcript, habits))
        self.last_end = ends[-1] if ends else -1
        if record is not None:
            ends = sorted({*ends, reply})
        self._shift = record.ordinal - ends.index(reply) - 1 if record is not None else 0
        opening = [step.users for step in (transcript.replies[end] for end in ends) if step.users]
        self._starts = [users[0][1].index for users in opening]
        self.opens = frozenset([*self._starts, *(message.index for _, message in transcript.first_users[:1])])

    def of(self, message: Message) -> int:
        return max(1, bisect_right(self._starts, message.index) + 1 + self._shift)


class _BySpan:
    """Splices, by the message whose bytes they change; messages are asked for in their order."""

    def __init__(self, splices: Iterable[Splice]) -> None:
        self._splices = sorted(splices, key=lambda splice: (splice.start, splice.end))
        self._at = 0
        self._beside = 0

    def rewritten(self, body: bytes, span: Span) -> bytes | None:
        """A message's bytes as they went; None where nothing of it changed, empty where it was taken out."""
        own: list[Splice] = []
        while (change := self._next()) is not None and change.start < span.end:
            self._at += 1
            if change.end > span.start:
                own.append(change)
            else:
                self._beside += len(change.data) - (change.end - change.start)
        if not own:
            return None
        if any(s.start <= span.start and s.end >= span.end and not s.data for s in own):
            return b""
        pieces, at = [], span.start
        for change in own:
            pieces += [body[at : change.start], change.data]
            at = change.end
        return b"".join([*pieces, body[at : span.end]])

    def behind(self, span: Span) -> bytes:
        """What was put directly behind a message."""
        added = b""
        while (change := self._next()) is not None and change.start == change.end == span.end:
            self._at += 1
            added += change.data
        return added

    def beside(self) -> int:
        """How many bytes were added outside of the messages, once every message took its own."""
        left = self._splices[self._at :]
        return self._beside + sum(len(s.data) - (s.end - s.start) for s in left)

    def _next(self) -> Splice | None:
        return self._splices[self._at] if self._at < len(self._splices) else None


def messages_of(api: Api, raw: bytes) -> tuple[Message, ...]:
    """One message (or item), as it stood or stands in a body, read alone; nothing where that cannot be read.

    An item of the Responses API may be two messages: a call and its return.
    """
    if not raw:
        return ()
    member = f'{{"{api.MEMBER}":'.encode()
    try:
        return api.cut(member + b"[" + raw + b"]}").messages
    except NotJson:
        # The Responses API also takes one text in place of its items.
        with suppress(NotJson):
            return api.cut(member + raw + b"}").messages
    return ()


def content_of(api: Api, raw: bytes) -> tuple[Part, ...]:
    """What one message holds."""
    read = messages_of(api, raw)
    return read[-1].parts if read else ()
