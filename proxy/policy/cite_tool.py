"""The proxy's own cite tool: what it is called, how it is described, and when a request offers it.

Its bytes never change, and it stands in the last place, so that a provider's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from proxy.evidence.tables import Tables
from proxy.wire.messages import Api
from proxy.wire.offering import Offer

NAME = "cite_evidence"
_DESCRIPTION = (
    "Say which of the retrieved passages your answer rests on. Call this once you have retrieved what you need, before "
    "you answer, with the ids of exactly those passages, copied as the results show them. If none of them supports the "
    "answer, call it with an empty list. A result that shows no ids is named by its tool and its number among that "
    "tool's results in this conversation: `search 2` is the second result of `search`. This only notes sources: it "
    "retrieves nothing, and the user does not see it."
)
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ids": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The ids of the passages that support the answer; empty if none does.",
        }
    },
    "required": ["ids"],
    "additionalProperties": False,
}


def name_beside(taken: Collection[str]) -> str:
    """The tool's name in a request that offers tools of these names: a client's own tool keeps its name."""
    name, number = NAME, 1
    while name in taken:
        number += 1
        name = f"{NAME}_{number}"
    return name


def definition(api: Api, name: str) -> bytes:
    """The tool's bytes."""
    return api.tool(name, _DESCRIPTION, _PARAMETERS)


def is_wanted(offer: Offer, tables: Tables, holds_evidence: bool) -> bool:
    """Whether a request is to offer the tool: it offers one that retrieves evidence, or holds evidence, of a table that
    is cited so; it asks for one reply; and the tool can be added without touching what is there."""
    managed = [table for table in tables if table.cites_managed]
    if not managed or offer.place is None or offer.choices != 1:
        return False
    return holds_evidence or any(name in table.tools for table in managed for name in offer.names)
