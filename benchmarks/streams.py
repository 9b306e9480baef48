"""Fifty streams of 20 ms chunks: time to first byte and what each chunk is under way, beside the shortest proxy.

    python -m benchmarks.streams [--quick]

Once alone, and once while bodies of 8 MB are compacted (by the yardstick: passed through) beside them, one after the
other. A probe in the proxy's event loop says how late its timers come. Ends with an error where a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from benchmarks.load import bodies, client, servers
from benchmarks.load.servers import Server

STREAMS, PAUSE = 50, 20
WRITTEN = re.compile(rb'"content":"([0-9]{20}) "')
BOUND = 1.15
PAUSES = 3.0


@dataclass
class Seen:
    """Seconds until the first byte of each stream, and that each chunk was under way."""

    first: list[float] = field(default_factory=list)
    under_way: list[float] = field(default_factory=list)
    broken: int = 0


class _Stream(asyncio.Protocol):
    def __init__(self, request: client.Request, seen: Seen, over: asyncio.Future[None]) -> None:
        self._request = request
        self._seen = seen
        self._over = over
        self._since = time.perf_counter()
        self._tail = b""
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        for piece in self._request:
            self._transport.write(piece)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        found = WRITTEN.findall(self._tail + data)
        if found and not self._begun:
            self._begun = True
            self._seen.first.append(time.perf_counter() - self._since)
        self._seen.under_way += [(now - int(written)) / 1e9 for written in found]
        self._tail = data[-40:] if not found else data[data.rfind(b'"content"') + 40 :][-40:]
        if data.endswith(b"0\r\n\r\n") and not self._over.done():
            self._over.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._over.done():
            self._seen.broken += 1
            self._over.set_result(None)


async def stream(server: Server, chunks: int, seen: Seen) -> None:
    """The streams, begun one after the other within the pause of a chunk."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(server.url)
    raw = bodies.body([{"role": "user", "content": "Tell me."}], stream=True)
    overs = []
    for _ in range(STREAMS):
        request = client.request(f"/v1/chat/completions?stream={chunks},{PAUSE}", len(raw), (raw,))
        over = loop.create_future()
        overs.append(over)
        await loop.create_connection(
            lambda request=request, over=over: _Stream(request, seen, over), parts.hostname, parts.port
        )
        await asyncio.sleep(PAUSE / 1000 / STREAMS)
    await asyncio.gather(*overs)


async def beside(server: Server, kind: bodies.Kind, numbers: Iterator[int], until: asyncio.Event) -> int:
    """Bodies of 8 MB, each of a conversation of its own, until the streams are over."""
    count = 0
    while not until.is_set():
        number = next(numbers)
        for body in (kind.settles, kind.asks):
            request = client.request("/v1/chat/completions", len(body), body.pieces(number))
            told = await client.run(server.url, iter([request]), 1)
            if told.wrong:
                raise RuntimeError(f"{server.name}: {told.wrong[0]}")
            count += 1
        await asyncio.sleep(0.1)
    return count


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def pauses(server: Server, file: Path) -> list[float]:
    """How late timers came in the proxy's loop since the last time that this was asked."""
    file.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR1)
    until = time.monotonic() + 5
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return cast(list[float], json.loads(file.read_text()))


async def compare(quick: bool) -> int:
    runs, chunks = (1, 100) if quick else (5, 200)
    kind = bodies.pictures("8 MB")
    missed = []
    with servers.running(servers.upstream()) as (provider,):
        ours, probe = servers.probed(provider.url)
        with servers.running(ours, servers.passing(provider.url)) as (_, aiohttp):
            numbers = iter(range(10_000_000))
            for server in (ours, aiohttp):  # what a process loads at its first conversations is not what this measures
                await stream(server, 50, Seen())
                once = asyncio.Event()
                asyncio.get_running_loop().call_later(1, once.set)
                await beside(server, kind, numbers, once)
            await servers.at_rest(ours)
            pauses(ours, probe)
            await asyncio.sleep(5)
            idle = quantile(pauses(ours, probe), 0.999)
            print(f"{STREAMS} streams, a chunk each {PAUSE} ms; ms, median of {runs} runs")
            print(f"{'':34}{'ours':>9}{'aiohttp':>9}{'times':>8}{'bound':>7}")
            for loaded in (False, True):
                figures: dict[str, dict[str, list[float]]] = {"ours": {}, "aiohttp": {}}
                late: list[float] = []
                for _ in range(runs):
                    for server in (ours, aiohttp):
                        seen, until = Seen(), asyncio.Event()
                        load = asyncio.create_task(beside(server, kind, numbers, until)) if loaded else None
                        if server is ours:
                            pauses(ours, probe)
                        await stream(server, chunks, seen)
                        until.set()
                        if load is not None:
                            await load
                        if server is ours:
                            late.append(quantile(pauses(ours, probe), 0.999))
                        if seen.broken:
                            raise RuntimeError(f"{server.name}: {seen.broken} streams broke off")
                        for name, value in (
                            ("first byte p50", quantile(seen.first, 0.5)),
                            ("first byte p99", quantile(seen.first, 0.99)),
                            ("chunk p50", quantile(seen.under_way, 0.5)),
                            ("chunk p99", quantile(seen.under_way, 0.99)),
                        ):
                            figures[server.name].setdefault(name, []).append(value)
                where = "beside bodies of 8 MB" if loaded else "alone"
                for name in figures["ours"]:
                    own, theirs = (statistics.median(figures[who][name]) * 1000 for who in ("ours", "aiohttp"))
                    print(
                        f"{where + ', ' + name:34}{own:>9.3f}{theirs:>9.3f}{own / theirs:>8.2f}{BOUND:>7.2f}",
                        flush=True,
                    )
                    if own > theirs * BOUND:
                        missed.append(f"{where}, {name}: {own / theirs:.2f} times, the bound is {BOUND:.2f}")
                pause = statistics.median(late)
                print(f"{where + ', loop pauses p99.9':34}{pause * 1e3:>9.3f}{idle * 1e3:>9.3f}{pause / idle:>8.2f}"
                      f"{PAUSES:>7.2f}   (beside an idle loop's)", flush=True)  # fmt: skip
                if pause > idle * PAUSES:
                    missed.append(f"{where}, loop pauses: {pause / idle:.2f} times an idle loop's, the bound is 3")
    print("\n".join(["", *missed]) if missed else "\nEvery bound holds.")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="What streams wait for.")
    parser.add_argument("--quick", action="store_true", help="one short run: to see that it works")
    asked = parser.parse_args()
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        return runner.run(compare(asked.quick))


if __name__ == "__main__":
    sys.exit(main())
