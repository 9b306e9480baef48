"""What the demo knows of a question once it has settled. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request, seen at both ends: as the client sent it, and as the provider received it."""

    body_sent: bytes
    body_received: bytes
    tokens_before: int
    tokens_after: int
    header: str | None

    @property
    def before(self) -> int:
        """Body bytes that left the client."""
        return len(self.body_sent)

    @property
    def after(self) -> int:
        """Body bytes that reached the provider."""
        return len(self.body_received)

    @cached_property
    def _fields(self) -> tuple[str, dict[str, str]]:
        outcome, *parameters = [part.strip() for part in (self.header or "").split(";")]
        return outcome, dict(parameter.split("=", 1) for parameter in parameters)

    @property
    def outcome(self) -> str:
        """`compacted`, `untouched`, or an empty string without the header."""
        return self._fields[0]

    @property
    def reason(self) -> str | None:
        """Why the request went untouched, if it did."""
        return self._fields[1].get("reason")

    def figure(self, name: str) -> int:
        """A number from the header, 0 if it is not there."""
        return int(self._fields[1].get(name, "0"))

    def as_json(self) -> dict[str, Any]:
        """The figures, without the bodies."""
        return {
            "before": self.before,
            "after": self.after,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "header": self.header,
            "outcome": self.outcome,
            "reason": self.reason,
            "capsule": self.figure("capsule"),
            "receipts": self.figure("receipts"),
        }


@dataclass(frozen=True)
class Row:
    """One settled question."""

    number: int
    question: str
    answer: str
    queries: list[str]
    found: list[str]
    cited: list[str]
    requests: list[Request]

    @property
    def first(self) -> Request:
        """The request that opened the question."""
        return self.requests[0]

    @property
    def last(self) -> Request:
        """The request that was answered."""
        return self.requests[-1]

    def as_json(self) -> dict[str, Any]:
        """Everything but the bodies."""
        return {
            "number": self.number,
            "question": self.question,
            "answer": self.answer,
            "queries": self.queries,
            "found": self.found,
            "cited": self.cited,
            "requests": [request.as_json() for request in self.requests],
        }
