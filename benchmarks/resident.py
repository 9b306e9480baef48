"""What 100,000 conversations leave in a process's memory.

    python -m benchmarks.resident [CONVERSATIONS] [--write FILE]        (default: 100000)

Each conversation asks two questions with evidence, through the gateway's own reading, settling and rewriting, with a
store on disk; only HTTP is left out. The resident size is read each time a tenth is done, at rest; what lasts in a
process is bounded, so it stays within 1.2 times of what it was after the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from proxy.gateway.conversation import Asked, Conversations
from proxy.heap import keep_large_buffers
from proxy.settings import EvidenceTable, Settings, StoreSettings
from proxy.store import open_store

WITHIN = 1.2


def resident() -> float:
    """Megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not tell")


async def at_rest() -> float:
    """The least that is resident within some seconds: merging a table takes memory, and gives it back."""
    seen = [resident()]
    for _ in range(50):
        await asyncio.sleep(0.2)
        seen.append(resident())
    return min(seen)


def calls(name: str, call_id: str, arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def conversation(number: int, rng: random.Random) -> tuple[bytes, bytes, bytes]:
    """The request that settles its first question, that reply, and the request that opens its second."""
    words = [" ".join(f"{rng.getrandbits(30):09}" for _ in range(40)) for _ in range(4)]
    chunks = [(f"doc-{number}-{n}", text) for n, text in enumerate(words)]
    found = "\n\n".join(f"[{name}] {text}" for name, text in chunks)
    messages = [
        {"role": "user", "content": f"Question of conversation {number}?"},
        calls("search", f"s{number}", {"query": str(number)}),
        {"role": "tool", "tool_call_id": f"s{number}", "content": found},
        calls("cite", f"c{number}", {"ids": [chunks[0][0], chunks[1][0]]}),
        {"role": "tool", "tool_call_id": f"c{number}", "content": "registered"},
    ]
    answer = {"role": "assistant", "content": f"Answer {number}."}
    reply = {
        "id": "r",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": answer, "finish_reason": "stop"}],
    }
    asks_again = [*messages, answer, {"role": "user", "content": "And then?"}]
    first, second = ({"model": "m", "messages": some} for some in (messages, asks_again))
    return json.dumps(first).encode(), json.dumps(reply).encode(), json.dumps(second).encode()


async def hold(conversations: Conversations, number: int, rng: random.Random) -> None:
    first, reply, second = conversation(number, rng)
    tenant = f"Bearer sk-{number % 1_000}"
    exchange = await conversations.ask(Asked(first, tenant))
    exchange.feed(reply)
    await exchange.ended(True)
    exchange = await conversations.ask(Asked(second, tenant))
    assert exchange.header.startswith("compacted; question=2; capsule=2"), exchange.header
    await exchange.ended(False)


async def main(count: int, directory: Path) -> list[tuple[int, float]]:
    """The resident size after each tenth."""
    table = EvidenceTable(format="auto", tools=("search",), cite="cite")
    settings = Settings(evidence=[table], store=StoreSettings(data_dir=directory))
    store = open_store(settings)
    await store.start()
    conversations = Conversations(settings, store.records)
    rng = random.Random(1)
    told = []
    began = time.perf_counter()
    for number in range(count):
        await hold(conversations, number, rng)
        await asyncio.sleep(0)
        if (number + 1) % (count // 10) == 0:
            await store.records.flush()
            told.append((number + 1, await at_rest()))
            print(
                f"{number + 1:,} conversations: {told[-1][1]:.0f} MB, {time.perf_counter() - began:.0f} s", flush=True
            )
    await store.close()
    return told


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("conversations", nargs="?", type=int, default=100_000)
    options.add_argument("--write", type=Path, default=None)
    given = options.parse_args()
    keep_large_buffers()  # as `serve` does
    with tempfile.TemporaryDirectory() as directory:
        told = asyncio.run(main(given.conversations, Path(directory)))
    ratio = told[-1][1] / told[0][1]
    print(f"{ratio:.2f} times what it was after the first tenth (at most {WITHIN})")
    if given.write is not None:
        rows = "".join(f"| {count:,} | {size:.0f} |\n" for count, size in told)
        about = (__doc__ or "").split("\n\n", 2)[2]
        given.write.write_text(
            f"# Memory\n\n{about}\nMeasured with benchmarks/resident.py: {ratio:.2f} times what it was after the first "
            f"tenth.\n\n| conversations | resident, MB |\n|---:|---:|\n{rows}"
        )
    raise SystemExit(ratio > WITHIN)
