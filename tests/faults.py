"""A provider that fails in every way that one can, clients that leave at every moment, and what each of them must see.

The fault is named by the request's own header, so that one provider serves honest requests and all faults at once.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.house.client import Client, Seen, Torn, request
from tests.house.provider import completion, events

KIND = b"Content-Type: text/event-stream\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n" + KIND
CHUNKED = OPEN + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER = "an answer"
EVENTS = events(completion(ANSWER))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Faulty:
    """Listens from `start` to `stop`. `left` holds, by the request's number, when the proxy hung up on it."""

    left: dict[str, asyncio.Future[float]] = field(default_factory=dict)
    asked: dict[str, asyncio.Event] = field(default_factory=dict)
    honest: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> Faulty:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def expect(self, number: str) -> None:
        """A request of this number is about to be sent by a client that will leave."""
        self.left[number] = asyncio.get_running_loop().create_future()
        self.asked[number] = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head[:-4].split(b"\r\n")[1:])
        fault, number = lines.get(b"x-fault", b"").decode(), lines.get(b"x-number", b"").decode()
        if number in self.asked:
            self.asked[number].set()
        if fault == "client leaves while uploading to a path that passes":
            return await self._until_it_leaves(reader, number)
        await reader.readexactly(int(lines.get(b"content-length", b"0")))
        if not fault:
            self.honest += 1
            writer.write(WHOLE)
            await writer.drain()
            return True
        if fault in ANSWERS:
            writer.write(ANSWERS[fault])
            await writer.drain()
            if fault in RESETS:
                _reset(writer)
            elif fault in LATER:
                await asyncio.sleep(0.01)
                writer.write(LATER[fault])
                await writer.drain()
            return fault in KEPT
        if fault == "client leaves while streaming":
            writer.write(CHUNKED + chunk(EVENTS[0]))
            await writer.drain()
        if fault == "stalls inside the stream":
            writer.write(CHUNKED + b"".join(map(chunk, EVENTS[:2])))
            await writer.drain()
        return await self._until_it_leaves(reader, number)

    async def _until_it_leaves(self, reader: asyncio.StreamReader, number: str) -> bool:
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        if number in self.left and not self.left[number].done():
            self.left[number].set_result(time.perf_counter())
        return False


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


WHOLE = CHUNKED + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"
_ZIPPED = gzip.compress(b"".join(EVENTS), mtime=0)
#: What the provider writes, by fault.
ANSWERS: dict[str, bytes] = {
    "resets before headers": b"",
    "resets in headers": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "resets inside a chunk": CHUNKED + chunk(EVENTS[0]) + b"ff\r\nhalf",
    "resets inside the stream": CHUNKED + b"".join(map(chunk, EVENTS[:-2])),
    "closes before headers": b"",
    "closes inside the stream": CHUNKED + b"".join(map(chunk, EVENTS[:-2])),
    "garbage for a reply": b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n",
    "garbage for a chunk": CHUNKED + chunk(EVENTS[0]),
    "a length that is too large": OPEN + b"Content-Length: 100000\r\n\r\n" + b"".join(EVENTS[:-2]),
    "extra bytes after the body": OPEN + b"Content-Length: %d\r\n\r\n" % len(EVENTS[0]) + EVENTS[0]
    + b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nstolen!",
    "many interim replies": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 100 + WHOLE,
    "huge headers": b"HTTP/1.1 200 OK\r\n" + b"X-Huge: " + b"x" * 300_000 + b"\r\n\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
    "gzip that does not end": OPEN
    + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % (len(_ZIPPED) - 20) + _ZIPPED[:-20],
    "a change of protocol that nobody asked for": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
}  # fmt: skip
#: And what it writes a moment later.
LATER = {"garbage for a chunk": b"zz\r\n"}
RESETS = {fault for fault in ANSWERS if fault.startswith("resets")}
KEPT = {"many interim replies", "gzip that does not end", "extra bytes after the body"}
STALLS = ("stalls before headers", "stalls inside the stream")
LEAVES = (
    "client leaves while uploading a conversation",
    "client leaves while uploading to a path that passes",
    "client leaves while waiting",
    "client leaves while streaming",
)
REFUSES = "refuses"
FAULTS = (REFUSES, *ANSWERS, *STALLS, *LEAVES)

#: What the client sees, where it is not that the connection broke inside the reply: a status.
STATUS = {
    **dict.fromkeys(
        (REFUSES, "resets before headers", "resets in headers", "closes before headers", "garbage for a reply",
         "huge headers", "too many headers", "a change of protocol that nobody asked for"), 502),
    "stalls before headers": 504,
    "extra bytes after the body": 200,
    "many interim replies": 200,
    "gzip that does not end": 200,
}  # fmt: skip
SETTLES = {"many interim replies"}


def question(number: str, answered: bool = False) -> dict[str, Any]:
    """A question that searched and cited; with its answer and the next question, if it was `answered`."""
    calls = [
        {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}}]}
        for i, n, a in (("s", "search", "{}"), ("c", "cite", '{"ids": ["c1"]}'))
    ]
    messages = [
        {"role": "user", "content": f"{number}?"},
        calls[0],
        {"role": "tool", "tool_call_id": "s", "content": "[c1] one\nfirst\n\n[c2] two\nsecond"},
        calls[1],
        {"role": "tool", "tool_call_id": "c", "content": "registered"},
    ]
    more = [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "next?"}]
    return {"messages": messages + (more if answered else [])}


@dataclass
class Outcome:
    """What became of one request: its status, None where the client left; whether the reply was whole; how long the
    provider's side outlived the client, where it left."""

    status: int | None
    whole: bool
    outlived: float | None = None
    recorded: bool = False


class Playing:
    """Plays faults against a proxy at `url`; `dead` is one whose provider refuses connections."""

    def __init__(self, provider: Faulty, url: str, dead: str) -> None:
        self._provider = provider
        self._url = url
        self._dead = dead

    async def play(self, fault: str, number: int) -> Outcome:
        """One request with this fault, and then the question after it, which shows whether it was recorded."""
        name = f"{fault} {number}"
        outcome = await (self._leaves(fault, name) if fault in LEAVES else self._stays(fault, name))
        evidence = await self.honest(question(name, answered=True))
        outcome.recorded = evidence.startswith("compacted")
        return outcome

    async def honest(self, body: dict[str, Any]) -> str:
        """A request that nothing is wrong with. Raises where anything of its reply is not as it was sent."""
        client = await Client.connect(self._url)
        try:
            await client.send(request(body=body, headers=[("Authorization", "Bearer a")]))
            seen = await client.reply()
            assert (seen.status, seen.body) == (200, b"".join(EVENTS)), seen
            return seen.evidence
        finally:
            client.close()

    async def _stays(self, fault: str, name: str) -> Outcome:
        client = await Client.connect(self._dead if fault == REFUSES else self._url)
        try:
            await client.send(request(body=question(name), headers=_lines(fault, name)))
            try:
                seen: Seen = await client.head()
            except Torn:
                return Outcome(None, False)
            try:
                await client.rest(seen)
            except Torn:
                return Outcome(seen.status, False)
            return Outcome(seen.status, True)
        finally:
            client.close()

    async def _leaves(self, fault: str, name: str) -> Outcome:
        self._provider.expect(name)
        client = await Client.connect(self._url)
        passes = "passes" in fault
        raw = request(
            target="/v1/files" if passes else "/v1/chat/completions", body=question(name), headers=_lines(fault, name)
        )
        if "uploading" in fault:
            await client.send(raw[:-20])
            if not passes:
                await asyncio.sleep(0.005)
                client.vanish()
                return Outcome(None, False)
        else:
            await client.send(raw)
        await self._provider.asked[name].wait()
        if fault.endswith("streaming"):
            await client.head()
            await client.chunk()
        since = time.perf_counter()
        client.vanish()
        return Outcome(None, False, outlived=await self._provider.left[name] - since)


def _lines(fault: str, name: str) -> list[tuple[str | bytes, str | bytes]]:
    return [("Authorization", "Bearer a"), ("X-Fault", fault), ("X-Number", name)]


async def under_load(tester: Playing, work: Callable[[], Awaitable[None]], clients: int = 8) -> int:
    """Run `work` while honest clients ask without a pause; returns how many requests they made. Raises as they do."""
    over = asyncio.Event()
    made = 0

    async def ask(client: int) -> None:
        nonlocal made
        while not over.is_set():
            evidence = await tester.honest(question(f"load {client} {made}"))
            assert evidence == "untouched; reason=nothing-earlier", evidence
            made += 1
            await asyncio.sleep(0)

    asking = [asyncio.create_task(ask(client)) for client in range(clients)]
    try:
        await work()
    finally:
        over.set()
        await asyncio.gather(*asking)
    return made
