"""What the running gateway holds: at start, after 10,000 requests, with 256 MB in flight, after a body of 30 MB.

    python -m benchmarks.memory [--quick]

Beside a bare process that imports the same and reads and writes a store once. Resident size (VmRSS). Ends with an error
where a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from urllib.parse import urlsplit

from benchmarks.load import bodies, client, servers

MB = 1_000_000
#: Bounds in MB, and bytes per byte in flight.
START, OVER_BARE, PER_BYTE = 150, 80, 3.5

_BARE = """
import asyncio, hashlib, sys, tempfile
sys.path.insert(0, ".")
import proxy.gateway.app, proxy.gateway.conversation, proxy.gateway.returns, proxy.visibility.watching
from proxy.heap import keep_large_buffers
from proxy.settings import Settings
from proxy.store import StoredRecord, open_store
keep_large_buffers()

async def main():
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(Settings.model_validate({"store": {"data_dir": directory}}))
        await store.start()
        key = hashlib.sha256(b"key").digest()
        store.records.add(StoredRecord(key, key, key[:16], b"payload"))
        await store.records.flush()
        await store.records.find([key], fresh=True)
        print([line for line in open("/proc/self/status") if line.startswith("VmRSS")][0].split()[1])
        await store.close()

asyncio.run(main())
"""


def bare() -> float:
    command = [sys.executable, "-c", _BARE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=servers.ROOT, env=servers.surroundings()
    )
    return int(done.stdout.split()[-1]) * 1024 / MB


async def in_flight(server: servers.Server, count: int, size: int) -> float:
    """The most that it held while so many requests of this size were waiting for their replies, in MB."""
    kind = bodies.text("in flight", size, 40, 10)
    parts = urlsplit(server.url)
    opened = []
    for number in range(count):
        head, *body = client.request("/v1/chat/completions?stream=2,8000", len(kind.asks), kind.asks.pieces(number))
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        opened.append((reader, writer))
        writer.writelines([head, *body])
        await writer.drain()
    most = 0
    until = time.monotonic() + 8
    while time.monotonic() < until:
        most = max(most, server.resident())
        await asyncio.sleep(0.05)
    for reader, writer in opened:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"expected every request to be taken, but: {head[:200]!r}")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return most / MB


async def measure(quick: bool) -> int:
    missed = []

    def row(what: str, held: float, bound: float) -> None:
        print(f"{what:52}{held:>9.1f}{bound:>9.1f}", flush=True)
        if held > bound:
            missed.append(f"{what}: {held:.0f} MB, the bound is {bound:.0f}")

    lightest = bare()
    print(
        f"resident size in MB; a bare process with the same imports and a store: {lightest:.1f}\n{'':60}held    bound"
    )
    with servers.running(servers.upstream()) as (provider,), servers.running(servers.ours(provider.url)) as (ours,):
        await asyncio.sleep(2)
        row("at start, before its first conversation", ours.resident() / MB, START)
        kind = bodies.text("2 KB", 2_000, 1, 3)
        for body in (kind.settles, kind.asks):
            numbers = range(200 if quick else 5_000)
            requests = (client.request("/v1/chat/completions", len(body), body.pieces(n)) for n in numbers)
            told = await client.run(ours.url, requests, 32)
            if told.wrong:
                raise RuntimeError(told.wrong[0])
        await servers.at_rest(ours)
        row("after 10,000 requests, each recorded", ours.resident() / MB, lightest + OVER_BARE)
        count, size = (16 if quick else 256), 1_000_000
        most = await in_flight(ours, count, size)
        row(f"with {count} requests of 1 MB in flight", most, lightest + OVER_BARE + PER_BYTE * count)
        await servers.at_rest(ours)
        row("after them", ours.resident() / MB, lightest + OVER_BARE)
        large = bodies.text("30 MB", 30_000_000, 40, 10)
        for body in (large.settles, large.asks):
            request = client.request("/v1/chat/completions", len(body), body.pieces(1))
            told = await client.run(ours.url, iter([request]), 1)
            if told.wrong:
                raise RuntimeError(told.wrong[0])
        await servers.at_rest(ours)
        row("after a body of 30 MB", ours.resident() / MB, lightest + OVER_BARE)
    print("\n".join(["", *missed]) if missed else "\nEvery bound holds.")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="What the gateway holds in memory.")
    parser.add_argument("--quick", action="store_true", help="fewer requests: to see that it works")
    asked = parser.parse_args()
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        return runner.run(measure(asked.quick))


if __name__ == "__main__":
    sys.exit(main())
