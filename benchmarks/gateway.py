"""Requests/s and added time, beside the shortest aiohttp proxy, and nginx, in the same run.

    python -m benchmarks.gateway [--quick] [--scale 1.0]

The proxy has one core; load and a fast provider share the other. Every measured request is compacted, belongs to a
conversation of its own, and its reply is recorded on disk. Runs are made in turns, medians of five; processor time
per request is the steadier figure where others use the machine. Ends with an error where a ratio misses its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.load import bodies, client, servers
from benchmarks.load.bodies import Kind
from benchmarks.load.servers import Server

CHAT = "/v1/chat/completions"
CONNECTIONS = 32
BYTES_AT_A_TIME = 2_000_000


@dataclass
class Measured:
    """What the runs of one server gave for one kind of body."""

    per_second: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    middle: list[float] = field(default_factory=list)


def requests(body: bodies.Body, numbers: Iterator[int] | range) -> Iterator[client.Request]:
    for number in numbers:
        yield client.request(CHAT, len(body), body.pieces(number))


async def throughput(server: Server, kind: Kind, numbers: range, settled: bool, into: Measured) -> None:
    """Each connection goes on with its own conversation, a few of them one after the other: what settled a question is
    not long ago when the next one is asked, as where people talk."""
    asked, seconds, cpu = 0, 0.0, 0.0
    at_a_time = CONNECTIONS * max(4, BYTES_AT_A_TIME // len(kind.asks) // CONNECTIONS)
    for start in range(numbers.start, numbers.stop, at_a_time):
        some = range(start, min(start + at_a_time, numbers.stop))
        if settled:
            _well(server, await client.run(server.url, requests(kind.settles, some), CONNECTIONS))
        before = server.cpu()
        told = await client.run(server.url, requests(kind.asks, some), CONNECTIONS)
        cpu += server.cpu() - before
        asked, seconds = asked + len(told.each), seconds + len(told.each) / told.per_second
        _well(server, told, compacted=settled)
    into.cpu.append(cpu / asked)
    into.per_second.append(asked / seconds)


async def added(server: Server, kind: Kind, numbers: range, settled: bool, into: Measured) -> None:
    """One request at a time, each just after the one that settled its conversation's last question."""
    taken = []
    for number in numbers:
        only = range(number, number + 1)
        if settled:
            _well(server, await client.run(server.url, requests(kind.settles, only), 1))
        told = await client.run(server.url, requests(kind.asks, only), 1)
        _well(server, told, compacted=settled)
        taken += told.each
    into.middle.append(statistics.median(taken))


def _well(server: Server, told: client.Told, compacted: bool = False) -> None:
    if told.wrong:
        raise RuntimeError(f"{server.name}: {len(told.wrong)} replies were wrong, the first: {told.wrong[0]}")
    if compacted and told.headers != {"Evidence-Proxy: compacted"}:
        raise RuntimeError(f"{server.name}: expected every request to be compacted, but they were {told.headers}")


async def compare(quick: bool, scale: float) -> int:
    runs = 2 if quick else 5
    missed = []
    with servers.running(servers.upstream()) as (provider,):
        rows = [
            (bodies.text("2 KB", 2_000, 1, 3), round(scale * (200 if quick else 3000)), 0.80),
            (bodies.text("64 KB", 64_000, 4, 10), round(scale * (64 if quick else 1200)), 0.70),
        ]
        print(f"requests/s, {CONNECTIONS} connections, each request compacted and recorded; median of {runs}")
        print(f"{'':8}{'':>10}{'ours':>10}{'aiohttp':>10}{'nginx':>10}{'of aiohttp':>12}{'bound':>8}{'of nginx':>10}"
              f"   CPU us: {'ours':>7}{'aiohttp':>9}{'nginx':>8}{'aiohttp/ours':>14}")  # fmt: skip
        for kind, count, bound in rows:
            proxies = [servers.ours(provider.url), servers.passing(provider.url), servers.nginx(provider.url)]
            with servers.running(*proxies):
                found = {server.name: Measured() for server in proxies}
                for run in range(runs + 1):
                    numbers = range(run * count, (run + 1) * count)
                    for server in proxies:
                        await servers.at_rest(server)
                        into = found[server.name] if run else Measured()  # the first run warms up
                        await throughput(server, kind, numbers, server.name == "ours", into)
            rate = {name: statistics.median(m.per_second) for name, m in found.items()}
            cpu = {name: statistics.median(m.cpu) * 1e6 for name, m in found.items()}
            ratio = rate["ours"] / rate["aiohttp"]
            figures = "".join(f"{rate[name]:>10,.0f}" for name in ("ours", "aiohttp", "nginx"))
            per = f"{cpu['ours']:>7.0f}{cpu['aiohttp']:>9.0f}{cpu['nginx']:>8.0f}{cpu['aiohttp'] / cpu['ours']:>14.2f}"
            print(f"{kind.name:8}{len(kind.asks):>10,}{figures}{ratio:>12.2f}{bound:>8.2f}"
                  f"{rate['ours'] / rate['nginx']:>10.2f}           {per}", flush=True)  # fmt: skip
            if ratio < bound:
                missed.append(f"{kind.name}: {ratio:.2f} of aiohttp's requests/s, the bound is {bound:.2f}")

        print(f"\nadded time (over the provider alone), one request at a time, ms; median of {runs}")
        print(f"{'':34}{'':>10}{'ours':>10}{'aiohttp':>10}{'times':>8}{'bound':>8}")
        times = [
            (bodies.text("1 MB, text, compacted", 1_000_000, 40, 10), 12, True, 1.3),
            (bodies.pictures("8 MB, 40 pictures, compacted"), 4, True, 1.5),
            (bodies.plain("2 KB, not ours", 2_000), 100, False, 1.1),
            (bodies.plain("64 KB, not ours", 64_000), 50, False, 1.1),
            (bodies.plain("1 MB, not ours", 1_000_000), 20, False, 1.1),
            (bodies.plain("8 MB, not ours", 8_000_000), 6, False, 1.1),
        ]
        for kind, count, settled, bound in times:
            proxies = [servers.ours(provider.url), servers.passing(provider.url)]
            with servers.running(*proxies):
                found = {name: Measured() for name in ("ours", "aiohttp", "provider")}
                for run in range(runs + 1):
                    numbers = range(run * count, (run + 1) * count)
                    for server in [*proxies, provider]:
                        await servers.at_rest(server)
                        into = found[server.name] if run else Measured()
                        await added(server, kind, numbers, settled and server.name == "ours", into)
            middle = {name: statistics.median(m.middle) * 1000 for name, m in found.items()}
            own, theirs = middle["ours"] - middle["provider"], middle["aiohttp"] - middle["provider"]
            figures = f"{own:>10.3f}{theirs:>10.3f}{own / theirs:>8.2f}{bound:>8.2f}"
            print(f"{kind.name:34}{len(kind.asks):>10,}{figures}", flush=True)
            if own > theirs * bound:
                missed.append(f"{kind.name}: {own / theirs:.2f} times aiohttp's added time, the bound is {bound:.2f}")
    print("\n".join(["", *missed]) if missed else "\nEvery bound holds.")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests/s and added time of the gateway.")
    parser.add_argument("--quick", action="store_true", help="few requests: to see that it runs")
    parser.add_argument("--scale", type=float, default=1.0, help="how many requests, of the usual number")
    asked = parser.parse_args()
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        return runner.run(compare(asked.quick, asked.scale))


if __name__ == "__main__":
    sys.exit(main())
