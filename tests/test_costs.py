"""What conversations cost with a provider that caches prompts: the bounds in docs/costs.md, a cache as the judge."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cost
from benchmarks.costs import chart, guidance, replay, tokens, traffic
from benchmarks.costs.features import Features, features
from benchmarks.costs.prefixes import PRICES, Prefixes
from tests.house.client import ask
from tests.house.provider import Provider, Received, Reply, completion, json_reply

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_forty_questions_cost_no_more_than_their_bounds() -> None:
    forty = traffic.forty_questions()
    bills = asyncio.run(replay.bills(forty))
    none = bills["none"]
    for (way, price), most in cost.BOUNDS.items():
        assert bills[way].cost(price) <= most * none.cost(price), (way, price)
        if forty.name == "s20":
            assert bills[way].cost_in_bytes(price) <= most * none.cost_in_bytes(price), (way, price)
    assert bills["append"].breaks_per_question <= 1 and none.breaks_per_question == 0


#: Shapes at the edges of the range: nearly everything cited, hardly anything found, long loops, pictures, long answers.
EDGES = [
    traffic.Shape(5, calls=1, results=5, characters=2500, pictures=2, cites=5, answer=1200, format="auto"),
    traffic.Shape(16, calls=1, results=3, characters=1500, pictures=4, cites=5, answer=100),
    traffic.Shape(2, calls=8, results=10, characters=400, cites=5),
    traffic.Shape(3, calls=4, results=3, characters=1500, cites=3, again=0.6, answer=100),
    traffic.Shape(34, calls=1, results=1, characters=200, cites=1, format="auto"),
    traffic.Shape(12, calls=2, results=5, characters=200, cites=0, answer=1200),
    traffic.Shape(60, calls=1, results=4, characters=300, cites=5, again=0.6, answer=100),
    traffic.Shape(1, calls=3, results=8, characters=800, cites=3),
]


@pytest.mark.parametrize("shape", EDGES, ids=lambda shape: f"{shape.questions}x{shape.results}")
def test_what_the_guidance_recommends_never_costs_more_than_no_compaction(shape: traffic.Shape) -> None:
    """Ended after any of its questions, at any of the four prices."""
    conversation = traffic.generated(shape, 3)
    bills = asyncio.run(replay.bills(conversation))
    for question in sorted({1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, shape.questions}):
        if question > shape.questions:
            continue
        known = features(conversation.until(question))
        for price in PRICES:
            way = guidance.recommended(known, price)
            assert bills[way].cost(price, question) <= cost.MOST * bills["none"].cost(price, question), (price, known)


def test_what_the_guidance_recommends_holds_for_shapes_out_of_the_whole_range() -> None:
    for conversation in traffic.generated_ones(6, 60_000, seed=31):
        _, bills, known = cost.weighed(conversation)
        for price, (way, share) in cost.advised(conversation, bills, known).items():
            assert share <= cost.MOST, (conversation.name, price, way)


def test_the_documentation_shows_the_table_that_was_tried() -> None:
    assert guidance.as_markdown() in (DOCS / "costs.md").read_text()


def test_the_guidance_says_what_it_says() -> None:
    much = Features(questions=20, found=3000, cited=0.1, requests=3)
    assert [guidance.recommended(much, price) for price in (0.1, 0.5, 1.0)] == ["append", "append", "single"]
    assert guidance.recommended(replace(much, questions=2), 0.1) == "none"
    assert guidance.recommended(replace(much, cited=1.0), 0.1) == "none"
    assert guidance.recommended(replace(much, questions=1), 1.0) == "none"


def test_a_chart_is_an_image_of_its_series() -> None:
    drawn = chart.lines("a < b", {"none": [1, 20], "append": [1, 3]}, "across", "up")
    assert drawn.startswith("<svg") and "a &lt; b" in drawn and drawn.count("<polyline") == 2


def test_a_prefix_is_what_any_earlier_request_began_with() -> None:
    def request(*texts: str) -> bytes:
        said = [{"role": "user", "content": text} for text in texts]
        return json.dumps({"messages": said}, separators=(",", ":")).encode()

    long = " ".join(str(number) for number in range(2000))
    prefixes = Prefixes()
    first, other, third = (prefixes.add(request(long, text)) for text in ("one", "two", "one and more"))
    assert first.uncached == first.size and first.uncached_tokens == first.tokens
    assert other.breaks and other.uncached < 20 and (other.tokens - other.uncached_tokens) % 128 == 0
    assert third.uncached == len(b' and more"}]}')
    short = Prefixes()
    assert [short.add(request("little", text)).uncached_tokens for text in ("a", "b")][1] > 0


# A cache as the judge.


class CachingProvider:
    """What a provider with a prompt cache does: the prompt as tokens, known by blocks of 128, from 1,024 on.

    It lays a request out by itself, in one piece, and reports `cached_tokens` as OpenAI's usage does.
    """

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.prompt: list[int] = []
        self.cached: list[int] = []

    def read(self, body: bytes) -> dict[str, Any]:
        """Take a request; its usage."""
        laid_out = self.layout(json.loads(body))
        blocks, state = 0, hashlib.sha256()
        for at in range(0, len(laid_out) - len(laid_out) % 128, 128):
            state.update(repr(laid_out[at : at + 128]).encode())
            blocks += (state.digest() in self.known) and blocks == at // 128
            self.known.add(state.digest())
        cached = blocks * 128 if blocks * 128 >= 1024 else 0
        self.prompt.append(len(laid_out))
        self.cached.append(cached)
        return {"prompt_tokens": len(laid_out), "prompt_tokens_details": {"cached_tokens": cached}}

    @staticmethod
    def layout(request: dict[str, Any]) -> list[int]:
        found: list[int] = []
        text = json.dumps(request.get("tools", []))
        for message in request["messages"]:
            found += [*tokens.encode(text), 200_006, *tokens.encode(message["role"]), 200_008]
            text = ""
            content = message.get("content") or ""
            for part in [{"text": content}] if isinstance(content, str) else content:
                if "image_url" in part:
                    url = part["image_url"]["url"]
                    found += [
                        *tokens.encode(text),
                        *([-int(hashlib.md5(url.encode()).hexdigest()[:8], 16)] * tokens.picture_tokens(url)),
                    ]
                    text = ""
                else:
                    text += part["text"]
            for call in message.get("tool_calls") or ():
                text += call["function"]["name"] + call["function"]["arguments"]
        return found + tokens.encode(text)


@pytest.mark.parametrize("pictures", [0, 1])
async def test_a_prompt_cache_counts_what_the_benchmark_counts(
    start_here: Any, provider: Provider, pictures: int
) -> None:
    """Both layouts and none, through the real proxy: cached and other tokens agree within 2%."""
    shape = traffic.Shape(questions=14, calls=2, results=5, characters=500, pictures=pictures, cites=3, again=0.3)
    conversation = traffic.generated(shape, 21)
    reported: dict[str, tuple[int, int]] = {}
    for way in replay.WAYS:
        caching = CachingProvider()
        chosen = replay.settings(conversation, "single" if way == "none" else way)
        proxy = await start_here(
            evidence=list(chosen.evidence),
            compaction={"layout": "single" if way == "none" else way, "mode": "off" if way == "none" else "on"},
        )
        for step in conversation.steps:

            def answer(
                received: Received, reply: dict[str, Any] = step.reply, caching: CachingProvider = caching
            ) -> Reply:
                return json_reply({**reply, "usage": caching.read(received.body)})

            provider.reply(answer)
            seen = await ask(proxy.url, step.body, headers=[("Authorization", "Bearer k")])
            usage = seen.json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == caching.cached[-1]
        reported[way] = (sum(caching.prompt), sum(caching.cached))
        counted = replay.bill(conversation, await replay.forwarded(conversation, way))
        prompt, cached = reported[way]
        assert abs(counted.tokens - prompt) <= 0.02 * prompt, way
        assert abs(counted.tokens - counted.uncached_tokens - cached) <= 0.02 * cached, way

    def price(way: str) -> float:
        prompt, cached = reported[way]
        return prompt - 0.9 * cached

    assert price("append") < price("single") and price("append") < price("none")


async def test_a_reply_is_what_a_provider_says(start_here: Any, provider: Provider) -> None:
    """`cached_tokens` is the provider's own word: the proxy changes nothing of it."""
    proxy = await start_here(compaction={"layout": "append"})
    reply = {**completion("a"), "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}}
    provider.reply(json_reply(reply))
    seen = await ask(proxy.url, b'{"messages":[{"role":"user","content":"q"}]}')
    assert seen.json() == reply
