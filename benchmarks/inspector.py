"""How quickly the inspector answers after 100,000 requests, against one that has seen 100; and how much it holds.

    python -m benchmarks.inspector [REQUESTS]

Each answer is asked for over HTTP on 127.0.0.1, medians of 30; the aim is under 100 ms, and nothing that grows.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import aiohttp

from proxy.gateway.admin import Admin
from proxy.settings import ServerSettings, Settings
from proxy.visibility.inspector import routes
from proxy.visibility.inspector.recorder import Inspector
from proxy.visibility.totals import Tally
from tests.house.passing import passing, told

FEW, TIMES, AT_MOST_MS = 100, 30, 100.0


def _resident() -> float:
    """This process's resident memory, in MB."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - no file of anybody's
        return int(statm.read().split()[1]) * 4096 / 2**20


async def _after(requests: int) -> tuple[dict[str, float], float]:
    """Milliseconds for each answer once so many requests have passed, and the memory that they took."""
    conversations = await told()
    before = _resident()
    inspector = Inspector(Settings(inspector={"content": True}), Tally())  # type: ignore[arg-type]
    for count, one in enumerate(passing(conversations, requests), 1):
        inspector.arrived(one.arrived)
        inspector.passed(one)
        if count % 200 == 0:
            await inspector.idle()
    await inspector.idle()
    took = _resident() - before
    admin = Admin(ServerSettings(admin_port=0))
    routes.register(admin, inspector)
    host, port = await admin.start()
    newest = inspector.newest(1)[0]
    asked = {
        "the page": "/",
        "100 requests": "/inspector/requests?most=100",
        "500 requests": "/inspector/requests?most=500",
        "a conversation": f"/inspector/conversations/{newest['conversation']}",
        "a request": f"/inspector/requests/{newest['serial']}",
        "a message": f"/inspector/requests/{newest['serial']}/lines/2?side=came",
    }
    answers: dict[str, float] = {}
    async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
        for name, path in asked.items():
            times = []
            for _ in range(TIMES):
                began = time.perf_counter()
                async with session.get(path) as answer:
                    assert answer.status == 200, path
                    await answer.read()
                times.append((time.perf_counter() - began) * 1000)
            answers[name] = statistics.median(times)
    await admin.close()
    await inspector.close()
    return answers, took


async def main() -> int:
    """Print the table; 1 where an answer takes longer than the aim."""
    many = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    few, _ = await _after(FEW)
    later, took = await _after(many)
    print(f"{'':16} {'after ' + format(FEW, ','):>14} {'after ' + format(many, ','):>14}  ratio")
    for name, ms in later.items():
        print(f"{name:16} {few[name]:>11.1f} ms {ms:>11.1f} ms  {ms / few[name]:.2f}")
    print(f"memory that {many:,} requests took: {took:.0f} MB")
    return int(max(later.values()) >= AT_MOST_MS)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
