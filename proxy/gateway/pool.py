"""Connections to the provider: opened, kept while nobody uses them, taken again. Reads replies with llhttp.

This room knows of one provider and of HTTP's framing, and nothing of what is asked. A connection serves one exchange at
a time; whoever has taken it gives it back or aborts it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from typing import Any

import aiohappyeyeballs
import httptools

from proxy.gateway.headers import Headers, Named, by_name
from proxy.gateway.limits import Alarm, Bell

_KEEP_ALIVE_SECONDS = 15.0
_ADDRESS_SECONDS = 30.0  # for which a host's addresses are taken to stay the same
_NEXT_ADDRESS_SECONDS = 0.25  # after which the next address is tried beside one that does not answer
_READ_AHEAD = 1 << 17
_LINE_BYTES = 1 << 16
_LINES = 256
_OVERHEAD = 1 << 20  # bytes of heads, trailers and chunk extensions, without anything of the body between


class NotHttp(Exception):
    """What the provider sent is no reply that HTTP knows."""


class Changed(NotHttp):
    """The provider wants to change the protocol."""


class Disconnected(ConnectionError):
    """The provider closed the connection."""


class ProviderConnection(asyncio.Protocol):
    """One connection. `begin` an exchange, write the request to `transport`, wait for `head`, and take the pieces."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._parser: httptools.HttpResponseParser | None = None
        self._alarm = Alarm(loop, self._late)
        self._bell = Bell()
        self._pulse = Alarm(loop, self._bell.ring)
        self._room = Bell()
        self._poll: select.poll | None = None
        self._asked = False
        self._lost = False
        self._bodiless = False
        self.transport: asyncio.Transport
        self.writing_paused = False
        self.idle_since = 0.0
        self.begin(False)
        self._asked = False

    # One exchange.

    def begin(self, bodiless: bool) -> None:
        """A request will be written. `bodiless`: its reply has no body, whatever its head says (HEAD)."""
        self._asked = True
        if self._bodiless:
            self._parser = None  # it still expects the body
        self._bodiless = bodiless
        self._in_head = self._interim = False
        self._lines: list[tuple[bytes, bytes]] = []
        self._chunked = self._until_end = self._inside_chunk = False
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._overhead = 0
        self._reading_paused = False
        self._ended = self._keeps = False
        self._fault: BaseException | None = None
        self.status = 0
        self.reason = b""
        self.headers: Headers = ()
        self.named: Named = {}
        self.length: int | None = None

    async def head(self) -> None:
        """Wait until `status`, `reason`, `headers` and `length` are those of the reply. Raises `TimeoutError` once the
        time is over that `allow` gave, `NotHttp`, `Disconnected` and `OSError`."""
        while not self.status:
            if self._fault is not None:
                raise self._fault
            await self._bell.wait()

    def allow(self, seconds: float) -> None:
        """The provider may take so long (0: for ever) from now on until its reply has a head."""
        if not self.status:
            self._alarm.set(seconds)

    def ready(self) -> bytes | None:
        """The next piece of the body if it is there already, b"" at the end, else None. Raises as `piece` does."""
        if self._pieces:
            piece = self._pieces.popleft()
            self._held -= len(piece)
            if self._reading_paused and self._held <= _READ_AHEAD // 2:
                self._reading_paused = False
                if not self._lost and not self.transport.is_closing():
                    self.transport.resume_reading()
            return piece
        if self._ended:
            return b""
        if self._fault is not None:
            raise self._fault
        return None

    async def piece(self, idle_seconds: float, within: float = 0.0) -> bytes | None:
        """The next piece of the body as the provider framed it, or b"" at the end; None if none comes `within` so many
        seconds. Raises `TimeoutError` if the provider is silent for `idle_seconds` in all, and what `head` does."""
        if within:
            self._pulse.set(within)
        while (piece := self.ready()) is None:
            if not self._alarm.on:  # a wait that was given up goes on
                self._alarm.set(idle_seconds)
            await self._bell.wait()
            if within and not self._pulse.on:
                piece = self.ready()
                break
        self._pulse.off()
        return piece

    async def drained(self) -> None:
        """Wait until the provider has taken enough of what was written. Raises `OSError`."""
        while self.writing_paused:
            if self._lost:
                raise Disconnected
            await self._room.wait()

    def give_back(self) -> None:
        """The exchange is over: keep the connection for the next one, if it can serve one."""
        transport = self.transport
        # A provider that replied before it took the whole request may never take the rest.
        taken = not transport.get_write_buffer_size()
        if self._ended and self._keeps and taken and not self._lost and not transport.is_closing():
            self._alarm.off()
            self._asked = False
            self._pool.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once, and with it the provider's work: what is still to be written is dropped."""
        self._asked = False
        self._alarm.end()
        self._pulse.end()
        self.transport.abort()

    def is_silent(self) -> bool:
        """Of a connection that nobody uses: whether the provider has said nothing on it that nobody has read.

        What lies there unread is its end, or bytes after the last reply: the next request would take these for its own
        reply.
        """
        if self._lost or self.transport.is_closing():
            return False
        if self._poll is None:
            if not hasattr(select, "poll"):
                return True
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poll.poll(0)

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none by inheritance
        self._pool.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self.transport.abort()
            return
        if self._fault is not None:
            return
        if self._parser is None:
            self._parser = _parser(self)
        held = self._held
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(Changed())
        except httptools.HttpParserError:
            self._fail(NotHttp())
        if self.status:
            self._alarm.off()
        if self._held == held:
            self._overhead += len(data)
            if self._overhead > _OVERHEAD:
                self._fail(NotHttp())
        else:
            self._overhead = 0
            if self._held > _READ_AHEAD and not self._reading_paused and not self._ended:
                self._reading_paused = True
                self.transport.pause_reading()
        self._bell.ring()

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._room.ring()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = True
        self._parser = None  # which knows this connection: nothing is left for the garbage collector
        self._alarm.end()
        self._pulse.end()
        self._pool.connections.discard(self)
        if exc is None and self.status and self._until_end:
            self._ended = True
        else:
            self._fail(exc if exc is not None else Disconnected())
        self._bell.ring()
        self._room.ring()

    def _late(self) -> None:
        self._fail(TimeoutError())
        self._bell.ring()

    def _fail(self, fault: BaseException) -> None:
        self._keeps = False
        if not self._ended and self._fault is None:
            self._fault = fault

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._ended:
            raise NotHttp  # nobody asked for it
        self._in_head = True
        self._lines = []
        self.reason = b""

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        if len(self._lines) == _LINES or len(name) + len(value) > _LINE_BYTES:
            raise NotHttp
        if b"\r" in value or b"\n" in value or b"\0" in value:
            raise NotHttp
        self._lines.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._in_head = False
        status = self._parser.get_status_code()
        self._interim = 100 <= status <= 199
        if status == 101:
            raise Changed
        if self._interim:
            return
        if b"\r" in self.reason or b"\0" in self.reason:
            raise NotHttp
        self.named = by_name(self._lines)
        coding = self.named.get(b"transfer-encoding")
        self._chunked = coding is not None and coding[-1].lower().endswith(b"chunked")
        length = self.named.get(b"content-length")
        self.length = int(length[0]) if length is not None and length[0].isdigit() and coding is None else None
        self.headers = tuple(self._lines)
        self.status = status
        if self._bodiless:
            self._ended = True
            options = b",".join(self.named.get(b"connection", ())).lower()
            self._keeps = self._parser.get_http_version() == "1.1" and b"close" not in options
        elif status not in (204, 304):
            self._until_end = not self._chunked and self.length is None

    def on_chunk_header(self) -> None:
        self._inside_chunk = False

    def on_body(self, data: bytes) -> None:
        if self._ended:
            raise NotHttp
        self._held += len(data)
        if self._inside_chunk and self._pieces:
            self._pieces[-1] += data
        else:
            self._pieces.append(data)
            self._inside_chunk = self._chunked

    def on_message_complete(self) -> None:
        if self._interim or self._bodiless:
            return
        assert self._parser is not None
        self._ended = True
        self._keeps = self._parser.should_keep_alive()


class Pool:
    """The connections to one provider, as many as are needed."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, connect_seconds: float) -> None:
        """To be called inside the event loop that will use it."""
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._port = port
        self._tls = tls
        self._seconds = connect_seconds
        self._idle: list[ProviderConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._addresses: list[Any] = []
        self._known_until = 0.0
        self._asking: asyncio.Task[list[Any]] | None = None
        self._closed = False
        self.connections: set[ProviderConnection] = set()

    def idle(self) -> ProviderConnection | None:
        """A connection that was used before and is as good as new, if there is one: the one that was used last."""
        oldest = self._loop.time() - _KEEP_ALIVE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and connection.is_silent():
                return connection
            connection.abort()
        return None

    async def open(self) -> ProviderConnection:
        """A new connection. Raises `TimeoutError` if there is none in time, and `OSError`."""
        async with asyncio.timeout(self._seconds or None):
            try:
                made = await aiohappyeyeballs.start_connection(
                    await self._where(),
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                    interleave=1,
                    loop=self._loop,
                    socket_factory=_socket,
                )
            except OSError:
                self._known_until = 0.0  # it may have moved
                raise
            try:
                _, connection = await self._loop.create_connection(
                    lambda: ProviderConnection(self, self._loop),
                    sock=made,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls is not None else None,
                )
            except BaseException:
                made.close()
                raise
        return connection

    def keep(self, connection: ProviderConnection) -> None:
        """Keep a connection that nobody uses, for a while."""
        if self._closed:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_KEEP_ALIVE_SECONDS, self._sweep)

    def close(self) -> None:
        """End every connection."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._idle.clear()
        for connection in list(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self._loop.time() - _KEEP_ALIVE_SECONDS
        idle, self._idle = self._idle, []
        for connection in idle:
            if connection.idle_since > oldest:
                self._idle.append(connection)
            else:
                connection.abort()
        if self._idle:
            after = self._idle[0].idle_since - oldest
            self._sweeper = self._loop.call_later(max(after, 0.01), self._sweep)

    async def _where(self) -> list[Any]:
        """The host's addresses. Whoever asks while they are being asked for waits for the same answer."""
        if self._addresses and self._loop.time() < self._known_until:
            return self._addresses
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._ask())
            self._asking.add_done_callback(_seen)
        return await asyncio.shield(self._asking)

    async def _ask(self) -> list[Any]:
        found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        self._addresses = list(found)
        self._known_until = self._loop.time() + _ADDRESS_SECONDS
        return self._addresses


def _parser(connection: ProviderConnection) -> httptools.HttpResponseParser:
    parser = httptools.HttpResponseParser(connection)
    # Providers and the balancers before them are not always strict; what would be two readings of one reply is refused.
    parser.set_dangerous_leniencies(
        lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
    )
    return parser


def _seen(asked: asyncio.Task[list[Any]]) -> None:
    if not asked.cancelled():
        asked.exception()  # whoever waited may have left


def _socket(info: Any) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family=family, type=kind, proto=protocol)
    # A provider may think for minutes without a byte; this is what finds out that its host is gone.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
