"""haiku.rag as the judge once more: its searches' results as our library tags them, through the running proxy.

What was replaced, what was cited and kept, and in which groups must be what haiku.rag's own compaction says. What may
differ is what differs for its own format (tests/test_judge_haiku.py), and what is named here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.captures import HAIKU, each, scenario
from tests.conftest import StartHere
from tests.house.provider import Provider
from tests.retagged import retagged
from tests.rewrites import Turn, assert_pairs, assert_stable, drive, pictures_in, read_rewrite
from tests.test_judge_haiku import ARMS, DIFFERENCES, JUDGED, NOTICES, POLICY, Meaning, as_we_say_it, meaning

#: What a program printed is no result of a search, and no tag stands before it: those scenarios are not retagged.
PROGRAMS = {"s23"}
TAGGED = [name for name in JUDGED if name not in PROGRAMS]


async def driven(
    start_here: StartHere, provider: Provider, name: str, arm: str = "B", stream: bool = False
) -> list[Turn]:
    """A captured conversation with tagged returns, sent in order through a fresh proxy that has no evidence table."""
    proxy = await start_here()
    conversation = [(retagged(name, body).body, said) for body, said in scenario(name).conversation(arm, stream)]
    return await drive(proxy.url, provider, conversation, stream=stream)


def expected(name: str, number: int, turn: Turn, before: bytes, theirs: bytes) -> Meaning:
    """What haiku.rag says of this request, with the differences that are chosen applied."""
    said = meaning(read_rewrite(before, theirs, HAIKU))
    ours = meaning(turn.rewrite())
    for difference in DIFFERENCES.get((name, number), ()):
        said = as_we_say_it(said, difference, ours, before)
    # A refused or failed search returned no results, so nothing of it was tagged: it stays as it is.
    untagged = retagged(name, before).untagged
    replaced = sorted({*said.receipts, *([said.carrier] if said.carrier is not None else [])} - untagged)
    carrier = replaced[-1] if said.carrier is not None and replaced else None
    said = replace(said, carrier=carrier, receipts=[index for index in replaced if index != carrier])
    return in_any_order(said)


def in_any_order(said: Meaning) -> Meaning:
    """In a group haiku.rag goes by id, tagged evidence by first appearance; pictures follow their chunks."""
    return replace(said, groups=[sorted(group) for group in said.groups], pictures=sorted(said.pictures, key=repr))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", each(TAGGED))
async def test_promises_5_and_8_with_tags_we_say_what_haiku_rag_says(
    start_here: StartHere, provider: Provider, name: str, stream: bool
) -> None:
    told = scenario(name)
    turns = await driven(start_here, provider, name, stream=stream)
    plain = await driven(start_here, provider, name) if stream else turns
    for asked in told.firsts():
        turn = plain[asked.number - 1]
        theirs = told.arms["A"][asked.number - 1].sent
        assert in_any_order(meaning(turn.rewrite())) == expected(name, asked.number, turn, asked.sent, theirs)
        assert_sources(name, asked.sent, turn, theirs)
        if stream:
            assert meaning(turns[asked.number - 1].rewrite()) == meaning(turn.rewrite())


def assert_sources(name: str, before: bytes, turn: Turn, theirs: bytes) -> None:
    """Each entry names its source in full: the document's address too, which haiku.rag's returns never show and its
    capsules take from the database. Ours also name the headings."""
    said = {chunk: entry.source for entry in read_rewrite(before, theirs, HAIKU).entries for chunk in entry.ids}
    uris = retagged(name, before).uris
    for entry in turn.rewrite().entries:
        (chunk,) = entry.ids
        if uris.get(chunk):
            assert entry.source is not None and uris[chunk] in entry.source
        if said.get(chunk) is not None and (title := re.match(r'"[^"]*"', said[chunk] or "")):
            assert entry.source is not None and entry.source.startswith(title[0])


@pytest.mark.parametrize("name", each(POLICY))
async def test_promises_5_and_8_with_tags_a_redirected_question_is_one_question(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    told = scenario(name)
    turns = await driven(start_here, provider, name, "P")
    for asked in told.firsts("P"):
        turn = turns[asked.number - 1]
        theirs = told.arms["A"][asked.number - 1].sent
        assert in_any_order(meaning(turn.rewrite())) == expected(name, asked.number, turn, asked.sent, theirs)


@pytest.mark.parametrize("name_and_arm", each(ARMS))
async def test_promises_1_to_4_6_and_7_hold_with_tags_in_every_scenario(
    start_here: StartHere, provider: Provider, name_and_arm: str
) -> None:
    name, arm = name_and_arm.split("-")
    told = scenario(name)
    turns = await driven(start_here, provider, name, arm)
    for turn in turns:
        assert_pairs(turn.forwarded)
        turn.rewrite()  # promise 1: nothing but evidence changed
        assert len(pictures_in(turn.forwarded)) <= len(pictures_in(turn.sent)), "promise 6"
    for (before, after), (turn, following) in zip(pairwise(told.arms[arm]), pairwise(turns), strict=True):
        if before.question == after.question:
            assert assert_stable(turn, following) == ((name, after.number) not in NOTICES)
