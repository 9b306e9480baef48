"""The provider's side: where a request goes, and one exchange of bytes with it.

`Destination` maps paths and is pure. `Upstream` writes the request line and the header lines itself, byte for byte as
they came, over connections that aiohttp pools, and reads replies with aiohttp's parser. It knows nothing of evidence.
aiohttp's own client session is not used: it adds headers, decodes and re-encodes what it is given, and costs as much
as the rest of the proxy together.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
import ssl
from collections.abc import AsyncIterable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage, StreamWriter
from aiohttp.streams import StreamReader
from yarl import URL

from proxy.gateway.headers import Headers
from proxy.gateway.limits import Silence, TooSlow

T = TypeVar("T")

_KEEP_ALIVE_SECONDS = 15.0
_HEADER_BYTES = 1 << 16
_HEADER_LINES = 256
_ONE_WRITE = 1 << 15

_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class Unreachable(Exception):
    """There is no reply. `where`, `what` and `sent` may be shown to anybody; `late` if there only was none in time."""

    def __init__(self, where: str, what: str, sent: str = "Nothing was sent", late: bool = False) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what
        self.sent = sent
        self.late = late


class BrokenOff(Exception):
    """The provider's reply ended before it was complete."""


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that the provider may keep us waiting; 0: for ever. `idle` is for the next bytes, either way."""

    connect: float = 15.0
    first_byte: float = 1200.0
    idle: float = 600.0


@dataclass(frozen=True)
class Destination:
    """Where requests go: one scheme, host and port, whatever a client puts into its path."""

    origin: str
    host: bytes
    prefix: bytes

    @classmethod
    def of(cls, base_url: str) -> Destination:
        """`base_url` as the settings accept it: http or https, a host, no query."""
        parts = urlsplit(base_url)
        url = URL(base_url)
        host = url.host_port_subcomponent or ""
        return cls(f"{parts.scheme.lower()}://{host}", host.encode("ascii"), url.raw_path.rstrip("/").encode("ascii"))

    def target(self, asked: bytes) -> bytes:
        """The request target for `asked`, a target in origin form: a leading `/v1` becomes the base URL's own path."""
        if asked == b"/v1" or asked.startswith((b"/v1/", b"/v1?")):
            mapped = self.prefix + asked[3:]
            return mapped if mapped.startswith(b"/") else b"/" + mapped
        return asked


def origin_form(asked: bytes) -> bytes | None:
    """The path and query of a request target; the host of an absolute one does not count. None for `*` and the like."""
    if asked.startswith(b"/"):
        return asked
    absolute = _ABSOLUTE.match(asked)
    if absolute is None:
        return None
    rest = asked[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


class Reply:
    """One reply of the provider: head at once, body as it comes."""

    def __init__(
        self,
        message: RawResponseMessage,
        payload: StreamReader,
        connection: Connection,
        upload: asyncio.Task[None] | None,
        idle_seconds: float,
    ) -> None:
        self.status = message.code
        self.reason = message.reason.encode("utf-8", "surrogateescape")
        self.headers: Headers = message.raw_headers
        self.length = _length(message)
        self._payload = payload
        self._connection = connection
        self._upload = upload
        # aiohttp's parser forgets the payload when a later chunk is malformed: without this its reader would wait for
        # ever for a connection that is closed.
        self._lost = connection.protocol.closed if connection.protocol is not None else None
        if self._lost is not None:
            self._lost.add_done_callback(self._connection_lost)
        self._silence = Silence(asyncio.get_running_loop(), idle_seconds, self._silent)

    async def chunk(self) -> bytes:
        """The next piece of the body as the provider framed it, or b"" at the end. Raises `BrokenOff`."""
        try:
            # After a fault the payload says that it is at its end, too.
            while self._payload.exception() is not None or not self._payload.at_eof():
                self._silence.begin()
                data, boundary = await self._payload.readchunk()
                self._silence.over()
                if data or not boundary:
                    return data
            return b""
        except (aiohttp.ClientError, HttpProcessingError, OSError, RuntimeError, TimeoutError) as broken:
            raise BrokenOff from broken

    def _silent(self) -> None:
        if not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError("the provider fell silent inside the reply"))

    def _connection_lost(self, lost: asyncio.Future[None]) -> None:
        if not lost.cancelled():
            lost.exception()  # seen; the payload has one of its own
        if not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError("the connection ended inside the reply"))

    def done(self) -> None:
        """The body was read to its end: the connection may serve another request, unless the upload still runs."""
        if self._upload is not None and not self._upload.done():
            self.close()
        else:
            self._unwatch()
            self._connection.release()

    def close(self) -> None:
        """Stop asking at once: the connection goes, and with it the provider's work."""
        if self._upload is not None:
            self._upload.cancel()
        self._unwatch()
        _abort(self._connection)

    def _unwatch(self) -> None:
        self._silence.end()
        if self._lost is not None:
            self._lost.remove_done_callback(self._connection_lost)
            # The connection may break while nobody uses it: that is nobody's fault, and must not be logged as one.
            self._lost.remove_done_callback(_fault_seen)
            self._lost.add_done_callback(_fault_seen)


class Upstream:
    """A client of one provider. Use `ask`; `close` at the end."""

    def __init__(self, base_url: str, limits: TimeLimits = TimeLimits(), ca_file: Path | None = None) -> None:
        """To be called inside the event loop that will use it. Certificates are always checked; those that `ca_file`
        holds are trusted beside the system's. Raises `OSError` (`ssl.SSLError`) where it cannot be read."""
        self.destination = Destination.of(base_url)
        self.limits = limits
        self.tls = ssl.create_default_context() if self.destination.origin.startswith("https:") else None
        if self.tls is not None and ca_file is not None:
            self.tls.load_verify_locations(ca_file.expanduser())
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._used: WeakSet[ResponseHandler] = WeakSet()
        self._connector = aiohttp.TCPConnector(
            limit=0,
            ssl=self.tls or True,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            ttl_dns_cache=30,
            socket_factory=_socket,
        )
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect or None)
        # The connector asks a request where to connect to; this one stands for all of them and is never sent.
        self._address = aiohttp.ClientRequest("GET", URL(self.destination.origin), loop=loop)

    async def ask(
        self,
        method: bytes,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        body: bytes | AsyncIterable[bytes] | None,
        length: int | None,
    ) -> Reply:
        """Send a request and wait for the head of its reply.

        `target` is what `Destination.target` gave; `headers` are without Host and framing. A `length` frames the body
        with Content-Length, None chunks an iterable body and sends none for no body. Raises `Unreachable`.
        """
        where = self.destination.origin
        try:
            connection = await self._connect()
        except TimeoutError:
            raise Unreachable(where, f"got no connection within {self.limits.connect:g} seconds") from None
        except (aiohttp.ClientError, OSError) as failed:
            raise Unreachable(where, f"could not connect ({_why(failed)})") from None

        upload: asyncio.Task[None] | None = None
        progress = _Progress(len(body) if isinstance(body, bytes) else length if body is not None else 0)
        try:
            protocol = connection.protocol
            if protocol is None or protocol.transport is None:
                raise Unreachable(where, "the connection was closed at once")
            protocol.set_response_params(
                skip_payload=method == b"HEAD",
                read_until_eof=True,
                auto_decompress=False,
                max_line_size=_HEADER_BYTES,
                max_field_size=_HEADER_BYTES,
                max_headers=_HEADER_LINES,
            )
            progress.transport = protocol.transport
            chunked = length is None and body is not None
            head = self._head(method, target, headers, length, chunked)
            if body is None or isinstance(body, bytes):
                _write(protocol.transport, head, body or b"")
                progress.given(len(body or b""), whole=True)
            else:
                protocol.transport.write(head)
                upload = self._loop.create_task(
                    _upload(protocol, self._loop, body, chunked, progress, self.limits.idle)
                )
                upload.add_done_callback(_fault)
            message, payload = await self._in_time(_reply_head(protocol), upload)
            if message.code == 101:
                raise Unreachable(where, "it wanted to change the protocol, which was not asked for")
        except BaseException as failed:
            sent = progress.told()
            if (fault := _fault(upload)) is not None and not isinstance(failed, asyncio.CancelledError):
                failed = fault
            elif upload is not None:
                upload.cancel()
            _abort(connection)
            if isinstance(failed, TooSlow):
                raise Unreachable(where, "it did not take the request in time", sent, late=True) from None
            if isinstance(failed, TimeoutError):
                late = f"it did not reply within {self.limits.first_byte:g} seconds"
                raise Unreachable(where, late, sent, late=True) from None
            if isinstance(failed, aiohttp.ServerDisconnectedError):
                raise Unreachable(where, "it closed the connection without a reply", sent) from None
            if isinstance(failed, HttpProcessingError):
                raise Unreachable(where, "what it replied is not HTTP", sent) from None
            if isinstance(failed, (aiohttp.ClientError, OSError)):
                raise Unreachable(where, f"the connection broke before a reply ({_why(failed)})", sent) from None
            if isinstance(failed, Unreachable):
                failed.sent = sent
            raise failed
        return Reply(message, payload, connection, upload, self.limits.idle)

    async def _connect(self) -> Connection:
        """A connection on which the provider has said nothing that was not asked for.

        What lies unread on one that was used before is its end, or bytes after the last reply: the next request would
        take these for its own reply.
        """
        while True:
            connection = await self._connector.connect(self._address, [], self._timeout)
            protocol = connection.protocol
            if protocol is None or protocol not in self._used:
                if protocol is not None:
                    self._used.add(protocol)
                return connection
            if not protocol.should_close and not _readable(protocol.transport):
                return connection
            _abort(connection)

    async def _in_time(self, head: Coroutine[Any, Any, T], upload: asyncio.Task[None] | None) -> T:
        """The head of a reply. The provider's time begins when it has the request. Raises `TimeoutError`."""
        seconds = self.limits.first_byte
        async with asyncio.timeout(seconds if seconds and upload is None else None) as limit:

            def begin(_: asyncio.Task[None]) -> None:
                with contextlib.suppress(RuntimeError):  # it may be over by now
                    limit.reschedule(self._loop.time() + seconds)

            if upload is not None and seconds:
                upload.add_done_callback(begin)
            try:
                return await head
            finally:
                if upload is not None:
                    upload.remove_done_callback(begin)

    def _head(
        self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], length: int | None, chunked: bool
    ) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: " + self.destination.host]
        lines += [b"%b: %b" % line for line in headers]
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        elif chunked:
            lines.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    async def close(self) -> None:
        """Close every connection."""
        await self._connector.close()


async def _reply_head(protocol: ResponseHandler) -> tuple[RawResponseMessage, StreamReader]:
    while True:
        message, payload = await protocol.read()
        if not 100 <= message.code <= 199 or message.code == 101:
            return message, payload


class _Progress:
    """How much of a request has left, to be told when there is no reply to it."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._given = 0
        self._whole = False
        self.transport: asyncio.Transport | None = None

    def given(self, size: int, whole: bool = False) -> None:
        """So many bytes of the body went to the socket, the last of them if `whole`."""
        self._given += size
        self._whole = self._whole or whole

    def told(self) -> str:
        """What the provider may have seen. Bytes count once the operating system took them; of a connection that has
        gone nobody knows any more how many that were."""
        if self.transport is None:
            return "Nothing was sent"
        waiting = self.transport.get_write_buffer_size()
        if self._whole and not waiting:
            may = "may have been" if self.transport.is_closing() else "was"
            return f"The request {may} sent whole, with {self._given} bytes of body"
        of = f" of {self._length}" if self._length is not None else ""
        return f"Of the request, {max(0, self._given - waiting)}{of} bytes of body were sent"


async def _upload(
    protocol: ResponseHandler,
    loop: asyncio.AbstractEventLoop,
    body: AsyncIterable[bytes],
    chunked: bool,
    progress: _Progress,
    idle_seconds: float,
) -> None:
    """Send a body as it comes. A provider that hangs up may still have replied, so that is no fault; a body that
    breaks off is, and takes the connection with it, so that it cannot look complete. Raises `TooSlow` for a provider
    that takes nothing for `idle_seconds`."""
    writer = StreamWriter(protocol, loop)
    if chunked:
        writer.enable_chunking()
    try:
        async for piece in body:
            try:
                await writer.write(piece, drain=False)
                progress.given(len(piece))
                if protocol.writing_paused:
                    async with asyncio.timeout(idle_seconds or None):
                        await writer.drain()
            except ConnectionError:
                return
            except TimeoutError:
                raise TooSlow from None
        with contextlib.suppress(ConnectionError):
            await writer.write_eof()
        progress.given(0, whole=True)
    except BaseException:
        protocol.abort()
        raise


def _fault(upload: asyncio.Task[None] | None) -> BaseException | None:
    """What went wrong with the client's body, if that is what broke the exchange. Also marks it as seen."""
    return None if upload is None or not upload.done() or upload.cancelled() else upload.exception()


def _fault_seen(lost: asyncio.Future[None]) -> None:
    if not lost.cancelled():
        lost.exception()


def _write(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
    if len(body) <= _ONE_WRITE:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _readable(transport: asyncio.Transport | None) -> bool:
    """Whether bytes or an end wait in a socket that the event loop has not looked at yet."""
    if transport is None or transport.is_closing() or not hasattr(select, "poll"):
        return transport is None or transport.is_closing()
    polled = select.poll()
    polled.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(polled.poll(0))


def _abort(connection: Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()  # close() would first send what is still buffered
    connection.close()


def _length(message: RawResponseMessage) -> int | None:
    text = message.headers.get("Content-Length")
    return int(text) if text is not None and text.isascii() and text.isdigit() and not message.chunked else None


def _why(failed: BaseException) -> str:
    """The reason in the operating system's words: an error's own text may quote the address with all it holds."""
    cause: Any = getattr(failed, "os_error", failed)
    if isinstance(cause, socket.gaierror):
        return "the host name is not known"
    return getattr(cause, "strerror", None) or type(cause).__name__


def _socket(info: Any) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family=family, type=kind, proto=protocol)
    # A provider may think for minutes without a byte; this is what finds out that its host is gone.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made
