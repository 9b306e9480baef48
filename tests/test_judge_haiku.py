"""haiku.rag as the judge: what its own compaction sends (arm A), against what this proxy makes of the same conversation
without compaction (arm B).

The wording is ours, so meaning is compared: which returns were replaced, which one carries the capsule, the chunk ids
in their groups and order, the content, where `Collection:` is named, the pictures. Every message that is no evidence
is compared to the byte. What may differ is named here, case by case, and nothing else may.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from tests.captures import ABSENT, HAIKU, OnTheWire, each, scenario, scenarios, search_results, streamed
from tests.conftest import StartHere, StartProcess
from tests.house.client import ask
from tests.house.provider import Provider, completion
from tests.house.running import ProxyProcess
from tests.rewrites import (
    CREDENTIAL,
    Rewrite,
    Turn,
    assert_pairs,
    assert_stable,
    cut,
    drive,
    pictures_in,
    read_ours,
    read_rewrite,
)

EVIDENCE = [{"name": "kb", "format": "haiku", "tools": ["search", "execute_code"]}]
CONFIG = """\
[server]
port = 0
admin_port = 0

[upstream]
base_url = "{upstream}"

[[evidence]]
name = "kb"
format = "haiku"
tools = ["search", "execute_code"]
"""

PLAIN = scenarios("chat", policy=False)
POLICY = scenarios("chat", policy=True)
#: haiku.rag raises here, for want of the state that its host must carry.
RAISES = ["s16", "s17"]
#: The bodies of A were not kept here; its sizes were.
SIZES_ONLY = ["s20"]
JUDGED = [name for name in PLAIN if name not in RAISES + SIZES_ONLY]


async def driven(
    start_here: StartHere, provider: Provider, name: str, arm: str = "B", stream: bool = False, **sections: Any
) -> list[Turn]:
    """A captured conversation, sent in order through a fresh proxy."""
    proxy = await start_here(evidence=EVIDENCE, **sections)
    return await drive(proxy.url, provider, scenario(name).conversation(arm, stream), stream=stream)


# The differences that we choose.


@dataclass(frozen=True)
class Difference:
    """At this request of this scenario A says something else, and we say `ours` for this reason."""

    why: str
    chunk_id: str
    content: str | None = None  # ours, in place of A's
    picture_absent: str | None = None  # this reference's picture is only in A
    pictures_present: tuple[str, ...] = ()  # these references' pictures are only in ours
    chunk_absent: bool = False


ONLY_FOUND_IN_CODE = Difference(
    "a picture that never was on the wire cannot come back",
    "963bd7a2-bc43-5a9b-b3cb-5a4d405b6fd1",
    picture_absent="#/pictures/5",
)
LOST_BY_ITS_DATABASE = Difference(
    "pictures that haiku.rag's database lost since still stand on the wire",
    "2381e911-5841-5dcc-a6c1-4bb4924c459d",
    pictures_present=("#/pictures/0", "#/pictures/1"),
)
ONLY_ITS_DATABASE_KNOWS = Difference(
    "an id that was on the wire nowhere cannot be cited",
    "6b36e0b0-84f2-58de-841a-d53d3f57abe9",
    chunk_absent=True,
)
NEWEST_CONTENT = Difference(
    "promise 8: the content is that of the newest question that both retrieved and cited the chunk",
    "2381e911-5841-5dcc-a6c1-4bb4924c459d",
    content="Context before. The pump runs at 3 bar. Context after.",
)
PRINTED_1 = (
    "2381e911-5841-5dcc-a6c1-4bb4924c459d The pump runs at 3 bar.\n"
    "8b9af6c1-95d4-5e38-8561-713a6da7507f Safety valve opens at 5 bar.\n\nCheck it yearly.\n"
    "34436968-4bed-5c27-aa4a-ca0b81571caf Untitled note: the pump was replaced in 2019.\n"
    "70b26dbd-cef2-5204-ac2d-224d3e30830a | part | no |\n|---|---|\n| seal | 42 |\n"
    "015f2478-13d9-5916-a7fd-2a910a2d4f9c The page says pumps are blue.\n"
)
WHOLE_OUTPUT = "an id cited out of a program's output retains that whole output"
OUTPUT_OF_Q1 = (
    Difference(WHOLE_OUTPUT, "2381e911-5841-5dcc-a6c1-4bb4924c459d", content=PRINTED_1),
    Difference(WHOLE_OUTPUT, "34436968-4bed-5c27-aa4a-ca0b81571caf", content=PRINTED_1),
)
OUTPUT_OF_Q3 = Difference(
    WHOLE_OUTPUT,
    "963bd7a2-bc43-5a9b-b3cb-5a4d405b6fd1",
    content="963bd7a2-bc43-5a9b-b3cb-5a4d405b6fd1 A figure found in code.\n",
)

#: By scenario and number of the request. Each must be there: one that is not needed fails the test.
DIFFERENCES: dict[tuple[str, int], tuple[Difference, ...]] = {
    ("s03", 10): (NEWEST_CONTENT,),
    ("s08", 4): (LOST_BY_ITS_DATABASE,),
    ("s08", 5): (LOST_BY_ITS_DATABASE,),
    ("s08", 6): (LOST_BY_ITS_DATABASE,),
    ("s23", 4): OUTPUT_OF_Q1,
    ("s23", 8): OUTPUT_OF_Q1,
    ("s23", 11): (*OUTPUT_OF_Q1, OUTPUT_OF_Q3, ONLY_FOUND_IN_CODE),
    ("s40", 4): (ONLY_ITS_DATABASE_KNOWS,),
    ("s40", 7): (ONLY_ITS_DATABASE_KNOWS,),
}


@dataclass(frozen=True)
class Meaning:
    """What two rewrites must have in common: everything but the wording and the source lines."""

    receipts: list[int]
    carrier: int | None
    groups: list[list[tuple[str, str, str | None]]]  # id, content, collection
    pictures: list[tuple[str, str | None, str | None, bytes]]
    pictures_after: int | None
    removed: list[int]


def meaning(done: Rewrite) -> Meaning:
    return Meaning(
        receipts=done.receipts,
        carrier=done.carrier,
        groups=[[(c, e.content, e.collection) for e in group for c in e.ids] for group in done.groups],
        pictures=[(p.chunk_id, p.reference, p.collection, p.picture) for p in done.pictures],
        pictures_after=done.pictures_after,
        removed=done.removed,
    )


def as_we_say_it(theirs: Meaning, difference: Difference, ours: Meaning, came: bytes) -> Meaning:
    """A's meaning with one of the differences applied. Each states what A must say for it to apply."""
    named = [chunk for group in theirs.groups for chunk in group if chunk[0] == difference.chunk_id]
    assert len(named) == 1, f"{difference.why}: A does not hold that chunk once"
    (_, their_content, _) = named[0]
    if difference.content is not None:
        assert their_content != difference.content, f"not needed: {difference.why}"
        assert their_content in difference.content, "ours would hold less"
        groups = [
            [(c, difference.content if c == difference.chunk_id else text, place) for c, text, place in group]
            for group in theirs.groups
        ]
        return replace(theirs, groups=groups)
    if difference.chunk_absent:
        assert all(difference.chunk_id not in message["content"] for message in _returns(came)), "it was on the wire"
        groups = [[chunk for chunk in group if chunk[0] != difference.chunk_id] for group in theirs.groups]
        return replace(theirs, groups=groups)
    if difference.picture_absent is not None:
        gone = [p for p in theirs.pictures if p[0] == difference.chunk_id and p[1] == difference.picture_absent]
        assert len(gone) == 1 and gone[0][3] not in pictures_in(came), "it was on the wire"
        left = [p for p in theirs.pictures if p not in gone]
        return replace(theirs, pictures=left, pictures_after=theirs.pictures_after if left else None)
    assert difference.pictures_present and not [p for p in theirs.pictures if p[0] == difference.chunk_id]
    more = [p for p in ours.pictures if p[0] == difference.chunk_id]
    assert tuple(reference for _, reference, _, _ in more) == difference.pictures_present
    on_the_wire = pictures_in(came)
    assert all(p[3] in on_the_wire for p in more), "a picture that never was there"
    return replace(theirs, pictures=more, pictures_after=ours.pictures_after)


def _returns(body: bytes) -> list[dict[str, Any]]:
    return [message for message in cut(body).parsed if message["role"] == "tool"]


def compare(name: str, number: int, turn: Turn, theirs_before: bytes, theirs: bytes) -> None:
    """One request: ours against A's."""
    assert theirs_before == turn.sent or name in POLICY, "A is another conversation"
    ours = meaning(turn.rewrite())
    expected = meaning(read_rewrite(theirs_before, theirs, HAIKU))
    for difference in DIFFERENCES.get((name, number), ()):
        expected = as_we_say_it(expected, difference, ours, turn.sent)
    assert ours == expected
    assert_sources(turn)


def assert_sources(turn: Turn) -> None:
    """A source line holds what stood on the wire; a program's output has none."""
    retrieved = search_results(turn.sent)
    for entry in turn.rewrite().entries:
        shown = [r for r in retrieved if r.chunk_id in entry.ids and r.content == entry.content]
        assert entry.source in ({r.source for r in shown} if shown else {None})


# The judge.


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", each(JUDGED))
async def test_promises_5_and_8_at_the_first_request_of_each_question_we_say_what_haiku_rag_says(
    start_here: StartHere, provider: Provider, name: str, stream: bool
) -> None:
    told = scenario(name)
    turns = await driven(start_here, provider, name, stream=stream)
    plain = await driven(start_here, provider, name) if stream else turns
    judged = 0
    for asked in told.firsts():
        turn = plain[asked.number - 1]
        compare(name, asked.number, turn, asked.sent, told.arms["A"][asked.number - 1].sent)
        judged += 1
        if stream:  # what a stream settles is what the same reply settles whole
            streaming = turns[asked.number - 1]
            assert streaming.forwarded == streamed(turn.forwarded)
    assert judged == len({asked.question for asked in told.arms["B"]})


def test_every_named_difference_is_of_a_judged_request() -> None:
    """The list of differences holds nothing that no scenario has: promise 8 and what the wire cannot hold."""
    if not JUDGED:
        pytest.skip("the captures are not at hand")
    firsts = {(name, asked.number) for name in JUDGED for asked in scenario(name).firsts()}
    assert set(DIFFERENCES) <= firsts


@pytest.mark.parametrize("name", each([name for name in PLAIN if name not in RAISES]))
async def test_promise_2_inside_a_question_no_request_is_rewritten_another_way_than_its_first(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    """The capsule of a question's first request is that of all its requests, whatever it cites meanwhile."""
    turns = await driven(start_here, provider, name)
    by_question: dict[int, list[Turn]] = {}
    for asked, turn in zip(scenario(name).arms["B"], turns, strict=True):
        by_question.setdefault(asked.question, []).append(turn)
    for first, *others in by_question.values():
        for turn in others:
            assert meaning(turn.rewrite()) == meaning(first.rewrite())


#: Requests that do not extend the one before them: the client itself put a budget notice in, or took one out.
NOTICES = {("s14", 2), ("s14c", 2), ("s14c", 4), ("s28", 4)}

# Every scenario, with a policy or without, and every arm without compaction.

ARMS = [f"{name}-{arm}" for name in PLAIN + POLICY for arm in ("B", "P") if arm in scenario(name).arms]


def current_question(name: str, arm: str, number: int) -> int:
    """Where the question of a request begins: the index of its opening message, from the shape of its first request."""
    told = scenario(name)
    asked = told.arms[arm][number - 1]
    first = next(a for a in told.arms[arm] if a.question == asked.question)
    conversation = [m for m in cut(first.sent).parsed if m["role"] not in ("system", "developer")]
    return len(conversation) - 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name_and_arm", each(ARMS))
async def test_promises_1_to_4_6_and_7_hold_in_every_scenario(
    start_here: StartHere, provider: Provider, name_and_arm: str, stream: bool
) -> None:
    name, arm = name_and_arm.split("-")
    told = scenario(name)
    turns = await driven(start_here, provider, name, arm, stream)
    for asked, turn in zip(told.arms[arm], turns, strict=True):
        assert_pairs(turn.forwarded)
        done = read_ours(turn.sent, turn.forwarded)  # promise 1: nothing but evidence changed
        came = cut(turn.sent).parsed
        ahead = sum(message["role"] in ("system", "developer") for message in came)
        opening = current_question(name, arm, asked.number) + ahead
        assert all(index < opening for index in [*done.replaced, *done.removed]), "promise 2"
        assert len(pictures_in(turn.forwarded)) <= len(pictures_in(turn.sent)), "promise 6"
        assert_nothing_cited_is_lost(turn)
    for (before, after), (turn, following) in zip(pairwise(told.arms[arm]), pairwise(turns), strict=True):
        if before.question == after.question:
            assert assert_stable(turn, following) == ((name, after.number) not in NOTICES)


def assert_nothing_cited_is_lost(turn: Turn) -> None:
    """Promise 3 and 8: whatever a registered cite call named, and a return shows, is still shown."""
    came = cut(turn.sent).parsed
    registered = {
        message["tool_call_id"]: message["content"].startswith("Registered")
        for message in came
        if message["role"] == "tool" and isinstance(message["content"], str)
    }
    cited = {
        chunk_id
        for message in came
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] == "cite" and registered.get(call["id"])
        for chunk_id in _ids(call["function"]["arguments"])
    }
    newest: dict[str, OnTheWire] = {}
    for result in search_results(turn.sent):
        if result.chunk_id in cited:
            newest[result.chunk_id] = result
    texts = "\0".join(
        message["content"] for message in cut(turn.forwarded).parsed if isinstance(message["content"], str)
    )
    every = [r for r in search_results(turn.sent) if r.chunk_id in cited]
    for chunk_id in {r.chunk_id for r in every}:
        assert chunk_id in texts
        assert any(r.content in texts for r in every if r.chunk_id == chunk_id)


def _ids(arguments: str) -> list[str]:
    return [str(chunk_id) for chunk_id in json.loads(arguments).get("chunk_ids", [])]


@pytest.mark.parametrize("name", each(POLICY))
async def test_promises_5_and_8_a_redirected_question_is_one_question_as_haiku_rag_has_it(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    """Its policy without compaction (arm P) through this proxy, against its policy with it (arm A)."""
    told = scenario(name)
    turns = await driven(start_here, provider, name, "P")
    for asked in told.firsts("P"):
        compare(name, asked.number, turns[asked.number - 1], asked.sent, told.arms["A"][asked.number - 1].sent)


# Where haiku.rag raises for want of state.


async def test_promise_3_without_a_record_the_evidence_stays_and_the_reply_says_why(
    start_here: StartHere, provider: Provider
) -> None:
    """s17: haiku.rag raises at the second question. A proxy that saw the first one compacts; one that did not leaves
    its evidence in place and says so, and compacts again from the next question on."""
    if not JUDGED:
        pytest.skip(ABSENT)
    conversation = scenario("s17").conversation()
    assert [asked.question for asked in scenario("s17").arms["B"]] == [1, 1, 1, 2, 2, 2]
    seen_it = await driven(start_here, provider, "s17")
    assert seen_it[3].evidence.startswith("compacted; question=2; capsule=2; receipts=0;")
    fresh = await start_here(evidence=EVIDENCE)
    turns = await drive(fresh.url, provider, conversation[3:])
    for turn in turns:
        assert turn.forwarded == turn.sent
        assert turn.evidence == "untouched; reason=no-record"


async def test_promise_3_strict_refuses_what_haiku_rag_raises_at(start_here: StartHere, provider: Provider) -> None:
    if not JUDGED:
        pytest.skip(ABSENT)
    strict = await start_here(evidence=EVIDENCE, compaction={"strict": True})
    seen = await ask(strict.url, scenario("s17").arms["B"][3].sent, headers=[CREDENTIAL])
    assert (seen.status, seen.value("x-should-retry")) == (422, b"false")
    assert seen.evidence == "untouched; reason=no-record"
    error = seen.json()["error"]
    assert (error["code"], error["param"]) == ("no-record", "messages") and error["message"]
    assert provider.requests == []  # the provider is not asked


async def test_promise_3_a_question_that_resumes_without_state_is_still_current(
    start_here: StartHere, provider: Provider
) -> None:
    """s16: haiku.rag raises when an unfinished question resumes; nothing before it was answered, so for us there is
    nothing to compact and nothing to refuse, in strict or not. Its client never got to send the request: it is the
    second one with the deferred call answered."""
    if not JUDGED:
        pytest.skip(ABSENT)
    paused = scenario("s16").arms["B"][1]
    call = paused.completion["choices"][0]["message"]["tool_calls"][0]
    said = json.dumps({"role": "assistant", "tool_calls": [call]}).encode()
    answered = json.dumps({"role": "tool", "tool_call_id": call["id"], "content": "yes"}).encode()
    whole = cut(paused.sent)
    resumed = whole.through_last_message() + b"," + said + b"," + answered + whole.tail
    for strict in (False, True):
        fresh = await start_here(evidence=EVIDENCE, compaction={"strict": strict})
        (turn,) = await drive(fresh.url, provider, [(resumed, completion("3 bar."))])
        assert turn.forwarded == turn.sent
        assert turn.evidence == "untouched; reason=nothing-earlier"


# Through other ways.


async def test_promise_7_a_process_and_its_restart_write_the_same_bytes(
    start_here: StartHere, start_process: StartProcess, provider: Provider
) -> None:
    """Pictures, receipts and groups, through a real process with a store on disk, which is ended and started again in
    the middle of a question."""
    if not JUDGED:
        pytest.skip(ABSENT)
    for name in ("s05", "s03"):
        here = await driven(start_here, provider, name)
        first = await start_process(CONFIG)
        conversation = scenario(name).conversation()
        middle = next(n for n, asked in enumerate(scenario(name).arms["B"]) if asked.question == 2) + 1
        there = await drive(first.url, provider, conversation[:middle])
        assert await first.stop() == 0
        again = await ProxyProcess(CONFIG.replace("{upstream}", provider.url), first.directory).start()
        try:
            there += await drive(again.url, provider, conversation[middle:])
        finally:
            await again.stop()
        assert [turn.evidence for turn in there] == [turn.evidence for turn in here]
        assert [turn.forwarded for turn in there] == [turn.forwarded for turn in here]


async def test_promises_7_and_9_all_scenarios_through_one_proxy_are_what_each_is_alone(
    start_here: StartHere, provider: Provider
) -> None:
    """Many scenarios begin alike. Interleaved, with one credential, none takes anything from another."""
    if not JUDGED:
        pytest.skip(ABSENT)
    names = [name for name in PLAIN if name not in SIZES_ONLY]
    alone = {name: await driven(start_here, provider, name) for name in names}
    shared = await start_here(evidence=EVIDENCE)
    longest = max(len(turns) for turns in alone.values())
    for step in range(longest):
        for name in names:
            conversation = scenario(name).conversation()
            if step < len(conversation):
                (turn,) = await drive(shared.url, provider, [conversation[step]])
                assert turn == alone[name][step], (name, step)


# Forty questions.


async def test_promise_5_forty_questions_are_no_larger_than_haiku_rag_sends_them(
    start_here: StartHere, provider: Provider
) -> None:
    """s20: 40 questions of 10 results. At the first request of each, ours is no larger than A's."""
    if not JUDGED:
        pytest.skip(ABSENT)
    told = scenario("s20")
    turns = await driven(start_here, provider, "s20")
    larger = {
        asked.number: (len(turns[asked.number - 1].forwarded), told.arms["A"][asked.number - 1].size)
        for asked in told.firsts()
        if len(turns[asked.number - 1].forwarded) > told.arms["A"][asked.number - 1].size
    }
    assert larger == {}
    assert len(told.firsts()) == 40
    last = turns[-1]
    assert last.figures["question"] == "40"
    assert int(last.figures["before"]) == len(last.sent) and int(last.figures["after"]) == len(last.forwarded)
