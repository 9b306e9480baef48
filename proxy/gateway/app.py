"""The HTTP server: which requests are conversations, what goes up, what comes down, and when each side lets go.

Everything that a request meets on its way through stands in `Gateway.handle`, top to bottom. What a body means is the
business of the rooms below, behind `Conversing`; whatever goes wrong there, the request still reaches the provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.compaction.outcome import Reason, Untouched
from proxy.gateway import encodings, errors, headers, listening, tunnel
from proxy.gateway.access import ClientKeys, Grant, whose
from proxy.gateway.clients import Clients, Malformed, Request, wants_websocket
from proxy.gateway.conversation import Asked, tenant_digest
from proxy.gateway.limits import Capacity, Full, Patience, Share, TooSlow
from proxy.gateway.replies import Outgoing
from proxy.gateway.steering import Decoded, Head, Incoming, Steering
from proxy.gateway.threads import LARGE
from proxy.gateway.upstream import BrokenOff, Destination, Reply, TimeLimits, Unreachable, Upstream, origin_form
from proxy.gateway.watched import Arrived, Conversed, Nobody, Passed, Stays, Watcher
from proxy.settings import ServerSettings, Settings, TenantSettings
from proxy.visibility import logs

_CUT_SECONDS = 5.0  # for what is cut off at the end of a drain to be written down and closed
_ROOM_AT_ONCE = 16 * 1024 * 1024
_COMMENT = b": keep-alive\n\n"
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")

_RETURNS = b"/evidence/v1/returns"
# By the path's ending, so that every provider's own prefix works.
_APIS = {b"/chat/completions": "chat", b"/responses": "responses"}


class Refused(Protocol):
    """An answer to give instead of asking the provider."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Any: ...


class Underway(Protocol):
    """One request and its reply, as the rooms below see it."""

    @property
    def body(self) -> bytes: ...
    @property
    def header(self) -> str: ...
    @property
    def refusal(self) -> Refused | None: ...
    @property
    def steering(self) -> Steering | None: ...
    @property
    def deciding(self) -> Callable[[], Awaitable[Steering | None]] | None: ...
    def feed(self, chunk: bytes) -> None: ...
    def finished(self) -> bool: ...
    async def settle(self) -> None: ...
    def close(self, complete: bool) -> bool: ...
    def told(self) -> Conversed | None: ...


class Conversing(Protocol):
    """The one door to the rooms below."""

    async def ask(self, asked: Asked) -> Underway: ...


class Tagging(Protocol):
    """What tags a tool's results."""

    async def answer(self, body: bytes, tenant: bytes | None) -> errors.Answer: ...


class Readiness(Protocol):
    """What `/readyz` asks."""

    def ready(self) -> tuple[bool, str]: ...


@dataclass(frozen=True)
class Serving:
    """What requests are served with. It is swapped whole, and a request keeps to its end what it began with."""

    conversations: Conversing
    tagging: Tagging | None = None
    api_key: str | None = None
    keys: ClientKeys | None = None


class _Alone:
    """A request whose conversation could not be looked at: it goes up as it came."""

    refusal = None
    steering = None
    deciding = None
    outcome = Untouched(Reason.STORE_ERROR)
    header = outcome.header()

    def __init__(self, body: bytes) -> None:
        self.body = body

    def feed(self, chunk: bytes) -> None: ...
    def finished(self) -> bool:
        return False

    async def settle(self) -> None: ...
    def close(self, complete: bool) -> bool:
        return False

    def told(self) -> Conversed:
        return Conversed(self.body, self.body, self.outcome)


class _TooLarge(Exception):
    pass


class _SlowUpload(Exception):
    """The client's request body does not come, or comes too slowly."""


class _Facts:
    """What is read of a request once and needed all the way: raw target, raw headers, the reply, the log line."""

    __slots__ = (
        "added",
        "api",
        "asked",
        "began",
        "end",
        "evidence",
        "exchange",
        "forwarded",
        "grant",
        "headers",
        "id",
        "method",
        "named",
        "out",
        "path",
        "received",
        "reply",
        "request",
        "serving",
        "share",
        "stays",
        "target",
        "trace",
        "upload",
        "waited",
    )

    def __init__(self, request: Request, server: ServerSettings, serving: Serving, share: Share) -> None:
        self.began = time.perf_counter_ns()
        self.request = request
        self.share = share
        self.serving = serving
        self.grant: Grant | None = None
        self.upload = Patience(server.body_seconds)
        self.method = request.method
        self.asked = request.target
        self.target = origin_form(self.asked)
        self.path = (self.target or b"").partition(b"?")[0]
        self.headers = request.headers
        self.named = request.named
        self.api: str | None = None
        for end, api in _APIS.items():
            if self.path.endswith(end):
                self.api = api
        self.evidence: str | None = None
        self.received = 0
        self.end = "complete"
        self.id = headers.request_id(self.named) or f"{random.getrandbits(128):032x}"
        self.out = Outgoing(request, Patience(server.send_seconds))
        # What watchers are told at the end, beside the above.
        self.exchange: Underway | None = None
        self.stays = Stays()
        self.forwarded = 0
        self.added = 0
        self.reply: Reply | None = None
        self.waited: int | None = None
        self.trace: Sequence[tuple[bytes, bytes]] = ()

    def arrived(self) -> Arrived:
        """The request's head, for watchers."""
        path = (self.path or self.asked).decode("utf-8", "replace")[:512]
        trace: headers.Headers = ()
        if not headers.TRACE.isdisjoint(self.named):
            trace = tuple(line for line in self.headers if line[0].lower() in headers.TRACE)
        return Arrived(self.id, time.time_ns(), self.began, self.method, path, self.api, trace)

    async def adding(self, work: Awaitable[None]) -> None:
        """The client waits on our account for this."""
        since = time.perf_counter_ns()
        try:
            await work
        finally:
            self.added += time.perf_counter_ns() - since

    def passed(self, arrived: Arrived) -> Passed:
        """All that became of it, for watchers."""
        reply = self.reply
        return Passed(
            arrived=arrived,
            status=self.out.status,
            end=self.end,
            took=(time.perf_counter_ns() - self.began) / 1e9,
            asked=reply.status if reply is not None else None,
            outcome=self.evidence,
            received=self.received,
            forwarded=self.forwarded,
            sent=self.out.sent,
            added=self.added / 1e9,
            waited=self.waited / 1e9 if self.waited is not None else None,
            provider_id=headers.first(reply.named, headers.REQUEST_ID) if reply is not None else None,
            stays=tuple(self.stays.ended),
            conversed=self.exchange.told() if self.exchange is not None else None,
        )

    def up(self, rewritten: bool) -> list[tuple[bytes, bytes]]:
        """The header lines that go to the provider."""
        api_key = self.grant.upstream_key if self.grant is not None else None
        return headers.up(
            self.headers, self.named, rewritten, api_key or self.serving.api_key, ours=self.grant is not None
        )

    def credential(self, tenant: TenantSettings) -> str | None:
        """What stands for the request's tenant: the one that a key of ours names, else what the settings say."""
        return whose(self.named, tenant, self.grant)

    def own_lines(self) -> list[tuple[bytes, bytes]]:
        """Our reply headers for an answer of our own. A body that was never read is no JSON."""
        if self.evidence is None and self.api is not None:
            self.evidence = "untouched; reason=not-json"
        return headers.ours(self.evidence, self.id)


class _Watch:
    """Shows a reply to its exchange, in the order that the ledger counts on, and keeps the exchange's faults away
    from the reply. A copy that cannot be decoded is no longer shown; the reply does not notice."""

    __slots__ = ("_decoder", "_exchange", "_gateway", "_seen", "_settling", "_shows", "over")

    def __init__(
        self, gateway: Gateway, exchange: Underway | None, status: int, encoded: Sequence[bytes], limit: int
    ) -> None:
        self._gateway = gateway
        self._exchange = exchange
        self._settling: asyncio.Task[None] | None = None
        self._seen = True
        self._shows = exchange is not None and status == 200
        self._decoder: encodings.Decoder | None = None
        self.over = exchange is None
        """Whether there is nothing to show, or no longer."""
        if self._shows and encoded:
            try:
                self._decoder = encodings.Decoder(encodings.named(v.decode("latin-1") for v in encoded), limit)
            except encodings.Broken:
                self._seen = self._shows = False

    def feed(self, chunk: bytes) -> None:
        if not self._shows or self._exchange is None:
            return
        try:
            for piece in (chunk,) if self._decoder is None else self._decoder.feed(chunk):
                self._exchange.feed(piece)
        except (encodings.Broken, encodings.TooLarge):
            self._seen = self._shows = False
        except Exception as fault:
            self._seen = self._shows = False
            logs.fault("reply-not-read", fault)

    def finishing(self) -> bool:
        """Whether the finish of a stream has been seen, and what it settles is still to be written down."""
        if self.over or not self._shows or self._settling is not None or self._exchange is None:
            return False
        try:
            return self._exchange.finished()
        except Exception as fault:
            self._seen = self._shows = False
            logs.fault("reply-not-read", fault)
            return False

    async def settle(self) -> None:
        """Write down what the finish settles. Only once the finish was relayed."""
        if self._exchange is not None:
            self._settling = self._gateway.begin(self._exchange.settle())
            await asyncio.shield(self._settling)

    async def ended(self, complete: bool) -> None:
        """The reply's body is at its end or broke off. A reply that was not seen whole counts as broken off."""
        if self.over or self._exchange is None:
            return
        self.over = True
        if self._settling is not None:
            await asyncio.shield(self._settling)  # the client may have left meanwhile; one thing after the other
        await self._gateway.conclude(self._exchange, complete and self._seen)


class _Comments:
    """While no piece of a reply comes and the reply is a stream of events, a comment now and then: clients and
    balancers give up on connections that are silent for as long as some models think. Only between two events."""

    __slots__ = ("_out", "_reply", "_seconds")

    def __init__(self, out: Outgoing, reply: Reply, seconds: float) -> None:
        self._out = out
        self._reply = reply
        events = (headers.first(reply.named, b"content-type") or "").lower().startswith("text/event-stream")
        plain = b"content-encoding" not in reply.named and reply.length is None
        self._seconds = seconds if events and plain else 0

    async def next(self, tail: bytes) -> bytes:
        """Wait for the next piece; `tail` is how what was sent so far ends. Raises what `Reply.chunk` and `Outgoing`
        raise."""
        between = not tail or tail.endswith(_EVENT_ENDS)
        while (chunk := await self._reply.chunk_within(self._seconds)) is None:
            if between:
                self._out.write(_COMMENT)
                await self._out.drain()
        return chunk


class _Relay:
    """One reply on its way to the client.

    What it settles is written down before its last byte leaves, so that the client's next request finds it: as the
    finish of a stream is relayed, else before the piece that completes the body, else before the end. Clients stop
    reading at the finish (or at a `[DONE]` in the same piece), so of that piece the last byte waits.
    """

    __slots__ = ("_facts", "_left", "_out", "has_body", "watch")

    def __init__(self, facts: _Facts, watch: _Watch) -> None:
        self.watch = watch
        self.has_body = False
        self._facts = facts
        self._out = facts.out
        self._left: int | None = None

    async def start(self, head: Head) -> None:
        # Where nothing is compacted a reply gets no line of ours at all.
        request_id = self._facts.id if self._facts.api is not None else None
        lines = headers.down(head.lines, self._facts.evidence, head.length is not None, request_id)
        self.has_body = self._out.has_body(head.status)
        if not self.has_body or head.length == 0:
            await self.watch.ended(True)
        self._out.start(head.status, head.reason, lines, head.length)
        self._left = head.length

    async def pass_on(self, chunk: bytes) -> None:
        if not self.watch.over:
            self.watch.feed(chunk)
            if self._left is not None:
                self._left -= len(chunk)
                if self._left == 0:
                    await self._facts.adding(self.watch.ended(True))
            if self.watch.finishing():
                self._out.write(chunk[:-1])
                await self._facts.adding(self.watch.settle())
                chunk = chunk[-1:]
        self._out.write(chunk)
        if self._out.full:
            await self._out.drain()

    async def end(self) -> bool:
        if not self.watch.over:
            await self._facts.adding(self.watch.ended(True))
        return await self._out.end()

    async def broke(self) -> bool:
        self._facts.end = "upstream-broke"
        await self.watch.ended(False)
        return self._out.break_off()


class _Provider:
    """The provider, for the requests that one exchange sends it: what goes up as it is, and bodies of our own."""

    def __init__(
        self,
        send: Callable[[bytes, list[tuple[bytes, bytes]]], Awaitable[Reply]],
        body: bytes,
        lines: list[tuple[bytes, bytes]],
        lines_beside: Callable[[], list[tuple[bytes, bytes]]],
        limit: int,
    ) -> None:
        self._send = send
        self._body = body
        self._lines = lines
        self._lines_beside = lines_beside
        self._limit = limit
        self._replies: list[Decoded] = []
        self._given: Decoded | None = None

    def given(self, reply: Reply) -> _Provider:
        """The same, whose reply to the request as it is has come already."""
        self._given = self._read(reply)
        return self

    async def ask(self, body: bytes | None = None) -> Incoming:
        if body is None and self._given is not None:
            return self._given
        sent = self._send(self._body, self._lines) if body is None else self._send(body, self._lines_beside())
        return self._read(await sent)

    def _read(self, reply: Reply) -> Decoded:
        read = Decoded(reply, self._limit)
        self._replies.append(read)
        return read

    def close(self) -> None:
        for reply in self._replies:
            reply.close()


class _Preparing:
    """Counts those who are inside."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class Gateway:
    """One per process: a server on one address, one provider behind it."""

    def __init__(
        self,
        settings: Settings,
        conversations: Conversing,
        readiness: Readiness,
        api_key: str | None = None,
        tagging: Tagging | None = None,
        watcher: Watcher | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        self._watcher = watcher or Nobody()
        self._settings = settings
        self._serving = Serving(conversations, tagging, api_key, keys)
        self._readiness = readiness
        self._server = settings.server
        self._limit = settings.server.max_body_bytes
        self.capacity = Capacity(settings.server.max_requests, settings.server.max_bytes_in_flight)
        self._upstream: Upstream | None = None
        self._clients = Clients(self.handle, settings.server)
        self._address = ""
        self.running = 0
        """How many requests are under way."""
        self._preparing = _Preparing()
        self._finishing: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def on_the_way(self) -> int:
        """How many conversations' requests are here and were not sent to the provider yet."""
        return self._preparing.count

    @property
    def provider(self) -> str:
        """Scheme, host and port of the provider, to show."""
        return Destination.of(self._settings.upstream.base_url).origin

    async def start(self, listeners: Sequence[socket.socket] = ()) -> str:
        """Listen at these sockets, or where the settings say; returns the address. Raises `OSError` if it cannot be
        had, and if the provider's certificates cannot be checked as the settings say."""
        upstream = self._settings.upstream
        limits = TimeLimits(upstream.connect_seconds, upstream.first_byte_seconds, upstream.idle_seconds)
        self._upstream = Upstream(upstream.base_url, limits, upstream.ca_file)
        try:
            for listener in listeners or listening.listeners(self._server)[0]:
                await self._clients.listen(listener)
                self._address = self._address or listening.address_of(listener)
        except OSError:
            await self.close()
            raise
        return self._address

    def renew(self, serving: Serving) -> None:
        """Serve with this from now on. Requests that are under way keep to the end what they began with."""
        self._serving = serving

    async def close(self) -> None:
        """Take no new requests, let what is under way go on for `drain_seconds`, then end it."""
        self._closing = True
        self._clients.stop()
        if running := self._clients.running():
            await asyncio.wait(running, timeout=self._server.drain_seconds or None)
        for task in (running := self._clients.running()):
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_CUT_SECONDS)
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=_CUT_SECONDS)
        self._clients.close()
        if self._upstream is not None:
            await self._upstream.close()

    async def conclude(self, exchange: Underway, complete: bool) -> None:
        """The reply to an exchange is over. What it settles is written down even if this request is cancelled
        meanwhile: a client that has read its whole answer may hang up at once, and nothing must be lost for that.
        Faults are logged, not raised."""
        try:
            settles = exchange.close(complete)
        except Exception as fault:
            logs.fault("settling-failed", fault)
        else:
            if settles:
                await asyncio.shield(self.begin(exchange.settle()))

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what is finished whatever becomes of the request. Faults are logged, not raised."""
        task = asyncio.create_task(_guarded(work))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def handle(self, request: Request) -> bool:
        """Answer one request. Returns whether its connection may serve another."""
        facts = _Facts(request, self._server, self._serving, self.capacity.share())
        arrived = facts.arrived()
        facts.trace = self._watcher.arrived(arrived)
        self.running += 1
        if self._closing:
            facts.out.hang_up()
        try:
            return await self._answer(facts)
        except (asyncio.CancelledError, ConnectionError):
            facts.end = "stopped" if self._closing else "client-gone"
            raise
        except TooSlow:
            facts.end = "client-slow"
            raise ConnectionResetError("the client does not take its reply") from None
        except Exception as fault:
            facts.end = "failed"
            logs.fault("request-failed", fault, id=facts.id)
            if facts.out.started:
                return facts.out.break_off()
            return await facts.out.answer(errors.internal(), facts.own_lines())
        finally:
            facts.share.release()
            self.running -= 1
            try:
                passed = facts.passed(arrived)
                self._watcher.passed(passed)
                logs.request(passed)
            except Exception as fault:  # the reply is out; what is told of it must not undo that
                logs.fault("not-told", fault, id=facts.id)

    async def _answer(self, facts: _Facts) -> bool:
        if facts.path == b"/healthz":
            return await facts.out.answer(_json(200, {"status": "ok"}))
        if facts.path == b"/readyz":
            ready, why = (False, "the proxy is stopping") if self._closing else self._readiness.ready()
            return await facts.out.answer(_json(200 if ready else 503, {"ready": ready, "reason": why}))
        if self._closing:
            return await facts.out.answer(errors.stopping(), facts.own_lines())
        if _head_bytes(facts) > self._server.max_header_bytes:
            facts.out.hang_up()
            return await facts.out.answer(errors.header_too_large(self._server.max_header_bytes), facts.own_lines())
        try:
            return await self._serve(facts)
        except Full as full:
            facts.end = "full"
            facts.out.hang_up()
            return await facts.out.answer(errors.full(full.what), facts.own_lines())

    async def _serve(self, facts: _Facts) -> bool:
        """What takes work. Raises `Full` where there is too much of it already."""
        if facts.serving.keys is not None:
            facts.grant = facts.serving.keys.grant(facts.headers)
            if facts.grant is None:
                facts.end = "unknown-key"
                facts.out.hang_up()
                return await facts.out.answer(errors.unknown_key(), facts.own_lines())
        self.capacity.room_for(_content_length(facts.named) or 0 if facts.api is not None else 0)
        if facts.path == _RETURNS and facts.serving.tagging is not None:
            return await self._tag(facts, facts.serving.tagging)
        if facts.method == "CONNECT":
            facts.out.hang_up()
            return await facts.out.answer(errors.unsupported_method(facts.method), facts.own_lines())
        if facts.target is None:
            answer = errors.malformed("its target is neither a path nor an http address")
            return await facts.out.answer(answer, facts.own_lines())
        try:
            if facts.api is not None and facts.method == "POST":
                return await self._converse(facts)
            if wants_websocket(facts.request):
                return await self._tunnel(facts)
            return await self._pass_through(facts)
        except Unreachable as nobody:
            facts.end = "upstream-late" if nobody.late else "unreachable"
            answer = errors.unreachable(nobody.where, nobody.what, nobody.sent, nobody.late)
            return await facts.out.answer(answer, facts.own_lines())
        except _SlowUpload:
            facts.end = "upload-slow"
            facts.out.hang_up()
            return await facts.out.answer(errors.too_slow(), facts.own_lines())
        except Malformed:
            facts.end = "malformed"
            facts.out.hang_up()
            return await facts.out.answer(errors.malformed("its body is not framed as announced"), facts.own_lines())

    async def _converse(self, facts: _Facts) -> bool:
        """A conversation: read whole, looked at, forwarded rewritten or as the very bytes that came."""
        with self._preparing:
            try:
                raw = await self._body(facts)
            except _TooLarge:
                return await self._too_large(facts, decoded=False)
            since = time.perf_counter_ns()
            codings = encodings.named(v.decode("latin-1") for v in facts.named.get(b"content-encoding", ()))
            try:
                body = await self._decoded(raw, codings)
            except encodings.TooLarge:
                return await self._too_large(facts, decoded=True)
            except encodings.Broken:
                body = b""  # what cannot be read is no JSON, and the provider may know better

            facts.share.enter()
            if body is not raw:
                facts.share.hold(len(body))
            exchange = await self._ask(facts, body)
            facts.evidence = exchange.header
            if exchange.refusal is not None:
                refusal = exchange.refusal
                answer = errors.Answer(refusal.status, refusal.body, _lines(refusal.headers))
                return await facts.out.answer(answer, facts.own_lines())

            untouched = exchange.body is body
            sent = raw if untouched else exchange.body
            if not untouched:
                facts.share.held_besides(len(sent))
            facts.added += time.perf_counter_ns() - since
            facts.forwarded = len(sent)
            lines = facts.up(not untouched)
        provider = _Provider(
            lambda body, lines: self._send(facts, lines, body, len(body)),
            sent,
            lines,
            lambda: facts.up(True),
            self._limit,
        )
        if exchange.steering is not None:
            return await self._steer(facts, provider, exchange, exchange.steering)
        try:
            reply, steering = await self._sent(facts, lines, sent, exchange)
        except BaseException:
            await self.conclude(exchange, False)
            raise
        if steering is not None:
            return await self._steer(facts, provider.given(reply), exchange, steering)
        return await self._relay(facts, reply, exchange)

    async def _sent(
        self, facts: _Facts, lines: list[tuple[bytes, bytes]], body: bytes, exchange: Underway
    ) -> tuple[Reply, Steering | None]:
        """The reply, and what steers it if that is decided only once the request is on its way: a decision that takes
        long must not hold up a reply that is simply passed on."""
        if exchange.deciding is None:
            return await self._send(facts, lines, body, len(body)), None
        sending = asyncio.ensure_future(self._send(facts, lines, body, len(body)))
        try:
            for _ in range(3):
                await asyncio.sleep(0)  # the request goes first: it is written a turn or two of the loop later
            steering = await self._decided(facts, exchange.deciding)
            return await sending, steering
        except BaseException:
            if not sending.cancel() and not sending.cancelled() and sending.exception() is None:
                sending.result().close()
            raise

    @staticmethod
    async def _decided(facts: _Facts, deciding: Callable[[], Awaitable[Steering | None]]) -> Steering | None:
        try:
            return await deciding()
        except Exception as fault:
            # As with all that the rooms below do: the reply is passed on.
            logs.fault("conversation-failed", fault, id=facts.id)
            return None

    async def _tag(self, facts: _Facts, tagging: Tagging) -> bool:
        """A tool's results: answered here, whatever they are; the provider never sees them."""
        if facts.method != "POST":
            facts.out.hang_up()
            return await facts.out.answer(errors.only_posts(facts.path.decode()), facts.own_lines())
        try:
            raw = await self._body(facts)
            codings = encodings.named(v.decode("latin-1") for v in facts.named.get(b"content-encoding", ()))
            body = await self._decoded(raw, codings)
        except (_TooLarge, encodings.TooLarge) as fault:
            facts.end = "too-large"
            facts.out.hang_up()
            decoded = isinstance(fault, encodings.TooLarge)
            return await facts.out.answer(errors.body_too_large(self._limit, decoded), facts.own_lines())
        except Malformed:
            facts.end = "malformed"
            facts.out.hang_up()
            return await facts.out.answer(errors.malformed("its body is not framed as announced"), facts.own_lines())
        except _SlowUpload:
            facts.end = "upload-slow"
            facts.out.hang_up()
            return await facts.out.answer(errors.too_slow(), facts.own_lines())
        except encodings.Broken:
            return await facts.out.answer(errors.malformed("its body is not encoded as announced"), facts.own_lines())
        who = facts.credential(self._settings.tenant)
        answer = await tagging.answer(body, tenant_digest(who) if who is not None else None)
        return await facts.out.answer(answer, facts.own_lines())

    async def _pass_through(self, facts: _Facts) -> bool:
        """Not a conversation: streams both ways."""
        facts.share.enter()
        if facts.api is not None:
            facts.evidence = (await self._ask(facts, b"")).header
        lines = facts.up(False)
        length = _content_length(facts.named)
        chunked = b"transfer-encoding" in facts.named
        body = facts.request.body
        if body.fault is not None:
            raise body.fault
        if chunked or length:
            self._continue(facts)
        if length and body.complete and not chunked:
            facts.received = facts.forwarded = length
            reply = await self._send(facts, lines, body.read_nowait(), length)
        elif chunked or length:
            reply = await self._send(facts, lines, _pieces(facts), None if chunked else length)
            facts.forwarded = facts.received
        else:
            reply = await self._send(facts, lines, None, length)
        return await self._relay(facts, reply, None)

    async def _tunnel(self, facts: _Facts) -> bool:
        """A request to change the protocol: what follows is not HTTP, and is relayed as it comes."""
        facts.share.enter()
        upstream = self._upstream
        if upstream is None or facts.target is None:
            raise RuntimeError("the gateway was not started")
        evidence = None
        if facts.api is not None:
            facts.evidence = (await self._ask(facts, b"")).header
            evidence = headers.printable(facts.evidence)
        through = tunnel.Tunnel(upstream, facts.request, Patience(self._server.send_seconds))
        lines = facts.up(False)
        try:
            await through.run(upstream.destination.target(facts.target), lines, evidence)
        finally:
            facts.out.status, facts.out.sent, facts.received = through.status, through.sent, through.received
            facts.out.started = through.status != 0
        return facts.out.break_off()

    async def _send(
        self,
        facts: _Facts,
        lines: list[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes] | None,
        length: int | None,
    ) -> Reply:
        upstream = self._upstream
        if upstream is None or facts.target is None:
            raise RuntimeError("the gateway was not started")
        method = facts.method.encode("ascii")
        if facts.trace:
            lines = [line for line in lines if line[0].lower() not in headers.TRACE] + list(facts.trace)
        since = time.perf_counter_ns()
        with facts.stays.room("provider"):
            reply = await upstream.ask(method, upstream.destination.target(facts.target), lines, body, length)
        facts.reply, facts.waited = reply, (facts.waited or 0) + time.perf_counter_ns() - since
        return reply

    async def _relay(self, facts: _Facts, reply: Reply, exchange: Underway | None) -> bool:
        """Pass a reply on, piece by piece."""
        codings = reply.named.get(b"content-encoding", ())
        relay = _Relay(facts, _Watch(self, exchange, reply.status, codings, self._limit))
        comments: _Comments | None = None
        tail = b""
        whole = False
        try:
            await relay.start(Head(reply.status, reply.reason, reply.headers, reply.length))
            while relay.has_body:
                chunk = reply.ready()
                if chunk is None:
                    facts.out.flush()
                    comments = comments or _Comments(facts.out, reply, self._server.comment_seconds)
                    chunk = await comments.next(tail)
                if not chunk:
                    break
                await relay.pass_on(chunk)
                tail = (tail + chunk[-4:])[-4:]
            whole = True
            return await relay.end()
        except BrokenOff:
            return await relay.broke()
        finally:
            if whole:
                reply.done()
            else:
                reply.close()
                await relay.watch.ended(False)

    async def _steer(self, facts: _Facts, provider: _Provider, exchange: Underway, steering: Steering) -> bool:
        """Give the client what the exchange's steering says: replies of the provider, or others."""
        relay: _Relay | None = None
        pieces = steering.steer(provider)
        try:
            async for piece in pieces:
                if isinstance(piece, Head):
                    facts.evidence = exchange.header
                    codings = headers.values(piece.lines, b"content-encoding")
                    relay = _Relay(facts, _Watch(self, exchange, piece.status, codings, self._limit))
                    await relay.start(piece)
                    facts.out.flush()
                elif relay is not None and relay.has_body:
                    await relay.pass_on(piece)
            if relay is None:
                raise RuntimeError("a steering gave no reply")
            return await relay.end()
        except BrokenOff as broken:
            if relay is None:
                raise Unreachable(self.provider, "its reply broke off") from broken
            return await relay.broke()
        finally:
            await pieces.aclose()
            provider.close()
            if relay is not None:
                await relay.watch.ended(False)
            else:
                await self.conclude(exchange, False)

    async def _ask(self, facts: _Facts, body: bytes) -> Underway:
        try:
            asked = Asked(
                body=body,
                credential=facts.credential(self._settings.tenant),
                question_id=headers.first(facts.named, headers.QUESTION),
                conversation_id=headers.first(facts.named, headers.CONVERSATION),
                compaction_off=(headers.first(facts.named, headers.COMPACTION) or "").lower() == "off",
                api=facts.api or "chat",
                stays=facts.stays,
            )
            facts.exchange = await facts.serving.conversations.ask(asked)
        except Exception as fault:
            # Whatever fails in the rooms below must never break a user's request.
            logs.fault("conversation-failed", fault, id=facts.id)
            facts.exchange = _Alone(body)
        return facts.exchange

    async def _body(self, facts: _Facts) -> bytes:
        """The whole body as it came. Raises `_TooLarge` as early as it shows, `Malformed`, or `ConnectionError`."""
        length = _content_length(facts.named)
        if length is not None and length > self._limit:
            raise _TooLarge
        self._continue(facts)
        if facts.request.body.complete:
            whole = facts.request.body.read_nowait()
            facts.received = len(whole)
            if facts.received > self._limit:
                raise _TooLarge
            facts.share.hold(facts.received)
            return whole
        # Copied piece by piece, into room for all of it: to join megabytes at once would hold up the streams beside.
        # What only was announced takes no memory until it comes, but addresses, which some systems count.
        room = io.BytesIO()
        if length:
            room.seek(min(length, _ROOM_AT_ONCE) - 1)
            room.write(b"\0")
            room.seek(0)
        async for piece in _pieces(facts):
            room.write(piece)
            if facts.received > self._limit:
                raise _TooLarge
            facts.share.hold(len(piece))
        room.truncate()  # to what came
        return room.getvalue()

    async def _decoded(self, raw: bytes, codings: Sequence[str]) -> bytes:
        if not codings:
            return raw
        if len(raw) < LARGE:
            with contextlib.suppress(encodings.TooLarge):  # a small body may unfold to a large one
                return encodings.decode(raw, codings, min(self._limit, LARGE))
        return await asyncio.to_thread(encodings.decode, raw, codings, self._limit)

    async def _too_large(self, facts: _Facts, decoded: bool) -> bool:
        facts.evidence = (await self._ask(facts, b"")).header
        facts.end = "too-large"
        facts.out.hang_up()
        return await facts.out.answer(errors.body_too_large(self._limit, decoded), facts.own_lines())

    def _continue(self, facts: _Facts) -> None:
        """Tell a client that waits before it sends its body to go on: the low-level server does not."""
        if (headers.first(facts.named, b"expect") or "").lower() == "100-continue":
            facts.request.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as fault:
        logs.fault("settling-failed", fault)


async def _pieces(facts: _Facts) -> AsyncIterator[bytes]:
    body = facts.request.body
    loop = asyncio.get_running_loop()
    while True:
        piece = body.read_nowait()
        if not piece and not body.complete:
            since = loop.time()
            try:
                piece = await body.readany(facts.upload.left())
            except TimeoutError:
                raise _SlowUpload from None
            facts.upload.waited(loop.time() - since)
        if not piece:
            return
        facts.received += len(piece)
        facts.upload.moved(len(piece))
        yield piece


def _head_bytes(facts: _Facts) -> int:
    return len(facts.asked) + sum(len(name) + len(value) + 4 for name, value in facts.headers)


def _content_length(named: headers.Named) -> int | None:
    text = headers.first(named, b"content-length")
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _json(status: int, value: Mapping[str, Any]) -> errors.Answer:
    return errors.Answer(status, json.dumps(value).encode())


def _lines(given: Any) -> tuple[tuple[bytes, bytes], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((headers.printable(name), headers.printable(value)) for name, value in pairs)
