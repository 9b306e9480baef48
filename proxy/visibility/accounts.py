"""An account of a request as JSON, for those who look: figures, ids and reasons; never content.

`explain --json` and the inspector show the same.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from proxy.compaction.account import REASONS, WORDS, Account, Asking, Group, Line
from proxy.compaction.outcome import Compacted, Figures, Outcome
from proxy.visibility.totals import Change, Money, Totals

_BECAUSE = {reason.value: said for reason, said in REASONS.items()}


def outcome(made: Outcome) -> dict[str, Any]:
    """What became of a request, with the reason in a word and in a sentence."""
    reason = None if isinstance(made, Compacted) else made.reason.value
    return {
        "outcome": "compacted" if reason is None else "untouched",
        "reason": reason,
        "because": because(reason),
        "header": made.header(),
        "figures": figures(made.figures),
    }


def because(reason: str | None) -> str | None:
    """A reason in a sentence; None without one, and where it is none of ours."""
    return _BECAUSE.get(reason) if reason is not None else None


def figures(made: Figures | None) -> dict[str, int] | None:
    """The figures of a rewrite."""
    if made is None:
        return None
    return {
        "question": made.question,
        "capsule": made.capsule,
        "receipts": made.receipts,
        "kept": made.kept,
        "before": made.before,
        "after": made.after,
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
    used = {"requests": told.reported, "input": told.input, "cached": told.cached, "output": told.output}
    return {
        "requests": sum(told.outcomes.values()),
        "compacted": sum(n for (made, _), n in told.outcomes.items() if made == "compacted"),
        "outcomes": {made if made == "compacted" else f"{made}: {why}": n for (made, why), n in told.outcomes.items()},
        "bytes": _change(told.bytes),
        "tokens": None if told.tokens == Change() else _tokens(told, told.tokens, told.pictures),
        "observed": None
        if told.observed_bytes == Change()
        else {
            "bytes": _change(told.observed_bytes),
            "tokens": _tokens(told, told.observed_tokens, told.observed_pictures),
        },
        "usage": used if told.reported else None,
        "money": None if told.money is None else money(told.money),
    }


def _tokens(told: Totals, change: Change, pictures: Change) -> dict[str, Any]:
    """Tokens in messages. `estimated` where any of them are: pictures, and models whose vocabulary is not known."""
    return {
        **_change(change),
        "pictures": _change(pictures),
        "counted": told.counted,
        "guessed": told.guessed,
        "estimated": told.guessed > 0 or pictures != Change(),
    }


def money(told: Money) -> dict[str, Any]:
    """What was spent and saved, and what the same would have cost unchanged: with the provider's cache a range."""
    return {
        **asdict(told),
        "unchanged_with_cache": list(told.unchanged_with_cache),
        "unchanged_without_cache": told.unchanged_without_cache,
    }


def _change(change: Change) -> dict[str, int]:
    return {"before": change.before, "after": change.after}
