"""`evidence-proxy replay LOG`: a whole log of requests in order, with totals and a chart for each conversation."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from proxy.commands.rehearsing import Rehearsed
    from proxy.ledger.differing import Mark
    from proxy.ledger.transcript import Transcript

#: A conversation of more requests is drawn as so many bars, each the largest request of a stretch.
_WIDEST = 60


@dataclass(slots=True)
class Conversation:
    """The requests of one conversation: the bytes of each as it came and as it would have gone up, and outcomes."""

    first: str
    opening: str
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def as_value(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "first": self.first,
            "opening": self.opening,
            "before": self.before,
            "after": self.after,
            "outcomes": dict(self.outcomes.most_common()),
        }


@dataclass(slots=True)
class Replayed:
    """A log, replayed. `skipped` names what in it is no request."""

    conversations: list[Conversation] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def totals(self) -> dict[str, Any]:
        """Sums over all requests."""
        outcomes: Counter[str] = Counter()
        for one in self.conversations:
            outcomes += one.outcomes
        return {
            "requests": sum(len(one.before) for one in self.conversations),
            "conversations": len(self.conversations),
            "compacted": outcomes["compacted"] + outcomes["observe"],
            "before": sum(sum(one.before) for one in self.conversations),
            "after": sum(sum(one.after) for one in self.conversations),
            "outcomes": dict(outcomes.most_common()),
            "skipped": len(self.skipped),
        }


def replay(
    log: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE.jsonl", help="Request bodies in order: one on each line, or a file for each."),
    ],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as `serve` takes them.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Ask the records in this directory, and assume nothing.")
    ] = None,
    credential_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --data: whose records, as for `explain`.")
    ] = None,
    most: Annotated[int, typer.Option("--most", metavar="N", help="Draw so many conversations, the largest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures of every conversation as JSON.")] = False,
) -> None:
    """Say what the proxy would have made of a whole log of requests: totals, and how each conversation grew.

    Requests are told apart into conversations by how they begin. Nothing is sent, and nothing is written.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from proxy.commands import bodies
    from proxy.commands.printing import console
    from proxy.commands.starting import Stopped

    try:
        places = bodies.every(log)
        errors = Console(stderr=True)
        columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=errors, transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("", total=len(places))
            done = asyncio.run(_replayed(places, config, data, credential_env, lambda: progress.advance(task)))
    except (bodies.NoFile, Stopped) as stopped:
        typer.echo(f"evidence-proxy: {stopped}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        told = {
            "totals": done.totals(),
            "conversations": [one.as_value() for one in done.conversations],
            "skipped": done.skipped,
        }
        typer.echo(json.dumps(told, indent=2).encode())
    else:
        _print(done, most, console())
    if not done.conversations:
        typer.echo("evidence-proxy: nothing in this log is a request of a known API", err=True)
        raise typer.Exit(1)


async def _replayed(
    places: list[Any], config: Path | None, data: Path | None, credential_env: str | None, step: Callable[[], None]
) -> Replayed:
    from proxy.commands import bodies
    from proxy.commands.starting import rehearsal

    told = _Told()
    async with rehearsal(config, data, credential_env, os.environ) as (rooms, _):
        for place in places:
            body = await asyncio.to_thread(bodies.load, place)
            if body.api is None:
                told.done.skipped.append(body.name)
            else:
                told.add(body.name, await rooms.decide(body.raw, body.api))
            step()
    return told.done


class _Told:
    """Requests, told apart into conversations: one that begins like the last of a conversation continues it."""

    def __init__(self) -> None:
        self.done = Replayed()
        self._known: dict[bytes, list[tuple[Sequence[Mark], Conversation]]] = {}

    def add(self, name: str, made: Rehearsed) -> None:
        """Count a request that was rehearsed."""
        from proxy.compaction.outcome import Compacted

        told = made.conversed
        conversation = self._conversation(name, told.transcript)
        conversation.before.append(len(told.came))
        conversation.after.append(len(told.would if told.would is not None else told.went))
        outcome = "compacted" if isinstance(told.outcome, Compacted) else told.outcome.reason.value
        conversation.outcomes[outcome] += 1

    def _conversation(self, name: str, read: Transcript | None) -> Conversation:
        from proxy.commands.printing import short
        from proxy.ledger import differing

        opening = read.opening if read is not None else b""
        marks = differing.marks(read) if read is not None else ()
        alike = self._known.setdefault(opening, [])
        for position in range(len(alike) - 1, -1, -1):
            before, conversation = alike[position]
            if differing.continues(before, marks):
                alike[position] = (marks, conversation)
                return conversation
        users = read.first_users if read is not None else []
        conversation = Conversation(name, short(users[0][1].text(), 60) if users else "")
        alike.append((marks, conversation))
        self.done.conversations.append(conversation)
        return conversation


def _print(done: Replayed, most: int, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from proxy.commands.printing import bars, less, plain

    totals = done.totals()
    console.print(
        f"{totals['requests']:,} requests in {totals['conversations']:,} conversations, "
        f"{totals['compacted']:,} of them compacted"
    )
    console.print(f"bytes  {totals['before']:,} → {totals['after']:,}  {less(totals['before'], totals['after'])}")
    for outcome, number in totals["outcomes"].items():
        console.print(f"  {number:>7,}  {outcome}")
    if done.skipped:
        console.print(Text(plain(f"  {len(done.skipped):>7,}  no requests, such as {done.skipped[0]}"), style="dim"))
    largest = sorted(done.conversations, key=lambda one: -sum(one.before))[: max(0, most)]
    shown = [one for one in done.conversations if any(one is other for other in largest)]
    if not shown:
        return
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    table.add_column("conversation", ratio=1, overflow="fold")
    table.add_column("requests", justify="right", no_wrap=True)
    table.add_column("as they came\nas they would have gone", no_wrap=True)
    table.add_column("largest", justify="right", no_wrap=True)
    table.add_column("all", justify="right", no_wrap=True)
    for one in shown:
        top = max(one.before)
        name = Text(plain(one.first), style="bold")
        name.append(plain(f"\n{one.opening}"), style="not bold")
        table.add_row(
            name,
            str(len(one.before)),
            Text(f"{bars(_drawn(one.before), top)}\n").append(bars(_drawn(one.after), top), style="green"),
            f"{max(one.before):,}\n{max(one.after):,}",
            f"{sum(one.before):,}\n{less(sum(one.before), sum(one.after))}",
        )
    console.print(table)
    if len(shown) < len(done.conversations):
        console.print(f"and {len(done.conversations) - len(shown):,} smaller ones (--most N)")


def _drawn(sizes: list[int]) -> list[int]:
    """Sizes as so many bars as fit, each the largest of its stretch."""
    if len(sizes) <= _WIDEST:
        return sizes
    edges = [round(n * len(sizes) / _WIDEST) for n in range(_WIDEST + 1)]
    return [max(sizes[start:end]) for start, end in pairwise(edges)]
