"""`evidence-proxy explain FILE`: what would happen to a captured request, and why, message by message."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from proxy.commands.bodies import Body
    from proxy.commands.rehearsing import Rehearsed
    from proxy.compaction.account import Line
    from proxy.ledger.suggesting import Suggestion, ToolSeen
    from proxy.ledger.transcript import Transcript

_COLOURS = {
    "receipt": "green",
    "carrier": "bold green",
    "removed": "green",
    "cut": "green",
    "added": "bold green",
    "kept": "yellow",
    "current": "cyan",
    "same": "dim",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """All that is said of one request. `assumed` is whether every answered question was taken for a recorded one."""

    body: Body
    done: Rehearsed
    tools: list[ToolSeen]
    offered: list[str]
    suggestions: list[Suggestion]
    strange_tags: int
    assumed: bool


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A request body as a client sent it, or - for stdin.")],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as `serve` takes them.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Ask the records in this directory, and assume nothing.")
    ] = None,
    credential_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --data: the environment variable that holds the credential which the request came with; "
            "records are found under it only.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Also show what each changed message held, and what it would hold.")
    ] = False,
) -> None:
    """Say what would happen to a request, and why, message by message.

    Every answered question in it is taken for one that went by the proxy and was recorded; with --data the real records
    are asked instead. Nothing is sent, and nothing is written.
    """
    from proxy.commands import bodies
    from proxy.commands.printing import console
    from proxy.commands.starting import Stopped

    try:
        explained = asyncio.run(_explained(bodies.one(file), config, data, credential_env))
    except (bodies.NoFile, Stopped) as stopped:
        typer.echo(f"evidence-proxy: {stopped}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(as_value(explained), indent=2).encode("utf-8", "replace"))
    else:
        _Page(explained, console()).print(diff)


async def _explained(body: Body, config: Path | None, data: Path | None, credential_env: str | None) -> Explained:
    from proxy.commands.starting import rehearsal
    from proxy.evidence.tagged import Proof
    from proxy.gateway.tables import tables_of
    from proxy.ledger import suggesting

    async with rehearsal(config, data, credential_env, os.environ) as (rooms, settings):
        done = await rooms.decide(body.raw, body.api or "chat")
    read, evidence = done.conversed.transcript, done.conversed.evidence
    if read is None:
        return Explained(body, done, [], [], [], 0, data is None)
    tables = tables_of(settings, Proof(rooms.keys))
    tools = suggesting.tools_seen(read, evidence, tables)
    return Explained(
        body=body,
        done=done,
        tools=tools,
        offered=[name for name in _offered(body.raw) if all(tool.name != name for tool in tools)],
        suggestions=suggesting.suggestions(read, evidence),
        strange_tags=suggesting.strange_tags(read, evidence),
        assumed=data is None,
    )


def _offered(raw: bytes) -> list[str]:
    """The names of the tools that a request offers."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    tools = value.get("tools") if isinstance(value, dict) else None
    names: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") or tool.get("type") if isinstance(function, dict) else None
        if isinstance(name, str):
            names.append(name)
    return list(dict.fromkeys(names))


def as_value(explained: Explained) -> dict[str, Any]:
    """Everything that is said, as JSON: figures, ids and reasons, no content."""
    from proxy.visibility import accounts

    done = explained.done
    told = done.conversed
    return {
        "file": explained.body.name,
        "api": explained.body.api,
        "model": told.model,
        "conversation": conversation_id(told.transcript),
        "assumes_records": explained.assumed,
        **accounts.outcome(told.outcome),
        "before": len(told.came),
        "after": len(told.would if told.would is not None else told.went),
        "messages": accounts.messages(done.account) if done.account is not None else [],
        "questions": accounts.questions(done.questions),
        "tools": [
            {
                "name": tool.name,
                "calls": tool.calls,
                "returns": tool.returns,
                "table": tool.table,
                "is_cite_tool": tool.cites,
            }
            for tool in explained.tools
        ],
        "offered_tools": explained.offered,
        "suggestions": [
            {"tools": list(one.tools), "format": one.format, "cite": one.cite, "chunks": one.chunks, "toml": toml(one)}
            for one in explained.suggestions
        ],
        "tags_of_other_keys": explained.strange_tags,
    }


def conversation_id(read: Transcript | None) -> str | None:
    """What the record API and `store erase` call the conversation of a request whose host gives it no name."""
    from proxy.gateway.keeping import Conversation

    ids = Conversation.of(b"", None, read).ids if read is not None else ()
    return ids[0].hex() if ids else None


def toml(one: Suggestion) -> str:
    """The `[[evidence]]` table of a suggestion, as a settings file has it."""
    lines = ["[[evidence]]", f"name = {_quoted(one.tools[0])}", f"format = {_quoted(one.format)}"]
    lines.append(f"tools = [{', '.join(map(_quoted, one.tools))}]")
    if one.cite is not None:
        lines.append(f"cite = {_quoted(one.cite)}")
    elif one.format == "auto":
        lines.append('# cite = "..."   # nothing in this request cites: the name of your cite tool, or "inline"')
    if one.fields:
        lines.append("")
        lines.append("[evidence.fields]")
        lines += [f"{key} = [{_quoted(name)}]" for key, name in one.fields.items()]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A TOML string. Its escapes are JSON's, but for DEL, which TOML wants escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _Page:
    """What is printed for people."""

    def __init__(self, explained: Explained, console: Console) -> None:
        self._told = explained
        self._console = console

    def print(self, diff: bool) -> None:
        self._head()
        account = self._told.done.account
        if account is not None:
            self._messages(account.lines)
            self._questions()
            self._tools()
        if diff and account is not None:
            self._diff(account.lines)
        self._suggest()

    def _line(self, text: str, style: str = "") -> None:
        from rich.text import Text

        from proxy.commands.printing import plain

        self._console.print(Text(plain(text), style=style))

    def _head(self) -> None:
        from proxy.commands.printing import less
        from proxy.compaction.account import REASONS
        from proxy.compaction.outcome import Untouched

        told = self._told.done.conversed
        api = {"chat": "chat completions", "responses": "Responses"}.get(self._told.body.api or "", "no known API")
        self._line(f"{self._told.body.name}: {api}, {told.model or 'no model named'}, {len(told.came):,} bytes", "bold")
        self._line(f"Evidence-Proxy: {told.outcome.header()}")
        if (named := conversation_id(told.transcript)) is not None:
            self._line(f"conversation {named}")
        if isinstance(told.outcome, Untouched):
            self._line(f"untouched: {REASONS[told.outcome.reason]}")
        went = told.would if told.would is not None else told.went
        if len(went) != len(told.came):
            self._line(f"{len(told.came):,} → {len(went):,} bytes, {less(len(told.came), len(went))}")
        if told.transcript is None:
            return
        if self._told.assumed:
            self._line("Assumed: every answered question went by and was recorded. --data asks a real store.", "dim")
        else:
            self._line("The records of the store were asked; nothing was assumed.", "dim")
        self._console.print()

    def _messages(self, lines: tuple[Line, ...]) -> None:
        from rich.text import Text

        from proxy.commands.printing import plain, short

        table = _table("#", "question", "role", "tool", "bytes", "fate", "why")
        for line in lines:
            style = _COLOURS.get(line.fate.value, "")
            table.add_row(
                "" if line.span is None else str(line.index),
                str(line.question),
                line.role.value,
                Text(short(line.tool or "", 28)),
                Text(_bytes(line)),
                Text(line.fate.value, style=style),
                Text(plain(_because(line))),
            )
        self._console.print(table)
        self._console.print()

    def _questions(self) -> None:
        from rich.text import Text

        from proxy.commands.printing import short

        table = _table("question", "opens at", "evidence at", "declared", "cited")
        for one in self._told.done.questions:
            table.add_row(
                str(one.question),
                "" if one.message is None else str(one.message),
                ", ".join(map(str, one.evidence)) or "–",
                one.declaration or "not settled",
                Text(short(", ".join(one.cited), 90) or "–"),
            )
        if table.row_count:
            self._console.print(table)
            self._console.print()

    def _tools(self) -> None:
        from rich.text import Text

        from proxy.commands.printing import short

        table = _table("tool", "calls", "returns", "is")
        suggested = {tool for one in self._told.suggestions for tool in one.tools}
        for tool in self._told.tools:
            is_what = f"evidence ({tool.table})" if tool.table is not None else "the cite tool" if tool.cites else ""
            looks = "looks like evidence, and no table names it" if tool.name in suggested else "no evidence"
            name = Text(short(tool.name, 40))
            table.add_row(name, str(tool.calls), str(tool.returns), Text(short(is_what or looks, 80)))
        for offered in self._told.offered:
            table.add_row(Text(short(offered, 40)), "0", "0", "offered, not called")
        if table.row_count:
            self._console.print(table)
            self._console.print()

    def _suggest(self) -> None:
        if self._told.strange_tags:
            self._line(
                f"{self._told.strange_tags} returns begin with a tag that no key here signed, or that was cut short. "
                "With the proxy's own keys (tags.key_env, or --data) they may be evidence.",
                "yellow",
            )
        for one in self._told.suggestions:
            self._line(
                f"Looks like evidence: {one.chunks} chunks such as [{one.example}]. This table would recognise them:"
                if one.chunks
                else "Looks like evidence. This table would recognise it:",
                "bold",
            )
            self._console.print()
            self._line(toml(one))
            self._console.print()

    def _diff(self, lines: tuple[Line, ...]) -> None:
        from rich.text import Text

        from proxy.commands.printing import plain

        for line in lines:
            if line.went is None:
                continue
            self._line(f"message {line.index}, {line.tool or line.role.value}: {line.fate.value}", "bold")
            for text in _changed(self._told.done.conversed, line):
                style = {"+": "green", "-": "red", "@": "cyan"}.get(text[:1], "")
                self._console.print(Text(plain(text), style=style))
            self._console.print()


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        if name in ("#", "question", "calls", "returns", "opens at", "bytes"):
            table.add_column(name, justify="right", no_wrap=True)
        elif name in ("why", "cited"):
            table.add_column(name, overflow="fold", ratio=1)
        else:
            table.add_column(name, no_wrap=name != "tool", overflow="fold")
    return table


def _bytes(line: Line) -> str:
    if line.went is None:
        return f"{line.before:,}"
    return f"{line.before:,} → {line.after:,}" if line.span is not None else f"+{line.after:,}"


def _because(line: Line) -> str:
    from proxy.compaction.account import WORDS

    said = WORDS[line.why]
    if line.groups:
        held = "; ".join(
            f"question {group.question}: {', '.join(name for chunk in group.chunks for name in chunk.ids)}"
            for group in line.groups
        )
        said += f" ({held})"
    elif line.shows:
        shown = ", ".join(line.shows[:6])
        said += f" ({shown}{', …' if len(line.shows) > 6 else ''})"
    return said


def _changed(told: Any, line: Line) -> Iterator[str]:
    """What a message held and what it holds then, as the lines of a unified diff."""
    api = told.transcript.request.api
    came = told.came[line.span.start : line.span.end] if line.span is not None else b""
    before, after = (list(_shown(api, raw)) for raw in (came, line.went or b""))
    yield from (text.rstrip("\n") for text in list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:])


def _shown(api: Any, raw: bytes) -> Iterator[str]:
    """What stands in a message, line by line; pictures by their size and digest."""
    from proxy.compaction.account import content_of
    from proxy.evidence.pictures import picture_digest
    from proxy.wire.messages import Picture, Text

    for part in content_of(api, raw):
        if isinstance(part, Text):
            yield from part.text.splitlines() or [""]
        elif isinstance(part, Picture):
            kind = part.url[5:].partition(";")[0] if part.url.startswith("data:") else "at an address"
            yield f"[picture: {kind}, {len(part.url):,} characters, digest {picture_digest(part.url).hex()[:12]}]"
        else:
            yield "[a part of another kind]"
