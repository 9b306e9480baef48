"""Which requests offer the proxy's own cite tool, and what their replies then need to know.

A provider that refuses a request for the tool is remembered, so that it is asked without it from then on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from proxy.evidence.tables import Table, Tables
from proxy.gateway.managing import Course, Ending, Managed, Managing
from proxy.gateway.notebook import Notebook
from proxy.gateway.recent import Recent
from proxy.ledger import settling
from proxy.ledger.boundary import Boundary
from proxy.ledger.notes import Noted
from proxy.ledger.questions import Habits, stretches
from proxy.ledger.transcript import Transcript
from proxy.policy import cite_tool
from proxy.policy.cite_rounds import Bounds
from proxy.wire import added, edits, offering
from proxy.wire.bodies import json_text
from proxy.wire.messages import Request, splice

log = logging.getLogger("evidence_proxy.offers")

#: After this many seconds a model that refused our tool is tried again.
_REFUSES_FOR = 3600.0
_MOST_REFUSALS = 1000
_MOST_REPLIES = 10_000
#: A question's steps whose notes are looked up, newest first.
_MOST_STEPS = 256

#: Who refused: the API, the model, and whether the request offered tools of its own.
_Refuser = tuple[str, str, bool]


class _WentOn(NamedTuple):
    """What the provider calls a reply that the client knows by another name, and our answers that it waits for."""

    identity: str
    answers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Offering:
    """A request that may offer our tool: how it was read, what goes up without the tool, and whose it is: the digests
    of tenant and conversation."""

    transcript: Transcript
    evidence: Mapping[int, Table]
    tables: Tables
    found: Boundary
    body: bytes
    tenant: bytes
    conversation: bytes | None


class Offers:
    """Decides which requests offer our tool; one per process."""

    def __init__(
        self, notebook: Notebook, habits: Habits, bounds: Bounds, alive: float, count: Callable[[str, int], None]
    ) -> None:
        """A stream is silent for `alive` seconds at the most; `count` adds to what is counted under a name."""
        self._notebook = notebook
        self._habits = habits
        self._bounds = bounds
        self._alive = alive
        self._count = count
        self._refused: Recent[_Refuser, float] = Recent(_MOST_REFUSALS)
        self._went_on: Recent[tuple[bytes, str], _WentOn] = Recent(_MOST_REPLIES)

    async def find_noted(self, asked: Offering) -> list[Noted]:
        """What the question's earlier replies cited with our tool, as far as that is known. Of an earlier question that
        was never recorded nobody asks: its evidence stays."""
        last = stretches(asked.transcript, asked.found.reply + 1, self._habits)[-1]
        first = max(last.first_reply, len(asked.transcript.replies) - _MOST_STEPS)
        return await self._notebook.find(asked.tenant, asked.transcript, first)

    def managing(self, asked: Offering, course: Course, ending: Ending | None = None) -> Managing | None:
        """What steers the reply to a request that offers our tool; None where it does not."""
        request = asked.transcript.request
        if request.history is not None or not request.messages:
            return None
        offer = offering.read(request)
        holds = any(table.cites_managed for table in asked.evidence.values())
        refuser = (request.api.MEMBER, offer.model, bool(offer.names))
        if offer.place is None or not cite_tool.is_wanted(offer, asked.tables, holds) or self._refuses(refuser):
            return None
        tool = cite_tool.name_beside(offer.names)
        change = offering.add(offer.place, cite_tool.definition(request.api, tool))
        from_reply = asked.found.reply + 1
        managed = Managed(
            request=request,
            offered=splice(asked.body, [offering.moved(change, request, len(asked.body))]),
            tool=tool,
            citable=lambda: settling.citable(
                asked.transcript, asked.found.record, from_reply, asked.tables, self._habits
            ),
            write_down=lambda made, calls: self._notebook.keep(
                asked.tenant, asked.conversation, asked.transcript, made, calls
            ),
            refused=lambda: self._remember(refuser),
            counted=self._counted,
            went_on=lambda shown_as, identity, answers: self._went_on.put(
                (asked.tenant, shown_as), _WentOn(identity, tuple(answers))
            ),
            bounds=self._bounds,
            ending=ending,
            alive=self._alive,
        )
        return Managing(managed, course)

    def continuing(self, tenant: bytes, request: Request, body: bytes) -> bytes:
        """The body of a request that names a reply which it does not carry: under the name that the provider has for
        it, and with our answers to the calls of ours that stand open there."""
        known = self._went_on.get((tenant, request.history)) if request.history is not None else None
        if known is None:
            return body
        changes = edits.put(body, json_text(known.identity), "previous_response_id")
        cut = request.api.cut(body)
        if known.answers and cut.messages:
            changes.append(added.at_the_start(cut, known.answers))
        return splice(body, changes)

    def _counted(self, rounds: int, tokens: int) -> None:
        self._count("managed_rounds", rounds)
        self._count("managed_tokens", tokens)

    def _refuses(self, refuser: _Refuser) -> bool:
        until = self._refused.get(refuser)
        return until is not None and time.monotonic() < until

    def _remember(self, refuser: _Refuser) -> None:
        if self._refused.get(refuser) is None:
            log.warning("a provider took a request only without the proxy's cite tool; it is not offered for an hour")
        self._count("managed_refused", 1)
        self._refused.put(refuser, time.monotonic() + _REFUSES_FOR)
