"""Which layout for which traffic, or none: the table of docs/costs.md, as a value that the benchmark tries out."""

from __future__ import annotations

from benchmarks.costs.features import Features

#: From so many questions on (rows), at a cached price of at most so much (columns): how many tokens of evidence a
#: question must find and not cite, on average, for compaction to pay. None: it does not pay whatever is found.
PRICES = (0.1, 0.25, 0.5, 1.0)
PAYS: tuple[tuple[int, tuple[int | None, ...]], ...] = (
    (2, (None, 4000, 4000, 1500)),
    (4, (4000, 2000, 1000, 500)),
    (8, (1500, 750, 400, 200)),
    (16, (750, 400, 200, 100)),
    (32, (300, 150, 75, 0)),
)


def recommended(features: Features, cached_price: float) -> str:
    """The way to send conversations like this one: "none", "single" or "append"."""
    column = next((at for at, price in enumerate(PRICES) if cached_price <= price), len(PRICES) - 1)
    least = next((row[column] for questions, row in reversed(PAYS) if features.questions >= questions), None)
    if least is None or features.uncited < least:
        return "none"
    # Without a discount there is no cache to keep, and a chunk that is shown once, newest first, reads best.
    return "append" if cached_price < 1 else "single"


def as_markdown() -> str:
    """The table, as the documentation shows it."""
    lines = [
        "| questions | " + " | ".join(f"cached at {price:g}" for price in PRICES) + " |",
        "|---|" + "---|" * len(PRICES),
    ]
    for (questions, row), following in zip(PAYS, [*PAYS[1:], None], strict=True):
        span = f"{questions} to {following[0] - 1}" if following is not None else f"{questions} and more"
        cells = ["`off`" if least is None else f"{least:,} tokens" for least in row]
        lines.append(f"| {span} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
