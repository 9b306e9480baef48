"""A scripted provider on 127.0.0.1. It keeps every request to the byte and answers from a queue of scripted replies.

It is written on bare asyncio streams, so that nothing between the test and the wire can hide what the proxy sent.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

HeaderLines = list[tuple[bytes, bytes]]


@dataclass
class Received:
    """One request as it came off the wire."""

    method: bytes
    target: bytes
    headers: HeaderLines
    body: bytes = b""
    #: Set when the body has been read whole.
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set when the proxy hangs up on this request's connection.
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    #: Body bytes as they come, before `complete`.
    pieces: list[bytes] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.target.partition(b"?")[0].decode()

    def values(self, name: str) -> list[bytes]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def value(self, name: str) -> bytes | None:
        return next(iter(self.values(name)), None)

    def names(self) -> list[bytes]:
        return [key for key, _ in self.headers]

    def json(self) -> Any:
        return json.loads(self.body)


class Wait:
    """A step of a reply: nothing more is sent until the test calls `go()`. `reached` tells that it has come to it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._gone_on = asyncio.Event()

    def go(self) -> None:
        self._gone_on.set()

    async def here(self) -> None:
        self.reached.set()
        await self._gone_on.wait()


class Break:
    """A step of a reply: the connection is cut here, without an end."""


Step = bytes | Wait | Break


@dataclass
class Reply:
    """A reply to give. `framing`: "length" (only without steps that are not bytes), "chunked", "close", or "none".

    With "none" nothing about framing is added: for HEAD, 204, and replies that the test frames by hand.
    """

    status: int = 200
    reason: str = "OK"
    headers: Sequence[tuple[str | bytes, str | bytes]] = ()
    steps: Sequence[Step] = ()
    framing: str = "chunked"
    #: Written instead of everything else, for what no honest server sends.
    raw: bytes | None = None
    #: Answer as soon as the head of the request is there, before its body.
    early: bool = False


Scripted = Reply | Callable[[Received], Reply]


def json_reply(
    value: Any, status: int = 200, reason: str = "OK", headers: Sequence[tuple[str, str]] = (), zipped: bool = False
) -> Reply:
    """A JSON body with Content-Length, optionally compressed with gzip."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = [("Content-Type", "application/json"), *headers]
    if zipped:
        body = gzip.compress(body)
        lines.append(("Content-Encoding", "gzip"))
    return Reply(status, reason, lines, [body], framing="length")


def sse_reply(steps: Iterable[Step], headers: Sequence[tuple[str, str]] = ()) -> Reply:
    """A stream of server-sent events: each bytes step is one HTTP chunk."""
    return Reply(200, "OK", [("Content-Type", "text/event-stream"), *headers], list(steps))


def completion(
    text: str | None = None,
    calls: Sequence[tuple[str, str, Any]] = (),
    finish: str | None = None,
    identity: str = "chatcmpl-1",
) -> dict[str, Any]:
    """A chat completion: an answer, or calls as (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
            }
            for call_id, name, args in calls
        ]
    return {
        "id": identity,
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def events(whole: dict[str, Any], piece: int = 12) -> list[bytes]:
    """The same completion as the chunks of a stream, each an event, with `[DONE]` at the end."""

    def event(choices: list[dict[str, Any]]) -> bytes:
        chunk = {"id": whole["id"], "object": "chat.completion.chunk", "created": 1, "model": whole["model"]}
        return b"data: " + json.dumps({**chunk, "choices": choices}).encode() + b"\n\n"

    chunks: list[bytes] = []
    for choice in whole["choices"]:
        index, message = choice["index"], choice["message"]

        def delta(value: dict[str, Any], index: int = index) -> bytes:
            return event([{"index": index, "delta": value, "finish_reason": None}])

        chunks.append(delta({"role": "assistant", "content": ""}))
        text = message.get("content") or ""
        chunks += [delta({"content": text[at : at + piece]}) for at in range(0, len(text), piece)]
        for position, call in enumerate(message.get("tool_calls") or ()):
            function = call["function"]
            head = {"index": position, "id": call["id"], "type": "function"}
            chunks.append(delta({"tool_calls": [{**head, "function": {"name": function["name"], "arguments": ""}}]}))
            args = function["arguments"]
            chunks += [
                delta({"tool_calls": [{"index": position, "function": {"arguments": args[at : at + piece]}}]})
                for at in range(0, len(args), piece)
            ]
        chunks.append(event([{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}]))
    return [*chunks, b"data: [DONE]\n\n"]


class _Connection(asyncio.StreamReaderProtocol):
    """One connection, which tells when the other side has left it."""

    def __init__(self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> None:
        super().__init__(asyncio.StreamReader(limit=1 << 24), serve)
        self.lost = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.lost.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        super().connection_lost(exc)


class Provider:
    """Listens from `start` to `stop`. `requests` holds what came, in order; `reply` adds to what will be answered."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self._replies: deque[Scripted] = deque()
        self._always: Scripted | None = None
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> Provider:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._serve), "127.0.0.1", 0, backlog=1024, ssl=tls)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """A base URL that ends in /v1."""
        return f"http://127.0.0.1:{self.port}/v1"

    def reply(self, *replies: Scripted) -> None:
        """Answer the next requests with these, in order."""
        self._replies.extend(replies)

    def always(self, reply: Scripted | None) -> None:
        """Answer with this whenever the queue is empty."""
        self._always = reply

    async def request(self, number: int = 0) -> Received:
        """The request of this number (from 0), as soon as its head is there."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) > number)
        return self.requests[number]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head[:-4].split(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        pairs = [line.split(b":", 1) for line in lines]
        gone = writer.transport.get_protocol().lost  # type: ignore[attr-defined]
        received = Received(method, target, [(name, value.strip()) for name, value in pairs], gone=gone)
        async with self._arrived:
            self.requests.append(received)
            self._arrived.notify_all()
        scripted = self._replies.popleft() if self._replies else self._always
        early = isinstance(scripted, Reply) and scripted.early
        if not early:
            await self._read_body(reader, received)
            received.complete.set()
        if scripted is None:
            reply = json_reply({"error": {"message": "nothing scripted for this request"}}, 500, "Unscripted")
        else:
            reply = scripted if isinstance(scripted, Reply) else scripted(received)
        return await self._write(writer, received, reply)

    @staticmethod
    async def _read_body(reader: asyncio.StreamReader, received: Received) -> None:
        if b"chunked" in (received.value("transfer-encoding") or b"").lower():
            while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                received.pieces.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
        else:
            left = int(received.value("content-length") or 0)
            while left:
                piece = await reader.read(left)
                if not piece:
                    raise asyncio.IncompleteReadError(b"", left)
                received.pieces.append(piece)
                left -= len(piece)
        received.body = b"".join(received.pieces)

    @staticmethod
    async def _write(writer: asyncio.StreamWriter, received: Received, reply: Reply) -> bool:
        if reply.raw is not None:
            writer.write(reply.raw)
            await writer.drain()
            return False
        head = [f"HTTP/1.1 {reply.status} {reply.reason}".encode()]
        head += [_bytes(name) + b": " + _bytes(value) for name, value in reply.headers]
        if reply.framing == "length":
            head.append(b"Content-Length: %d" % sum(len(step) for step in reply.steps if isinstance(step, bytes)))
        elif reply.framing == "chunked":
            head.append(b"Transfer-Encoding: chunked")
        elif reply.framing == "close":
            head.append(b"Connection: close")
        writer.write(b"\r\n".join(head) + b"\r\n\r\n")
        for step in reply.steps:
            if isinstance(step, Wait):
                await writer.drain()
                gone = asyncio.create_task(received.gone.wait())
                on = asyncio.create_task(step.here())
                await asyncio.wait({gone, on}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not on.done():
                    on.cancel()
                    return False
            elif isinstance(step, Break):
                await writer.drain()
                writer.transport.abort()
                return False
            elif reply.framing == "chunked":
                writer.write(b"%x\r\n%b\r\n" % (len(step), step))
            else:
                writer.write(step)
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.framing != "close" and not reply.early


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
