"""Answers that may not end yet: held while the model is asked what grounds them, and given when the client is back.

One `Policy` per process, one `Hold` per request whose answer may still be undeclared. What is decided stands in
`proxy.policy`; here are the waiting, the asking, and the one write that is awaited. Whatever fails, the answer goes
out as the provider gave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from proxy.evidence import citing
from proxy.evidence.tables import INLINE
from proxy.gateway.recent import Recent
from proxy.gateway.steering import Head, Incoming, Piece, Provider
from proxy.gateway.upstream import BrokenOff, Unreachable
from proxy.ledger.notes import Noted
from proxy.ledger.records import Record, Verdict
from proxy.ledger.settling import Standing, settles
from proxy.ledger.transcript import Transcript, without_thinking
from proxy.policy import held, redirect
from proxy.policy.ending import Violation, may_end
from proxy.policy.held import HeldAnswer
from proxy.store import StoreError, StoreSlow
from proxy.wire.messages import Call, LiveReader, NotJson, Reply

if TYPE_CHECKING:
    from proxy.ledger.questions import Habits
    from proxy.settings import PolicySettings

log = logging.getLogger("evidence_proxy.policy")

_COMMENT = b": the answer is being held\n\n"
_MOST_BYTES = 16 * 1024 * 1024
_MOST_PACKED = 2 * 1024 * 1024
_MOST_ASKED = 20_000
#: How many brackets of an answer are looked at before its end: a model that writes only others must not cost more.
_MOST_BRACKETS = 32
_PIECE = 1 << 16


class KeepsHeld(Protocol):
    """Where held answers are kept for an hour, for every replica."""

    async def put(self, name: bytes, tenant: bytes, payload: bytes) -> None:
        """Return when it can be read. Raises StoreError or StoreSlow where that cannot be promised."""

    async def get(self, name: bytes) -> bytes | None:
        """What was put under a name, or None. Raises StoreError or StoreSlow."""


@dataclass
class Course:
    """What the policy did for one exchange so far: written down with what the reply settles."""

    asked: bool = False
    violation: Violation = Violation.UNDECLARED
    extra_tokens: int = 0
    noted: list[Noted] = field(default_factory=list)
    rounds: int = 0
    """How many requests went up beside the client's own, to answer calls of our cite tool."""
    round_tokens: int = 0
    """What those used that the reply does not count which the client got."""

    def verdict(self) -> Verdict:
        return Verdict(self.asked, self.violation.value, self.extra_tokens)


@dataclass(frozen=True)
class Question:
    """What a hold knows of the request whose answer it holds.

    `body` is what went to the provider; `judge` says how the question stands with a reply; `first` is the index of the
    question's first reply. `way` is how the model can be asked, a tool or `INLINE`.
    """

    transcript: Transcript
    tenant: bytes
    body: bytes
    first: int
    way: str
    judge: Callable[[Reply], Awaitable[Standing]]


class Policy:
    """The policy of one process: its settings, whom it asked already, and where held answers are kept."""

    def __init__(self, settings: PolicySettings, habits: Habits, keeps: KeepsHeld | None) -> None:
        self.mode = settings.mode
        self.habits = habits
        self.keep_alive = settings.keep_alive_ms / 1000
        self.asking_takes = settings.redirect_timeout_ms / 1000
        self._keeps = keeps
        self._asked: Recent[bytes, bool] = Recent(_MOST_ASKED)
        self._writing: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def counts(self) -> dict[str, int]:
        """What happened since the start: answers that owed a declaration, violations by kind, requests that asked and
        their tokens, answers held and given; apart from these, the rounds of our own cite tool and their tokens."""
        with self._lock:
            return {f"policy_{name.replace('-', '_')}": count for name, count in sorted(self._counts.items())}

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by

    def settled(self, record: Record) -> None:
        """Count a question that was written down."""
        if record.verdict is None:
            return
        self.count(f"enforced_{record.declaration}")
        if record.verdict.violation is not None:
            self.count(f"violation_{record.verdict.violation}")

    # Whom was asked already, and what is kept.

    def was_asked(self, question: Question) -> bool:
        """Whether this question was asked, as far as its transcript and this process can tell."""
        steps = question.transcript.replies[question.first :]
        if any(held.is_ours(call.id) for step in steps for call in step.calls):
            return True
        shown = (question.transcript.shown, *(step.shown for step in steps))
        return any(self._asked.get(held.asked_name(question.tenant, one)) for one in shown)

    async def may_ask(self, question: Question) -> bool:
        """Whether nobody asked yet. To be followed at once by `asking`, since a request may have come twice."""
        return not await self._was_asked_elsewhere(question) and not self.was_asked(question)

    async def _was_asked_elsewhere(self, question: Question) -> bool:
        """Whether another process asked for this very request, or one of this question's that an answer ended."""
        if self._keeps is None:
            return False
        ended = [step.shown for step in question.transcript.replies[question.first :] if not step.calls]
        try:
            for shown in (question.transcript.shown, *ended[-4:]):
                if await self._keeps.get(held.asked_name(question.tenant, shown)) is not None:
                    return True
        except (StoreError, StoreSlow):
            pass  # a second question is a smaller fault than a request that fails
        return False

    def asking(self, question: Question) -> None:
        """Note that this question is asked now: here at once, elsewhere soon."""
        name = held.asked_name(question.tenant, question.transcript.shown)
        self._asked.put(name, True)
        self.count("asked")
        if self._keeps is not None:
            self._soon(self._keeps.put(name, question.tenant, b"asked"))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(StoreError, StoreSlow):  # then another replica may ask once more
                await work

        task = asyncio.create_task(quietly())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def keep(self, tenant: bytes, answer: HeldAnswer) -> bool:
        """Commit a held answer; says whether every replica can give it now."""
        if self._keeps is None:
            return False
        try:
            await self._keeps.put(held.name(tenant, answer.calls[0].id), tenant, held.encode(answer))
        except (StoreError, StoreSlow):
            return False
        return True

    async def kept_for(self, transcript: Transcript, tenant: bytes) -> HeldAnswer | None:
        """The answer that was held for exactly this request, or None: then the provider answers."""
        step = transcript.replies[-1] if transcript.replies else None
        if step is None or self._keeps is None or not step.calls or not held.is_ours(step.calls[0].id):
            return None
        try:
            payload = await self._keeps.get(held.name(tenant, step.calls[0].id or ""))
        except (StoreError, StoreSlow):
            payload = None
        answer = held.decode(payload) if payload is not None else None
        request = transcript.request
        if answer is None or not answer.fits(step) or answer.streamed != request.api.streams(request):
            self.count("held_not_given")
            return None
        self.count("held_given")
        return answer


class Giving:
    """Gives a held answer, byte for byte, without asking the provider."""

    def __init__(self, answer: HeldAnswer) -> None:
        self._answer = answer

    async def steer(self, provider: Provider) -> AsyncGenerator[Piece, None]:
        body = self._answer.body
        head = Head(self._answer.status, self._answer.reason, self._answer.lines)
        yield head if head.is_stream else replace(head, length=len(body))
        for at in range(0, len(body), _PIECE):
            yield body[at : at + _PIECE]


class Hold:
    """Holds a reply that may end its question undeclared, and lets it go as soon as it is known not to."""

    def __init__(self, policy: Policy, question: Question, course: Course) -> None:
        request = question.transcript.request
        self._policy = policy
        self._question = question
        self._course = course
        self._api = request.api
        self._streams = request.api.streams(request)
        self._may_end_by_call = not policy.habits.output_tools.isdisjoint(request.api.offered(request))
        self._reader: LiveReader = request.api.live_reader(request)
        self._held: list[bytes] = []
        self._size = 0
        self._text = ""
        self._brackets: set[str] = set()

    async def steer(self, provider: Provider) -> AsyncGenerator[Piece, None]:
        reply = await provider.ask()
        head = reply.head
        if head.status != 200 or not reply.readable:
            yield head
            async for chunk in _rest(reply):
                yield chunk
            return
        begun = False
        instead: list[bytes] | None = None
        broken: BrokenOff | None = None
        work = asyncio.ensure_future(self._through(reply, provider))
        try:
            while not (await asyncio.wait({work}, timeout=self._policy.keep_alive))[0]:
                if head.is_stream:
                    if not begun:
                        head, begun = head.holding(None), True
                        yield head
                    yield _COMMENT
            try:
                instead = work.result()
            except BrokenOff as fault:
                broken = fault
        finally:
            work.cancel()
        if instead is not None:
            if not begun:
                yield head.holding(None if head.is_stream else sum(map(len, instead)))
            for piece in instead:
                yield piece
            return
        if not begun:
            yield head
        for chunk in self._let_go():
            yield chunk
        if broken is not None:
            raise broken
        async for chunk in _rest(reply):
            yield chunk

    def _let_go(self) -> list[bytes]:
        """What was held, in pieces that are large enough."""
        body, self._held = b"".join(self._held), []
        return [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)]

    async def _through(self, reply: Incoming, provider: Provider) -> list[bytes] | None:
        """Read the reply until it is known what becomes of it: what goes out instead of it, or None: itself.

        Raises `BrokenOff` as the reply does.
        """
        while chunk := await reply.chunk():
            self._held.append(chunk)
            self._size += len(chunk)
            self._reader.feed(chunk)
            if self._goes_on():
                return None
            if self._size > _MOST_BYTES:
                self._course.violation = Violation.TOO_LARGE
                return None
            if await self._cites_already():
                return None
        self._reader.close(True)
        replies = self._reader.replies()
        ends = [said for said in replies if settles(said, self._policy.habits)]
        if not ends:
            return None
        if may_end(await self._question.judge(ends[0])):
            return None
        return await self._ask(ends[0], reply.head, provider)

    def _goes_on(self) -> bool:
        """Whether the reply calls a tool, after which the question goes on. Where an output tool may be called beside
        it, only the end tells."""
        ends = self._policy.habits.output_tools
        return not self._may_end_by_call and any(name and name not in ends for name in self._reader.begun())

    async def _cites_already(self) -> bool:
        """Whether what was said so far names an id that was shown: then the rest need not be held."""
        news = self._reader.news()
        if not news:
            return False
        self._text += news
        if "]" not in news and "】" not in news:
            return False
        if len(self._brackets) >= _MOST_BRACKETS or _still_thinking(self._text):
            return False
        written, _ = citing.bracketed(without_thinking(self._text))
        fresh = set(written) - self._brackets
        self._brackets |= fresh
        if not fresh:
            return False
        standing = await self._question.judge(Reply(text=self._text, finish="stop"))
        return may_end(standing)

    async def _ask(self, answer: Reply, head: Head, provider: Provider) -> list[bytes] | None:
        """Ask for what grounds the answer, unless that was done; returns what the client gets instead of it."""
        way = self._question.way
        if not await self._policy.may_ask(self._question):
            self._course.violation = Violation.ASKED_BEFORE
            return None
        said = await self._said(answer, None if way == INLINE else way, provider)
        if said is None:
            self._course.violation = Violation.PROVIDER
        elif way == INLINE:
            self._take_ids(said)
        else:
            return await self._held_back(redirect.cite_calls(said, way), head)
        return None

    async def _said(self, answer: Reply, tool: str | None, provider: Provider) -> Sequence[Reply] | None:
        """What the model says to our question; None where nothing whole came back in time."""
        return await ask(self._policy, self._question, self._course, provider, self._question.body, answer, tool)

    def _take_ids(self, said: Sequence[Reply]) -> None:
        """Note what the model named in brackets; the client gets its answer as it is."""
        named, nothing = redirect.named_ids(said)
        self._course.violation = Violation.UNRESOLVED if named else Violation.IGNORED
        if named or nothing:
            self._course.noted.append(Noted(len(self._question.transcript.replies), named, nothing))

    async def _held_back(self, calls: Sequence[Call], head: Head) -> list[bytes] | None:
        """Keep the answer, and give the client the cite calls; the answer itself where that cannot be."""
        if not calls:
            self._course.violation = Violation.IGNORED
            return None
        others = [call.id for step in self._question.transcript.replies for call in step.calls]
        made = tuple(Call(held.call_id(secrets.token_bytes(16), others), c.name, c.arguments) for c in calls)
        body = b"".join(self._held)
        answer = HeldAnswer.of(
            shown=self._question.transcript.shown,
            calls=made,
            streamed=self._streams,
            status=head.status,
            reason=head.reason,
            lines=head.holding(None).lines,
            body=body,
            extra_tokens=self._course.extra_tokens,
        )
        if len(answer.packed) > _MOST_PACKED:
            self._course.violation = Violation.TOO_LARGE
            return None
        if not await self._policy.keep(self._question.tenant, answer):
            log.warning("an answer could not be kept until its citations are there; it goes out without them")
            self._course.violation = Violation.STORE
            return None
        self._policy.count("held")
        # What asking took is told with the answer, once.
        self._course.extra_tokens = 0
        as_events = self._streams and not body.lstrip().startswith(b"{")  # some servers stream nothing
        return self._api.written_reply(made, body, as_events, int(time.time()), secrets.token_hex(20))


async def ask(
    policy: Policy,
    question: Question,
    course: Course,
    provider: Provider,
    asked: bytes,
    answer: Reply,
    tool: str | None,
) -> Sequence[Reply] | None:
    """Ask the model, once, what grounds the answer that it gave to the request `asked`: by a tool, or (None) for ids.

    What it says to that; None where nothing whole came back in time.
    """
    api = question.transcript.request.api
    try:
        body = redirect.asking(api, asked, answer, tool)
    except (NotJson, ValueError):
        return None
    course.asked = True
    policy.asking(question)
    reader = api.reader(api.cut(body))
    reply: Incoming | None = None
    try:
        async with asyncio.timeout(policy.asking_takes):
            reply = await provider.ask(body)
            if reply.head.status != 200 or not reply.readable:
                return None
            async for chunk in _rest(reply):
                reader.feed(chunk)
        reader.close(True)
    except (TimeoutError, Unreachable, BrokenOff):
        return None
    finally:
        if reply is not None:
            reply.close()
    used = reader.usage()
    course.extra_tokens = (used.input or 0) + (used.output or 0) if used is not None else 0
    policy.count("extra_tokens", course.extra_tokens)
    return reader.replies() or None


class Closing:
    """What the policy does with the end of a reply whose citations the proxy takes itself: where it would stay
    undeclared, the model is asked once, and the client gets its answer as it is."""

    def __init__(self, policy: Policy, question: Question, course: Course) -> None:
        self._policy = policy
        self._question = question
        self._course = course

    def settles(self, reply: Reply) -> bool:
        """Whether a reply would end its question."""
        return settles(reply, self._policy.habits)

    async def is_declared(self) -> bool:
        """Whether the question may end as it stands, whatever its reply says."""
        return may_end(await self._question.judge(Reply(text="")))

    async def cited_at_the_end(
        self, provider: Provider, asked: bytes, answer: Reply, tool: str | None
    ) -> Sequence[str]:
        """The arguments of the cite calls that the model made when it was asked what grounds an answer; none where the
        answer may end as it is, or nobody can be asked (`tool` is None where the provider knows none of ours)."""
        if not self.settles(answer) or may_end(await self._question.judge(answer)):
            return ()
        if tool is None:
            self._course.violation = Violation.NO_CITE_TOOL
            return ()
        if not await self._policy.may_ask(self._question):
            self._course.violation = Violation.ASKED_BEFORE
            return ()
        said = await ask(self._policy, self._question, self._course, provider, asked, answer, tool)
        if said is None:
            self._course.violation = Violation.PROVIDER
            return ()
        calls = redirect.cite_calls(said, tool)
        self._course.violation = Violation.UNRESOLVED if calls else Violation.IGNORED
        return [call.arguments for call in calls]


def _still_thinking(text: str) -> bool:
    """Whether the text is inside a thinking block: what stands there cites nothing."""
    return "<think" in without_thinking(text).lower()


async def _rest(reply: Incoming) -> AsyncIterator[bytes]:
    while chunk := await reply.chunk():
        yield chunk
