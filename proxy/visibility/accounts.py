"""An account of a request as JSON, for those who look: figures, ids and reasons; never content.

`explain --json` and the inspector show the same.
"""

from __future__ import annotations

from typing import Any

from proxy.compaction.account import REASONS, WORDS, Account, Asking, Group, Line
from proxy.compaction.outcome import Compacted, Figures, Outcome


def outcome(made: Outcome) -> dict[str, Any]:
    """What became of a request, with the reason in a word and in a sentence."""
    compacted = isinstance(made, Compacted)
    figures: Figures | None = made.figures
    return {
        "outcome": "compacted" if compacted else "untouched",
        "reason": None if isinstance(made, Compacted) else made.reason.value,
        "because": None if isinstance(made, Compacted) else REASONS[made.reason],
        "header": made.header(),
        "figures": None
        if figures is None
        else {
            "question": figures.question,
            "capsule": figures.capsule,
            "receipts": figures.receipts,
            "kept": figures.kept,
            "before": figures.before,
            "after": figures.after,
        },
    }


def messages(told: Account) -> list[dict[str, Any]]:
    """One object for each line of an account."""
    return [line(one) for one in told.lines]


def line(one: Line) -> dict[str, Any]:
    """A message: where it stood, what became of it, and why."""
    return {
        "index": one.index,
        "role": one.role.value,
        "question": one.question,
        "opens": one.opens,
        "tool": one.tool,
        "table": one.table,
        "fate": one.fate.value,
        "why": one.why.value,
        "because": WORDS[one.why],
        "before": one.before,
        "after": one.after,
        "pictures": one.pictures,
        "shows": list(one.shows),
        "capsule": [group(part) for part in one.groups],
    }


def group(part: Group) -> dict[str, Any]:
    """What a capsule holds for one question."""
    return {
        "question": part.question,
        "chunks": [
            {
                "ids": list(held.ids),
                "source": held.source,
                "collection": held.collection,
                "message": held.message,
            }
            for held in part.chunks
        ],
    }


def questions(asked: tuple[Asking, ...]) -> list[dict[str, Any]]:
    """One object for each question."""
    return [
        {
            "question": one.question,
            "message": one.message,
            "declaration": one.declaration,
            "cited": list(one.cited),
            "evidence": list(one.evidence),
        }
        for one in asked
    ]
