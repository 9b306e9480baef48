"""What became of a request, and how the reply header says so. Source of the syntax: RFC 9651 (structured fields)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from proxy.compaction.replacing import Rewrite


class Reason(StrEnum):
    """Why a request went up untouched; the first that applies, in this order."""

    OFF = "off"
    NOT_JSON = "not-json"
    SERVER_SIDE_HISTORY = "server-side-history"
    BACKGROUND = "background"
    NO_EVIDENCE = "no-evidence"
    NO_CITATIONS = "no-citations"
    STORE_SLOW = "store-slow"
    STORE_ERROR = "store-error"
    NO_RECORD = "no-record"
    NOTHING_EARLIER = "nothing-earlier"
    MISSING_CONTENT = "missing-content"
    OBSERVE = "observe"


class Figures(msgspec.Struct, frozen=True):
    """`question` is the current question's ordinal, from 1; `capsule` counts chunks; `before` and `after` are bytes."""

    question: int
    capsule: int
    receipts: int
    before: int
    after: int
    kept: int = 0

    def parameters(self) -> str:
        kept = f"; kept={self.kept}" if self.kept else ""
        return (
            f"question={self.question}; capsule={self.capsule}; receipts={self.receipts}{kept}; "
            f"before={self.before}; after={self.after}"
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The request was rewritten: `body` goes up instead. `done` is what the layout did, for whoever wants to know."""

    body: bytes
    figures: Figures
    done: Rewrite | None = field(default=None, compare=False, repr=False)

    def header(self) -> str:
        return f"compacted; {self.figures.parameters()}"


@dataclass(frozen=True, slots=True)
class Untouched:
    """The very bytes go up; `figures` say what `observe` would have done, and `would` is what would have gone up.

    `done` is what the layout would have done, or why it did nothing, where it was asked.
    """

    reason: Reason
    figures: Figures | None = None
    would: bytes | None = None
    done: Rewrite | None = field(default=None, compare=False, repr=False)

    def header(self) -> str:
        figures = f"; {self.figures.parameters()}" if self.figures is not None else ""
        return f"untouched; reason={self.reason.value}{figures}"


Outcome = Compacted | Untouched
