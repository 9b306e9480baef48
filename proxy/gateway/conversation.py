"""One request's way down the house and its reply's way back: wire, evidence, ledger, compaction, store.

It joins the pure rooms with the store; HTTP is the neighbours' business. Nothing here may fail a user's request.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import msgspec
from msgspec import structs

from proxy.compaction import append, rewrite
from proxy.compaction.outcome import Compacted, Figures, Outcome, Reason, Untouched
from proxy.compaction.replacing import Rewrite
from proxy.evidence import tagged
from proxy.evidence.pictures import decodes, digest_of
from proxy.evidence.tables import MANAGED, Table, Tables
from proxy.evidence.tagged import Failure, Proof
from proxy.evidence.tags import Keys
from proxy.gateway.histories import Histories, extended
from proxy.gateway.holding import Closing, Course, Giving, Hold, KeepsHeld, Policy, Question
from proxy.gateway.keeping import Conversation, Keeping, Registered, Settled
from proxy.gateway.managing import Managing
from proxy.gateway.notebook import Notebook
from proxy.gateway.offers import Offering, Offers
from proxy.gateway.recent import Recent, RecentBytes
from proxy.gateway.seen import Done, Seen, SeenRequests
from proxy.gateway.steering import Steering
from proxy.gateway.tables import tables_of, with_registered
from proxy.gateway.threads import LARGE, aside
from proxy.gateway.watched import Conversed, Stays
from proxy.ledger import boundary, notes, reading, records, settling, transcript, trimmed
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.boundary import Boundary
from proxy.ledger.notes import Noted
from proxy.ledger.questions import Habits, follows_answer, opening_after, question_ends
from proxy.ledger.records import Record
from proxy.ledger.settling import Standing
from proxy.ledger.transcript import ReplyStep, Transcript
from proxy.policy.cite_rounds import Bounds
from proxy.policy.ending import Violation, asked_by, may_end
from proxy.store import RecordStore, StoredRecord, StoreError, StoreSlow
from proxy.wire import chat, responses
from proxy.wire.bodies import refuse_dust
from proxy.wire.messages import Api, Cuts, NotJson, Picture, Reply, ReplyReader, Request

if TYPE_CHECKING:
    from proxy.settings import Settings

log = logging.getLogger("evidence_proxy.conversation")

#: How many openings are looked up, newest first.
_MOST_CANDIDATES = 256
#: The first record makes the store be opened, which takes as long as an import.
_SHARED_SECONDS = 5.0
_MOST_GIVEN = 20_000
_MOST_GIVEN_BYTES = 64 * 1024 * 1024
#: How much larger a record is in memory than its bytes, measured.
_DECODED = 9
_MOST_RECORDS = 5_000
#: How many of one conversation's questions are looked at where its history was trimmed, newest first.
_MOST_OF_ONE = 256
_MOST_PICTURES = 10_000

_LAYOUTS: dict[str, Callable[[Transcript, Record, Tables, Callable[[Picture], bool], Aside], Rewrite]] = {
    "single": rewrite.rewrite,
    "append": append.rewrite,
}
#: The reasons for which `strict` refuses a request that holds evidence of an earlier question.
_REFUSED = frozenset({Reason.NO_RECORD, Reason.MISSING_CONTENT, Reason.STORE_SLOW, Reason.STORE_ERROR})

_APIS: dict[str, Api] = {"chat": chat, "responses": responses}


class Asked(msgspec.Struct, frozen=True):
    """What the HTTP part knows of a request on a compacted path.

    `body` is decoded (after Content-Encoding). `credential` stands for the tenant; without one (None), nothing is
    recorded or matched. In `stays` the rooms write down how long the request was with each of them.
    """

    body: bytes
    credential: str | None
    question_id: str | None = None
    compaction_off: bool = False
    api: str = "chat"
    conversation_id: str | None = None
    stays: Stays = msgspec.field(default_factory=Stays)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What `strict` answers instead of asking the provider."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


class _Read(msgspec.Struct, frozen=True):
    """What reading a request gave: its transcript, and why it stays untouched if that is known already.

    `tables_of_returns` are the tables of its evidence returns, by ordinal. `whole` says whether the transcript has
    everything that the model sees, and `recordable` whether its question can be written down. `tables` are those that
    it was read by, `cut_short` the tags of returns that do not fit. `seen` is what the next request of the conversation
    may continue, if any may, and `continues` what this one does. A request that needed no reading has no transcript,
    but can be read `later`.
    """

    transcript: Transcript | None
    untouched: Reason | None
    tables_of_returns: Mapping[int, Table] = {}
    whole: bool = False
    recordable: bool = False
    tables: Tables = ()
    cut_short: tuple[str, ...] = ()
    seen: Seen | None = None
    continues: Seen | None = None
    later: _Later | None = None

    @property
    def request(self) -> Request | None:
        """The request, as far as it was read."""
        if self.later is not None:
            return self.later.glanced
        return self.transcript.request if self.transcript is not None else None

    @property
    def reads(self) -> Callable[[], Transcript | None] | None:
        """What gives the transcript: that may take as long as the body is large. None where there is none."""
        if self.later is not None:
            return self.later.read
        return (lambda: self.transcript) if self.transcript is not None else None


class _Later:
    """Reads a request of which only a glance was needed, once, when somebody asks. Safe to use from threads."""

    def __init__(self, glanced: Request) -> None:
        self.glanced = glanced
        self._read: Transcript | None = None
        self._lock = threading.Lock()

    def read(self) -> Transcript:
        with self._lock:
            if self._read is None:
                self._read = transcript.read(self.glanced.api.cut(self.glanced.body))
            return self._read


class _Decision(msgspec.Struct, frozen=True):
    outcome: Outcome
    boundary: Boundary
    refuse: bool = False
    done: Done | None = None


class _Looked(msgspec.Struct, frozen=True):
    """The records under the openings of a transcript, from the newest one down to that after the reply `down_to`.

    `named` are those of the whole conversation, where its host names it and none stands at the newest opening.
    """

    known: dict[bytes, list[Record]]
    trouble: Reason | None = None
    down_to: int = -1
    named: Sequence[Record] = ()


class Conversations:
    """Reads requests and settles questions; one per process."""

    def __init__(
        self,
        settings: Settings,
        store: RecordStore,
        keys: Keys | None = None,
        registered: Registered | None = None,
        held: KeepsHeld | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        """Without `keys`, tags are verified by one that only this process has; `registered` knows whole returns, `held`
        keeps answers until the client comes back for them (without it, none is held for that), `keeping` what
        conversations need beside their wire."""
        self._mode = settings.compaction.mode
        self._strict = settings.compaction.strict
        self._rewrite = _LAYOUTS[settings.compaction.layout]
        self._failures = _Failures()
        self._proof = Proof(keys or Keys.made(), self._failures)
        self._tables = tables_of(settings, self._proof)
        self._registered = registered
        self._keeping = keeping or Keeping(None, registered)
        self._habits = Habits(
            output_tools=frozenset(settings.policy.output_tools),
            continuation_prefixes=tuple(settings.policy.continuation_prefixes),
        )
        self._policy = Policy(settings.policy, self._habits, held)
        self._store = store
        self._shared = settings.server.workers > 1
        decoded: RecentBytes[bytes, Record] = RecentBytes(
            _MOST_RECORDS,
            settings.store.records_cache_bytes,
            lambda record: record,
            lambda payload, _: _DECODED * len(payload),
        )
        self._records: Recent[bytes, Record] = decoded
        self._given: Recent[bytes, Boundary] = RecentBytes(
            _MOST_GIVEN,
            _MOST_GIVEN_BYTES,
            lambda given: given.record,
            lambda _, record: decoded.weight(record) or _weight(record),
        )
        self._unsettled: Recent[bytes, bool] = Recent(_MOST_GIVEN)
        self._decodes: Recent[bytes, bool] = Recent(_MOST_PICTURES)
        self._histories = Histories()
        self._seen = SeenRequests()
        bounds = Bounds(settings.policy.managed_rounds, settings.policy.managed_tokens)
        self._notebook = Notebook(store)
        self._offers = Offers(self._notebook, self._habits, bounds, self._policy.keep_alive, self._policy.count)

    def renewed(self, settings: Settings, keys: Keys, registered: Registered | None) -> Conversations:
        """The same with other evidence tables and tag keys. What this process knows of conversations is shared, so that
        a question which is under way keeps its boundary; what was asked of the old one is settled by the old one."""
        new = copy.copy(self)
        new._proof = Proof(keys, self._failures)
        new._tables = tables_of(settings, new._proof)
        new._registered = registered
        new._keeping = self._keeping.renewed(settings, registered)
        new._seen = SeenRequests()
        return new

    def counts(self) -> dict[str, int]:
        """What happened since the start: tags that did not fit, by reason (what looked like our evidence and is plain
        text), and what the citation policy did."""
        return self._failures.counts() | self._policy.counts()

    def forget(self) -> None:
        """Something was erased, and nobody says what: know no more of any conversation than after a restart."""
        self._given.clear()
        self._records.clear()
        self._histories.clear()
        self._seen.clear()
        self._keeping.forget()
        self._notebook.forget()

    async def ask(self, asked: Asked) -> Exchange:
        """Decide what goes upstream for a request, and follow its reply."""
        if self._mode == "off" or asked.compaction_off:
            return Exchange(asked, Untouched(Reason.OFF))
        tenant = tenant_digest(asked.credential) if asked.credential is not None else None
        continues, known_bytes = self._seen.before(tenant, asked.api, asked.body) if tenant is not None else (None, 0)
        if not known_bytes and (glanced := self._glance(asked)) is not None:
            return self._passing(asked, tenant, glanced)
        large = len(asked.body) - known_bytes >= LARGE
        read = await aside(large, lambda: self._read(asked, tenant, self._tables, continues, known_bytes))
        if read.cut_short and tenant is not None and self._registered is not None:
            known_whole = await self._registered.registered(tenant, read.cut_short)
            if known_whole:
                tables = with_registered(self._tables, known_whole)
                read = await aside(large, lambda: self._read(asked, tenant, tables))
        if read.transcript is None:
            return Exchange(asked, Untouched(read.untouched or Reason.NOT_JSON))
        if not read.transcript.users:
            tenant = None
        conversation = None
        if tenant is not None:
            conversation = Conversation.of(tenant, asked.conversation_id, read.transcript)
        decision = await self._decided(asked, read, conversation, large)
        if tenant is not None and read.seen is not None:
            self._seen.keep(tenant, asked.api, structs.replace(read.seen, done=decision.done), continues)
        member = read.transcript.request.api.MEMBER
        refusal = _refusal(decision.outcome, member) if decision.refuse else None
        if tenant is None or conversation is None:
            return Exchange(asked, decision.outcome, refusal, None, read, decision.boundary)
        self._unsettled.put(keyed(tenant, read.transcript.shown), True)
        after = _Afterwards(self, read, decision.boundary, conversation, asked, large)
        self._keeping.see(conversation, read.transcript, read.tables_of_returns, decision.boundary.reply + 1)
        exchange = Exchange(asked, decision.outcome, refusal, after, read, decision.boundary, tenant)
        if refusal is None:
            exchange.body = self._offers.continuing(tenant, read.transcript.request, exchange.body)
            exchange.steering = await self._steering(exchange, read, decision.boundary, tenant, large)
        return exchange

    def _glance(self, asked: Asked) -> Request | None:
        """What is to know of a request that holds no evidence, whatever the tables say; None where it must be read.

        `strict` remembers each request, and a managed tool may be offered with any.
        """
        if self._strict or any(table.cites_managed for table in self._tables):
            return None
        with asked.stays.room("wire"):
            return _APIS[asked.api].glance(asked.body)

    def _passing(self, asked: Asked, tenant: bytes | None, glanced: Request) -> Exchange:
        """A request that goes up as it came: it is read only if somebody wants to know what stands in it."""
        read = _Read(None, Reason.NO_EVIDENCE, whole=True, tables=self._tables, later=_Later(glanced))
        after = None
        if tenant is not None:
            conversation = Conversation.of(tenant, asked.conversation_id, None)
            after = _Afterwards(self, read, Boundary(), conversation, asked, False)
        return Exchange(asked, Untouched(Reason.NO_EVIDENCE), None, after, read, Boundary(), tenant)

    async def _steering(
        self, exchange: Exchange, read: _Read, found: Boundary, tenant: bytes, large: bool
    ) -> Steering | None:
        """What the client gets where that is not simply the provider's reply: an answer that was held for it, or one
        that must be held because its question is undeclared so far."""
        shown, course = read.transcript, exchange.course
        assert shown is not None
        answer = await self._policy.kept_for(shown, tenant)
        if answer is not None:
            course.asked, course.violation, course.extra_tokens = True, Violation.UNRESOLVED, answer.extra_tokens
            return Giving(answer)
        offering: Offering | None = None
        if any(table.cites_managed for table in read.tables):
            conversation = Conversation.of(tenant, exchange.conversation_id, shown).digest
            offering = Offering(shown, read.tables_of_returns, read.tables, found, exchange.body, tenant, conversation)
            course.noted += await self._offers.find_noted(offering)
        # Who only wants to observe gets the provider's replies as they are.
        if self._policy.mode != "enforce" or self._mode != "on" or not read.recordable:
            return self._managing(exchange, offering, None)

        if offering is not None:
            return await self._holding(exchange, read, found, tenant, large, offering)
        # Most replies are simply passed on; to find that out must not hold them up.
        if not settling.surely_declared(shown, found.record, found.reply + 1, read.tables, self._habits):
            exchange.deciding = lambda: self._holding(exchange, read, found, tenant, large, offering)
        return None

    async def _holding(
        self,
        exchange: Exchange,
        read: _Read,
        found: Boundary,
        tenant: bytes,
        large: bool,
        offering: Offering | None,
    ) -> Steering | None:
        """What holds the answer of a question that is undeclared so far, if anybody can be asked about it."""
        shown, course = read.transcript, exchange.course
        assert shown is not None

        async def judge(reply: Reply) -> Standing:
            return await aside(large, lambda: self._standing(shown, reply, found, read.tables, course.noted))

        request = shown.request
        if offering is not None and all(table.cites_managed for table in read.tables_of_returns.values()):
            question = Question(shown, tenant, exchange.body, found.reply + 1, MANAGED, judge)
            return self._closing(exchange, offering, question)
        standing = await judge(Reply(text=""))
        if may_end(standing):
            return self._managing(exchange, offering, None)
        way = asked_by(standing, request.api.offered(request))
        question = Question(shown, tenant, exchange.body, found.reply + 1, way or MANAGED, judge)
        if MANAGED in standing.ways[:1]:
            return self._closing(exchange, offering, question)
        if way is None or request.history is not None or request.choices > 1:
            course.violation = _cannot_ask(request)
            return None
        if self._policy.was_asked(question):
            course.asked, course.violation = True, Violation.ASKED_BEFORE
            return None
        return Hold(self._policy, question, course)

    def _closing(self, exchange: Exchange, offering: Offering | None, question: Question) -> Managing | None:
        """The same, and the model is asked with that tool at the end of an answer that would stay undeclared."""
        managing = self._managing(exchange, offering, Closing(self._policy, question, exchange.course))
        if managing is None:
            exchange.course.violation = _cannot_ask(question.transcript.request)
        return managing

    def _managing(self, exchange: Exchange, offering: Offering | None, ending: Closing | None) -> Managing | None:
        """What steers the reply where the model may call the proxy's own cite tool."""
        if offering is None or self._mode != "on":
            return None
        managing = self._offers.managing(offering, exchange.course, ending)
        if managing is not None:
            exchange.goes_up_as(managing.offered)
        return managing

    def _standing(
        self, shown: Transcript, reply: Reply, found: Boundary, tables: Tables, noted: Sequence[Noted]
    ) -> Standing:
        """How the current question stands with a reply, which may have brought evidence of its own."""
        sent = len(shown.replies)
        if reply.ran:
            shown = transcript.read(extended(shown.request, reply.ran))
        return settling.standing(
            shown,
            reply,
            previous=found.record,
            from_reply=found.reply + 1,
            tables=tables,
            habits=self._habits,
            noted=notes.as_of(noted, sent, len(shown.replies)),
        )

    async def _decided(self, asked: Asked, read: _Read, whose: Conversation | None, large: bool) -> _Decision:
        """The decision on a request: by the record of the newest opening where that fits, as it nearly always does."""
        # Pictures may have to be decoded, which takes as long as their pixels are many.
        large = large or read.seen is None or read.seen.pictures
        conversation = whose if read.recordable else None
        tenant = whose.tenant if whose is not None else None
        with asked.stays.room("store"):
            looked = await self._look_up(read, tenant, asked.question_id, 1 if asked.question_id is None else None)
            if conversation is not None and conversation.named:
                looked = await self._named(read, conversation, asked.question_id, looked)
        decision = await aside(large, lambda: self._decide(asked, read, tenant, looked))
        if decision is None:
            with asked.stays.room("store"):
                further = structs.replace(await self._look_up(read, tenant, asked.question_id), named=looked.named)
            decision = await aside(large, lambda: self._decide(asked, read, tenant, further))
        assert decision is not None  # further than all nobody looks
        record = decision.boundary.record
        gives = record is not None and decision.boundary.untouched is None
        if conversation is not None and record is not None and gives and not self._is_known(read, record):
            with asked.stays.room("store"):
                held = await self._held(conversation, record)
            if held:
                # The boundary is given by now, so that looking again is only writing again.
                decision = await aside(large, lambda: self._decide(asked, read, tenant, _Looked({}), held)) or decision
        return decision

    async def _named(
        self, read: _Read, conversation: Conversation, question_id: str | None, looked: _Looked
    ) -> _Looked:
        """All records of a conversation that its host names, where none stands at the newest opening by what was sent:
        the history may have been trimmed or rewritten."""
        shown = read.transcript
        assert shown is not None
        newest = boundary.newest(shown, self._habits, question_id)
        if newest is None or shown.replies[newest.reply].key in looked.known:
            return looked
        if boundary.in_question(shown, newest, self._given_in(conversation.tenant)):
            return looked
        try:
            payloads = await self._store.newest(conversation.digests[0], _MOST_OF_ONE)
        except StoreSlow:
            return structs.replace(looked, trouble=looked.trouble or Reason.STORE_SLOW)
        except StoreError:
            return structs.replace(looked, trouble=looked.trouble or Reason.STORE_ERROR)
        named = [record for payload in payloads if (record := self._decoded(payload)) is not None]
        return structs.replace(looked, named=named)

    async def _held(self, conversation: Conversation, record: Record) -> Aside | Reason:
        """What a rewrite by this record takes from elsewhere than the wire, or why it cannot be had."""
        try:
            return await self._keeping.aside(conversation, record)
        except StoreSlow:
            return Reason.STORE_SLOW
        except StoreError:
            return Reason.STORE_ERROR

    def _given_in(self, tenant: bytes | None) -> Callable[[bytes], Boundary | None]:
        """What this process gave earlier requests of a tenant, by their transcripts' digests."""
        return (lambda shown: self._given.get(keyed(tenant, shown))) if tenant is not None else (lambda _: None)

    def _settled_in(self, tenant: bytes | None) -> Callable[[bytes], bool]:
        """Whether this process settled the reply to an earlier request of a tenant, by its transcript's digest."""

        def settled(shown: bytes) -> bool:
            key = keyed(tenant, shown) if tenant is not None else b""
            return self._given.get(key) is not None and self._unsettled.get(key) is None

        return settled

    # Reading: pure, and long for large bodies.

    def _read(
        self, asked: Asked, tenant: bytes | None, every: Tables, continues: Seen | None = None, known: int = 0
    ) -> _Read:
        """`known` is how many bytes of the body are surely those of the request that it `continues`."""
        try:
            earlier = continues.transcript if continues is not None else None
            with asked.stays.room("wire"):
                refuse_dust(asked.body, known)
                request = _APIS[asked.api].cut(asked.body, earlier.request if earlier is not None else None, known > 0)
        except NotJson:
            return _Read(None, Reason.NOT_JSON)
        untouched: Reason | None = None
        whole = True
        if request.history is not None:
            untouched = Reason.SERVER_SIDE_HISTORY
            request, whole = self._histories.before(tenant, request)
            earlier = None
        elif request.in_background:
            return _Read(None, Reason.BACKGROUND)
        with asked.stays.room("ledger"):
            read = transcript.read(request, earlier)
        with asked.stays.room("evidence"):
            tables = self._evidence(read, every, continues if earlier is not None else None)
        citable = any(table.cite is not None for table in tables.values())
        if not citable:
            untouched = untouched or (Reason.NO_CITATIONS if tables else Reason.NO_EVIDENCE)
        cut_short: tuple[tuple[int, str], ...] = ()
        seen = None
        if every is self._tables:
            cut_short = self._cut_short(read, continues if earlier is not None else None)
            if request.history is None:
                new = request.messages[request.known :]
                pictures = any(message.pictures() for message in new if not message.plain)
                pictures = pictures or (continues is not None and continues.pictures)
                seen = Seen(read, tables, cut_short, pictures)
        return _Read(
            read,
            untouched,
            tables_of_returns=tables,
            whole=whole,
            recordable=whole and citable,
            tables=every,
            cut_short=tuple(tag for _, tag in cut_short),
            seen=seen,
            continues=continues if earlier is not None else None,
        )

    def _cut_short(self, read: Transcript, continues: Seen | None) -> tuple[tuple[int, str], ...]:
        """The tags of what begins like a tagged return and does not fit, each with the return's ordinal, where whole
        ones may be known."""
        if self._registered is None:
            return ()
        known, start = (continues.cut_short, read.shared) if continues is not None else ((), 0)
        return (
            *(one for one in known if one[0] < start),
            *(
                (o.ordinal, tag)
                for o in read.returns[start:]
                for tag in tagged.broken_tags(self._proof, o.message.parts)
            ),
        )

    def _evidence(self, read: Transcript, every: Tables, continues: Seen | None = None) -> dict[int, Table]:
        """The evidence returns of a transcript, by ordinal, with their tables."""
        known: dict[int, Table] = {}
        start = 0
        if continues is not None:
            known, start = dict(continues.evidence), read.shared
            for found in continues.transcript.returns[start:]:
                known.pop(found.ordinal, None)
        for found in read.returns[start:]:
            if (table := reading.evidence_table(found, every)) is not None:
                known[found.ordinal] = table
        return known

    async def _look_up(
        self, asked: _Read, tenant: bytes | None, question_id: str | None, most: int | None = None
    ) -> _Looked:
        """The records under the newest openings of a transcript, as far back as an earlier request of this process
        reaches."""
        read = asked.transcript
        if tenant is None or read is None or not asked.recordable:
            return _Looked({})
        wanted, down_to = self._openings(read, tenant, question_id, most or _MOST_CANDIDATES)
        if not wanted:
            return _Looked({})
        trouble: Reason | None = None
        try:
            replies = {key: step.digest for key, step in wanted.items()}
            rows = await self._store.find(list(wanted), replies=replies)
            if self._shared and (missing := [key for key in wanted if key not in rows]):
                rows |= await self._store.find(missing, replies=replies, fresh=True)
        except (StoreSlow, StoreError) as fault:
            # What is at hand may still do, and nobody waits a second time.
            wanted, down_to = self._openings(read, tenant, question_id, _MOST_CANDIDATES)
            trouble = Reason.STORE_SLOW if isinstance(fault, StoreSlow) else Reason.STORE_ERROR
            rows = self._store.cached(list(wanted), replies={key: step.digest for key, step in wanted.items()})
        known: dict[bytes, list[Record]] = {}
        for stored, payloads in rows.items():
            found = [record for payload in payloads if (record := self._decoded(payload)) is not None]
            if found:
                known[wanted[stored].key] = found
        return _Looked(known, trouble, down_to)

    def _openings(
        self, read: Transcript, tenant: bytes, question_id: str | None, most: int
    ) -> tuple[dict[bytes, ReplyStep], int]:
        """What to look up, newest first: under which keys, and which replies' records. And the reply down to which that
        is everything."""
        wanted: dict[bytes, ReplyStep] = {}
        for index in range(len(read.replies) - 1, -1, -1):
            step = read.replies[index]
            opening = opening_after(read, index, self._habits)
            if opening is not None and boundary.may_hold(opening, question_id):
                wanted[keyed(tenant, step.key)] = step
            given = self._given.get(keyed(tenant, step.shown))
            if given is not None and given.reply < index:
                break
            if len(wanted) >= most:
                return wanted, index if most < _MOST_CANDIDATES else -1
        return wanted, -1

    def _decoded(self, payload: bytes) -> Record | None:
        """A record, shared by all requests of its question."""
        record = self._records.get(payload)
        if record is None:
            record = records.decode(payload)
            if record is not None:
                self._records.put(payload, record)
        return record

    def _decide(
        self, asked: Asked, read: _Read, tenant: bytes | None, looked: _Looked, held: Aside | Reason = NOTHING
    ) -> _Decision | None:
        """What becomes of a request; None where that takes the records of older openings."""
        asked_of = read.transcript
        assert asked_of is not None
        if not read.recordable:
            return _Decision(Untouched(read.untouched or Reason.NO_EVIDENCE), Boundary())
        given = self._given_in(tenant)
        known = looked.known
        with asked.stays.room("ledger"):
            found = boundary.find(
                asked_of,
                self._habits,
                lambda key: known.get(key, []),
                given,
                asked.question_id,
                read.tables,
                self._settled_in(tenant),
            )
            if looked.named and given(asked_of.shown) is None:
                found = (
                    trimmed.find(
                        asked_of, self._habits, looked.named, read.tables, asked.question_id, newer_than=found.reply
                    )
                    or found
                )
        if found.reply < looked.down_to:
            return None
        if isinstance(held, Reason):
            found = structs.replace(found, untouched=held.value)  # for all of the question: its prefix must not change
        outcome: Outcome
        done: Done | None = None
        if read.untouched is not None:
            outcome = Untouched(read.untouched)
        elif found.untouched is not None:
            outcome = Untouched(Reason(found.untouched))
        elif found.record is None:
            unrecorded = self._holds_earlier(read, known, asked.question_id)
            outcome = Untouched((looked.trouble or Reason.NO_RECORD) if unrecorded else Reason.NOTHING_EARLIER)
        else:
            with asked.stays.room("compaction"):
                done = self._rewritten(read, found, found.record, held if isinstance(held, Aside) else NOTHING)
            outcome = self._compact(asked, found.record, done)
        refuse = False
        if self._strict and isinstance(outcome, Untouched) and outcome.reason in _REFUSED:
            earlier = self._holds_earlier(read, known, asked.question_id)
            refuse = earlier and not self._saw_break_off(asked_of, tenant)
        if tenant is not None:
            self._given.put(keyed(tenant, asked_of.shown), found)
        return _Decision(outcome, found, refuse, done)

    def _holds_earlier(self, read: _Read, known: dict[bytes, list[Record]], question_id: str | None) -> bool:
        """Whether a request holds evidence that can be cited and belongs to an answered question."""
        shown = read.transcript
        assert shown is not None
        same_question = {
            index
            for index, step in enumerate(shown.replies if question_id is not None else ())
            if any(record.question_id == question_id for record in known.get(step.key, ()))
        }
        answered = follows_answer(shown, self._habits, same_question)
        return any(o in answered and table.cite is not None for o, table in read.tables_of_returns.items())

    def _is_known(self, read: _Read, record: Record) -> bool:
        """Whether the rewrite of the request before this one does for it as well: both are of one question."""
        assert read.transcript is not None
        known = read.continues.done if read.continues is not None else None
        return known is not None and known.record is record and known.messages <= read.transcript.request.known

    def _rewritten(self, read: _Read, found: Boundary, record: Record, held: Aside) -> Done:
        """The rewrite of a request: that of the request before it, where both are of one question."""
        assert read.transcript is not None
        if self._is_known(read, record):
            assert read.continues is not None and read.continues.done is not None
            return read.continues.done
        # The message that opens the question is the last one that the rewrite can depend on.
        users = read.transcript.replies[found.reply].users
        messages = users[0][1].index + 1 if users else len(read.transcript.request.messages)
        done = self._rewrite(read.transcript, record, read.tables, self._can_send_again, held)
        return Done(record, messages, done, Cuts.of(done.splices))

    def _compact(self, asked: Asked, record: Record, rewritten: Done) -> Outcome:
        done = rewritten.rewrite
        if not done.splices:
            if done.missing:
                return Untouched(Reason.MISSING_CONTENT, done=done)
            return Untouched(Reason.NO_CITATIONS if done.kept else Reason.NOTHING_EARLIER, done=done)
        body = rewritten.cuts.applied(asked.body)
        figures = Figures(
            question=record.ordinal + 1,
            capsule=done.capsule,
            receipts=done.receipts,
            kept=done.kept,
            before=len(asked.body),
            after=len(body),
        )
        if self._mode == "observe":
            return Untouched(Reason.OBSERVE, figures, body, done)
        return Compacted(body, figures, done)

    def _saw_break_off(self, read: Transcript, tenant: bytes | None) -> bool:
        """Whether this process answered the request whose reply ended the newest question, and it settled nothing."""
        ended = next(question_ends(read, self._habits), None)
        if ended is None or tenant is None:
            return False
        return self._unsettled.get(keyed(tenant, read.replies[ended].shown)) is not None

    def _can_send_again(self, picture: Picture) -> bool:
        key = digest_of(picture)
        known = self._decodes.get(key)
        if known is None:
            known = decodes(picture.url)
            self._decodes.put(key, known)
        return known

    def write_down(
        self,
        read: Transcript,
        recordable: bool,
        replies: list[Reply],
        found: Boundary,
        tables: Tables,
        asked: Asked,
        course: Course,
        conversation: Conversation,
    ) -> list[Settled]:
        """The records of what a reply settled, one for each of its choices that settled anything.

        Where the provider ran tools of its own for a reply, clients carry that in their next request or leave it out:
        one record for each. `recordable` says whether the transcript without it is worth one.
        """
        settled = []
        from_reply = found.reply + 1
        as_shown, rewritten = self._keeping.as_shown(conversation, read, from_reply)
        verdict = course.verdict() if self._policy.mode != "off" else None
        for reply in replies:
            if not settling.settles(reply, self._habits):
                continue
            transcripts = [read] if recordable else []
            if reply.ran:
                with_it = transcript.read(extended(read.request, reply.ran))
                if any(table.cite is not None for table in self._evidence(with_it, tables).values()):
                    transcripts.append(with_it)
            for shown in transcripts:
                told = as_shown if shown is read else shown
                record = settling.settle(
                    told,
                    reply,
                    previous=found.record,
                    from_reply=from_reply,
                    tables=tables,
                    habits=self._habits,
                    question_id=asked.question_id,
                    noted=notes.as_of(course.noted, len(read.replies), len(shown.replies)),
                    verdict=verdict,
                )
                settled.append(
                    Settled(record, shown, tables, from_reply, told, rewritten if shown is read else frozenset())
                )
            if transcripts:
                self._policy.settled(record)
        return settled

    async def keep(
        self, of: Conversation, asked: Asked, read: Transcript, settled: list[Settled]
    ) -> list[StoredRecord]:
        """Findable in this process from now on, and soon on disk: what a record needs first, then the record."""
        rows, tenant = [], of.tenant
        for one in settled:
            conversation = of
            if one.transcript is not read:
                conversation = Conversation.of(tenant, asked.conversation_id, one.transcript)
            record, contents = await self._keeping.completed(one, conversation)
            self._keeping.keep(contents)
            key, payload = keyed(tenant, one.transcript.key), records.encode(record)
            row = StoredRecord(key, tenant, record.reply, payload, conversation.digest)
            self._store.add(row)
            rows.append(row)
        if rows:
            self._unsettled.drop(keyed(tenant, read.shown))
        return rows

    async def shared(self) -> None:
        """Where several workers serve: wait for a while until the others find what was kept. The client's next request
        may reach any of them."""
        if self._shared:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_SHARED_SECONDS):
                    await asyncio.gather(self._store.flush(), self._keeping.flush())

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
        conversation: Conversation,
        asked: Asked,
        large: bool,
    ) -> None:
        self._conversations = conversations
        self._read = read
        self._boundary = found
        self._conversation = conversation
        self._asked = asked
        self._large = large

    def wants(self, reader: ReplyReader) -> bool:
        """Whether there is anything to write down of this reply, or to remember."""
        if not self._read.whole:
            return False
        return self._read.recordable or bool(reader.continued_by()) or any(reply.ran for reply in reader.replies())

    async def settle(self, reader: ReplyReader, course: Course) -> list[StoredRecord]:
        """Write down what the reply settled. Returns the records."""
        replies = reader.replies()
        if not replies or not self.wants(reader):
            return []
        names = reader.continued_by()
        read = await self._transcript()
        if names:
            self._conversations.remember(self._conversation.tenant, names, read, replies[0])
        recordable = self._read.recordable
        if not recordable and not any(reply.ran for reply in replies):
            return []
        settled = await aside(
            self._large,
            lambda: self._conversations.write_down(
                read,
                recordable,
                replies,
                self._boundary,
                self._read.tables,
                self._asked,
                course,
                self._conversation,
            ),
        )
        rows = await self._conversations.keep(self._conversation, self._asked, read, settled)
        if rows:
            await self._conversations.shared()
        return rows

    async def _transcript(self) -> Transcript:
        """The request's transcript, read now where it was not yet."""
        if self._read.transcript is not None:
            return self._read.transcript
        later = self._read.later
        assert later is not None
        return await aside(len(self._asked.body) >= LARGE, later.read)


class Exchange:
    """One request and its reply.

    `body` is what goes upstream (the very object that came, when untouched), `header` the Evidence-Proxy reply header,
    `refusal` what to answer instead of asking the provider, `steering` what the client gets where that is not simply
    the provider's reply, `deciding` finds that out while the request is on its way. None of its methods raises.
    """

    steering: Steering | None = None
    deciding: Callable[[], Awaitable[Steering | None]] | None = None

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
        self.refusal = refusal
        self.course = Course()
        self._went: bytes | None = None
        self._after = after
        self._asked = asked
        self._read = read or _Read(None, None)
        self._boundary = found or Boundary()
        self._tenant = tenant
        self._settled: list[StoredRecord] = []
        self._reader = self._reply_reader()

    @property
    def conversation_id(self) -> str | None:
        """What the host calls the conversation."""
        return self._asked.conversation_id

    def goes_up_as(self, offered: bytes) -> None:
        """What goes up has one tool more than `body`."""
        self._went = offered
        if isinstance(self.outcome, Compacted):
            self.outcome = replace(self.outcome, figures=structs.replace(self.outcome.figures, after=len(offered)))

    @property
    def header(self) -> str:
        """The Evidence-Proxy reply header, with what it took to get citations once that is known."""
        course = self.course
        extra = {"rounds": course.rounds, "extra_tokens": course.extra_tokens + course.round_tokens}
        return self.outcome.header() + "".join(f"; {name}={count}" for name, count in extra.items() if count)

    def _reply_reader(self) -> ReplyReader:
        """Follows the reply: for what it settles, and for what the provider says that it used."""
        api = _APIS[self._asked.api]
        return api.reader(self._read.request or Request(api, b"", ()))

    def told(self) -> Conversed:
        """What became of the request and its reply, for whoever watches."""
        read, outcome = self._read, self.outcome
        model = read.request.model if read.request is not None else None
        return Conversed(
            came=self._asked.body,
            went=self._went if self._went is not None else self.body,
            outcome=outcome,
            model=model or self._reader.model(),
            tenant=self._tenant,
            question_id=self._asked.question_id,
            reads=read.reads,
            evidence=read.tables_of_returns,
            boundary=self._boundary,
            would=outcome.would if isinstance(outcome, Untouched) else None,
            settled=tuple(row.payload for row in self._settled),
            usage=self._reader.usage(),
            refused=self.refusal is not None,
        )

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the reply, decompressed."""
        self._reader.feed(chunk)

    def finished(self) -> bool:
        """Whether the reply finished, and there is something to settle now."""
        return self._after is not None and self._reader.finished() and self._after.wants(self._reader)

    async def settle(self) -> None:
        """Write down what the reply settled: once, however often it is called."""
        after, self._after = self._after, None
        if after is None:
            return
        try:
            with self._asked.stays.room("settling"):
                self._settled = await after.settle(self._reader, self.course)
        except Exception:
            log.exception("a question could not be settled; its evidence stays in later requests")

    def close(self, complete: bool) -> bool:
        """The reply's body ended, or broke off: then what had not finished settles nothing. Returns whether it settles
        something, which `settle` then writes down."""
        self._reader.close(complete)
        if complete and self.finished():
            return True
        self._after = None
        return False

    async def ended(self, complete: bool) -> None:
        """`close`, and `settle` where there is something to settle."""
        if self.close(complete):
            await self.settle()


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


def keyed(tenant: bytes, digest: bytes) -> bytes:
    """The key under which a tenant's record of this conversation (its digest up to the reply) is kept."""
    return hashlib.sha256(tenant + digest).digest()


def _cannot_ask(request: Request) -> Violation:
    """Why nobody can be asked what grounds the answer to a request."""
    if request.history is not None:
        return Violation.SERVER_SIDE_HISTORY
    return Violation.SEVERAL_CHOICES if request.choices > 1 else Violation.NO_CITE_TOOL


def _refusal(outcome: Outcome, member: str) -> Refusal:
    reason = outcome.reason.value if isinstance(outcome, Untouched) else ""
    message = (
        f"Evidence Proxy is in strict mode and cannot compact this request ({reason}): it holds evidence of an earlier "
        "question for which no usable record was found. Send the conversation from its start through this proxy, or "
        "set compaction.strict to false to let such requests pass unchanged."
    )
    error = {"error": {"message": message, "type": "invalid_request_error", "param": member, "code": reason}}
    return Refusal(422, json.dumps(error).encode(), (("Content-Type", "application/json"), ("x-should-retry", "false")))


def _weight(record: Record) -> int:
    """About how many bytes a record takes in memory."""
    return _DECODED * len(records.encode(record))
