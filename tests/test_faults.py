"""Every fault of a provider or a client, again and again beside honest requests, which must never notice.

`make proofs` plays each a hundred times and writes docs/proofs/faults.md; otherwise each is played ten times.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import StartHere
from tests.faults import FAULTS, LEAVES, SETTLES, STATUS, Faulty, Outcome, Playing, under_load
from tests.house.running import InProcess

TIMES = 100
TABLE = Path(__file__).parents[1] / "docs" / "proofs" / "faults.md"
AT_ONCE = 10
TABLES = [{"format": "auto", "tools": ["search"], "cite": "cite"}]
#: Short, so that a stall ends within the test; long enough for a busy machine.
LIMITS = {"first_byte_seconds": 4, "idle_seconds": 4}


@dataclass
class Played:
    """All that was seen."""

    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    honest: int = 0


@pytest.fixture
async def faulty() -> AsyncIterator[Faulty]:
    running = await Faulty().start()
    yield running
    await running.stop()


async def played(faulty: Faulty, start_here: StartHere, times: int) -> Played:
    proxy = await start_here(upstream={"base_url": faulty.url, **LIMITS}, evidence=TABLES)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead_port = closed.getsockname()[1]
    dead = await start_here(upstream={"base_url": f"http://127.0.0.1:{dead_port}/v1"}, evidence=TABLES)
    tester = Playing(faulty, proxy.url, dead.url)
    await tester.honest({"messages": []})
    before = len(asyncio.all_tasks())
    found = Played()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(fault: str, number: int) -> None:
        async with turn:
            found.outcomes.setdefault(fault, []).append(await tester.play(fault, number))

    async def all_of_them() -> None:
        # Every fault beside every other one, and each as often as the next.
        await asyncio.gather(*(one(fault, number) for number in range(times) for fault in FAULTS))

    found.honest = await under_load(tester, all_of_them)
    await nothing_is_left(proxy, dead, before)
    return found


async def nothing_is_left(proxy: InProcess, dead: InProcess, tasks_before: int) -> None:
    """No request, byte or task of all that is left behind."""
    for one in (proxy, dead):
        while one.gateway.running:  # noqa: ASYNC110 - a test may look, a gateway need not tell
            await asyncio.sleep(0.01)
        assert (one.gateway.capacity.requests, one.gateway.capacity.bytes) == (0, 0)
    # Kept-alive connections on either side have tasks of their own; there are no more of them than were ever at once.
    assert len(asyncio.all_tasks()) <= tasks_before + 4 * (AT_ONCE + 8)


def judge(found: Played, times: int) -> None:
    assert found.honest > 0
    for fault in FAULTS:
        outcomes = found.outcomes[fault]
        assert len(outcomes) == times
        for outcome in outcomes:
            if fault in LEAVES:
                assert outcome.status is None
                assert not outcome.recorded, fault
                continue
            if fault in STATUS:
                assert (outcome.status, outcome.whole) == (STATUS[fault], True), fault
            else:
                assert (outcome.status, outcome.whole) == (200, False), fault
            assert outcome.recorded == (fault in SETTLES), f"{fault}: what is unsettled must not be recorded as settled"


async def test_faults_are_told_and_neither_noticed_by_others_nor_recorded(
    faulty: Faulty, start_here: StartHere
) -> None:
    judge(await played(faulty, start_here, TIMES // 10), TIMES // 10)


@pytest.mark.proofs
async def test_a_hundred_of_each_fault_are_told_and_neither_noticed_by_others_nor_recorded(
    faulty: Faulty, start_here: StartHere
) -> None:
    found = await played(faulty, start_here, TIMES)
    judge(found, TIMES)
    for fault in LEAVES:
        # Provider, clients, load and proxy share one event loop here, and a machine that is busy elsewhere stops it.
        outlived = sorted(outcome.outlived or 0.0 for outcome in found.outcomes[fault])
        assert outlived[len(outlived) * 95 // 100] < 0.1, (fault, outlived[-10:])
    if os.environ.get("EVIDENCE_PROXY_PROOFS") == "full":
        write(found)


def write(found: Played) -> None:
    rows = ""
    for fault in FAULTS:
        outcomes = found.outcomes[fault]
        times = [outcome.outlived * 1000 for outcome in outcomes if outcome.outlived is not None]
        late = sorted(times)[len(times) * 95 // 100] if times else 0.0
        gone = f"{statistics.median(times):.1f} / {late:.1f} / {max(times):.1f}" if times else "-"
        sees = "has left" if fault in LEAVES else f"{STATUS[fault]}" if fault in STATUS else "200, broken off"
        rows += f"| {fault} | {len(outcomes)} | {sees} | {gone} | {'yes' if fault in SETTLES else 'no'} |\n"
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(
        "# Faults\n\n"
        f"Each {TIMES} times, {AT_ONCE} at once in turns, by `make proofs` (tests/faults.py), while eight honest\n"
        f"clients asked without a pause: {found.honest:,} requests, of which each got every byte of its reply.\n"
        "No request, held byte or task was left behind. What settles nothing was asked about again, and is\n"
        "recorded nowhere. Milliseconds are the median, the 95th of a hundred and the slowest, in one event loop\n"
        "with clients, provider and load. A line that does not hold fails the run, and this is not written.\n\n"
        "| fault | times | what the client sees | the provider's side closes after, ms | recorded |\n"
        "|---|---|---|---|---|\n" + rows
    )
