"""A fast provider: reads a request's body whole, without keeping it, and answers at once.

    python benchmarks/load/provider.py PORT

A request whose path ends in `?stream=CHUNKS,MILLISECONDS` is answered by a stream of so many events, each with the
time at which it was written (`time.monotonic_ns`), so that whoever receives it knows how long it was under way.
`GET /seen` tells how many requests came so far, and how many bytes their bodies had (chunks with their framing).
"""

import asyncio
import sys
import time
from typing import Any, cast

import uvloop

REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":100,'
    b'"completion_tokens":2,"total_tokens":102}}'
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    + str(len(REPLY)).encode()
    + b"\r\n\r\n"
    + REPLY
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%020d "}}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Provider(asyncio.BufferedProtocol):
    #: Of all connections: requests, and the bytes of their bodies.
    requests = 0
    received = 0

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 18)
        self._head = b""
        self._left = -1
        self._chunked = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data: Any = memoryview(self._buffer)[:nbytes]
        if self._left < 0:
            self._head += bytes(data)
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._head = self._head[:end]
            low = self._head.lower()
            self._chunked = b"transfer-encoding: chunked" in low
            at = low.find(b"content-length:")
            self._left = 1 if self._chunked else int(low[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
            self._tail = b""
            if not self._chunked:
                Provider.received += self._left
        if self._chunked:
            Provider.received += len(data)
            self._tail = (self._tail + bytes(data[-5:]))[-5:]
            self._left = 0 if self._tail == b"0\r\n\r\n" else 1
        else:
            self._left -= len(data)
        if self._left == 0:
            self._left = -1
            head, self._head = self._head, b""
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/seen":
            told = b'{"requests":%d,"bytes":%d}' % (Provider.requests, Provider.received)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told))
            return
        Provider.requests += 1
        _, found, wanted = path.partition(b"?stream=")
        if not found:
            self._transport.write(WHOLE)
            return
        chunks, milliseconds = wanted.split(b",")
        self._transport.write(STREAM)
        self._event(int(chunks), int(milliseconds) / 1000, asyncio.get_running_loop().time())

    def _event(self, left: int, pause: float, due: float) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(chunk(LAST) + b"0\r\n\r\n")
            return
        self._transport.write(chunk(EVENT % time.monotonic_ns()))
        asyncio.get_running_loop().call_at(due + pause, self._event, left - 1, pause, due + pause)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(int(sys.argv[1])))
