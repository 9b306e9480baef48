"""Replay a conversation through the proxy's own decisions, without HTTP, and count what each way costs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from benchmarks.costs.prefixes import Prefixes, Spent, cut
from benchmarks.costs.traffic import Conversation
from proxy.gateway.conversation import Asked, Conversations
from proxy.settings import Settings
from proxy.store import open_store

#: The ways to send a conversation: without compaction, and in each layout.
WAYS = ("none", "single", "append")


def settings(conversation: Conversation, layout: str) -> Settings:
    table = {
        "name": "kb",
        "format": conversation.format,
        "tools": ["search", "execute_code"] if conversation.format == "haiku" else ["search"],
        "cite": "cite",
    }
    return Settings.model_validate(
        {
            "store": {"uri": "memory://"},
            "compaction": {"layout": layout},
            "policy": {"output_tools": conversation.output_tools},
            "evidence": [table],
        }
    )


async def forwarded(conversation: Conversation, way: str, every: bool = False) -> list[bytes]:
    """What goes upstream for each request, sent in this way.

    Inside a question the rewritten prefix does not change (promise 7, which tests hold), so that only the first and
    the last request of each question are decided, unless `every` one is to be.
    """
    if way == "none":
        return [step.body for step in conversation.steps]
    chosen = settings(conversation, way)
    store = open_store(chosen)
    await store.start()
    conversations = Conversations(chosen, store.records)
    bodies: list[bytes] = []
    steps = conversation.steps
    sent = went = b""  # the newest request that was decided, up to its last message
    for at, step in enumerate(steps):
        inside = 0 < at < len(steps) - 1 and steps[at - 1].question == step.question == steps[at + 1].question
        if inside and not every and step.body.startswith(sent):
            bodies.append(went + step.body[len(sent) :])
            continue
        exchange = await conversations.ask(Asked(step.body, "k", api=conversation.api))
        bodies.append(exchange.body)
        exchange.feed(json.dumps(step.reply).encode())
        await exchange.ended(True)
        sent, went = through_last_message(step.body), through_last_message(exchange.body)
    await store.close()
    return bodies


def through_last_message(body: bytes) -> bytes:
    return body[: len(body) - len(cut(body)[2])]


@dataclass(frozen=True)
class Bill:
    """What a conversation costs in one way, request by request."""

    questions: tuple[int, ...]
    spent: tuple[Spent, ...]

    def cost(self, cached_price: float, until: int | None = None) -> float:
        """In tokens at full price, of all questions or those up to `until`."""
        asked = zip(self.questions, self.spent, strict=True)
        return sum(one.cost(cached_price) for question, one in asked if until is None or question <= until)

    def cost_in_bytes(self, cached_price: float) -> float:
        return sum(one.cost_in_bytes(cached_price) for one in self.spent)

    @cached_property
    def size(self) -> int:
        return sum(one.size for one in self.spent)

    @cached_property
    def uncached(self) -> int:
        return sum(one.uncached for one in self.spent)

    @cached_property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.spent)

    @cached_property
    def uncached_tokens(self) -> int:
        return sum(one.uncached_tokens for one in self.spent)

    @property
    def breaks_per_question(self) -> float:
        return sum(one.breaks for one in self.spent) / len(set(self.questions))


def bill(conversation: Conversation, bodies: list[bytes]) -> Bill:
    prefixes = Prefixes()
    return Bill(tuple(step.question for step in conversation.steps), tuple(prefixes.add(body) for body in bodies))


async def bills(conversation: Conversation, ways: tuple[str, ...] = WAYS) -> dict[str, Bill]:
    """The bill of each way."""
    return {way: bill(conversation, await forwarded(conversation, way)) for way in ways}
