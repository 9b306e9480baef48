"""Sums over every request since the start. Nothing here grows with their number."""

from __future__ import annotations

from typing import Any

from proxy.visibility.inspector.kept import Row


class Totals:
    """Requests, bytes and tokens; what the provider says that it used, where it says so."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(("requests", "compacted", "before", "after", "added_ms"), 0.0)
        self._outcomes: dict[str, int] = {}
        self._tokens = {"requests": 0, "before": 0, "after": 0}
        self._estimated = False
        self._usage = {"requests": 0, "input": 0, "cached": 0, "output": 0}
        self._cache_told = False

    def count(self, row: Row) -> None:
        """Add a request."""
        compacted = row["outcome"] == "compacted"
        self._sums["requests"] += 1
        self._sums["compacted"] += compacted
        self._sums["before"] += row["before"]
        self._sums["after"] += row["after"]
        self._sums["added_ms"] += row["added"]
        outcome = "compacted" if compacted else row["reason"] or "untouched"
        self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
        if row["usage"] is not None:
            self._usage["requests"] += 1
            for name in ("input", "cached", "output"):
                self._usage[name] += row["usage"][name] or 0
            self._cache_told = self._cache_told or row["usage"]["cached"] is not None

    def count_tokens(self, tokens: dict[str, Any]) -> None:
        """Add the tokens of a request."""
        self._tokens["requests"] += 1
        self._tokens["before"] += tokens["before"]
        self._tokens["after"] += tokens["after"]
        self._estimated = self._estimated or tokens["estimated"]

    def as_value(self) -> dict[str, Any]:
        """All sums, as JSON."""
        return {
            **{name: int(value) for name, value in self._sums.items() if name != "added_ms"},
            "added_ms": round(self._sums["added_ms"], 1),
            "outcomes": dict(sorted(self._outcomes.items(), key=lambda item: -item[1])),
            "tokens": {**self._tokens, "estimated": self._estimated} if self._tokens["requests"] else None,
            "usage": self._used() if self._usage["requests"] else None,
        }

    def _used(self) -> dict[str, Any]:
        return {**self._usage, "cached": self._usage["cached"] if self._cache_told else None}
