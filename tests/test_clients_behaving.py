"""OpenAI's own clients retry, time out and give up through the proxy as they do without it; nobody retries twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.conftest import StartProcess
from tests.house.provider import Break, Provider, Received, Reply, Wait, completion, events, json_reply, sse_reply
from tests.house.real_clients import here, run

CONFIG = '[upstream]\nbase_url = "{upstream}"\n[store]\nuri = "memory://"\n'
ERROR = {"error": {"message": "as the provider said it", "type": "t", "param": None, "code": None}}
BUSY = [("Retry-After", "0"), ("retry-after-ms", "1"), ("x-ratelimit-remaining-requests", "0")]
EVENTS = events(completion("an answer in pieces", identity="c"), piece=4)

#: How often each is asked, with two retries.
ATTEMPTS = {
    "fine": 1, "busy twice": 3, "broken twice": 3, "wrong": 1, "unknown": 1, "always busy": 3, "gone": 3, "silent": 3,
    "silent inside": 1, "streamed": 1, "an error inside": 1, "broken off": 1, "left": 1,
}  # fmt: skip


class Behaving:
    """The provider's part: what it does is what the model is called."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.kept: dict[str, list[Received]] = {}

    def __call__(self, received: Received) -> Reply:
        model = received.json()["model"]
        self.asked[model] += 1
        self.kept.setdefault(model, []).append(received)
        first = self.asked[model] <= 2
        fine = json_reply(completion("fine"))
        replies: dict[str, Reply] = {
            "fine": fine,
            "busy twice": json_reply(ERROR, 429, "Too Many Requests", BUSY) if first else fine,
            "broken twice": json_reply(ERROR, 500, "Internal Server Error", BUSY) if first else fine,
            "wrong": json_reply(ERROR, 400, "Bad Request"),
            "unknown": json_reply(ERROR, 404, "Not Found"),
            "always busy": json_reply(ERROR, 429, "Too Many Requests", BUSY),
            "gone": json_reply(ERROR, 503, "Service Unavailable", BUSY),
            "silent": Reply(early=True, status=103, reason="Early Hints", framing="none", steps=[Wait()]),
            "silent inside": sse_reply([EVENTS[0], Wait()]),
            "streamed": sse_reply(EVENTS),
            "an error inside": sse_reply([EVENTS[0], b'data: {"error": {"message": "no", "code": 500}}\n\n']),
            "broken off": sse_reply([EVENTS[0], EVENTS[1], Break()]),
            "left": sse_reply([*EVENTS[:3], Wait()]),
        }
        return replies[model]


@pytest.mark.parametrize("client", [here("openai"), here("openai-node")])
async def test_a_client_retries_times_out_and_gives_up_as_it_does_without_the_proxy(
    provider: Provider, start_process: StartProcess, client: str
) -> None:
    proxy = await start_process(CONFIG)

    async def told(url: str) -> tuple[Behaving, dict[str, Any]]:
        behaving = Behaving()
        provider.always(behaving)
        (lines,) = await run("behaving.mjs" if client == "openai-node" else "behaving.py", url)
        for model in ("silent", "silent inside", "left"):
            for received in behaving.kept[model]:
                await asyncio.wait_for(received.gone.wait(), 20)
        return behaving, lines

    straight, seen_straight = await told(provider.url)
    through, seen_through = await told(f"{proxy.url}/v1")

    assert seen_through == seen_straight
    assert seen_through["busy twice"] == seen_through["broken twice"] == seen_through["fine"] == "fine"
    assert seen_through["streamed"] == "an answer in pieces"
    assert seen_through["always busy"][1] == 429 and seen_through["wrong"][1] == 400
    assert dict(through.asked) == dict(straight.asked) == ATTEMPTS
    counts = [received.value("x-stainless-retry-count") for received in through.kept["always busy"]]
    assert counts == [b"0", b"1", b"2"]
