"""How the demo looks: the live table, the totals, the line of growth, and the same as JSON. Formatting only."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proxy.demo.rows import Request, Row

_BARS = "▁▂▃▄▅▆▇█"


def table_of(rows: list[Row], token_label: str) -> Table:
    """One row per settled question. Arrows go from what the client sent to what the provider received."""
    table = Table(
        caption=f"tokens: {token_label}; pictures are estimates",
        caption_justify="left",
        show_lines=True,
    )
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("question, and the Evidence-Proxy reply header", ratio=1, overflow="fold")
    table.add_column("first request\nbytes\ntokens", justify="right", no_wrap=True)
    table.add_column("last request\nbytes\ntokens", justify="right", no_wrap=True)
    table.add_column("cited", no_wrap=True)
    table.add_column("cap-\nsule", justify="right", no_wrap=True)
    table.add_column("re-\nceipts", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.number),
            f"{escape(row.question)}\n[dim]{escape(row.last.header or 'no header')}[/dim]",
            _sizes(row.first),
            _sizes(row.last),
            "\n".join(row.cited) or "none",
            str(row.last.figure("capsule")),
            str(row.last.figure("receipts")),
        )
    return table


def rows_that_fit(console: Console) -> int:
    """How many rows a terminal of this height shows at once, at the most lines that a row may take."""
    return max(1, (console.height - 8) // 7) if console.is_terminal else sys.maxsize


def totals_of(rows: list[Row]) -> dict[str, int]:
    """Sums over all requests of all questions."""
    requests = [request for row in rows for request in row.requests]
    return {
        "requests": len(requests),
        "compacted": sum(request.outcome == "compacted" for request in requests),
        "before": sum(request.before for request in requests),
        "after": sum(request.after for request in requests),
        "tokens_before": sum(request.tokens_before for request in requests),
        "tokens_after": sum(request.tokens_after for request in requests),
    }


def closing_lines(rows: list[Row], token_label: str) -> list[str]:
    """The totals, and how the requests grew without and with the proxy."""
    totals = totals_of(rows)
    without, with_it = [row.first.before for row in rows], [row.first.after for row in rows]
    top = max(without)
    return [
        f"All {totals['requests']} requests together, {totals['compacted']} of them compacted:",
        f"  bytes   {totals['before']:>9,} → {totals['after']:>9,}  {_less(totals['before'], totals['after'])}",
        f"  tokens  {totals['tokens_before']:>9,} → {totals['tokens_after']:>9,}  "
        f"{_less(totals['tokens_before'], totals['tokens_after'])} ({token_label})",
        "",
        "What the conversation carries along: the size of each question's first request.",
        f"  without the proxy  {_bars(without, top)}  {without[0]:>7,} → {without[-1]:>7,} bytes",
        f"  with the proxy     {_bars(with_it, top)}  {with_it[0]:>7,} → {with_it[-1]:>7,} bytes",
    ]


def as_json(rows: list[Row], token_label: str, faults: list[str]) -> dict[str, Any]:
    """The whole run for a program to read."""
    return {
        "provider": "scripted",
        "tokens": token_label,
        "questions": [row.as_json() for row in rows],
        "totals": totals_of(rows),
        "faults": faults,
    }


def _sizes(request: Request) -> str:
    if request.body_sent == request.body_received:
        return f"{request.before:,} as sent\n[dim]{request.tokens_before:,} as sent[/dim]"
    return f"{request.before:,} → {request.after:,}\n[dim]{request.tokens_before:,} → {request.tokens_after:,}[/dim]"


def _bars(sizes: list[int], top: int) -> str:
    return "".join(_BARS[min(len(_BARS) - 1, size * len(_BARS) // top)] for size in sizes)


def _less(before: int, after: int) -> str:
    return f"{100 * (before - after) / before:.0f}% less"
