"""What the proxy answers to a call of its cite tool: which ids it took, and what to do about the others.

Every word here is read by a model. What a document or a user wrote comes in only as an id, shortened, in quotes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.evidence import citing
from proxy.ledger.citations import Resolved
from proxy.ledger.notes import Noted
from proxy.ledger.settling import Citable

_MOST_NAMED = 20
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class CiteAnswer:
    """What a call cited (as of the reply that made it), and what the model is told."""

    noted: Noted
    text: str


def answer(citable: Citable, arguments: str, tool: str) -> CiteAnswer:
    """Validate a call: near misses are taken for what they mean, unknown ids are named back, an id that stands in
    several collections is refused."""
    said = citing.written(arguments)
    if not said.clear:
        text = f'Not recorded: the arguments are not readable. Call `{tool}` again, as in {{"ids": ["..."]}}.'
        return CiteAnswer(Noted(citable.reply, refused=said.perhaps), text)
    taken: dict[str, str] = {}  # the ids that count, with how each was written
    unknown: list[str] = []
    unclear: dict[str, list[str]] = {}
    for written in said.ids:
        meant = citable.resolve(written)
        several = {one.id: _collections(one) for one in meant}
        unclear |= {name: found for name, found in several.items() if len(found) > 1}
        taken |= {name: written for name, found in several.items() if len(found) <= 1}
        if not meant:
            unknown.append(written)
    noted = Noted(citable.reply, tuple(taken), said.nothing and not unknown, tuple(unclear))
    return CiteAnswer(noted, _told(noted, taken, unknown, unclear, citable.nameless, tool))


def _collections(meant: Resolved) -> list[str]:
    return sorted({found.chunk.collection for found in meant.found if found.chunk and found.chunk.collection})


def _told(
    noted: Noted,
    taken: dict[str, str],
    unknown: Sequence[str],
    unclear: dict[str, list[str]],
    nameless: Sequence[str],
    tool: str,
) -> str:
    lines: list[str] = []
    if taken:
        lines.append(f"Recorded: {_listed([_taken(name, written) for name, written in taken.items()])}.")
    elif noted.nothing:
        lines.append("Recorded: none of the retrieved passages supports the answer.")
    if unknown:
        lines.append(
            f"Not found: {_listed([_quoted(name) for name in unknown])}. Cite ids exactly as the results show them."
        )
        if nameless:
            lines.append(f"Results that show no ids are named: {_listed(list(nameless))}.")
    for name, collections in list(unclear.items())[:_MOST_NAMED]:
        where = " and ".join(_quoted(collection) for collection in collections[:_MOST_NAMED])
        lines.append(f"Not recorded: {_quoted(name)} stands in the collections {where}; cite another passage instead.")
    if not (taken or noted.nothing):
        lines.append(
            f"Call `{tool}` again with ids that were shown, or with an empty list if none supports the answer."
        )
    else:
        lines.append("Now give the answer; do not repeat what you have said already.")
    return "\n".join(lines)


def _taken(name: str, written: str) -> str:
    return f"[{name}]" if name in citing.spellings(written) else f"[{name}] (for {_quoted(written)})"


def _quoted(text: str) -> str:
    shown = " ".join(text.split())
    return f'"{shown[:_LONGEST]}…"' if len(shown) > _LONGEST else f'"{shown}"'


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _MOST_NAMED
    return ", ".join(items[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
