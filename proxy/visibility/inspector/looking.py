"""From a request that passed to what the inspector shows of it: its row, its account, and its content where that is on.

Of each request a `Brief` is taken as it passes, which costs next to nothing; all else is done on the inspector's own
thread, or when somebody wants to see it. Without content nothing leaves this room but figures, ids, and digests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from proxy.compaction import account as accounts_of
from proxy.compaction.account import Account, Asking, Shown
from proxy.compaction.outcome import Figures, Reason
from proxy.evidence.tables import Table
from proxy.gateway.watched import Conversed, Passed
from proxy.ledger import differing, records
from proxy.ledger.differing import Mark
from proxy.ledger.questions import Habits
from proxy.ledger.records import Record
from proxy.ledger.transcript import Return, Transcript
from proxy.visibility import accounts
from proxy.visibility.inspector.kept import Row, packed
from proxy.visibility.metrics import named, weights
from proxy.wire.messages import Usage

_MOST_CONVERSATIONS = 500
_MOST_ALIKE = 8
_MOST_MOVED = 50
_LONGEST_TEXT = 200
_MOST_IDS = 100
_MOST_QUESTIONS = 400
_REASON = re.compile(r"\breason=([a-z-]+)")
_MARK = struct.Struct(">IB8s")
_KINDS: tuple[differing.Kind, ...] = ("user", "call", "return")


class Brief(NamedTuple):
    """A request in a line, as it passed: of no great size, and nothing made yet of what it holds. `title` is only known
    once it was looked at."""

    id: str
    at: int
    tenant: bytes | None
    title: str | None
    question: int | None
    api: str | None
    model: str
    status: int
    end: str
    outcome: str
    reason: str | None
    because: str | None
    figures: Figures | None
    before: int
    after: int
    forwarded: int
    added: float
    took: float
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of a request."""

    row: Row
    detail: bytes | None = None
    content: bytes | None = None
    questions: dict[int, dict[str, Any]] = field(default_factory=dict)


class Looking:
    """Looks at one request after another. Not safe to use from two threads at once."""

    def __init__(self, habits: Habits, content: bool) -> None:
        self._habits = habits
        self._content = content
        # Digests of credentials and conversations could be tested for guesses, so what is shown is keyed anew.
        self._secret = secrets.token_bytes(32)
        self._apart = _Apart()

    def brief(self, passed: Passed, title: str | None = None) -> Brief:
        """What is taken of every request, while it passes."""
        came, told = passed.arrived, passed.conversed
        if told is None:
            reason = _REASON.search(passed.outcome or "")
            why = reason[1] if reason is not None else None
            tenant = question = usage = figures = because = None
            model, outcome, before, after = "", "untouched", passed.received, passed.forwarded
        else:
            outcome, why = named(told)
            why = why if outcome != "compacted" else None
            because = accounts.because(why)
            before, after = weights(passed, told)
            tenant, question, figures, usage = told.tenant, told.question, told.outcome.figures, told.usage
            model = (told.model or "")[:_LONGEST_TEXT]
        return Brief(
            came.id[:_LONGEST_TEXT], came.at, tenant, title, question, came.api, model, passed.status, passed.end,
            outcome, why, because, figures, before, after, passed.forwarded, passed.added, passed.took, usage,
        )  # fmt: skip

    def look(self, passed: Passed) -> Looked:
        """Everything that is shown of a request."""
        told = passed.conversed
        read = told.transcript if told is not None else None
        if told is None or read is None:
            return Looked(self.row(self.brief(passed)))
        marks = differing.marks(read)
        apart = self._apart.of(told.tenant, read.opening, marks)
        known = [record for payload in told.settled if (record := records.decode(payload)) is not None]
        went = told.would if told.would is not None else told.went
        account = accounts_of.account(
            read, told.evidence, self._habits, told.boundary, told.outcome, look=_looked_at, went=len(went)
        )
        asked = accounts_of.asking(read, told.evidence, self._habits, told.boundary, known)
        conversation = self.named("conversation", *apart.name)
        title = _title(read) if self._content else None
        row = self.row(self.brief(passed, title), conversation, account, known)
        if isinstance(reason := row["reason"], str) and reason == Reason.NO_RECORD.value:
            row["difference"] = _difference(apart.before, marks)
        detail = {
            "messages": self._lines(told, account),
            "questions": self._questions(asked),
            "header": told.outcome.header(),
            "because": accounts.outcome(told.outcome)["because"],
            "current": account.current,
            "beside": account.beside,
        }
        return Looked(
            row=row,
            detail=packed(detail),
            content=_content(told, account) if self._content else None,
            questions={**{one["question"]: one for one in detail["questions"]}, **_settled(known)},
        )

    def row(
        self,
        brief: Brief,
        conversation: str | None = None,
        account: Account | None = None,
        settled: Sequence[Record] = (),
    ) -> Row:
        """A request in a line, as it is shown: figures and names of no great length."""
        return {
            "id": brief.id,
            "at": brief.at // 1_000_000,
            "conversation": conversation,
            "tenant": self.named("tenant", brief.tenant)[:8] if brief.tenant is not None else None,
            "title": brief.title,
            "question": brief.question,
            "api": brief.api,
            "model": brief.model,
            "status": brief.status,
            "end": brief.end,
            "outcome": brief.outcome,
            "reason": brief.reason,
            "because": brief.because,
            "figures": accounts.figures(brief.figures),
            "before": brief.before,
            "after": brief.after,
            "forwarded": brief.forwarded,
            "capsule_bytes": account.capsule_bytes if account is not None else 0,
            "added": round(brief.added * 1000, 3),
            "took": round(brief.took * 1000, 1),
            "usage": _usage(brief.usage),
            "tokens": None,
            "settled": [_asked(record) for record in settled],
            "difference": None,
        }

    def named(self, kind: str, *what: bytes | None) -> str:
        """A short name for something, which tells nothing of it and is another in each process."""
        state = hmac.new(self._secret, kind.encode(), hashlib.sha256)
        for piece in what:
            state.update(len(piece or b"").to_bytes(4, "big") + (piece or b""))
        return state.hexdigest()[:12]

    def _lines(self, told: Conversed, account: Account) -> list[dict[str, Any]]:
        lines = []
        for line in account.lines:
            told_of = accounts.line(line)
            told_of["span"] = [line.span.start, line.span.end] if line.span is not None else None
            told_of["tool"] = _short(line.tool) if line.tool is not None else None
            told_of["shows"] = told_of["shows"][:_MOST_IDS]
            came = memoryview(told.came)[line.span.start : line.span.end] if line.span is not None else b""
            told_of["digest_before"] = _digest(came) if line.span is not None else None
            told_of["digest_after"] = _digest(line.went) if line.went else None
            for group in told_of["capsule"]:
                group["chunks"] = [self._held(chunk) for chunk in group["chunks"][:_MOST_IDS]]
            lines.append(told_of)
        return lines

    def _held(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """A chunk of a capsule; its source and collection are content."""
        shown = {
            name: _short(chunk[name]) if chunk[name] and self._content else None for name in ("source", "collection")
        }
        return {**chunk, **shown, "ids": [_short(name) for name in chunk["ids"][:_MOST_IDS]]}

    def _questions(self, asked: Sequence[Asking]) -> list[dict[str, Any]]:
        told = accounts.questions(tuple(asked[-_MOST_QUESTIONS:]))
        return [{**one, "cited": [_short(name) for name in one["cited"][:_MOST_IDS]]} for one in told]


def _title(read: Transcript) -> str | None:
    """How a conversation begins. Only where content may be shown."""
    if not read.first_users:
        return None
    return " ".join(read.first_users[0][1].text()[: 4 * _LONGEST_TEXT].split())[:_LONGEST_TEXT]


def _looked_at(found: Return, table: Table) -> Shown:
    """What a return shows, remembered with it: it stands in every later request of its conversation."""
    key = ("inspector", table.name, table.format)
    shown = found.told.get(key)
    if not isinstance(shown, Shown):
        read = accounts_of.look(found, table)
        shown = found.told[key] = Shown(tuple(map(_short, read.ids[:_MOST_IDS])), read.citable, read.readable)
    return shown


def _asked(record: Record) -> dict[str, Any]:
    cited = [_short(entry.id) for entry in record.cited if entry.group == record.ordinal]
    verdict = record.verdict
    return {
        "question": record.ordinal,
        "declaration": record.declaration,
        "cited": cited[:_MOST_IDS],
        "asked": verdict.asked if verdict is not None else False,
        "violation": verdict.violation if verdict is not None else None,
    }


def _settled(known: Sequence[Record]) -> dict[int, dict[str, Any]]:
    """What records that were just made say of their questions."""
    return {record.ordinal: {**_asked(record), "message": None, "evidence": []} for record in known}


def _usage(used: Usage | None) -> dict[str, int | None] | None:
    return None if used is None else {"input": used.input, "cached": used.cached, "output": used.output}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


def _digest(raw: bytes | memoryview) -> str:
    return hashlib.sha256(raw).hexdigest()[:12]


_packer = msgspec.msgpack.Encoder()


def _content(told: Conversed, account: Account) -> bytes:
    changed: dict[int, bytes] = {n: line.went for n, line in enumerate(account.lines) if line.went}
    return zlib.compress(_packer.encode((told.came, changed)), 1)


def opened(blob: bytes) -> tuple[bytes, dict[int, bytes]]:
    """A request's bytes as it came, and those of each line that changed."""
    return msgspec.msgpack.decode(zlib.decompress(blob), type=tuple[bytes, dict[int, bytes]])


def line_bytes(content: tuple[bytes, dict[int, bytes]], number: int, span: Sequence[int] | None, went: bool) -> bytes:
    """One line's bytes, as it came or as it went."""
    came, changed = content
    if went and number in changed:
        return changed[number]
    return came[span[0] : span[1]] if span is not None else b""


def _difference(before: Sequence[Mark], now: Sequence[Mark]) -> dict[str, Any] | None:
    """The first thing that a request says otherwise than the one before it; None where there was none before."""
    if not before:
        return None
    found = differing.first_difference(before, now)
    if found is None:
        return {"what": "nothing", "kind": None, "now": None, "before": None}
    return {"what": found.what, "kind": found.kind, "now": found.now, "before": found.before}


@dataclass(frozen=True, slots=True)
class _Named:
    """What names a conversation, and the marks of the request before (none: this is the first)."""

    name: tuple[bytes | None, ...]
    before: tuple[Mark, ...]


class _Apart:
    """Tells conversations apart: those that open alike, by how their last request began.

    A conversation that no longer opens as it did (a client trims it) is the one of the same tenant that shares most.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes | None, bytes, int], bytes] = OrderedDict()
        self._alike: dict[tuple[bytes | None, bytes], list[int]] = {}
        self._serial = 0

    def of(self, tenant: bytes | None, opening: bytes, marks: Sequence[Mark]) -> _Named:
        """The conversation that a request belongs to; it is its last request from now on."""
        place = self._find(tenant, opening, marks) or self._moved(tenant, opening, marks)
        before: tuple[Mark, ...] = ()
        if place is None:
            self._serial += 1
            place = (tenant, opening, self._serial)
            alike = self._alike.setdefault((tenant, opening), [])
            alike.append(self._serial)
            if len(alike) > _MOST_ALIKE:
                self._known.pop((tenant, opening, alike.pop(0)), None)
        else:
            before = _opened_marks(self._known[place])
        self._known[place] = _packed_marks(marks)
        self._known.move_to_end(place)
        while len(self._known) > _MOST_CONVERSATIONS:
            gone, _ = self._known.popitem(last=False)
            self._forget(gone)
        return _Named((place[0], place[1], place[2].to_bytes(8, "big")), before)

    def _find(
        self, tenant: bytes | None, opening: bytes, marks: Sequence[Mark]
    ) -> tuple[bytes | None, bytes, int] | None:
        for serial in reversed(self._alike.get((tenant, opening), [])):
            place = (tenant, opening, serial)
            if place in self._known and differing.continues(_opened_marks(self._known[place]), marks):
                return place
        return None

    def _moved(
        self, tenant: bytes | None, opening: bytes, marks: Sequence[Mark]
    ) -> tuple[bytes | None, bytes, int] | None:
        """The newest conversation of this tenant most of which stands in this request."""
        if all(mark.kind == "user" for mark in marks):
            return None  # a first question: nothing to know it by
        known = (place for place in reversed(self._known) if place[0] == tenant and place[1] != opening)
        for place in islice(known, _MOST_MOVED):
            if differing.continues(_opened_marks(self._known[place]), marks):
                return place
        return None

    def _forget(self, place: tuple[bytes | None, bytes, int]) -> None:
        alike = self._alike.get(place[:2])
        if alike is not None and place[2] in alike:
            alike.remove(place[2])
            if not alike:
                del self._alike[place[:2]]


def _packed_marks(marks: Sequence[Mark]) -> bytes:
    return b"".join(_MARK.pack(mark.message, _KINDS.index(mark.kind), mark.digest) for mark in marks)


def _opened_marks(blob: bytes) -> tuple[Mark, ...]:
    return tuple(Mark(message, _KINDS[kind], digest) for message, kind, digest in _MARK.iter_unpack(blob))
