"""Mixed sizes, aborts and errors at half of what the gateway can do, for long, and whether anything is left over.

    python -m benchmarks.soak [--minutes 30]

A line per minute: requests, errors of ours, resident size, open sockets. Ends with an error if a reply was wrong, if
the resident size grew by more than 5 % after a third of the time, or if connections are open half a minute after.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from urllib.parse import urlsplit

from benchmarks.load import bodies, client, servers

CHAT = "/v1/chat/completions"
GROWTH = 1.05
MALFORMED = (b"GARBAGE\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n")
CONNECTIONS = 16


class Soak:
    """Clients that ask, in turns, what a dice says, each at its own pace."""

    def __init__(self, server: servers.Server, pause: float) -> None:
        self.server = server
        self.pause = pause
        self.asked = self.aborted = self.refused = 0
        self.wrong: list[str] = []
        self._numbers = iter(range(100_000_000))
        self._kinds = [
            (bodies.text("2 KB", 2_000, 1, 3), 60),
            (bodies.text("64 KB", 64_000, 4, 10), 30),
            (bodies.text("1 MB", 1_000_000, 40, 10), 3),
            (bodies.plain("64 KB, plain", 64_000), 20),
        ]

    async def client(self, seed: int, until: float) -> None:
        dice = random.Random(seed)
        weights = [weight for _, weight in self._kinds]
        while time.monotonic() < until:
            kind = dice.choices(self._kinds, weights)[0][0]
            number = next(self._numbers)
            way = dice.random()
            if way < 0.03:
                await self._abort(kind.asks, number, dice)
            elif way < 0.05:
                await self._broken(dice)
            else:
                stream = "?stream=5,2" if dice.random() < 0.3 else ""
                for body in (kind.settles, kind.asks):
                    await self._ask(CHAT + stream, body, number)
            await asyncio.sleep(dice.random() * 2 * self.pause)

    async def _ask(self, path: str, body: bodies.Body, number: int) -> None:
        told = await client.run(self.server.url, iter([client.request(path, len(body), body.pieces(number))]), 1)
        self.asked += 1
        self.wrong += told.wrong

    async def _abort(self, body: bodies.Body, number: int, dice: random.Random) -> None:
        """Leave in the middle of the upload, while waiting, or in the middle of the stream."""
        parts = urlsplit(self.server.url)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        whole = b"".join(client.request(CHAT + "?stream=50,20", len(body), body.pieces(number)))
        writer.write(whole[: dice.choice((len(whole) // 2, len(whole)))])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(dice.random() * 0.2)
        writer.transport.abort()
        self.aborted += 1

    async def _broken(self, dice: random.Random) -> None:
        """What no client should send: the answer is an error, and the connection ends."""
        parts = urlsplit(self.server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(
            dice.choice((b"GARBAGE\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n"))
        )
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(10):
                if not (await reader.read()).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")):
                    self.wrong.append("a malformed request was not refused with a 4xx")
        writer.close()
        self.refused += 1


async def most(server: servers.Server) -> float:
    """Requests/s at full load, of the mixture's most frequent kind."""
    kind = bodies.text("64 KB", 64_000, 4, 10)
    requests = (client.request(CHAT, len(kind.asks), kind.asks.pieces(n)) for n in range(400))
    return (await client.run(server.url, requests, CONNECTIONS)).per_second


async def soak(minutes: float) -> int:
    failed = []
    with servers.running(servers.upstream()) as (provider,), servers.running(servers.ours(provider.url)) as (ours,):
        await most(ours)
        fastest = await most(ours)
        # Two requests each time; half of the maximum, shared by the clients.
        running = Soak(ours, pause=CONNECTIONS * 2 / (fastest / 2))
        began = time.monotonic()
        until = began + minutes * 60
        clients = [asyncio.create_task(running.client(seed, until)) for seed in range(CONNECTIONS)]
        print(f"at most {fastest:,.0f} requests/s; half of that for {minutes:g} minutes", flush=True)
        print(f"{'minute':>7}{'requests':>10}{'aborted':>9}{'refused':>9}{'wrong':>7}{'MB':>8}{'sockets':>9}")
        held: list[float] = []
        while time.monotonic() < until:
            await asyncio.sleep(min(60.0, minutes * 6))
            held.append(ours.resident() / 1e6)
            counts = f"{running.asked:>10,}{running.aborted:>9,}{running.refused:>9,}{len(running.wrong):>7}"
            print(f"{(time.monotonic() - began) / 60:>7.1f}{counts}{held[-1]:>8.1f}{ours.sockets():>9}", flush=True)
        await asyncio.gather(*clients)
        await asyncio.sleep(30)
        third = len(held) // 3
        settled, last = statistics.median(held[third : 2 * third] or held), statistics.median(held[-third:] or held)
        print(f"{running.asked / (time.monotonic() - began):,.0f} requests/s; {settled:.1f} MB in the second third, "
              f"{last:.1f} in the last; {ours.sockets()} sockets half a minute after the end")  # fmt: skip
        if running.wrong:
            failed.append(f"{len(running.wrong)} replies were wrong, the first: {running.wrong[0]}")
        if last > settled * GROWTH:
            failed.append(f"it grew from {settled:.1f} to {last:.1f} MB")
        if ours.sockets() > 80:  # those that it keeps to the provider, and listens on
            failed.append(f"{ours.sockets()} sockets are still open")
        if ours.process.poll() is not None:
            failed.append("the gateway ended")
        faults = [line for line in ours.said().splitlines() if '"level":"error"' in line.replace(" ", "")]
        failed += faults[:3]
    print("\n".join(["", *failed]) if failed else "\nNothing failed, nothing grew, nothing is left over.")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Load for a long time.")
    parser.add_argument("--minutes", type=float, default=30.0)
    asked = parser.parse_args()
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        return runner.run(soak(asked.minutes))


if __name__ == "__main__":
    sys.exit(main())
