"""The rewrite alone (body in, body out, its record cached) beside `orjson.loads` of the same body.

    python -m benchmarks.rewriting

`next` is a request whose conversation this process saw before, `opens` a question's first one (its capsule is new),
`first sight` one of a conversation that this process never saw. The captured conversation of forty questions is played,
where the captures stand beside this repository, and conversations of our own. Processor time, both timed in turns,
medians. Ends with an error where a ratio misses its bound.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

import orjson

from benchmarks import sizes
from benchmarks.load import bodies
from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.heap import keep_large_buffers
from proxy.settings import Settings
from proxy.store import open_store
from tests import captures
from tests.house.provider import completion

TENANT = "a credential"
RUNS = 25
#: Bounds by what is asked: seen before, at first sight of text, and of pictures.
SEEN, TEXT, PICTURES = 0.4, 2.5, 3.0

Ask = Callable[[], Awaitable[Conversations]]


class Played:
    """A conversation whose questions are settled up to its last one, of which these are the requests."""

    def __init__(
        self, name: str, settings: Settings, steps: list[tuple[bytes, bytes]], last: list[bytes], bound: float
    ):
        self.name = name
        self.settings = settings
        self.steps = steps
        self.last = last
        self.bound = bound
        self.records = open_store(settings).records

    def fresh(self) -> Conversations:
        return Conversations(self.settings, self.records)

    async def settle(self) -> None:
        old = self.fresh()
        for body, reply in self.steps:
            exchange = await old.ask(Asked(body, TENANT))
            exchange.feed(reply)
            await exchange.ended(True)

    async def timed(self, before: list[bytes], body: bytes, again: int) -> list[tuple[float, float]]:
        """Seconds of a rewrite, in a process that saw these bodies before, and of `orjson.loads`; each once more after
        the last `again` of these bodies was asked once more."""
        conversations = self.fresh()
        for earlier in before:
            await conversations.ask(Asked(earlier, TENANT))
        times = []
        exchange: Exchange | None
        for _ in range(RUNS if again else 1):
            for earlier in before[len(before) - again :]:
                await conversations.ask(Asked(earlier, TENANT))
            asked = Asked(body, TENANT)
            exchange = None  # an exchange is over, and let go, before the next request of its conversation
            start = time.process_time_ns()
            exchange = await conversations.ask(asked)
            middle = time.process_time_ns()
            orjson.loads(body)
            times.append(((middle - start) / 1e9, (time.process_time_ns() - middle) / 1e9))
            assert exchange.header.startswith("compacted;"), exchange.header
        return times


def captured() -> Played:
    steps = sizes.captured()
    last = [step.body for step in steps if step.question == steps[-1].question]
    earlier = [(step.body, json.dumps(step.reply).encode()) for step in steps if step.body not in last]
    return Played("40 captured questions", sizes.settings(), earlier, last, TEXT)


def own(kind: bodies.Kind, bound: float) -> Played:
    import tomllib

    settings = Settings.model_validate({"store": {"uri": "memory://"}, **tomllib.loads(bodies.CONFIG)})
    reply = json.dumps(completion("Yes.")).encode()
    asks = kind.asks.raw()
    found = json.loads(asks)
    found["messages"].append(bodies.call("more", "search", {"query": "more"}))
    found["messages"].append({"role": "tool", "tool_call_id": "more", "content": '[{"id":"n1","content":"New."}]'})
    return Played(
        kind.name,
        settings,
        [(kind.before.raw(), reply), (kind.settles.raw(), reply)],
        [asks, bodies.body(found["messages"])],
        bound,
    )


async def measure(played: Played) -> list[str]:
    await played.settle()
    missed = []
    settled = played.steps[-1][0]
    ways = (
        ("next", [settled, *played.last[:-1]], 1, played.last[-1], SEEN),
        ("opens", [settled], 0, played.last[0], SEEN),
        ("first sight", [], 0, played.last[-1], played.bound),
    )
    gc.collect()
    gc.freeze()  # what the benchmark holds is none of the rewrite's cost
    for way, before, again, body, bound in ways:
        times = [pair for _ in range(1 if again else RUNS) for pair in await played.timed(before, body, again)]
        rewrite, loads = (statistics.median(pair[at] for pair in times) for at in (0, 1))
        ratio = statistics.median(a / b for a, b in times)
        times_told = f"{rewrite * 1e3:>9.3f}{loads * 1e3:>9.3f}{ratio:>8.2f}{bound:>7.2f}"
        print(f"{played.name:32}{len(body):>11,}  {way:12}{times_told}", flush=True)
        if ratio > bound:
            missed.append(f"{played.name}, {way}: {ratio:.2f} times orjson.loads, the bound is {bound:.2f}")
    return missed


async def main() -> int:
    keep_large_buffers()
    print(f"{'':32}{'bytes':>11}  {'':12}{'ms':>9}{'loads':>9}{'times':>8}{'bound':>7}")
    missed = []
    if captures.HERE:
        missed += await measure(captured())
    missed += await measure(own(bodies.text("1 MB, 40 questions", 1_000_000, 40, 10), TEXT))
    missed += await measure(own(bodies.text("8 MB, 40 questions", 8_000_000, 40, 10), TEXT))
    missed += await measure(own(bodies.pictures("8 MB, 40 pictures"), PICTURES))
    print("\n".join(["", *missed]) if missed else "\nEvery bound holds.")
    return 1 if missed else 0


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main()))
