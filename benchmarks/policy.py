"""Whether the citation policy delays a stream that it has nothing to ask about.

    python -m benchmarks.policy [--quick]

Two proxies stand in front of one scripted provider, one with the policy off, one that enforces. Requests of a question
that has declared what grounds it go to both in turns, and each pair is compared: the time to the first byte of the
body, and for every chunk the time from the provider's write until the client has it. Medians of the pairs' differences;
a proxy is timed against itself, too, which says how much of it is noise. Ends with an error where the policy costs more
than 5 % or 0.1 ms, whichever is larger.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load import servers

SHARE, FLOOR = 0.05, 0.0001
CHUNKS, GAP = 40, 0.002

CONFIG = """
[server]
port = 0
admin_port = 0
[upstream]
base_url = "http://127.0.0.1:{port}/v1"
[store]
uri = "memory://"
[policy]
mode = "{mode}"
[[evidence]]
format = "auto"
tools = ["search"]
cite = "cite"
"""

Json = dict[str, Any]


def call(call_id: str, name: str, arguments: Json) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def conversation(declared: bool, size: int) -> bytes:
    """A question that found `size` results, and cited one of them or none."""
    found = json.dumps([{"id": f"chunk-{n}", "text": f"Passage {n}. " + "What it says. " * 40} for n in range(size)])
    messages: list[Json] = [
        {"role": "user", "content": "What does it say?"},
        call("s", "search", {"q": "it"}),
        {"role": "tool", "tool_call_id": "s", "content": found},
    ]
    if declared:
        messages += [
            call("c", "cite", {"ids": ["chunk-0"]}),
            {"role": "tool", "tool_call_id": "c", "content": "Registered 1 citation."},
        ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("search", "cite")]
    return json.dumps({"model": "m", "stream": True, "messages": messages, "tools": tools}).encode()


def event(delta: Json, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "model": "m", "created": 1, "choices": [choice]}).encode() + b"\n\n"


@dataclass
class Provider:
    """Streams an answer chunk by chunk, and remembers when it wrote each; cites when it is asked to."""

    written: list[float] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                body = await reader.readexactly(length)
                await (self._cite(writer) if b"[evidence-proxy/" in body else self._answer(writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        self.written = []
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(CHUNKS):
            await asyncio.sleep(GAP)
            self.written.append(time.perf_counter())
            self._chunk(writer, event({"role": "assistant", "content": f"word {number} "}))
        self._chunk(writer, event({}, "stop") + b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    @staticmethod
    def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    @staticmethod
    async def _cite(writer: asyncio.StreamWriter) -> None:
        message = call("x", "cite", {"ids": ["chunk-0"]})
        body = json.dumps({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()


@dataclass
class Timed:
    """One request: seconds to the first byte of the body, and for each chunk from the provider's hand to ours."""

    first: float
    chunks: list[float]


class Client:
    """One connection to one proxy."""

    def __init__(self, port: int, provider: Provider) -> None:
        self._port = port
        self._provider = provider

    async def open(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, body: bytes) -> Timed:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\nContent-Length: %d\r\n\r\n"
        start = time.perf_counter()
        self._writer.write(head % len(body) + body)
        await self._reader.readuntil(b"\r\n\r\n")
        got: list[float] = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            data = await self._reader.readexactly(size + 2)
            if b"word " in data:
                got.append(time.perf_counter())
        await self._reader.readexactly(2)
        return Timed(got[0] - start, [b - a for a, b in zip(self._provider.written, got, strict=False)])


@dataclass(frozen=True)
class Proxy:
    process: asyncio.subprocess.Process
    port: int
    directory: Path
    draining: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, mode: str, provider: int) -> Proxy:
        directory = Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
        file = directory / "proxy.toml"
        file.write_text(CONFIG.format(port=provider, mode=mode))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--config", str(file)),
            env={**servers.surroundings(), "XDG_DATA_HOME": str(directory)},
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while line := await process.stderr.readline():
            told = json.loads(line)
            if told.get("event") == "listening":
                draining = asyncio.ensure_future(_drained(process.stderr))
                return cls(process, int(told["address"].rpartition(":")[2]), directory, draining)
        raise RuntimeError("the proxy ended before it listened")

    async def stop(self) -> None:
        self.process.terminate()
        await self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


async def _drained(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


def compared(what: str, one: Sequence[float], other: Sequence[float]) -> bool:
    """Print a line of pairs; says whether the second costs no more than it may."""
    before = statistics.median(one)
    more = statistics.median(b - a for a, b in zip(one, other, strict=True))
    ok = more <= max(SHARE * before, FLOOR)
    ratio = (before + more) / before
    print(f"{what:<46} {before * 1000:>9.3f} {more * 1000:>+9.3f} {ratio:>7.3f}{'' if ok else '  ABOVE'}", flush=True)
    return ok


async def pairs(one: Client, other: Client, body: bytes, count: int) -> tuple[list[Timed], list[Timed]]:
    """The same request to both, in turns: who is first changes each time."""
    told: tuple[list[Timed], list[Timed]] = ([], [])
    for number in range(count + 5):
        for side in (0, 1) if number % 2 else (1, 0):
            timed = await (one, other)[side].ask(body)
            if number >= 5:  # after what is warmed up
                told[side].append(timed)
    return told


async def main(quick: bool) -> int:
    provider = Provider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    off, on = await Proxy.start("off", port), await Proxy.start("enforce", port)
    failed = 0
    try:
        print(f"{CHUNKS} chunks, one every {GAP * 1000:.0f} ms")
        print(f"{'':<46} {'off, ms':>9} {'more':>9} {'ratio':>7}")
        for size in (5, 200):
            body = conversation(True, size)
            count = 20 if quick else 100
            for name, others in (("off and off", (off, off)), ("off and enforce", (off, on))):
                first, second = [await Client(proxy.port, provider).open() for proxy in others]
                a, b = await pairs(first, second, body, count)
                kind = f"{len(body) / 1000:.0f} KB, {name}"
                good = compared(f"{kind}: to the first byte", [t.first for t in a], [t.first for t in b])
                good &= compared(
                    f"{kind}: each chunk",
                    [statistics.median(t.chunks) for t in a],
                    [statistics.median(t.chunks) for t in b],
                )
                failed += not good and others == (off, on)
    finally:
        await off.stop()
        await on.stop()
        server.close()
    print("the policy delays no declared stream" if not failed else f"{failed} are above what it may cost")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--quick" in sys.argv[1:])))
