"""What conversations cost with a provider that caches prompts: without compaction, and in each layout.

    python -m benchmarks.cost [--count N] [--bytes N] [--write]

Replays the captured conversation of forty questions (or, where the captures do not stand beside this repository, one of
our own of the same shape), the agent SDKs' captures, and generated conversations of up to so many bytes per request.
Cached is what a request shares with any earlier one of its conversation, in whole blocks of 128 tokens from 1,024 on.
`--write` puts the charts and the figures into docs/. Ends with an error if a bound of the documentation does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.costs import guidance, replay, tokens, traffic
from benchmarks.costs.chart import lines
from benchmarks.costs.features import Features, features
from benchmarks.costs.prefixes import PRICES
from benchmarks.costs.replay import WAYS, Bill
from benchmarks.costs.traffic import Conversation, Shape

DOCS = Path(__file__).resolve().parents[1] / "docs"
#: What the forty questions may cost, as a share of no compaction: by layout and cached price.
BOUNDS = {("append", 0.1): 0.38, ("append", 1.0): 0.25, ("single", 0.1): 0.71, ("single", 1.0): 0.25}
#: What is recommended may cost this much of no compaction, in any conversation.
MOST = 1.02

#: The charts: a name for the file, a title, and a shape.
CHARTS = (
    (
        "text",
        "Ten results per question, one or two cited",
        Shape(questions=60, calls=1, results=10, cites=2, again=0.2),
    ),
    (
        "loops",
        "Loops of up to eight searches",
        Shape(questions=30, calls=8, results=5, characters=600, cites=3, again=0.2),
    ),
    ("pictures", "Two pictures per search", Shape(60, 2, 5, 600, pictures=2, cites=3, again=0.3)),
    ("thin", "Three short results, most of them cited", Shape(60, 1, 3, 400, cites=5, again=0.0)),
)


def table(bills: dict[str, Bill]) -> list[str]:
    """The figures of one conversation, a line for each way."""
    none = bills["none"]
    lines = [f"  {'':8}{'bytes':>12}{'uncached':>12}{'tokens':>12}{'uncached':>12}{'breaks/q':>10}"
             + "".join(f"{'at ' + format(price, 'g'):>9}" for price in PRICES)]  # fmt: skip
    for way, bill in bills.items():
        shares = "".join(f"{bill.cost(price) / none.cost(price):9.3f}" for price in PRICES)
        lines.append(
            f"  {way:8}{bill.size:12,}{bill.uncached:12,}{bill.tokens:12,}{bill.uncached_tokens:12,}"
            f"{bill.breaks_per_question:10.2f}{shares}"
        )
    return lines


def advised(conversation: Conversation, bills: dict[str, Bill], known: Features) -> dict[float, tuple[str, float]]:
    """What the guidance recommends at each price, and its cost as a share of no compaction."""
    found = {}
    for price in PRICES:
        way = guidance.recommended(known, price)
        found[price] = (way, bills[way].cost(price) / bills["none"].cost(price))
    return found


def weighed(conversation: Conversation) -> tuple[Conversation, dict[str, Bill], Features]:
    """A conversation with its bills and features; runs in a process of its own."""
    return conversation, asyncio.run(replay.bills(conversation)), features(conversation)


def all_weighed(conversations: Iterable[Conversation]) -> Iterable[tuple[Conversation, dict[str, Bill], Features]]:
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        yield from pool.map(weighed, conversations)


def chart(title: str, bills: dict[str, Bill], price: float) -> str:
    """The cost up to each question, in each way."""
    count = max(bills["none"].questions)
    series = {way: [bill.cost(price, question) for question in range(1, count + 1)] for way, bill in bills.items()}
    return lines(f"{title}; cached input at {price:g}", series, "questions asked", "tokens at full price, so far")


def main() -> int:
    parser = argparse.ArgumentParser(description="What conversations cost, by layout.")
    parser.add_argument("--count", type=int, default=40, help="how many generated conversations")
    parser.add_argument("--bytes", type=int, default=300_000, help="about how large their last requests get at most")
    parser.add_argument("--write", action="store_true", help="write the charts into docs/")
    asked = parser.parse_args()
    wrong: list[str] = []
    print(f"tokens: {tokens.LABEL}; costs as a share of no compaction, at cached prices of {PRICES}\n")

    forty = traffic.forty_questions()
    _, bills, _ = weighed(forty)
    print(f"{forty.name}: {forty.questions} questions, {len(forty.steps)} requests")
    print("\n".join(table(bills)))
    for (way, price), most in BOUNDS.items():
        for unit, share in (
            ("tokens", bills[way].cost(price) / bills["none"].cost(price)),
            ("bytes", bills[way].cost_in_bytes(price) / bills["none"].cost_in_bytes(price)),
        ):
            if share > most:
                wrong.append(f"{forty.name}: {way} costs {share:.3f} at {price:g} in {unit}; {most:g} is the bound")
    if asked.write:
        (DOCS / "costs").mkdir(exist_ok=True)
        for price in (0.1, 0.5):
            (DOCS / "costs" / f"forty-{price:g}.svg").write_text(chart("Forty questions", bills, price))

    print("\nagent SDKs' captures (four questions of a few hundred bytes of evidence)")
    shares: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _, bills, _ in all_weighed(traffic.client_captures()):
        for way, bill in bills.items():
            shares[way].append([bill.cost(price) / bills["none"].cost(price) for price in PRICES])
    for way, found in shares.items():
        if found:
            print(f"  {way:8}" + "".join(f"{statistics.median(column):9.3f}" for column in zip(*found, strict=True))
                  + f"   (median of {len(found)})")  # fmt: skip

    print("\ncharts")
    named = [traffic.generated(shape, 60, name) for name, _, shape in CHARTS]
    for (name, title, _), (conversation, bills, known) in zip(CHARTS, all_weighed(named), strict=True):
        print(f"{name}: {title}; {conversation.questions} questions, {known.found:.0f} tokens found in each")
        print("\n".join(table(bills)))
        if asked.write:
            for price in (0.1, 0.5):
                (DOCS / "costs" / f"{name}-{price:g}.svg").write_text(chart(title, bills, price))

    print(f"\n{asked.count} generated conversations: single, append and what is recommended, at each price")
    totals: dict[tuple[str, float], float] = {}
    worst = dict.fromkeys(PRICES, 0.0)
    for conversation, bills, known in all_weighed(traffic.generated_ones(asked.count, asked.bytes)):
        cells = []
        for price, (way, share) in advised(conversation, bills, known).items():
            none = bills["none"].cost(price)
            cells.append(f"{bills['single'].cost(price) / none:6.2f}{bills['append'].cost(price) / none:6.2f} {way:6}")
            worst[price] = max(worst[price], share)
            totals["advised", price] = totals.get(("advised", price), 0) + bills[way].cost(price)
            for other in WAYS:
                totals[other, price] = totals.get((other, price), 0) + bills[other].cost(price)
            if share > MOST:
                wrong.append(f"{conversation.name}: {way} is recommended at {price:g}, and costs {share:.3f} of none")
        print(f"  {known.questions:2} questions {known.found:6.0f} found {known.cited:5.0%} cited " + " |".join(cells))
    for way in (*WAYS, "advised") if totals else ():
        print(f"  all, {way:8}" + "".join(f"{totals[way, p] / totals['none', p]:9.3f}" for p in PRICES))
    print("  worst advised" + "".join(f"{worst[price]:9.3f}" for price in PRICES))
    print("\n".join(["", *wrong]) if wrong else "\nAll bounds hold.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
