"""What the proxy's own cite tool costs: so many rounds at the most, counted apart, and one question at the end at most.

Conversations are generated from a seed: models that cite before they answer, with it, in vain, endlessly or never; that
search and cite at once; that fail in a further round; providers that refuse the tool. A small account beside them says
of each question what it owed. It knows only what was drawn.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.gateway.conversation import Conversations
from proxy.gateway.steering import Head
from proxy.policy import redirect
from proxy.policy.cite_tool import NAME
from proxy.settings import Settings
from tests.fake_store import FakeStore
from tests.house.agent import replied
from tests.test_policy_cost import JSON, Kept, Spoken, Straight

CONVERSATIONS = 1_000
ROUNDS = 3
TABLE = Path(__file__).parents[1] / "docs" / "proofs" / "managed.md"


@dataclass
class Model:
    """The provider. `next` is what a request of the client leads to in the end; how it comes there is drawn."""

    chance: random.Random
    api: str
    streamed: bool
    refuses: bool
    next: tuple[str | None, list[tuple[str, str, Any]]] = (None, [])
    shown: list[str] = field(default_factory=list)
    retrieved: bool = False
    declared: bool = False
    cited: bool = False
    asked: int = 0
    refused: int = 0
    requests: int = 0  # for the request of the client that is under way
    ways: Counter[str] = field(default_factory=Counter)

    async def ask(self, body: bytes | None = None) -> Spoken:
        self.requests += 1
        if body is None:
            return self.says(*self.next)
        if self.refuses:
            self.refused += 1
            return self.failing(400)
        if redirect.TAG.encode() in body:
            return self.when_asked()
        further = self.requests > 1
        way = self.chance.choice(["on", "on", "on", "cite", "nothing", "unknown", "fails", "breaks"])
        if way in ("fails", "breaks") and not further:
            way = "on"
        self.ways[way] += 1
        if way == "fails":
            return self.failing(500)
        text, calls = self.next
        if way == "on":
            beside = [self.cite("cite")] if calls and self.chance.random() < 0.3 else []
            return self.says(text, [*beside, *calls])
        spoken = self.says(
            text if not calls and self.chance.random() < 0.3 else None, [self.cite(way, way != "breaks")]
        )
        spoken.breaks = way == "breaks"
        return spoken

    def cite(self, way: str, counts: bool = True) -> tuple[str, str, Any]:
        """A call of our tool; the account says what that declares, if the reply comes through."""
        ids = self.shown[-1:] if way == "cite" else ["nowhere"] if way == "unknown" else []
        if counts and way != "unknown":
            self.declared = True
            self.cited = self.cited or bool(ids)
        return f"own_{self.requests}_{self.chance.random()}", NAME, {"ids": ids}

    def when_asked(self) -> Spoken:
        self.asked += 1
        way = self.chance.choice(["cite", "nothing", "unknown", "ignores", "fails", "breaks"])
        self.ways[f"asked: {way}"] += 1
        if way == "fails":
            return self.failing(500)
        made = [self.cite(way)] if way in ("cite", "nothing", "unknown") else []
        spoken = Spoken(replied(self.api, False, "As I said.", made), False)
        spoken.breaks = way == "breaks"
        return spoken

    def says(self, text: str | None, calls: list[tuple[str, str, Any]]) -> Spoken:
        return Spoken(replied(self.api, self.streamed, text, calls), self.streamed)

    def failing(self, status: int) -> Spoken:
        spoken = Spoken([b'{"error": {"message": "no"}}'], False)
        spoken.head = Head(status, b"", JSON)
        return spoken


async def play(seed: int) -> Counter[str]:
    """One conversation, judged question by question. Returns what happened in it."""
    chance = random.Random(seed)
    api, streamed = chance.choice(["chat", "responses"]), chance.random() < 0.5
    model = Model(chance, api, streamed, refuses=chance.random() < 0.1)
    settings = Settings.model_validate(
        {
            "policy": {"mode": "enforce", "managed_rounds": ROUNDS},
            "evidence": [{"format": "auto", "tools": ["search"], "cite": "managed", "undeclared": "receipt"}],
        }
    )
    told = Conversations(settings, FakeStore(), held=Kept())  # type: ignore[arg-type]
    agent = Straight("", api, streamed, offers=("search",), conversations=told, model=model)
    seen: Counter[str] = Counter()
    rounds = 0

    async def send() -> Any:
        nonlocal rounds
        model.requests, asked, refused = 0, model.asked, model.refused
        said = await agent.send()
        further = max(model.requests - 1 - (model.asked - asked) - (model.refused - refused), 0)
        assert further <= ROUNDS, f"seed {seed}: {further} rounds"
        assert NAME not in json.dumps(agent.history), f"seed {seed}: the client saw our tool"
        rounds += further
        seen[f"rounds: {further}"] += 1
        return said

    for question in range(chance.randint(1, 5)):
        model.retrieved = model.declared = False
        cited_before = model.cited
        before = model.asked
        agent.history.append({"role": "user", "content": f"Question {question}?"})
        for step in range(chance.choice([0, 1, 1, 2])):
            fresh = f"c{seed}q{question}s{step}"
            found = json.dumps([{"id": fresh, "text": f"Text of {fresh}."}])
            agent.tools["search"] = lambda _, found=found: found
            model.next = (None, [(f"call_{fresh}", "search", {"q": fresh})])
            agent.run(await send())
            model.shown.append(fresh)
            model.retrieved, model.declared = True, False
        cited_before = cited_before or model.cited
        model.next = (f"Answer {question}.", [])
        declared_asked = model.asked
        said = await send()
        assert (said.text, said.calls) == (f"Answer {question}.", ()), f"seed {seed}: {said}"
        assert model.asked - before <= 1 and declared_asked == before, f"seed {seed}: asked before the end, or twice"
        seen["asked" if model.asked > before else "not asked"] += 1
        owed = model.retrieved or cited_before
        if model.asked > before:
            assert owed and not model.refuses, f"seed {seed}, question {question}: asked, and owed nothing"
        elif owed and not model.refuses:
            assert model.declared, f"seed {seed}, question {question}: owed a declaration and was not asked"
    counts = told.counts()
    assert (counts.get("policy_asked", 0), counts.get("policy_managed_rounds", 0)) == (model.asked, rounds)
    return seen + model.ways


async def played(conversations: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(conversations):
        seen += await play(seed)
    kinds = ["asked", "not asked", *(f"rounds: {count}" for count in range(ROUNDS + 1))]
    kinds += ["cite", "nothing", "unknown", "fails", "breaks", "asked: cite", "asked: ignores", "asked: breaks"]
    assert all(seen[kind] >= 10 for kind in kinds), f"too few to count: {seen}"
    return seen


async def test_rounds_are_bounded_and_one_question_is_asked_at_most() -> None:
    await played(CONVERSATIONS // 5)


@pytest.mark.proofs
async def test_in_a_thousand_conversations_rounds_are_bounded_and_one_question_is_asked_at_most() -> None:
    seen = await played(CONVERSATIONS)
    if os.environ.get("EVIDENCE_PROXY_PROOFS") == "full":
        rows = "".join(f"| {kind} | {seen[kind]} |\n" for kind in sorted(seen))
        TABLE.write_text(
            "# What citing through the proxy's own tool costs\n\n"
            f"{CONVERSATIONS} generated conversations, from the seeds 0 to {CONVERSATIONS - 1}, by `make proofs`\n"
            "(tests/test_managed_cost.py). No request took more rounds than it may, no question was asked twice or\n"
            "without owing a declaration, none that owed one was left unasked, and no client saw a call of ours.\n\n"
            "`rounds: N` counts the client's requests by how many were sent beside them; the ways are those that the\n"
            "model was drawn to take.\n\n| | |\n|---|---|\n" + rows
        )
