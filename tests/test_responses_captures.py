"""What real agent SDKs send in the Responses API, replayed in order: they play the script of the chat captures."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.captures import client, clients, each
from tests.conftest import StartHere
from tests.house.provider import Provider
from tests.house.responding import response
from tests.rewrites import Turn, assert_pairs, assert_stable, cut, drive, pictures_in, read_ours
from tests.test_client_captures import (
    CONTENT,
    EVIDENCE,
    POLICY,
    after_the_first_question,
    cited_earlier,
    earlier_returns,
    opening,
    times_shown,
)

Json = dict[str, Any]

NAMES = clients("responses")
#: Before question 4 it asks the model to rewrite that question, the whole conversation quoted in one user message.
SIDE_REQUEST = {"llamaindex-responses": 8, "llamaindex_gpt5_track-responses": 8}
#: Its client took question 2's first words for the answer, asked question 3 inside it, and had that answer corrected.
INTERRUPTED = "pydanticai-responses_stream"


def names_a_history(body: bytes) -> bool:
    value = json.loads(body)
    return bool(value.get("previous_response_id") or value.get("conversation"))


SERVER_SIDE = [name for name in NAMES if any(map(names_a_history, client(name)))]
CARRIED = [name for name in NAMES if name not in SERVER_SIDE]


def answered(bodies: list[bytes]) -> list[tuple[bytes, Json]]:
    """Each request with the response that it got: the items that the next one shows after it, or that it answers."""
    asked = []
    for number, body in enumerate(bodies):
        later = bodies[number + 1] if number + 1 < len(bodies) else None
        if later is not None and "<current_conversation>" in later.decode():
            later = bodies[number + 2]
        said = said_between(body, later) if later is not None else None
        if "<current_conversation>" in body.decode():
            said = None
        named = json.loads(later).get("previous_response_id") if later is not None else None
        known = json.loads(body).get("previous_response_id")  # some name a question's last response until it ends
        identity = named if named and named != known else f"resp_{number}"
        whole = response("In one word: yes.", identity=identity)
        asked.append((body, {**whole, "output": said} if said else whole))
    return asked


def said_between(body: bytes, later: bytes) -> list[Json]:
    before, after = items(body), items(later)
    new = after[len(before) :] if after[0] == before[0] and len(after) > len(before) else after
    said: list[Json] = []
    for item in new:
        if item.get("type") == "function_call_output" or item.get("role") in ("user", "system", "developer"):
            break
        said.append(as_said(item))
    if said:
        return said
    # The history is on the provider's side: what was called is what is answered.
    return [
        {"type": "function_call", "id": "fc_1", "call_id": item["call_id"], **called(str(item["output"]))}
        for item in new
        if item.get("type") == "function_call_output"
    ]


def called(output: str) -> Json:
    """The script's call that has this output."""
    if output.startswith("cited"):
        return {"name": "cite", "arguments": json.dumps({"chunk_ids": ["c1", "c3"] if "2" in output else []})}
    if "Final" in output:
        return {"name": "final_result", "arguments": "{}"}
    query = "alpha" if "c1" in output else "beta" if "c3" in output else "gamma"
    return {"name": "search", "arguments": json.dumps({"query": query})}


def as_said(item: Json) -> Json:
    """An item as the provider gave it, of one that the client sends back: a reference, or a message in short."""
    if item.get("type") == "item_reference":
        if item["id"].startswith("rs_"):
            return {"type": "reasoning", "id": item["id"], "summary": []}
        return {**message_of("Sent back as a reference."), "id": item["id"]}
    if item.get("role") == "assistant":
        content = item["content"]
        return message_of(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return item


def message_of(text: str) -> Json:
    (item,) = response(text)["output"]
    return dict(item)


def items(body: bytes) -> list[Json]:
    return list(json.loads(body)["input"])


async def replayed(
    start_here: StartHere, provider: Provider, name: str, also: list[tuple[bytes, Json]] | None = None
) -> list[Turn]:
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    conversation = [*answered(client(name)), *(also or ())]
    return await drive(proxy.url, provider, conversation, stream=name.endswith("_stream"), target="/v1/responses")


@pytest.mark.parametrize("name", each(NAMES))
async def test_promises_1_2_and_4_only_earlier_evidence_changes_and_pairs_stay_pairs(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    for turn in await replayed(start_here, provider, name):
        if turn.forwarded == turn.sent:
            continue
        assert_pairs(turn.forwarded)
        done = read_ours(turn.sent, turn.forwarded)  # everything else is the very bytes, reasoning among it
        assert set(done.replaced) <= set(earlier_returns(turn.sent))
        assert done.removed == []  # no user message of these clients is provably ours
        assert len(cut(turn.sent).messages) == len(cut(turn.forwarded).messages)


@pytest.mark.parametrize("name", each(CARRIED))
async def test_promise_5_all_earlier_questions_are_compacted_into_one_capsule_and_receipts(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = [turn for turn in await replayed(start_here, provider, name) if b"<current_conversation>" not in turn.sent]
    compacted = after_the_first_question(turns)
    assert len(compacted) == 5
    if name == INTERRUPTED:
        assert [turn.figures["question"] for turn in compacted] == ["2", "2", "2", "2", "3"]
        compacted = [compacted[0], compacted[-1]]
    for turn in compacted:
        done = turn.rewrite()
        assert done.replaced == earlier_returns(turn.sent)
        assert done.carrier == max(done.replaced)
        # One client sends the calls of a reply in the order in which they ended: beta first.
        assert done.ids in ([[("c1",), ("c3",)]], [[("c3",), ("c1",)]])
        assert turn.evidence.startswith("compacted; question=")
        assert turn.figures["capsule"] == "2" and "kept" not in turn.figures
        assert turn.figures["receipts"] == str(len(done.receipts))
    if name != INTERRUPTED:
        assert [turn.figures["question"] for turn in compacted] == ["2", "2", "2", "3", "4"]


@pytest.mark.parametrize("name", each(CARRIED))
async def test_promises_3_6_and_8_cited_text_and_pictures_are_never_lost(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    for turn in turns:
        for chunk_id in CONTENT:
            came, went = times_shown(turn.sent, chunk_id), times_shown(turn.forwarded, chunk_id)
            if chunk_id in cited_earlier(turn.sent) or turn.forwarded == turn.sent:
                assert went == came
            else:
                assert went in (0, came)
        # These clients' pictures belong to c1 and c3, which are cited.
        assert sorted(pictures_in(turn.forwarded)) == sorted(pictures_in(turn.sent))
    last = turns[-1].forwarded
    assert {chunk_id for chunk_id in CONTENT if times_shown(last, chunk_id)} <= {"c1", "c3"}


@pytest.mark.parametrize("name", each(CARRIED))
async def test_promise_7_inside_a_question_the_rewritten_prefix_is_stable(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    shared = sum(
        assert_stable(before, after)
        for before, after in pairwise(turns)
        if opening(before.sent) == opening(after.sent) is not None
    )
    assert shared == (5 if name == INTERRUPTED else 4)  # two steps in question 1 and two in question 2


@pytest.mark.parametrize("name", each(SERVER_SIDE))
async def test_a_history_on_the_providers_side_passes_untouched_and_says_so(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    for turn in turns:
        assert turn.forwarded == turn.sent
        if names_a_history(turn.sent):
            assert turn.evidence == "untouched; reason=server-side-history"
    assert sum(names_a_history(turn.sent) for turn in turns) >= 5


#: Runs that keep their history on the provider's side, and the same client's run that carries it.
CARRIED_LATER = {
    "agents_gpt5_prev-responses": "agents_gpt5-responses",
    "openaipy_prev-responses": "openaipy-responses",
    "llamaindex_gpt5_track-responses": "llamaindex-responses",
    "pydanticai_gpt5_conv-responses": "pydanticai_gpt5-responses",
    "aisdk7_gpt5_prev-responses": "aisdk7_gpt5_store0-responses",
    "agentfw-responses": "agentfw_gpt5_store0-responses",
}


@pytest.mark.parametrize("name", each(list(CARRIED_LATER)))
async def test_what_was_recorded_of_it_is_found_by_a_request_that_carries_its_history(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    other = CARRIED_LATER[name]
    last = client(other)[-1]
    turns = await replayed(start_here, provider, name, also=[(last, response("yes"))])
    assert set(CARRIED_LATER) == set(SERVER_SIDE)
    turn = turns[-1]
    assert turn.evidence.startswith("compacted; question=4; capsule=2;")
    assert turn.rewrite().ids == [[("c1",), ("c3",)]]
