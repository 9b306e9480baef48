"""What forty questions cost: the bytes of each request before and after, beside haiku.rag's own compaction.

    python -m benchmarks.sizes            # --own: the conversation of our own; --write: draw it, for the README

The conversation is a captured one (40 questions, 10 results of about 1,500 characters each, one or two of them cited)
where the captures stand beside this repository, else one of our own of the same shape. Ends with an error if, at the
first request of any question, what goes upstream is larger than what haiku.rag would send.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.costs import chart
from proxy.gateway.conversation import Asked, Conversations
from proxy.settings import Settings
from proxy.store import open_store
from tests import captures
from tests.house.provider import completion

WORDS = [
    *("anchor", "basin", "canal", "delta", "ebb", "flood", "groyne", "harbour", "inlet", "jetty", "keel", "lagoon"),
    *("mooring", "neap", "outfall", "pier", "quay", "reach", "sluice", "tide", "undertow", "vessel", "weir", "berth"),
]


@dataclass(frozen=True)
class Step:
    """A request of the conversation: its question, its body, the reply that it gets; haiku.rag's size where known."""

    question: int
    body: bytes
    reply: dict[str, Any]
    theirs: int | None = None


def settings(table_format: str = "haiku") -> Settings:
    table = {"name": "kb", "format": table_format, "tools": ["search", "execute_code"], "cite": "cite"}
    return Settings.model_validate({"store": {"uri": "memory://"}, "evidence": [table]})


def prose(dice: random.Random, size: int) -> str:
    """About this many characters of sentences."""
    text = ""
    while len(text) < size:
        text += " ".join(dice.choices(WORDS, k=dice.randint(6, 14))).capitalize() + ". "
    return text.rstrip()


def questions(count: int, results: int = 10, size: int = 1500) -> Iterator[list[dict[str, Any]]]:
    """Questions of our own: each the messages from the user's to the answer, in haiku.rag's format."""
    dice = random.Random(40)
    for number in range(1, count + 1):
        ids = [str(uuid.UUID(int=dice.getrandbits(128), version=4)) for _ in range(results)]
        found = [
            f'[{chunk}] [rank {rank} of {results}]\nSource: "Harbour guide"\nType: text\nContent:\n{prose(dice, size)}'
            for rank, chunk in enumerate(ids, 1)
        ]
        cited = dice.sample(ids, dice.choice((1, 2)))
        yield [
            {"role": "user", "content": f"Question {number}?"},
            _calls(f"call_{number}_0", "search", {"query": f"topic {number}"}),
            {"role": "tool", "tool_call_id": f"call_{number}_0", "content": "\n\n---\n\n".join(found)},
            _calls(f"call_{number}_1", "cite", {"chunk_ids": cited}),
            {"role": "tool", "tool_call_id": f"call_{number}_1", "content": f"Registered {len(cited)} citation(s)."},
            {"role": "assistant", "content": prose(dice, 300)},
        ]


def _calls(call: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call, "type": "function", "function": function}],
    }


def body(messages: list[dict[str, Any]]) -> bytes:
    """A request of these messages, as clients write them: compact, in UTF-8."""
    whole = {"model": "m", "stream": False, "messages": [{"role": "system", "content": "Cite."}, *messages]}
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()


def reply(message: dict[str, Any]) -> dict[str, Any]:
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
    return completion(message["content"], calls)


def our_own() -> list[Step]:
    history: list[dict[str, Any]] = []
    steps = []
    for number, question in enumerate(questions(40), 1):
        for message in question:
            if message["role"] == "assistant":
                steps.append(Step(number, body(history), reply(message)))
            history.append(message)
    return steps


def captured() -> list[Step]:
    told = captures.scenario("s20")
    return [
        Step(asked.question, asked.sent, asked.completion, theirs.size)
        for asked, theirs in zip(told.arms["B"], told.arms["A"], strict=True)
    ]


CHART = Path(__file__).parents[1] / "docs" / "forty-questions.svg"


async def main(own: bool = False, write: bool = False) -> int:
    """Print the table; `write` draws it as a chart. 1 where a request is larger than haiku.rag's."""
    own = own or not captures.HERE
    steps = our_own() if own else captured()
    chosen = settings()
    conversations = Conversations(chosen, open_store(chosen).records)
    print("a conversation of our own" if own else "captured from haiku.rag 0.101.1")
    print(f"{'question':>8} {'request':>8} {'before':>10} {'after':>10} {'saved':>7} {'haiku.rag':>10}")
    larger, seen = [], set()
    sizes: dict[str, list[float]] = {"as sent": [], "as it went up": []}
    before = after = theirs = 0
    for number, step in enumerate(steps, 1):
        exchange = await conversations.ask(Asked(step.body, "a credential"))
        exchange.feed(json.dumps(step.reply).encode())
        await exchange.ended(True)
        size, first = len(exchange.body), step.question not in seen
        seen.add(step.question)
        if first and step.theirs is not None and size > step.theirs:
            larger.append(number)
        before, after, theirs = before + len(step.body), after + size, theirs + (step.theirs or 0)
        saved = 1 - size / len(step.body)
        sizes["as sent"].append(len(step.body))
        sizes["as it went up"].append(size)
        beside = f"{step.theirs:>10,}" if step.theirs is not None else f"{'-':>10}"
        mark = " first" if first else ""
        print(f"{step.question:>8} {number:>8} {len(step.body):>10,} {size:>10,} {saved:>6.1%} {beside}{mark}")
    beside = f"{theirs:>10,}" if theirs else f"{'-':>10}"
    print(f"{'all':>8} {len(steps):>8} {before:>10,} {after:>10,} {1 - after / before:>6.1%} {beside}")
    if write:
        title = "A conversation of forty questions: the size of each request"
        CHART.write_text(chart.lines(title, sizes, across="request", up="bytes"))
    if larger:
        print(f"larger than haiku.rag's at the first request of a question: {larger}", file=sys.stderr)
    elif theirs:
        print("at the first request of every question no larger than haiku.rag's")
    return 1 if larger else 0


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--own", action="store_true", help="the conversation of our own, also where captures are")
    options.add_argument("--write", action="store_true", help="draw docs/forty-questions.svg")
    sys.exit(asyncio.run(main(**vars(options.parse_args()))))
