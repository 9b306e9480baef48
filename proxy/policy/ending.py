"""May this answer end, by whom can the model be asked, and how an answer that stayed undeclared is called."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from proxy.evidence.tables import INLINE
from proxy.ledger.settling import Standing


class Violation(StrEnum):
    """Why a question that had to declare what grounds its answer did not. Each answer went out all the same."""

    UNDECLARED = "undeclared"
    """Nobody was asked: answers are only recorded, or this one could not be held."""
    NO_CITE_TOOL = "no-cite-tool"
    """The request offered no tool to ask for."""
    SEVERAL_CHOICES = "several-choices"
    SERVER_SIDE_HISTORY = "server-side-history"
    """The provider keeps the conversation, where a request of ours would stand for all to see."""
    TOO_LARGE = "too-large"
    ASKED_BEFORE = "asked-before"
    IGNORED = "ignored"
    """The model was asked, and called no cite tool (or named no id)."""
    UNRESOLVED = "unresolved"
    """What it cited resolves to nothing, or the client's tool refused it."""
    PROVIDER = "provider"
    """The request that asked failed, took too long or broke off."""
    STORE = "store"
    """The answer could not be kept until the client comes back for it."""


def may_end(standing: Standing) -> bool:
    """Whether an answer may go out as it is."""
    return not standing.owes or standing.declaration != "missing"


def asked_by(standing: Standing, tools: Collection[str]) -> str | None:
    """The way by which the model can be asked to cite: `INLINE`, or one of the tools that it may call; None: none."""
    return next((way for way in standing.ways if way == INLINE or way in tools), None)
