"""Layout `append` on what real programs sent: nothing cited is lost, and whatever is no evidence goes up as it came."""

from __future__ import annotations

import json

import pytest

from proxy.compaction import wording
from tests.captures import each, scenarios
from tests.conftest import StartHere
from tests.house.provider import Provider
from tests.rewrites import Turn, around_content, assert_pairs, cut, pictures_in
from tests.test_judge_haiku import assert_nothing_cited_is_lost, driven

NAMES = scenarios("chat")


def only_evidence_changed(turn: Turn) -> int:
    """How many returns were replaced. Fails where a byte of anything else changed."""
    came, went = cut(turn.sent), cut(turn.forwarded)
    assert (came.head, came.tail) == (went.head, went.tail)
    replaced = at = 0
    for message in came.messages:
        while at < len(went.messages) and went.messages[at] != message and again(went.messages[at]):
            at += 1
        there = went.messages[at] if at < len(went.messages) else b""
        value = json.loads(message)
        if there == message:
            at += 1
        elif value["role"] == "tool":
            assert around_content(message) == around_content(there)
            assert text_of(there).startswith((wording.RECEIPT, wording.APPENDED))
            replaced, at = replaced + 1, at + 1
        else:
            assert value["role"] == "user" and b"[haiku.rag/retrieved-image]" in message, message[:200]
    assert at == len(went.messages)
    return replaced


def again(message: bytes) -> bool:
    value = json.loads(message)
    return value["role"] == "user" and text_of(message).startswith("Picture of cited evidence [")


def text_of(message: bytes) -> str:
    content = json.loads(message)["content"] or ""
    return content if isinstance(content, str) else str(content[0].get("text", ""))


@pytest.mark.parametrize("name", each(NAMES))
async def test_promises_1_3_4_and_6_hold_in_every_scenario(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await driven(start_here, provider, name, compaction={"layout": "append"})
    for turn in turns:
        replaced = only_evidence_changed(turn)
        assert (replaced > 0) == turn.evidence.startswith("compacted")
        assert_pairs(turn.forwarded)
        assert_nothing_cited_is_lost(turn)
        assert len(pictures_in(turn.forwarded)) <= len(pictures_in(turn.sent))
        if replaced:
            assert int(turn.figures["receipts"]) <= replaced
            assert int(turn.figures["after"]) == len(turn.forwarded)


@pytest.mark.parametrize("name", each(["s05", "s11b"]))
async def test_both_layouts_replace_the_same_returns(start_here: StartHere, provider: Provider, name: str) -> None:
    single = await driven(start_here, provider, name)
    append = await driven(start_here, provider, name, compaction={"layout": "append"})
    for one, other in zip(single, append, strict=True):
        assert one.evidence.partition(";")[0] == other.evidence.partition(";")[0]
        assert one.figures.get("question") == other.figures.get("question")
        assert len(one.rewrite().replaced) == only_evidence_changed(other)
