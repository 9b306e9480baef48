"""An account of a request as JSON, for those who look: figures, ids and reasons; never content.

`explain --json` and the inspector show the same.
"""

from __future__ import annotations

from typing import Any

from proxy.compaction.account import REASONS, WORDS, Account, Asking, Group, Line
from proxy.compaction.outcome import Compacted, Figures, Outcome
from proxy.visibility.totals import Change, Totals


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


def totals(told: Totals) -> dict[str, Any]:
    """What everything came to. `observed` are the figures of what `observe` only looked at; None where it did not."""
    observed = None
    if told.observed_bytes != Change():
        observed = {"bytes": _change(told.observed_bytes), "tokens": _change(told.observed_tokens)}
    money = told.money
    return {
        "requests": sum(told.outcomes.values()),
        "compacted": sum(n for (made, _), n in told.outcomes.items() if made == "compacted"),
        "outcomes": {made if made == "compacted" else f"{made}: {why}": n for (made, why), n in told.outcomes.items()},
        "bytes": _change(told.bytes),
        "tokens": {**_change(told.tokens), "pictures": told.pictures.before, "guessed": told.guessed}
        if told.tokens != Change()
        else None,
        "observed": {"bytes": _change(told.observed_bytes), "tokens": _change(told.observed_tokens)}
        if observed
        else None,
        "usage": {"requests": told.reported, "input": told.input, "cached": told.cached, "output": told.output}
        if told.reported
        else None,
        "money": {name: getattr(money, name) for name in money.__slots__} if money is not None else None,
    }


def _change(change: Change) -> dict[str, int]:
    return {"before": change.before, "after": change.after}
