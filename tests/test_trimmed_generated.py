"""Generated hosts that trim and rewrite what they like of older questions, under a name. Promises 1-4, 6, 7 and 8."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from proxy.compaction import wording
from proxy.gateway.conversation import Asked, Conversations
from proxy.gateway.keeping import Keeping
from proxy.settings import Settings
from tests.fake_store import FakeStore
from tests.house.provider import completion
from tests.house.responding import of_completion
from tests.items import InItems
from tests.rewrites import assert_pairs, cut, pictures_in
from tests.talk import body, calls, cited, returns, says, user
from tests.test_pictures import picture, text

Json = dict[str, Any]
FULL = os.environ.get("EVIDENCE_PROXY_PROOFS") == "full"
TABLE = {"format": "auto", "tools": ["search"], "cite": "cite"}


class Generated:
    """One conversation: its questions as they were asked, and what its host makes of them later."""

    def __init__(self, seed: int, layout: str, api: str) -> None:
        self.random = random.Random(seed)
        chosen = Settings(evidence=[TABLE], compaction={"layout": layout}, store={"uri": "memory://"})  # type: ignore[arg-type]
        rooms = Conversations(chosen, FakeStore(), keeping=Keeping(FakeStore()))  # type: ignore[arg-type]
        self.api = api
        self.rooms: Any = rooms if api == "chat" else InItems(rooms)
        self.contents: dict[str, str] = {}
        self.pictures: dict[str, int] = {}
        self.cited: list[str] = []
        self.questions: list[list[Json]] = []
        self.compacted = 0

    def content(self, name: str) -> str:
        """A chunk's content, unlike any other's."""
        self.contents[name] = f"content of {name} {self.random.randrange(1 << 40):x} {'y' * self.random.randrange(80)}."
        return self.contents[name]

    def ask(self, number: int) -> list[Json]:
        """A new question, all of it up to its answer."""
        asked = [user(f"question {number}")]
        ids: list[str] = []
        for at in range(self.random.randint(1, 3)):
            found = [f"k{number}{at}{place}" for place in range(2)]
            ids += found
            shown: Any = "\n".join(f"[{name}] {self.content(name)}" for name in found)
            if self.random.random() < 0.3:
                self.pictures[found[1]] = colour = self.random.randrange(250)
                shown = [text(shown), picture(colour)]
            asked += [calls((f"s{number}-{at}", "search", {"n": at})), returns(f"s{number}-{at}", shown)]
        again = [name for name in self.cited if self.random.random() < 0.15]
        now = [name for name in ids if self.random.random() < 0.4] + again
        self.cited += [name for name in now if name not in self.cited]
        return [*asked, *cited(now, call_id=f"c{number}")]

    def told(self) -> list[Json]:
        """What the host sends of its older questions from now on: of the newest one, at least its citing stands."""
        left = []
        for at, question in enumerate(self.questions):
            newest = at == len(self.questions) - 1
            if newest or self.random.random() < 0.75:  # or the whole question goes
                left.append([self.rewritten(message, newest) for message in question])
        self.questions = left
        return [message for question in left for message in question]

    def rewritten(self, message: Json, newest: bool) -> Json:
        if message["role"] == "user" and self.random.random() < 0.3:
            return user(f"in short: {self.random.randrange(1 << 30)}")
        is_cite = str(message.get("tool_call_id", "")).startswith("c")
        if message["role"] == "tool" and not (newest and is_cite) and self.random.random() < 0.2:
            return returns(message["tool_call_id"], "[cleared]")
        return message

    async def sends(self, messages: list[Json], answer: str | None) -> tuple[str, bytes, bytes]:
        """One request, and its answer, if it settles anything."""
        raw = body(*messages)
        asked = Asked(raw, "Bearer sk-one", conversation_id="named")
        exchange = await self.rooms.ask(asked)
        said = completion(answer, () if answer is not None else [("x", "search", "{}")])
        exchange.feed(json.dumps(said if self.api == "chat" else of_completion(said)).encode())
        await exchange.ended(True)
        return exchange.header, raw, exchange.body

    async def play(self, questions: int) -> None:
        for number in range(1, questions + 1):
            before = self.told()
            earlier = list(self.cited)
            question = self.ask(number)
            first: bytes | None = None
            for end in range(1, len(question) + 1, 2):  # every request of the question
                answer = f"answer {number}" if end == len(question) else None
                header, raw, sent = await self.sends([*before, *question[:end]], answer)
                self.judge(header, raw, sent, earlier, question[:end])
                if first is not None:
                    assert sent[: len(first) - 2] == first[:-2], "the prefix changed"  # promise 7
                first = sent
            self.questions.append([*question, says(f"answer {number}")])

    def judge(self, header: str, raw: bytes, sent: bytes, earlier: list[str], current: list[Json]) -> None:
        assert_pairs(sent)
        assert sent.endswith(body(*current)[len(body()) - 2 :])  # promise 2
        assert len(pictures_in(sent)) <= len(pictures_in(raw))  # promise 6
        if sent == raw:
            return
        self.compacted += 1
        came, went = cut(raw), cut(sent)  # promise 1: nothing but tools' returns changed
        assert (came.head, came.gaps, came.tail) == (went.head, went.gaps, went.tail)
        for old, new, message in zip(came.messages, went.messages, came.parsed, strict=True):
            assert old == new or (message["role"] == "tool" and message["tool_call_id"].startswith("s"))
        shown = json.loads(sent)["messages"]
        texts = [_text(message["content"]) for message in shown if message["role"] == "tool"]
        for name in earlier:  # promise 3 and 8: whole, and once
            count = sum(one.count(self.contents[name]) for one in texts)
            assert count == 1, f"{name} stands {count} times"
        assert sum(one.count(wording.HEADER) for one in texts) <= 1


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


@pytest.mark.parametrize("layout", ["single", "append"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("batch", range(4))
async def test_promises_hold_for_whatever_hosts_make_of_their_history(layout: str, batch: int, api: str) -> None:
    compacted = 0
    tries = 500 if FULL else 10
    for seed in range(batch * tries, (batch + 1) * tries):
        one = Generated(seed, layout, api)
        try:
            await one.play(6)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}, layout {layout}, {api}: {broken}") from broken
        compacted += one.compacted
    assert compacted > 5 * tries
