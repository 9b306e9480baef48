"""One request's way down the house and its reply's way back: wire, evidence, ledger, compaction, store.

It joins the pure rooms with the store; HTTP is the neighbours' business. Nothing here may fail a user's request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, get_args

from proxy.compaction import append, rewrite
from proxy.compaction.outcome import Compacted, Figures, Outcome, Reason, Untouched
from proxy.compaction.replacing import Rewrite
from proxy.evidence import tagged
from proxy.evidence.pictures import decodes, picture_digest
from proxy.evidence.returns import is_retry_prompt
from proxy.evidence.tables import Table, Tables, table_of
from proxy.evidence.tagged import Failure, Proof
from proxy.evidence.tags import Keys
from proxy.gateway.histories import Histories, extended
from proxy.gateway.managing import Managing
from proxy.gateway.notebook import Notebook
from proxy.gateway.offers import Offering, Offers
from proxy.gateway.recent import Recent
from proxy.gateway.steering import Steering
from proxy.gateway.tables import tables_of, with_registered
from proxy.gateway.watched import Conversed, Stays
from proxy.ledger import boundary, notes, records, settling, transcript
from proxy.ledger.boundary import Boundary
from proxy.ledger.notes import Noted
from proxy.ledger.questions import Habits, follows_answer
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.policy.cite_rounds import Bounds
from proxy.store import RecordStore, StoredRecord, StoreError, StoreSlow
from proxy.wire import chat, responses
from proxy.wire.messages import Api, NotJson, Reply, ReplyReader, Request, splice

if TYPE_CHECKING:
    from proxy.settings import Settings

log = logging.getLogger("evidence_proxy.conversation")

Result = TypeVar("Result")

#: From this size on a body is read in a thread, so that open streams never wait for it.
_LARGE = 256 * 1024
#: How many openings are looked up, newest first: the newest one nearly always fits.
_MOST_CANDIDATES = 256
_MOST_GIVEN = 20_000
_MOST_RECORDS = 5_000
_MOST_PICTURES = 10_000

_LAYOUTS: dict[str, Callable[[Transcript, Record, Tables, Callable[[str], bool]], Rewrite]] = {
    "single": rewrite.rewrite,
    "append": append.rewrite,
}
#: The reasons for which `strict` refuses a request that holds evidence of an earlier question.
_REFUSED = frozenset({Reason.NO_RECORD, Reason.MISSING_CONTENT, Reason.STORE_SLOW, Reason.STORE_ERROR})

_APIS: dict[str, Api] = {"chat": chat, "responses": responses}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the HTTP part knows of a request on a compacted path.

    `body` is decoded (after Content-Encoding). `credential` stands for the tenant; without one (None), nothing is
    recorded or matched. In `stays` the rooms write down how long the request was with each of them.
    """

    body: bytes
    credential: str | None
    question_id: str | None = None
    compaction_off: bool = False
    api: str = "chat"
    stays: Stays = field(default_factory=Stays)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What `strict` answers instead of asking the provider."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """What reading a request gave: its transcript, and why it stays untouched if that is known already.

    `evidence` are the ordinals of its evidence returns that can be cited, `tables_of_returns` the tables of all its
    evidence returns, by ordinal. `whole` says whether the transcript has
    everything that the model sees, and `recordable` whether its question can be written down. `tables` are those that
    it was read by, `cut_short` the tags of returns that do not fit.
    """

    transcript: Transcript | None
    untouched: Reason | None
    evidence: frozenset[int] = frozenset()
    tables_of_returns: Mapping[int, Table] = field(default_factory=dict)
    whole: bool = False
    recordable: bool = False
    tables: Tables = ()
    cut_short: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Decision:
    outcome: Outcome
    boundary: Boundary
    refuse: bool = False


class Registered(Protocol):
    """What tools had tagged through this proxy."""

    async def registered(self, tenant: bytes, tags: Iterable[str]) -> dict[str, str]:
        """The whole returns of a tenant, by their tags; those that are not known are absent."""


class Conversations:
    """Reads requests and settles questions; one per process."""

    def __init__(
        self, settings: Settings, store: RecordStore, keys: Keys | None = None, registered: Registered | None = None
    ) -> None:
        """Without `keys`, tags are verified by one that only this process has; `registered` knows whole returns."""
        self._mode = settings.compaction.mode
        self._strict = settings.compaction.strict
        self._rewrite = _LAYOUTS[settings.compaction.layout]
        self._failures = _Failures()
        self._proof = Proof(keys or Keys.made(), self._failures)
        self._tables = tables_of(settings, self._proof)
        self._registered = registered
        self._habits = Habits(
            output_tools=frozenset(settings.policy.output_tools),
            continuation_prefixes=tuple(settings.policy.continuation_prefixes),
        )
        self._store = store
        self._given: Recent[bytes, Boundary] = Recent(_MOST_GIVEN)
        self._unsettled: Recent[bytes, bool] = Recent(_MOST_GIVEN)
        self._records: Recent[bytes, Record] = Recent(_MOST_RECORDS)
        self._decodes: Recent[bytes, bool] = Recent(_MOST_PICTURES)
        self._histories = Histories()
        bounds = Bounds(settings.policy.managed_rounds, settings.policy.managed_tokens)
        self._offers = Offers(Notebook(store), self._habits, bounds)

    def counts(self) -> dict[str, int]:
        """How many tags did not fit since the start, by reason: what looked like our evidence and is plain text."""
        return self._failures.counts()

    async def ask(self, asked: Asked) -> Exchange:
        """Decide what goes upstream for a request, and follow its reply."""
        if self._mode == "off" or asked.compaction_off:
            return Exchange(asked, Untouched(Reason.OFF))
        # Pictures may have to be decoded, which takes as long as their pixels are many.
        large = len(asked.body) >= _LARGE or b"data:image" in asked.body
        tenant = tenant_digest(asked.credential) if asked.credential is not None else None
        read = await _run(large, lambda: self._read(asked, tenant, self._tables))
        if read.cut_short and tenant is not None and self._registered is not None:
            known_whole = await self._registered.registered(tenant, read.cut_short)
            if known_whole:
                tables = with_registered(self._tables, known_whole)
                read = await _run(large, lambda: self._read(asked, tenant, tables))
        if read.transcript is None:
            return Exchange(asked, Untouched(read.untouched or Reason.NOT_JSON))
        if not read.transcript.users:
            tenant = None
        with asked.stays.room("store"):
            known, trouble = await self._look_up(read, tenant, asked.question_id)
        decision = await _run(large, lambda: self._decide(asked, read, tenant, known, trouble))
        member = read.transcript.request.api.MEMBER
        refusal = _refusal(decision.outcome, member) if decision.refuse else None
        after = None
        if tenant is not None:
            self._unsettled.put(_keyed(tenant, read.transcript.shown), True)
            after = _Afterwards(self, read, decision.boundary, tenant, asked.question_id, large)
        exchange = Exchange(asked, decision.outcome, refusal, after, read, decision.boundary, tenant)
        if after is not None and refusal is None and self._mode == "on":
            exchange.steering = after.managing = await self._managing(read, decision.boundary, exchange.body, tenant)
        return exchange

    async def _managing(self, read: _Read, found: Boundary, body: bytes, tenant: bytes | None) -> Managing | None:
        """What steers the reply where the model may call the proxy's own cite tool."""
        if tenant is None or read.transcript is None or not read.whole:
            return None
        offering = Offering(read.transcript, read.tables_of_returns, read.tables, found, body, tenant)
        return await self._offers.managing(offering)

    # Reading: pure, and long for large bodies.

    def _read(self, asked: Asked, tenant: bytes | None, every: Tables) -> _Read:
        try:
            with asked.stays.room("wire"):
                request = _APIS[asked.api].cut(asked.body)
        except NotJson:
            return _Read(None, Reason.NOT_JSON)
        untouched: Reason | None = None
        whole = True
        if request.history is not None:
            untouched = Reason.SERVER_SIDE_HISTORY
            request, whole = self._histories.before(tenant, request)
        elif request.in_background:
            return _Read(None, Reason.BACKGROUND)
        with asked.stays.room("ledger"):
            read = transcript.read(request)
        with asked.stays.room("evidence"):
            tables = self._evidence(read, every)
        citable = frozenset(ordinal for ordinal, table in tables.items() if table.cite is not None)
        if not citable:
            untouched = untouched or (Reason.NO_CITATIONS if tables else Reason.NO_EVIDENCE)
        return _Read(
            read,
            untouched,
            citable,
            tables_of_returns=tables,
            whole=whole,
            recordable=whole and bool(citable),
            tables=every,
            cut_short=self._cut_short(read) if every is self._tables else (),
        )

    def _cut_short(self, read: Transcript) -> tuple[str, ...]:
        """The tags of what begins like a tagged return and does not fit, where whole ones may be known."""
        if self._registered is None:
            return ()
        return tuple(name for found in read.returns for name in tagged.broken_tags(self._proof, found.message.parts))

    def _evidence(self, read: Transcript, every: Tables) -> dict[int, Table]:
        """The evidence returns of a transcript, by ordinal, with their tables."""
        return {
            found.ordinal: table
            for found in read.returns
            if not is_retry_prompt(found.message.parts)
            and (table := table_of(every, found.tool, found.message.parts)) is not None
        }

    async def _look_up(
        self, asked: _Read, tenant: bytes | None, question_id: str | None
    ) -> tuple[dict[bytes, list[Record]], Reason | None]:
        """The records under the openings of a transcript, as far back as an earlier request of this process reaches."""
        read = asked.transcript
        if tenant is None or read is None or not asked.recordable:
            return {}, None
        wanted: dict[bytes, bytes] = {}
        open_at = {opening.reply for opening in boundary.candidates(read, self._habits, question_id)}
        for index in range(len(read.replies) - 1, -1, -1):
            step = read.replies[index]
            if index in open_at:
                wanted[step.key] = step.digest
            given = self._given.get(_keyed(tenant, step.shown))
            if (given is not None and given.reply < index) or len(wanted) >= _MOST_CANDIDATES:
                break
        if not wanted:
            return {}, None
        keys = {_keyed(tenant, key): key for key in wanted}
        replies = {_keyed(tenant, key): reply for key, reply in wanted.items()}
        trouble: Reason | None = None
        try:
            rows = await self._store.find(list(keys), replies=replies)
        except StoreSlow:
            rows, trouble = self._store.cached(list(keys), replies=replies), Reason.STORE_SLOW
        except StoreError:
            rows, trouble = self._store.cached(list(keys), replies=replies), Reason.STORE_ERROR
        known: dict[bytes, list[Record]] = {}
        for stored, payloads in rows.items():
            found = [record for payload in payloads if (record := self._decoded(payload)) is not None]
            if found:
                known[keys[stored]] = found
        return known, trouble

    def _decoded(self, payload: bytes) -> Record | None:
        """A record, shared by all requests of its question."""
        record = self._records.get(payload)
        if record is None:
            record = records.decode(payload)
            if record is not None:
                self._records.put(payload, record)
        return record

    def _decide(
        self,
        asked: Asked,
        read: _Read,
        tenant: bytes | None,
        known: dict[bytes, list[Record]],
        trouble: Reason | None,
    ) -> _Decision:
        asked_of = read.transcript
        assert asked_of is not None
        if not read.recordable:
            return _Decision(Untouched(read.untouched or Reason.NO_EVIDENCE), Boundary())
        given: Callable[[bytes], Boundary | None] = (
            (lambda shown: self._given.get(_keyed(tenant, shown))) if tenant is not None else (lambda _: None)
        )
        with asked.stays.room("ledger"):
            found = boundary.find(
                asked_of, self._habits, lambda key: known.get(key, []), given, asked.question_id, read.tables
            )
        same_question = {
            index
            for index, step in enumerate(asked_of.replies)
            if asked.question_id is not None
            and any(record.question_id == asked.question_id for record in known.get(step.key, ()))
        }
        earlier = read.evidence & follows_answer(asked_of, self._habits, same_question)
        outcome: Outcome
        if read.untouched is not None:
            outcome = Untouched(read.untouched)
        else:
            outcome = self._compact(asked, read, found.record, trouble, bool(earlier))
        refuse = False
        if self._strict and earlier and isinstance(outcome, Untouched) and outcome.reason in _REFUSED:
            refuse = not self._saw_break_off(asked_of, tenant)
        if tenant is not None:
            self._given.put(_keyed(tenant, asked_of.shown), found)
        return _Decision(outcome, found, refuse)

    def _compact(
        self, asked: Asked, read: _Read, record: Record | None, trouble: Reason | None, earlier: bool
    ) -> Outcome:
        assert read.transcript is not None
        if record is None:
            return Untouched((trouble or Reason.NO_RECORD) if earlier else Reason.NOTHING_EARLIER)
        with asked.stays.room("compaction"):
            done = self._rewrite(read.transcript, record, read.tables, self._can_send_again)
        if not done.splices:
            if done.missing:
                return Untouched(Reason.MISSING_CONTENT)
            return Untouched(Reason.NO_CITATIONS if done.kept else Reason.NOTHING_EARLIER)
        body = splice(asked.body, done.splices)
        figures = Figures(
            question=record.ordinal + 1,
            capsule=done.capsule,
            receipts=done.receipts,
            kept=done.kept,
            before=len(asked.body),
            after=len(body),
        )
        if self._mode == "observe":
            return Untouched(Reason.OBSERVE, figures, body)
        return Compacted(body, figures)

    def _saw_break_off(self, read: Transcript, tenant: bytes | None) -> bool:
        """Whether this process answered the request whose reply ended the newest question, and it settled nothing."""
        ended = next(iter(boundary.candidates(read, self._habits, None)), None)
        if ended is None or tenant is None:
            return False
        return self._unsettled.get(_keyed(tenant, read.replies[ended.reply].shown)) is not None

    def _can_send_again(self, url: str) -> bool:
        key = picture_digest(url)
        known = self._decodes.get(key)
        if known is None:
            known = decodes(url)
            self._decodes.put(key, known)
        return known

    def write_down(
        self,
        read: Transcript,
        recordable: bool,
        replies: list[Reply],
        found: Boundary,
        tables: Tables,
        tenant: bytes,
        question_id: str | None,
        noted: Sequence[Noted] = (),
    ) -> list[StoredRecord]:
        """The records of what a reply settled, one for each of its choices that settled anything.

        Where the provider ran tools of its own for a reply, clients carry that in their next request or leave it out:
        one record for each. `recordable` says whether the transcript without it is worth one.
        """
        rows = []
        for reply in replies:
            if not settling.settles(reply, self._habits):
                continue
            transcripts = [read] if recordable else []
            if reply.ran:
                with_it = transcript.read(extended(read.request, reply.ran))
                if any(table.cite is not None for table in self._evidence(with_it, tables).values()):
                    transcripts.append(with_it)
            for shown in transcripts:
                record = settling.settle(
                    shown,
                    reply,
                    previous=found.record,
                    from_reply=found.reply + 1,
                    tables=tables,
                    habits=self._habits,
                    question_id=question_id,
                    noted=notes.as_of(noted, len(read.replies), len(shown.replies)),
                )
                key = _keyed(tenant, shown.key)
                rows.append(StoredRecord(key=key, tenant=tenant, reply=record.reply, payload=records.encode(record)))
        return rows

    def keep(self, tenant: bytes, read: Transcript, rows: list[StoredRecord]) -> None:
        """Findable in this process from now on, and soon on disk."""
        for row in rows:
            self._store.add(row)
        if rows:
            self._unsettled.drop(_keyed(tenant, read.shown))

    def remember(self, tenant: bytes, names: tuple[str, ...], read: Transcript, reply: Reply) -> None:
        """What a later request refers to when it names this reply instead of carrying its history."""
        self._histories.keep(tenant, names, read, reply)


class _Afterwards:
    """What an exchange needs once its reply has ended."""

    def __init__(
        self,
        conversations: Conversations,
        read: _Read,
        found: Boundary,
        tenant: bytes,
        question_id: str | None,
        large: bool,
    ) -> None:
        assert read.transcript is not None
        self._conversations = conversations
        self._transcript = read.transcript
        self._whole = read.whole
        self._recordable = read.recordable
        self._boundary = found
        self._tables = read.tables
        self._tenant = tenant
        self._question_id = question_id
        self._large = large
        self.managing: Managing | None = None

    async def settle(self, reader: ReplyReader) -> list[StoredRecord]:
        """Write down what the reply settled. Returns the records."""
        replies = reader.replies()
        if not self._whole or not replies:
            return []
        names = reader.continued_by()
        if names:
            self._conversations.remember(self._tenant, names, self._transcript, replies[0])
        if not self._recordable and not any(reply.ran for reply in replies):
            return []
        rows = await _run(
            self._large,
            lambda: self._conversations.write_down(
                self._transcript,
                self._recordable,
                replies,
                self._boundary,
                self._tables,
                self._tenant,
                self._question_id,
                self.managing.noted if self.managing is not None else (),
            ),
        )
        self._conversations.keep(self._tenant, self._transcript, rows)
        return rows


class Exchange:
    """One request and its reply.

    `body` is what goes upstream (the very object that came, when untouched), `header` the Evidence-Proxy reply header,
    `refusal` what to answer instead of asking the provider, `steering` what the client gets where that is not simply
    the provider's reply. None of its methods raises.
    """

    steering: Steering | None = None

    def __init__(
        self,
        asked: Asked,
        outcome: Outcome,
        refusal: Refusal | None = None,
        after: _Afterwards | None = None,
        read: _Read | None = None,
        found: Boundary | None = None,
        tenant: bytes | None = None,
    ) -> None:
        self.body = outcome.body if isinstance(outcome, Compacted) else asked.body
        self.outcome = outcome
        self.header = outcome.header()
        self.refusal = refusal
        self._after = after
        self._asked = asked
        self._read = read or _Read(None, None)
        self._boundary = found or Boundary()
        self._tenant = tenant
        self._settled: list[StoredRecord] = []
        self._reader = self._reply_reader()

    def _reply_reader(self) -> ReplyReader:
        """Follows the reply: for what it settles, and for what the provider says that it used."""
        api = _APIS[self._asked.api]
        read = self._read.transcript
        return api.reader(read.request if read is not None else Request(api, b"", ()))

    def told(self) -> Conversed:
        """What became of the request and its reply, for whoever watches."""
        read, outcome = self._read, self.outcome
        model = read.transcript.request.model if read.transcript is not None else None
        return Conversed(
            came=self._asked.body,
            went=self.body,
            outcome=outcome,
            model=model or self._reader.model(),
            tenant=self._tenant,
            question_id=self._asked.question_id,
            transcript=read.transcript,
            evidence=read.tables_of_returns,
            boundary=self._boundary,
            would=outcome.would if isinstance(outcome, Untouched) else None,
            settled=tuple(row.payload for row in self._settled),
            usage=self._reader.usage(),
        )

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the reply, decompressed."""
        self._reader.feed(chunk)

    def finished(self) -> bool:
        """Whether the reply finished, and its question can be settled now."""
        return self._after is not None and self._reader.finished()

    async def settle(self) -> None:
        """Write down what the reply settled: once, however often it is called."""
        after, self._after = self._after, None
        if after is None:
            return
        try:
            with self._asked.stays.room("settling"):
                self._settled = await after.settle(self._reader)
        except Exception:
            log.exception("a question could not be settled; its evidence stays in later requests")

    async def ended(self, complete: bool) -> None:
        """The reply's body ended, or broke off: then what had not finished settles nothing."""
        self._reader.close(complete)
        if complete and self.finished():
            await self.settle()
        self._after = None


class _Failures:
    """Counts tags that do not fit, by reason, and says so once for each. Safe to use from threads."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(get_args(Failure), 0)
        self._lock = threading.Lock()

    def __call__(self, failure: Failure) -> None:
        with self._lock:
            self._counts[failure] += 1
            first = self._counts[failure] == 1
        if first:
            log.warning(
                "a tag does not fit (%s); what it stands before is plain text. Said once, then counted", failure
            )

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {f"tag_{name}": count for name, count in self._counts.items()}


def tenant_digest(credential: str) -> bytes:
    """32 bytes that stand for a tenant in this process; the store keys them with a secret of its own."""
    return hashlib.sha256(b"tenant:" + credential.encode("utf-8", "surrogatepass")).digest()


def _keyed(tenant: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(tenant + digest).digest()


async def _run(in_thread: bool, work: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(work) if in_thread else work()


def _refusal(outcome: Outcome, member: str) -> Refusal:
    reason = outcome.reason.value if isinstance(outcome, Untouched) else ""
    message = (
        f"Evidence Proxy is in strict mode and cannot compact this request ({reason}): it holds evidence of an earlier "
        "question for which no usable record was found. Send the conversation from its start through this proxy, or "
        "set compaction.strict to false to let such requests pass unchanged."
    )
    error = {"error": {"message": message, "type": "invalid_request_error", "param": member, "code": reason}}
    return Refusal(422, json.dumps(error).encode(), (("Content-Type", "application/json"), ("x-should-retry", "false")))
