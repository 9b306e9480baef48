"""A reply in which the model may call the proxy's own cite tool: those calls are answered here, round by round.

What comes after each round is `policy.cite_rounds`' table; how replies are read without our calls is `wire.rounds`'
business. Here is what waits: for the provider, and for the client to take what it gets.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from proxy.gateway.steering import Head, Incoming, Piece, Provider
from proxy.gateway.threads import LARGE
from proxy.gateway.upstream import BrokenOff, Unreachable
from proxy.ledger.notes import Noted
from proxy.ledger.settling import Citable
from proxy.policy import cite_answers, cite_rounds
from proxy.policy.cite_rounds import Bounds, Next, Round
from proxy.wire import added
from proxy.wire.chat_reply import finished_normally
from proxy.wire.messages import Call, Message, Reply, Request, Role, Span, Text, splice
from proxy.wire.rounds import Rounds, Said

log = logging.getLogger("evidence_proxy.managing")

#: How providers say that they take no tools (some as a fault of theirs), or not this one.
_REFUSES_TOOLS = frozenset({400, 404, 415, 422, 500, 501})
_MOST_OF_AN_ERROR = 1 << 20
_ALIVE = b": \n\n"


class Ending(Protocol):
    """What the citation policy does with an answer before its end goes out."""

    def settles(self, reply: Reply) -> bool:
        """Whether a reply would end its question."""

    async def is_declared(self) -> bool:
        """Whether the question may end as it stands, whatever its reply says."""

    async def cited_at_the_end(
        self, provider: Provider, asked: bytes, answer: Reply, tool: str | None
    ) -> Sequence[str]:
        """Asks the model, where it must, what grounds the answer that it gave to the request `asked`; gives the
        arguments of the cite calls that came. `tool` is None where the provider does not know it."""


class Course(Protocol):
    """What became of the exchange so far: `noted` is what the question's replies cited, `rounds` how many requests
    were sent beside the client's own, `round_tokens` what those used that the client's reply does not count."""

    noted: list[Noted]
    rounds: int
    round_tokens: int


@dataclass(frozen=True, slots=True)
class Managed:
    """What a managed reply needs to know of its request.

    `offered` is what goes up, with our tool; `tool` is what it is called there. `citable` says what can be cited (asked
    when it is first needed), `write_down` keeps what was noted with the calls that the client gets, `refused` hears
    that the provider took the request only without our tool, `counted` how many rounds a reply took and what tokens
    they used that it does not count. `went_on` hears what the client knows a reply by, what the provider calls it, and
    our answers to the calls of ours that stand open in it. A stream is silent for `alive` seconds at the most.
    """

    request: Request
    offered: bytes
    tool: str
    citable: Callable[[], Citable]
    write_down: Callable[[Sequence[Noted], Sequence[Call]], None]
    refused: Callable[[], None]
    counted: Callable[[int, int], None]
    went_on: Callable[[str, str, Sequence[bytes]], None]
    bounds: Bounds
    ending: Ending | None
    alive: float


class _Failure(NamedTuple):
    """Why a round did not even begin: what the provider replied instead, or that it did not."""

    reply: Incoming | None = None
    nobody: Unreachable | None = None


class Managing:
    """The steering of one managed reply."""

    def __init__(self, managed: Managed, course: Course) -> None:
        """What the question's earlier replies cited, as far as that is known, stands in `course` already."""
        self._managed = managed
        self._course = course
        self._api = managed.request.api
        self._citable: Citable | None = None
        self._reading: asyncio.Future[Citable] | None = None
        self._judging: asyncio.Future[bool] | None = None  # whether the question needs no declaration from this reply
        self._own: list[Noted] = []
        self._taken = False  # whether this round's calls of ours were answered already
        self._answers: list[bytes] = []
        self._reader: Rounds = self._api.rounds(managed.request, managed.tool, self._holds)
        self._head: Head | None = None  # that of the client's reply, once it has begun

    @property
    def offered(self) -> bytes:
        """What goes up: the client's request, with our tool."""
        return self._managed.offered

    async def steer(self, provider: Provider) -> AsyncGenerator[Piece, None]:
        """What the client gets: the provider's reply, without our tool's calls."""
        if len(self._managed.offered) >= LARGE:
            # Reading what can be cited takes long here, and the provider takes longer.
            self._reading = asyncio.ensure_future(asyncio.to_thread(self._managed.citable))
            self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen where it is used
        if self._managed.ending is not None:
            # To find out that nothing is owed must not hold up the reply.
            self._judging = asyncio.ensure_future(self._managed.ending.is_declared())
            self._judging.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async for piece in self._steer(provider):
                yield piece
        finally:
            if self._judging is not None:
                self._judging.cancel()
            if self._course.rounds:
                self._managed.counted(self._course.rounds, self._course.round_tokens)

    async def _steer(self, provider: Provider) -> AsyncGenerator[Piece, None]:
        reply = await provider.ask(self._managed.offered)
        if reply.head.status in _REFUSES_TOOLS:
            reply.close()
            reply = await provider.ask()
            if reply.head.status == 200:
                self._managed.refused()
            pieces = _passed(reply)
        elif reply.head.status != 200 or not reply.readable:
            pieces = _passed(reply)
        else:
            pieces = self._in_rounds(provider, reply)
        async for piece in pieces:
            yield piece

    async def _in_rounds(self, provider: Provider, reply: Incoming) -> AsyncGenerator[Piece, None]:
        first = last = reply.head
        body, number, plain = self._managed.offered, 1, False
        failure: _Failure | None = None
        while True:
            gave, complete = False, failure is None
            if first.is_stream and self._head is None:
                self._head = first.holding(None)
                yield self._head
            try:
                while failure is None and (chunk := await reply.chunk()):
                    if not (out := self._reader.feed(chunk)):
                        continue
                    if self._head is None:  # a body too large to be read, which goes out as it comes
                        self._head = reply.head.holding(None)
                        yield self._head
                    gave = True
                    yield out
            except BrokenOff:
                complete = False
            said = self._reader.end(complete)
            self._take(said)
            done = Round(
                number=number,
                said=said,
                complete=complete,
                plain=plain,
                gave=gave,
                spoken=bool(self._reader.text.strip()),
                added=0 if plain else len(body) - len(self._managed.offered),
            )
            following = cite_rounds.after(done, self._managed.bounds)
            if following is Next.BROKE:
                raise BrokenOff
            if following is Next.FAILED:
                async for piece in self._failed(said, failure):
                    yield piece
                return
            if following in (Next.OVER, Next.CONCLUDE):
                asked = self._managed.offered if plain else body
                async for piece in self._ended(provider, asked, said, following is Next.CONCLUDE, last):
                    yield piece
                return
            if said.usage is not None:
                self._course.round_tokens += (said.usage.input or 0) + (said.usage.output or 0)
            plain = following is Next.PLAIN
            body = body if plain else self._with_answers(body, said)
            self._begin()
            number += 1
            asking = asyncio.ensure_future(provider.ask() if plain else provider.ask(body))
            async for out in self._until(asking):
                yield out
            try:
                reply, failure = asking.result(), None
            except Unreachable as nobody:
                failure = _Failure(None, nobody)
                continue
            if reply.head.status != 200 or not reply.readable or reply.head.is_stream != first.is_stream:
                failure = _Failure(reply)
            else:
                last = reply.head

    def _begin(self) -> None:
        self._reader.begin()
        self._taken, self._answers = False, []
        self._course.rounds += 1

    async def _until(self, task: asyncio.Future[Any]) -> AsyncGenerator[bytes, None]:
        """Wait until it is done; a stream that has begun is kept alive meanwhile."""
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._managed.alive)
                if not task.done() and self._head is not None:
                    yield _ALIVE
        finally:
            task.cancel()

    # Our calls.

    def _holds(self, said: Said) -> bool:
        """Whether the end of a stream waits: our calls are to be answered, or the answer is to be asked about."""
        self._take(said)
        if cite_rounds.is_only_ours(said):
            return True
        self._managed.write_down(self._own, said.others)
        self._go_on(said)
        ending = self._managed.ending
        if ending is None or self._owes_nothing():
            return False
        return ending.settles(Reply(self._reader.text, said.others, said.finish))

    def _owes_nothing(self) -> bool:
        judged = self._judging
        if judged is None or not judged.done() or judged.cancelled():
            return False
        return judged.exception() is None and judged.result()

    def _take(self, said: Said) -> None:
        """Note what a round cited, once, and what our tool answers to it."""
        if self._taken or not said.own or not finished_normally(said.finish):
            return
        self._taken = True
        for call in said.own:
            text = self._cite(call.arguments)
            returned = Message(0, Role.TOOL, Span(0, 0), (Text(text),), call_id=call.id or "")
            self._answers += self._api.written(returned)

    def _cite(self, arguments: str) -> str:
        """Note what a cite call cites; gives what our tool answers."""
        try:
            if self._citable is None:
                done = self._reading is not None and self._reading.done()
                self._citable = self._reading.result() if self._reading and done else self._managed.citable()
            answer = cite_answers.answer(self._citable, arguments, self._managed.tool)
        except Exception:
            log.exception("a citation could not be read; the answer goes out without it")
            return "Not recorded. Now give the answer."
        if answer.noted.says_something:
            self._own.append(answer.noted)
            self._course.noted.append(answer.noted)
        return answer.text

    def _with_answers(self, body: bytes, said: Said) -> bytes:
        """The next round's request: what was said, and what our tool answered, after everything that was there."""
        return splice(body, [added.at_the_end(self._api.cut(body), [*said.again, *self._answers])])

    def _go_on(self, said: Said) -> None:
        """Let a later request that names this reply mean what the provider has of it."""
        stored = self._managed.request.stored
        if stored and said.identity and said.shown_as and (said.identity != said.shown_as or self._answers):
            self._managed.went_on(said.shown_as, said.identity, self._answers)

    # The end.

    async def _ended(
        self, provider: Provider, asked: bytes, said: Said, concludes: bool, last: Head
    ) -> AsyncGenerator[Piece, None]:
        """The end of the reply, after the model was asked what grounds it, where the policy wants that."""
        finish = "stop" if concludes else said.finish
        reply = Reply(self._reader.text, () if concludes else said.others, finish)
        if self._managed.ending is not None:
            closing = asyncio.ensure_future(self._close(self._managed.ending, provider, asked, reply))
            async for out in self._until(closing):
                yield out
        self._managed.write_down(self._own, reply.calls)
        self._go_on(said)
        out = self._reader.conclude() if concludes else self._reader.release()
        if self._head is None:
            yield last.holding(len(out))
        if out:
            yield out

    async def _close(self, ending: Ending, provider: Provider, asked: bytes, reply: Reply) -> None:
        try:
            cited = await ending.cited_at_the_end(provider, asked, reply, self._managed.tool)
        except Exception:
            log.exception("the model could not be asked what grounds an answer; it goes out as it is")
            return
        for arguments in cited:
            self._cite(arguments)

    async def _failed(self, said: Said, failure: _Failure | None) -> AsyncGenerator[Piece, None]:
        """Nothing was said, and asking again failed: the client gets the provider's own error."""
        if self._head is None:
            if failure is None or failure.reply is None:
                raise failure.nobody if failure is not None and failure.nobody is not None else BrokenOff
            async for piece in _passed(failure.reply):
                yield piece
            return
        error = said.error
        if failure is not None:
            error = await _error(failure)
        if error is None:
            raise BrokenOff
        yield self._reader.failed(error)


async def _passed(reply: Incoming) -> AsyncGenerator[Piece, None]:
    """A reply as it comes."""
    yield reply.head
    while chunk := await reply.chunk():
        yield chunk


async def _error(failure: _Failure) -> bytes:
    """What went wrong, as JSON of the API's shape: in the provider's words, where it has any."""
    told = b""
    try:
        while failure.reply is not None and len(told) < _MOST_OF_AN_ERROR and (chunk := await failure.reply.chunk()):
            told += chunk
        if isinstance(json.loads(told).get("error"), dict):
            return told
    except (BrokenOff, ValueError, AttributeError):
        pass
    status = failure.reply.head.status if failure.reply is not None else None
    said = f"it answered with status {status}" if status is not None else "it could not be reached"
    message = f"Evidence Proxy asked the provider again to complete this reply, and {said}."
    return json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": None}}).encode()
