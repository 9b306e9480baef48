"""Whether a rewrite's cost is linear: a transcript of 2n messages must take at most 2.2 times as long as one of n.

    python -m benchmarks.linear [--quick]

Each line is a pair: n messages and 2n, timed in turns, and the median of the pairs' ratios: machines are noisy, only
ratios compare, and processor time is steadier than the clock. What is timed is what a request costs in this process
before anything goes upstream: cutting the body, reading the transcript, finding the record, the capsule, the new body;
with the process's own memory of the conversation empty, as after a restart. Ends with an error where a ratio is above
the limit.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.sizes import body, questions, reply, settings
from proxy.gateway.conversation import Asked, Conversations
from proxy.store import open_store

LIMIT = 2.2
CREDENTIAL = "a credential"
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Kind:
    """A shape of conversation: how many results each question finds, and of how many characters."""

    name: str
    results: int
    size: int
    megabytes: tuple[float, ...]  # of the larger body of each pair


KINDS = (
    Kind("10 results of 1,500 characters", 10, 1500, (0.5, 1, 2, 4, 8, 16)),
    Kind("2 results of 60 characters (many messages)", 2, 60, (0.5, 1, 2, 4, 8, 16)),
)


def history(kind: Kind, count: int) -> list[dict[str, Any]]:
    return [message for question in questions(count, kind.results, kind.size) for message in question]


class Prepared:
    """A conversation of `count` settled questions and the request that asks one more."""

    def __init__(self, kind: Kind, count: int) -> None:
        self.messages = history(kind, count)
        self.body = body([*self.messages, {"role": "user", "content": "One more?"}])
        self._settings = settings()
        self._store = open_store(self._settings).records

    async def settle(self) -> Prepared:
        """Let the last question's answer go by, which records all of them."""
        exchange = await self._fresh().ask(Asked(body(self.messages[:-1]), CREDENTIAL))
        exchange.feed(json.dumps(reply(self.messages[-1])).encode())
        await exchange.ended(True)
        return self

    def _fresh(self) -> Conversations:
        return Conversations(self._settings, self._store)

    async def rewrite(self) -> float:
        """Seconds of processor time that the request takes until it could go upstream."""
        conversations, asked = self._fresh(), Asked(self.body, CREDENTIAL)
        start = time.process_time()
        exchange = await conversations.ask(asked)
        took = time.process_time() - start
        assert exchange.header.startswith("compacted;"), exchange.header
        return took


async def pair(kind: Kind, megabytes: float, runs: int) -> tuple[Prepared, Prepared, float, float, float]:
    per_question = len(body(history(kind, 50))) / 50
    count = max(1, round(megabytes * MEGABYTE / per_question / 2))
    one, two = await Prepared(kind, count).settle(), await Prepared(kind, 2 * count).settle()
    gc.collect()
    gc.freeze()  # what the benchmark itself holds is none of the rewrite's cost
    times: list[tuple[float, float]] = []
    await one.rewrite(), await two.rewrite()
    for _ in range(runs):
        times.append((await one.rewrite(), await two.rewrite()))
    gc.unfreeze()
    middle: Callable[[int], float] = lambda at: statistics.median(pair[at] for pair in times)  # noqa: E731
    return one, two, middle(0), middle(1), statistics.median(b / a for a, b in times)


async def main(quick: bool) -> int:
    failed = 0
    for kind in KINDS:
        print(kind.name)
        print(f"{'messages':>16} {'MB':>14} {'ms':>18} {'ratio':>7}")
        for megabytes in kind.megabytes[:3] if quick else kind.megabytes:
            one, two, first, second, ratio = await pair(kind, megabytes, 15 if megabytes <= 2 else 9)
            failed += ratio > LIMIT
            print(
                f"{len(one.messages):>7,} {len(two.messages):>8,} "
                f"{len(one.body) / MEGABYTE:>7.2f} {len(two.body) / MEGABYTE:>6.2f} "
                f"{first * 1000:>9.2f} {second * 1000:>8.2f} {ratio:>7.2f}{'  ABOVE' if ratio > LIMIT else ''}",
                flush=True,
            )
    print(f"{'every ratio is at most' if not failed else f'{failed} ratios are above'} {LIMIT}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--quick" in sys.argv[1:])))
