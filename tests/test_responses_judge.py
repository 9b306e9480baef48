"""haiku.rag as the judge of the Responses API: the same comparison as for chat completions, of the same conversations.

Two of them haiku.rag itself captured in this shape; pydantic-ai turned the others into it (tests/captures_responses).
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.captures import Scenario, each, scenario, scenarios, streamed
from tests.conftest import StartHere
from tests.house.provider import Provider
from tests.rewrites import Turn, assert_pairs, assert_stable, drive, pictures_in, read_ours
from tests.test_judge_haiku import (
    EVIDENCE,
    JUDGED,
    NOTICES,
    assert_nothing_cited_is_lost,
    compare,
    meaning,
)

RECORDED = Path(__file__).parent / "captures_responses"
ITS_OWN = scenarios("responses")
#: Its requests are 120 of up to 700 KB; it is judged as chat.
LEFT_OUT = {"s20"}
NAMES = [*ITS_OWN, *(name for name in JUDGED if name not in LEFT_OUT)]


@cache
def bodies(name: str, arm: str) -> dict[int, bytes]:
    """The requests of a conversation in this shape, by number."""
    if name in ITS_OWN:
        return {asked.number: asked.sent for asked in scenario(name).arms[arm]}
    lines = (RECORDED / f"{name}-{arm}.jsonl").read_bytes().splitlines()
    return {number: line for number, line in enumerate(lines, 1) if line}


async def driven(start_here: StartHere, provider: Provider, name: str, stream: bool = False) -> list[Turn]:
    proxy = await start_here(evidence=EVIDENCE)
    conversation = [
        (streamed(body) if stream else body, asked.completion)
        for asked, body in zip(scenario(name).arms["B"], bodies(name, "B").values(), strict=True)
    ]
    return await drive(proxy.url, provider, conversation, stream=stream, target="/v1/responses")


def opening(told: Scenario, number: int) -> int:
    """The index of the item that opened the question of a request: this shape has no system messages in its items."""
    first = next(a for a in told.arms["B"] if a.question == told.arms["B"][number - 1].question)
    return read_items(bodies(told.name, "B")[first.number]) - 1


def read_items(body: bytes) -> int:
    return len(json.loads(body)["input"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", each(NAMES))
async def test_promises_5_and_8_responses_say_what_haiku_rag_says(
    start_here: StartHere, provider: Provider, name: str, stream: bool
) -> None:
    told = scenario(name)
    turns = await driven(start_here, provider, name, stream)
    plain = await driven(start_here, provider, name) if stream else turns
    for asked in told.firsts():
        turn = plain[asked.number - 1]
        compare(
            name.removesuffix("r"), asked.number, turn, bodies(name, "B")[asked.number], bodies(name, "A")[asked.number]
        )
        if stream:
            assert turns[asked.number - 1].forwarded == streamed(turn.forwarded)


@pytest.mark.parametrize("name", each(NAMES))
async def test_promises_1_to_7_hold_in_every_request_of_the_responses_api(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    told = scenario(name)
    turns = await driven(start_here, provider, name)
    by_question: dict[int, Turn] = {}
    for asked, turn in zip(told.arms["B"], turns, strict=True):
        assert_pairs(turn.forwarded)
        done = read_ours(turn.sent, turn.forwarded)  # promise 1: nothing but evidence changed
        assert all(index < opening(told, asked.number) for index in [*done.replaced, *done.removed]), "promise 2"
        assert len(pictures_in(turn.forwarded)) <= len(pictures_in(turn.sent)), "promise 6"
        assert_nothing_cited_is_lost(turn)
        first = by_question.setdefault(asked.question, turn)
        assert meaning(turn.rewrite()) == meaning(first.rewrite())
    for (before, after), (turn, following) in zip(pairwise(told.arms["B"]), pairwise(turns), strict=True):
        if before.question == after.question:
            assert assert_stable(turn, following) or (name, after.number) in NOTICES
