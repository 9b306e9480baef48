"""`python -m proxy.demo`: runs the demo, shows it, and ends with 1 if anything was not as promised."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.live import Live

from proxy.demo import report
from proxy.demo.agent import Agent, watched_client
from proxy.demo.handbook import Handbook
from proxy.demo.provider import ScriptedProvider
from proxy.demo.rows import Request, Row
from proxy.demo.running import ProxyDidNotStart, running_proxy
from proxy.demo.script import QUESTIONS
from proxy.demo.tokens import TokenCount
from proxy.demo.verdict import faults

OPENING = """\
[bold]Evidence Proxy, the demo.[/bold] Eight questions to an agent that searches a lighthouse's handbook.

[bold]The provider is scripted[/bold]: a small server on 127.0.0.1 that answers by a script, in place of a model. \
No key and no network is used. Everything else is real: the proxy (a process of its own), the openai client, the \
streaming, the search in LanceDB. Sizes are measured at both ends: from what the client sent to what the provider got.
"""

CLOSING = """\
Where to look next: README.md (what it promises), config/default.toml (every key). To point your own client at it, run \
[bold].venv/bin/evidence-proxy serve[/bold] and set [bold]base_url="http://127.0.0.1:8080/v1"[/bold]."""


async def run(console: Console, folder: Path, count: TokenCount) -> list[Row]:
    """Ask all questions through a proxy that keeps its things in `folder`, showing each as it settles."""
    provider = ScriptedProvider()
    rows: list[Row] = []
    async with provider.listening() as upstream, running_proxy(upstream, folder) as base_url:
        handbook = await asyncio.to_thread(Handbook.laid_out_in, folder / "handbook")
        client, sent = watched_client(base_url)
        async with client:
            agent = Agent(client, handbook, sent)
            with Live(report.table_of(rows, count.label), console=console, auto_refresh=False) as live:
                for number, question in enumerate(QUESTIONS, 1):
                    already = len(provider.received)
                    answered = await agent.ask(question.text)
                    pairs = zip(answered.requests, provider.received[already:], strict=True)
                    requests = [
                        Request(one.body, came, count.of(one.body), count.of(came), one.header) for one, came in pairs
                    ]
                    rows.append(
                        Row(
                            number,
                            question.text,
                            answered.text,
                            answered.queries,
                            answered.found,
                            answered.cited,
                            requests,
                        )
                    )
                    # Only as many rows as fit are shown until the end, or a small terminal would hide the newest.
                    shown = rows[-report.rows_that_fit(console) :] if number < len(QUESTIONS) else rows
                    live.update(report.table_of(shown, count.label), refresh=True)
    return rows


def main() -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m proxy.demo", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures to FILE, as JSON")
    arguments = parser.parse_args()
    try:
        import openai  # noqa: F401
    except ImportError:
        print("the demo drives the openai client, which is not installed here; run `make demo`", file=sys.stderr)
        return 2
    # Without a terminal rich assumes 80 columns, which breaks the table into pieces.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(OPENING)
    count = TokenCount()
    with tempfile.TemporaryDirectory(prefix="evidence-proxy-demo-") as folder:
        try:
            rows = asyncio.run(run(console, Path(folder), count))
        except ProxyDidNotStart as error:
            console.print("\n".join([str(error), *error.__notes__]), style="red", markup=False)
            return 1
    wrong = faults(rows, [question.answer.format_map(question.rests_on) for question in QUESTIONS])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(rows, count.label, wrong), indent=2) + "\n")
    # Without a terminal rich leaves the table's last line open.
    console.print() if console.is_terminal else console.print("\n")
    for line in report.closing_lines(rows, count.label):
        console.print(line)
    console.print()
    if wrong:
        console.print("[red]Not as promised:[/red]")
        for fault in wrong[:12]:
            console.print(f"  - {fault}", markup=False)
        if len(wrong) > 12:
            console.print(f"  and {len(wrong) - 12} more")
        return 1
    console.print(
        "Checked on the wire: the current question went up as it was sent, every passage cited so far stands in the "
        "request once and whole, cited pictures came along and no others, the header's figures are the measured ones.\n"
    )
    console.print(CLOSING)
    return 0


if __name__ == "__main__":
    sys.exit(main())
