"""Connections of clients: requests as they come, answered in order, and who is waited for. Reads requests with llhttp.

What is no HTTP, or is framed so that two servers might read it in two ways, is refused here, and nothing more is read
from its connection. What a request means is the business of whoever is given it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable

import httptools

from proxy.gateway import errors, headers, listening
from proxy.gateway.errors import Answer
from proxy.gateway.limits import Alarm, Bell
from proxy.settings import ServerSettings
from proxy.visibility import logs

_READ_AHEAD = 1 << 18
_REQUESTS_AHEAD = 8
_HEADER_LINES = 512
# Two lines of these are two readings of one request.
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"content-type", b"content-range", b"content-location")
_PAST_THE_PARSER = 1 << 16  # of a body that is so much longer the parser sees only the beginning
_LINGER_SECONDS = 10.0  # for the rest of a body that was answered before its end; a reset might outrun the answer


class Malformed(Exception):
    """The framing of a request's body is broken."""


class Body:
    """The body of a request as it comes. What nobody reads holds the client back."""

    __slots__ = ("_bell", "_connection", "_discards", "_late", "_pieces", "complete", "fault", "held")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._bell = Bell()
        self.fault: BaseException | None = None
        """Why the rest will never come: `Malformed`, or `ConnectionError`."""
        self._discards = False
        self._late = False
        self.complete = False
        """Whether all of it has come: then `read_nowait` gives the rest."""
        self.held = 0
        """Bytes that have come and were not read."""

    def read_nowait(self) -> bytes:
        """What has come and was not read; b"" if there is nothing now. Raises `Malformed`, and `ConnectionError` if the
        client has gone."""
        if self.fault is not None:
            raise self.fault
        pieces = self._pieces
        if not pieces:
            return b""
        read = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.held = 0
        self._connection.go_on()
        return read

    async def readany(self, seconds: float | None = None) -> bytes:
        """The same, once something is there; b"" only at the end. `TimeoutError` if nothing comes for so long."""
        while not self._pieces and not self.complete and self.fault is None:
            self._connection.allow(self, seconds)
            try:
                await self._bell.wait()
            finally:
                self._connection.allow(self, None)
            if self._late:
                self._late = False
                raise TimeoutError
        return self.read_nowait()

    # The connection's side.

    def feed(self, data: bytes) -> None:
        if not self._discards:
            self._pieces.append(data)
            self.held += len(data)
            self._bell.ring()

    def end(self) -> None:
        self.complete = True
        self._bell.ring()

    def fail(self, fault: BaseException) -> None:
        if not self.complete and self.fault is None:
            self.fault = fault
            self._bell.ring()

    def late(self) -> None:
        """Whoever waits has waited for too long."""
        self._late = self._bell.awaited
        self._bell.ring()

    def discard(self) -> bool:
        """Nobody will read the rest. False if none comes."""
        self._discards = True
        self._pieces.clear()
        self.held = 0
        return not self.complete and self.fault is None


class Request:
    """One request: its head as it stood on the wire, its body as it comes. `target` and `headers` are raw bytes."""

    __slots__ = ("body", "connection", "headers", "keep_alive", "method", "minor", "named", "raw", "target")

    def __init__(
        self,
        connection: ClientConnection,
        method: str,
        target: bytes,
        minor: int,
        lines: headers.Headers,
        keep_alive: bool,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.minor = minor
        """Of HTTP's version: 1.0 or 1.1."""
        self.headers = lines
        self.named = headers.by_name(lines)
        """The same by name."""
        self.keep_alive = keep_alive
        """Whether the client lets its connection serve another request."""
        self.body = Body(connection)
        self.raw: Raw | None = None
        """What follows a request for WebSocket."""


class Raw:
    """What a client sends after a request to change the protocol, as it comes."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._bell = Bell()
        self._ended = False
        self.held = 0

    async def read(self) -> bytes:
        """The next piece; b"" once the client has gone."""
        while not self._pieces:
            if self._ended:
                return b""
            await self._bell.wait()
        piece = self._pieces.popleft()
        self.held -= len(piece)
        self._connection.go_on()
        return piece

    def feed(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)
            self.held += len(data)
            self._bell.ring()

    def end(self) -> None:
        self._ended = True
        self._bell.ring()


def wants_websocket(request: Request) -> bool:
    """Whether a request asks for WebSocket. Source: RFC 6455, 4.1."""
    if request.method != "GET" or b"upgrade" not in request.named:
        return False
    options = b",".join(request.named.get(b"connection", ())).lower()
    return b"upgrade" in options and b"websocket" in b",".join(request.named[b"upgrade"]).lower()


class ClientConnection(asyncio.Protocol):
    """One connection of a client's."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._settings = clients.settings
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._alarm = Alarm(self._loop, self._late)
        # What comes in: the request whose head or body is being read.
        self._in_head = False
        self._head_bytes = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._target = b""
        self._coming: Request | None = None
        self._left = 0  # of a body that announced its length
        self._past_the_parser = False
        self._framing_only = False
        self._overhead = 0
        self._deaf = False
        self._raw: Raw | None = None
        self._reading_paused = False
        # What is answered.
        self._queue: deque[Request | Answer] = deque()
        self._current: Request | None = None
        self.task: asyncio.Task[None] | None = None
        self._lingers = False
        self._ends = False
        self._room = Bell()
        self.transport: asyncio.Transport
        self.writing_paused = False

    # For whoever answers a request.

    async def drained(self) -> None:
        """Wait until the client has taken enough of what was written. Raises `ConnectionError` if it has gone."""
        while self.writing_paused:
            if self.transport.is_closing():
                raise ConnectionResetError("the client has gone")
            await self._room.wait()

    def go_on(self) -> None:
        """Something was read: more may come."""
        if self._reading_paused and not self._is_ahead() and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    def allow(self, body: Body, seconds: float | None) -> None:
        """The body of the request that is being answered may keep its reader waiting for so long; None: for ever."""
        if self._current is None or self._current.body is not body:
            return  # it was answered meanwhile, and something else may be waited for
        if seconds is None:
            self._alarm.off()
        else:
            self._alarm.set(max(seconds, 0.001))

    def close(self) -> None:
        """Close it once what was written is sent; a client that does not take it is given up in the end."""
        self._deaf = True
        if not self.transport.is_closing():
            self.transport.close()
            give_up_later(self.transport, self._settings.send_seconds or None)

    @property
    def idle(self) -> bool:
        """Whether it waits for a request."""
        return self._current is None and not self._queue

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is none by inheritance
        self._clients.connections.add(self)
        self._alarm.set(self._settings.keep_alive_seconds)

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw.feed(data)
            self._hold_back()
            return
        if self._deaf or self._parser is None:
            return
        if self._past_the_parser and not (data := self._rest_of_body(data)):
            return
        before, was_in_head = self._coming, self._in_head
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._malformed()
            return
        coming = self._coming
        if self._in_head:
            # Where another request ends in the same piece, nobody knows how much of it this head is.
            self._head_goes_on(len(data) if was_in_head or coming is before else 1)
        elif coming is not None and not coming.body.complete:
            self._past_the_parser = self._left > _PAST_THE_PARSER
            if self._overhead > self._settings.max_header_bytes:
                self._malformed()
        self._hold_back()

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._room.ring()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._clients.connections.discard(self)
        self._deaf = True
        self._parser = None  # which knows this connection: nothing is left for the garbage collector
        self._alarm.end()
        self._queue.clear()
        if self.task is not None:
            self.task.cancel()
        if self._coming is not None:
            self._coming.body.fail(ConnectionResetError("the client has gone"))
        if self._raw is not None:
            self._raw.end()
        self._room.ring()

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._framing_only:
            return
        self._in_head = True
        self._head_bytes = 0
        self._lines = []
        self._target = b""

    def on_url(self, target: bytes) -> None:
        if self._in_head:
            self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer
        if len(self._lines) == _HEADER_LINES:
            raise Malformed
        self._lines.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._framing_only:
            self._framing_only = False
            return
        self._in_head = False
        self._overhead = 0
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Malformed
        minor = 1 if version == "1.1" else 0
        method = parser.get_method().decode("ascii")
        request = Request(self, method, self._target, minor, tuple(self._lines), parser.should_keep_alive())
        named = request.named
        if b"host" not in named if minor else b"transfer-encoding" in named:
            raise Malformed  # RFC 9112, 3.2 and 6.1
        if len(named) < len(self._lines) and any(len(named.get(name, ())) > 1 for name in _ONCE):
            raise Malformed
        length = named.get(b"content-length")
        self._left = int(length[0]) if length is not None else 0
        self._coming = request
        self._arrived(request)

    def on_body(self, data: bytes) -> None:
        assert self._coming is not None
        self._left -= len(data)
        self._overhead = 0
        self._coming.body.feed(data)

    def on_message_complete(self) -> None:
        if self._parser is not None and self._parser.should_upgrade():
            return  # the parser takes what follows for another protocol; `_upgraded` knows better
        self._body_ended()

    # What comes in.

    def _arrived(self, request: Request | Answer) -> None:
        if self._current is None and not self._queue and not self._lingers:
            self._answer(request)
        else:
            self._queue.append(request)

    def _body_ended(self) -> None:
        assert self._coming is not None
        self._coming.body.end()
        if not self._coming.keep_alive:
            self._deaf = True
        if self._lingers:
            self._lingers = False
            self._next()

    def _rest_of_body(self, data: bytes) -> bytes:
        """Take what belongs to the body that is coming past the parser. Returns the rest."""
        assert self._coming is not None
        rest = b""
        if len(data) > self._left:
            data, rest = data[: self._left], data[self._left :]
        self._left -= len(data)
        self._coming.body.feed(data)
        if self._left:
            self._hold_back()
        else:
            self._past_the_parser = False
            self._parser = httptools.HttpRequestParser(self)
            self._body_ended()
        return rest if not self._deaf else b""

    def _upgraded(self, rest: bytes) -> None:
        """A request that asks for another protocol. Only WebSocket is changed to; else its body follows as ever."""
        request = self._coming
        assert request is not None
        if request.method == "CONNECT" or wants_websocket(request):
            request.keep_alive = False
            request.body.end()
            request.raw = self._raw = Raw(self)
            self._raw.feed(rest)
            self._hold_back()
            return
        # The parser stops at the head of such a request. Another one is told only how its body is framed.
        framing = [line for line in request.headers if line[0].lower() in (b"content-length", b"transfer-encoding")]
        head = b"POST / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % line for line in framing) + b"\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._framing_only = True
        self.data_received(head + rest)

    def _malformed(self) -> None:
        self._deaf = True
        coming = self._coming
        if coming is not None and not coming.body.complete:
            coming.body.fail(Malformed())
            if self._lingers:
                self.close()
        elif coming is None or coming.keep_alive:  # else nothing more was to come, and nobody waits for an answer
            self._refuse(errors.malformed("it is not well-formed HTTP"))

    def _head_goes_on(self, size: int) -> None:
        """Bytes of a head came, and it is not at its end."""
        begins = not self._head_bytes
        self._head_bytes += size
        if self._head_bytes > self._settings.max_header_bytes:
            self._refuse(errors.header_too_large(self._settings.max_header_bytes))
        elif begins and self.idle and not self._lingers:
            self._alarm.set(self._settings.header_seconds)

    def _refuse(self, answer: Answer) -> None:
        """Answer what is no request, after those before it, and read no more."""
        self._deaf = True
        self._arrived(answer)

    def _is_ahead(self) -> bool:
        """Whether more has come than is read."""
        if self._raw is not None:
            return self._raw.held > _READ_AHEAD
        return len(self._queue) > _REQUESTS_AHEAD or (self._coming is not None and self._coming.body.held > _READ_AHEAD)

    def _hold_back(self) -> None:
        if not self._reading_paused and self._is_ahead() and not self.transport.is_closing():
            self._reading_paused = True
            self.transport.pause_reading()

    def _late(self) -> None:
        if self._current is not None:
            self._current.body.late()
        elif self._in_head and not self._lingers:
            self._refuse(errors.too_slow())
        else:
            self.close()

    # What is answered.

    def _answer(self, request: Request | Answer) -> None:
        self._alarm.off()
        if isinstance(request, Answer):
            head = f"HTTP/1.1 {request.status} {request.status}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(request.body)}\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode() + request.body)
            self.close()
        else:
            self._current = request
            self.task = self._loop.create_task(self._served(request))

    async def _served(self, request: Request) -> None:
        keeps = False
        try:
            keeps = await self._clients.handle(request)
        except (ConnectionError, asyncio.CancelledError):
            pass  # there is nobody to answer, or no time for it
        except Exception as fault:
            logs.fault("request-failed", fault)
        self._current = self.task = None
        if self.transport.is_closing():
            return
        self._ends = not keeps or request.raw is not None
        if request.body.discard():
            self._lingers = True
            self._alarm.set(_LINGER_SECONDS)
            self.go_on()
        else:
            self._next()

    def _next(self) -> None:
        """The last request is answered, and all of it was taken."""
        if self._ends or self._clients.closing:
            self.close()
        elif self._queue:
            self._answer(self._queue.popleft())
            self.go_on()
        else:
            self._alarm.set(self._settings.header_seconds if self._in_head else self._settings.keep_alive_seconds)


class Clients:
    """The server: every connection at this process's addresses."""

    def __init__(self, handle: Callable[[Request], Awaitable[bool]], settings: ServerSettings) -> None:
        """`handle` answers a request and says whether its connection may serve another; it is cancelled when the client
        goes."""
        self.handle = handle
        self.settings = settings
        self.closing = False
        self.connections: set[ClientConnection] = set()
        self._servers: list[asyncio.AbstractServer] = []

    async def listen(self, listener: socket.socket) -> None:
        """Accept connections here. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: ClientConnection(self), sock=listener, backlog=listening.BACKLOG)
        self._servers.append(server)

    def running(self) -> list[asyncio.Task[None]]:
        """The requests that are being answered."""
        return [connection.task for connection in self.connections if connection.task is not None]

    def stop(self) -> None:
        """Accept no more, and close what waits for a request. Where one is under way, it goes on."""
        self.closing = True
        for server in self._servers:
            server.close()
        self._servers = []
        for connection in list(self.connections):
            if connection.idle:
                connection.close()

    def close(self) -> None:
        """Close every connection, whatever is under way."""
        self.stop()
        for connection in list(self.connections):
            connection.close()


def give_up_later(transport: asyncio.Transport, seconds: float | None) -> None:
    """Of a connection that is being closed: a client that never takes what is still to be sent would keep it open."""
    if seconds is not None and transport.get_write_buffer_size():
        asyncio.get_running_loop().call_later(seconds, transport.abort)
