"""Kill -9 under load: what was lost costs compaction, what was kept is right, and the store always opens.

`make proofs` kills 200 times and writes docs/proofs/crashes.md; otherwise it is 20 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.house.crowd import Crowd
from tests.house.provider import Provider
from tests.house.replicas import is_ready
from tests.house.running import ProxyProcess, scratch

KILLS = 200
CONVERSATIONS = 32
TABLE = Path(__file__).parents[1] / "docs" / "proofs" / "crashes.md"
CONFIG = '[server]\nadmin_port = 0\n[upstream]\nbase_url = "{upstream}"\n[[evidence]]\nformat = "haiku"\n'


class Mortal:
    """A proxy that is killed and started again on the same data."""

    def __init__(self, provider: Provider) -> None:
        self.directory = scratch()
        self._config = CONFIG.replace("{upstream}", provider.url)
        self._running = asyncio.Event()
        self.process: ProxyProcess | None = None
        self.events: Counter[str] = Counter()
        self.troubles: list[str] = []

    async def where(self) -> str:
        await self._running.wait()
        assert self.process is not None
        return self.process.url

    async def start(self) -> None:
        self.process = await ProxyProcess(self._config, self.directory).start()
        self._running.set()

    async def kill(self) -> None:
        self._running.clear()
        await self.stop(signal.SIGKILL)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        await self.process.stop(number)
        for line in self.process.lines:
            if line.get("level") not in (None, "info"):
                self.troubles.append(str(line))

    async def live(self, kills: int, rng: random.Random, most: int, crowd: Crowd) -> None:
        """Be killed so often: after up to so many answers, counted from the start, or from when the store is open."""
        for _ in range(kills):
            if rng.random() < 0.25:
                await self.is_ready("is open")
            await crowd.more(rng.randrange(most))
            await asyncio.sleep(rng.uniform(0, 0.05))
            await self.kill()
            await self.start()

    async def is_ready(self, why: str = "") -> None:
        await self.where()
        assert self.process is not None
        await is_ready(self.process, why)


async def crashed(kills: int, most: int) -> tuple[Crowd, Crowd]:
    """The crowd that was there while the proxy was killed, and the one that came afterwards."""
    provider = await Provider().start()
    proxy = Mortal(provider)
    try:
        await proxy.start()
        rng = random.Random(kills)
        during = Crowd(provider, proxy.where, seed=kills)
        await during.hold(CONVERSATIONS, proxy.live(kills, rng, most, during))
        await proxy.is_ready("is open")
        after = Crowd(provider, proxy.where, seed=kills + 1)
        await after.hold(CONVERSATIONS, after.more(4 * CONVERSATIONS))
        await proxy.is_ready()
        await proxy.stop()
        assert proxy.troubles == []
        return during, after
    finally:
        if proxy.process is not None and proxy.process.process is not None and proxy.process.process.returncode is None:
            await proxy.process.stop(signal.SIGKILL)
        await provider.stop()
        shutil.rmtree(proxy.directory, ignore_errors=True)


async def test_promise_3_kill_9_under_load_costs_compaction_never_evidence_and_the_store_opens() -> None:
    during, after = await crashed(KILLS // 10, most=30)
    assert during.torn and after.openings
    assert set(after.openings) == {"newest"}, "when nothing is killed any more, everything is compacted"


@pytest.mark.proofs
async def test_promise_3_kill_9_two_hundred_times_under_load() -> None:
    during, after = await crashed(KILLS, most=300)
    assert set(after.openings) == {"newest"}
    if os.environ.get("EVIDENCE_PROXY_PROOFS") != "full":
        return
    TABLE.write_text(
        "# Crashes\n\n"
        f"Kill -9 {KILLS} times at random moments under load: {CONVERSATIONS} conversations at once, with pictures, "
        f"each of whose requests is judged by its bytes (tests/house/crowd.py). {during.torn:,} replies broke off and "
        "were asked for again.\nWritten by `make proofs` (tests/test_store_kills.py); a wrong capsule, lost evidence, "
        "or a store that does not open fails the run, and this is not written.\n\n"
        f"{_table(during.seen, after.seen)}"
        "| **wrong capsule** | **0** | **0** |\n| **evidence lost** | **0** | **0** |\n"
        "| **store that does not open** | **0** | **0** |\n\n"
        "Of these, the first requests of questions that follow another one, where a record is looked for:\n\n"
        f"{_table(during.openings, after.openings)}"
    )


def _table(during: Counter[str], after: Counter[str]) -> str:
    rows = "".join(f"| {outcome} | {during[outcome]:,} | {after[outcome]:,} |\n" for outcome in sorted(during | after))
    return f"| what went up | while it was killed | afterwards |\n|---|---|---|\n{rows}"
