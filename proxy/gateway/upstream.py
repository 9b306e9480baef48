"""The provider's side: where a request goes, and one exchange of bytes with it.

`Destination` maps paths and is pure. `Upstream` writes the request line and the header lines itself, byte for byte as
they came, over the connections of `pool`. It knows nothing of evidence.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from yarl import URL

from proxy.gateway.headers import Headers
from proxy.gateway.limits import TooSlow
from proxy.gateway.pool import Changed, Disconnected, NotHttp, Pool, ProviderConnection

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

    __slots__ = ("_connection", "_idle_seconds", "_over", "_upload", "headers", "length", "named", "reason", "status")

    def __init__(self, connection: ProviderConnection, upload: asyncio.Task[None] | None, idle_seconds: float) -> None:
        self.status = connection.status
        self.reason = connection.reason
        self.headers: Headers = connection.headers
        self.named = connection.named
        """The same by name."""
        self.length = connection.length
        self._connection = connection
        self._upload = upload
        self._idle_seconds = idle_seconds
        self._over = False

    def ready(self) -> bytes | None:
        """The next piece of the body if it is here already, b"" at the end; None if it is to be waited for. Raises
        `BrokenOff`."""
        try:
            return self._connection.ready()
        except (OSError, NotHttp) as broken:
            raise BrokenOff from broken

    async def chunk(self) -> bytes:
        """The next piece of the body as the provider framed it, or b"" at the end. Raises `BrokenOff`."""
        piece = await self.chunk_within(0)
        assert piece is not None
        return piece

    async def chunk_within(self, seconds: float) -> bytes | None:
        """The same, or None if the provider is silent for so long (0: for ever)."""
        try:
            return await self._connection.piece(self._idle_seconds, seconds)
        except (OSError, NotHttp) as broken:
            raise BrokenOff from broken

    def done(self) -> None:
        """The body was read to its end: the connection may serve another request, unless the upload still runs."""
        if self._upload is not None and not self._upload.done():
            self.close()
        elif not self._over:
            self._over = True
            self._connection.give_back()

    def close(self) -> None:
        """Stop asking at once: the connection goes, and with it the provider's work. Not after `done`, which gave the
        connection away."""
        if self._over:
            return
        self._over = True
        if self._upload is not None:
            self._upload.cancel()
        self._connection.abort()


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
        self._loop = asyncio.get_running_loop()
        url = URL(self.destination.origin)
        self._pool = Pool((url.raw_host or "").rstrip("."), url.port or 0, self.tls, limits.connect)

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
        connection = self._pool.idle()
        if connection is None:
            try:
                connection = await self._pool.open()
            except TimeoutError:
                raise Unreachable(where, f"got no connection within {self.limits.connect:g} seconds") from None
            except OSError as failed:
                raise Unreachable(where, f"could not connect ({_why(failed)})") from None

        upload: asyncio.Task[None] | None = None
        progress = _Progress(connection.transport, length)
        try:
            connection.begin(bodiless=method == b"HEAD")
            head = self._head(method, target, headers, length, chunked=length is None and body is not None)
            if body is None or isinstance(body, bytes):
                _write(connection.transport, head, body or b"")
                progress.given(len(body or b""), whole=True)
                connection.allow(self.limits.first_byte)
            else:
                connection.transport.write(head)
                upload = self._loop.create_task(_upload(connection, body, length is None, progress, self.limits))
                upload.add_done_callback(_fault)
            await connection.head()
        except BaseException as failed:
            sent = progress.told()
            if (fault := _fault(upload)) is not None and not isinstance(failed, asyncio.CancelledError):
                failed = fault
            elif upload is not None:
                upload.cancel()
            connection.abort()
            raise self._told(failed, sent) from None
        return Reply(connection, upload, self.limits.idle)

    def _told(self, failed: BaseException, sent: str) -> BaseException:
        """What went wrong before there was a reply, as it is told."""
        where = self.destination.origin
        if isinstance(failed, TooSlow):
            return Unreachable(where, "it did not take the request in time", sent, late=True)
        if isinstance(failed, TimeoutError):
            late = f"it did not reply within {self.limits.first_byte:g} seconds"
            return Unreachable(where, late, sent, late=True)
        if isinstance(failed, Disconnected):
            return Unreachable(where, "it closed the connection without a reply", sent)
        if isinstance(failed, Changed):
            return Unreachable(where, "it wanted to change the protocol, which was not asked for", sent)
        if isinstance(failed, NotHttp):
            return Unreachable(where, "what it replied is not HTTP", sent)
        if isinstance(failed, OSError):
            return Unreachable(where, f"the connection broke before a reply ({_why(failed)})", sent)
        return failed

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
        self._pool.close()
        await asyncio.sleep(0)


class _Progress:
    """How much of a request has left, to be told when there is no reply to it."""

    __slots__ = ("_given", "_length", "_transport", "_whole")

    def __init__(self, transport: asyncio.Transport, length: int | None) -> None:
        self._transport = transport
        self._length = length
        self._given = 0
        self._whole = False

    def given(self, size: int, whole: bool = False) -> None:
        """So many bytes of the body went to the socket, the last of them if `whole`."""
        self._given += size
        self._whole = self._whole or whole

    def told(self) -> str:
        """What the provider may have seen. Bytes count once the operating system took them; of a connection that has
        gone nobody knows any more how many that were."""
        waiting = self._transport.get_write_buffer_size()
        if self._whole and not waiting:
            may = "may have been" if self._transport.is_closing() else "was"
            return f"The request {may} sent whole, with {self._given} bytes of body"
        of = f" of {self._length}" if self._length is not None else ""
        return f"Of the request, {max(0, self._given - waiting)}{of} bytes of body were sent"


async def _upload(
    connection: ProviderConnection,
    body: AsyncIterable[bytes],
    chunked: bool,
    progress: _Progress,
    limits: TimeLimits,
) -> None:
    """Send a body as it comes; then the provider's time begins. A provider that hangs up may still have replied, so
    that is no fault; a body that breaks off is, and takes the connection with it, so that it cannot look complete.
    Raises `TooSlow` for a provider that takes nothing for as long as it may be idle."""
    transport = connection.transport
    try:
        async for piece in body:
            if transport.is_closing():
                return
            if chunked:
                transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
            else:
                transport.write(piece)
            progress.given(len(piece))
            if connection.writing_paused:
                try:
                    async with asyncio.timeout(limits.idle or None):
                        await connection.drained()
                except ConnectionError:
                    return
                except TimeoutError:
                    raise TooSlow from None
        if chunked and not transport.is_closing():
            transport.write(b"0\r\n\r\n")
        progress.given(0, whole=True)
        connection.allow(limits.first_byte)
    except BaseException:
        connection.abort()
        raise


def _fault(upload: asyncio.Task[None] | None) -> BaseException | None:
    """What went wrong with the client's body, if that is what broke the exchange. Also marks it as seen."""
    return None if upload is None or not upload.done() or upload.cancelled() else upload.exception()


def _write(transport: asyncio.Transport, head: bytes, body: bytes) -> None:
    if len(body) <= _ONE_WRITE:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _why(failed: BaseException) -> str:
    """The reason in the operating system's words: an error's own text may quote the address with all it holds."""
    if isinstance(failed, socket.gaierror):
        return "the host name is not known"
    return getattr(failed, "strerror", None) or type(failed).__name__
