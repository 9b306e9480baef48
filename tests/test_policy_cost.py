"""What the policy costs: at most one request for each question that had to declare and did not, and none otherwise.

Conversations are generated from a seed: models that cite, cite late, cite nothing, cite what stands nowhere, or never;
that answer our question in every way; tools that fail; clients that refuse a citation, send a request again or have no
cite tool. A small account beside them says of each question what it owed. It knows only what was scripted.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.gateway.conversation import Asked, Conversations
from proxy.gateway.steering import Head
from proxy.gateway.upstream import BrokenOff, Unreachable
from proxy.policy import held, redirect
from proxy.settings import Settings
from proxy.wire.messages import Reply
from tests.fake_store import FakeStore
from tests.house.agent import APIS, Agent, replied

CONVERSATIONS = 1_000

JSON = ((b"Content-Type", b"application/json"),)
STREAM = ((b"Content-Type", b"text/event-stream"),)


class Kept:
    """Held answers, in memory."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    async def put(self, name: bytes, tenant: bytes, payload: bytes) -> None:
        self.kept[name] = payload

    async def get(self, name: bytes) -> bytes | None:
        return self.kept.get(name)


@dataclass
class Account:
    """What one question did, as scripted: whether it retrieved and declared, and what became of it."""

    retrieved: bool = False
    declared: bool = False
    refused: bool = False
    offered: bool = True
    asked: int = 0


@dataclass
class Model:
    """The provider: what it says to the client's requests is scripted, what it says to ours is drawn."""

    chance: random.Random
    api: str
    streamed: bool
    next: tuple[str | None, list[tuple[str, str, Any]]] = (None, [])
    account: Account = field(default_factory=Account)
    shown: list[str] = field(default_factory=list)
    requests: int = 0
    answered_with: Counter[str] = field(default_factory=Counter)

    async def ask(self, body: bytes | None = None) -> Any:
        if body is None or redirect.TAG.encode() not in body:
            return Spoken(replied(self.api, self.streamed, *self.next), self.streamed)
        assert f'"{redirect.TAG}' not in body.decode()
        self.requests += 1
        self.account.asked += 1
        way = self.chance.choice(
            ["cites", "cites", "nothing", "unknown", "ignores", "searches", "fails", "breaks", "gone"]
        )
        self.answered_with[way] += 1
        if way == "gone":
            raise Unreachable("here", "gone")
        cites = {"cites": self.shown[:1] or [], "nothing": [], "unknown": ["nowhere"]}.get(way)
        calls = [("call_x", "cite", {"ids": cites})] if cites is not None else []
        calls += [("call_y", "search", {})] if way == "searches" else []
        spoken = Spoken(replied(self.api, False, None if calls else "As I said.", calls), False)
        spoken.breaks = way == "breaks"
        spoken.head = Head(500 if way == "fails" else 200, b"", JSON)
        return spoken


class Spoken:
    """A reply of the provider."""

    readable = True

    def __init__(self, pieces: list[bytes], streamed: bool) -> None:
        self.head = Head(200, b"OK", STREAM if streamed else JSON)
        self.breaks = False
        self._pieces = iter(pieces)

    async def chunk(self) -> bytes:
        if self.breaks:
            raise BrokenOff
        return next(self._pieces, b"")

    def close(self) -> None: ...


@dataclass
class Straight(Agent):
    """An agent that talks to the rooms below the gateway."""

    conversations: Any = None
    model: Any = None

    async def send(self, headers: Any = ()) -> Reply:
        exchange = await self.conversations.ask(Asked(json.dumps(self.body()).encode(), "k", api=self.api))
        body = b""
        if exchange.deciding is not None:
            exchange.steering = await exchange.deciding()
        if exchange.steering is None:
            pieces = replied(self.api, self.streamed, *self.model.next)
        else:
            pieces = [piece async for piece in exchange.steering.steer(self.model) if isinstance(piece, bytes)]
        for piece in pieces:
            exchange.feed(piece)
            body += piece
        await exchange.ended(True)
        api = APIS[self.api]
        reader = api.reader(api.cut(json.dumps(self.body()).encode()))
        reader.feed(body)
        reader.close(True)
        (said,) = reader.replies()
        self.keep(said)
        return said


async def play(seed: int) -> Counter[str]:
    """One conversation, judged question by question. Returns what happened in it."""
    chance = random.Random(seed)
    api, streamed = chance.choice(["chat", "responses"]), chance.random() < 0.5
    model = Model(chance, api, streamed)
    store, kept = FakeStore(), Kept()
    settings = Settings.model_validate(
        {
            "policy": {"mode": "enforce"},
            "evidence": [{"format": "auto", "tools": ["search"], "cite": "cite", "undeclared": "receipt"}],
        }
    )
    told = Conversations(settings, store, held=kept)  # type: ignore[arg-type]
    agent = Straight("", api, streamed, conversations=told, model=model)
    seen: Counter[str] = Counter()
    cited_before = False
    numbers = iter(range(10_000))

    def call(name: str, given: Any) -> tuple[str, str, Any]:
        return f"call_{seed}_{next(numbers)}", name, given

    for question in range(chance.randint(1, 6)):
        account = model.account = Account(offered=chance.random() < 0.9)
        agent.offers = ("search", "cite") if account.offered else ("search",)
        refuses = chance.random() < 0.15
        agent.history.append({"role": "user", "content": f"Question {question}?"})
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            kind = chance.choice(["search", "search", "fails", "cite", "cite nothing", "cite nowhere", "both"])
            if kind != "fails" and "cite" in kind and not account.offered:
                kind = "search"
            fresh = f"c{seed}x{next(numbers)}"
            found = json.dumps([{"id": fresh, "text": f"Text of {fresh}."}])
            calls = []
            if kind in ("search", "both", "fails"):
                agent.tools["search"] = lambda _, kind=kind, found=found: (
                    '{"error": "no"}' if kind == "fails" else found
                )
                calls.append(call("search", {"q": fresh}))
            ids = {"cite": model.shown[:1], "cite nothing": [], "cite nowhere": ["nowhere"], "both": model.shown[:1]}
            agent.tools["cite"] = lambda _: "Registered."
            if kind in ids:
                calls.append(call("cite", {"ids": ids[kind]}))
            model.next = (None, calls)
            agent.run(await agent.send())
            # The account: newer evidence makes what was declared before it stale.
            grounds = kind in ids and bool(ids[kind]) and kind != "cite nowhere"
            says_so = kind == "cite nothing" or (kind == "cite" and not ids["cite"])
            if kind in ("search", "both"):
                account.retrieved, account.declared = True, False
                model.shown.append(fresh)
            elif grounds or says_so:
                account.declared = True
            cited_before = cited_before or grounds
        owed = account.retrieved or cited_before
        agent.tools["cite"] = lambda _, refuses=refuses: "Error: refused" if refuses else "Registered."
        model.next = (f"Answer {question}.", [])
        before = model.requests
        again = list(agent.history)
        said = await agent.send()
        if said.calls:
            assert all(held.is_ours(made.id) and made.name == "cite" for made in said.calls)
            cites = [json.loads(made.arguments)["ids"] for made in said.calls]
            agent.run(said)
            said = await agent.send()
            cited_before = cited_before or (not refuses and cites[0] not in ([], ["nowhere"]))
            seen["held"] += 1
        assert said.text == f"Answer {question}." and not said.calls
        if chance.random() < 0.1:
            history, agent.history = agent.history, again
            assert (await agent.send()).text == f"Answer {question}."  # sent again, and never asked again
            agent.history = history
        asked = model.requests - before
        must = owed and not account.declared and account.offered
        # An agent that offers no cite tool can have none called; else exactly one, whatever came of it.
        assert asked == int(must), f"seed {seed}, question {question}: asked {asked} times, owed {owed}: {account}"
        seen[
            "asked" if must else "declared" if owed and account.declared else "left alone" if not owed else "no tool"
        ] += 1
    counts = told.counts()
    assert counts.get("policy_asked", 0) == model.requests
    return seen + model.answered_with


async def played(seeds: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        total += await play(seed)
    return total


@pytest.mark.parametrize("part", range(4))
async def test_in_a_thousand_conversations_only_what_was_owed_is_asked_and_once(part: int) -> None:
    size = CONVERSATIONS // 4
    seen = await played(range(part * size, (part + 1) * size))
    for kind in (
        "asked",
        "declared",
        "left alone",
        "no tool",
        "held",
        "cites",
        "nothing",
        "unknown",
        "ignores",
        "gone",
    ):
        assert seen[kind] >= 10, f"too few to count: {seen}"
