"""`Evidence-Conversation` with what real agent SDKs send: histories that their hosts trimmed, or rewrote themselves."""

from __future__ import annotations

import json

import pytest

from proxy.compaction import wording
from tests import test_responses_captures as in_items
from tests.captures import client, clients, each
from tests.conftest import StartHere
from tests.house.provider import Provider
from tests.rewrites import CREDENTIAL, Turn, cut, drive
from tests.test_client_captures import (
    CONTENT,
    EDITED,
    EVIDENCE,
    NO_RETURNS,
    OMITTED,
    POLICY,
    SIDE_REQUEST,
    UNANSWERED,
    answered,
    text_of,
    times_shown,
)

NAMED = ("Evidence-Conversation", "a conversation")
CHAT = clients("chat")


def trimmed(body: bytes) -> bytes:
    """The request without its first question, as a host that keeps the newest messages sends it."""
    pieces = cut(body)
    start = next(
        index
        for index, message in enumerate(pieces.parsed)
        if message.get("role") == "user" and text_of(message).lstrip().startswith("Q2: ")
    )
    first = zip(pieces.messages[:start], pieces.parsed, strict=False)
    kept = [raw for raw, message in first if message.get("role") in ("system", "developer")] + pieces.messages[start:]
    return pieces.head + b",".join(kept) + pieces.tail


async def third_question_trimmed(start_here: StartHere, provider: Provider, name: str) -> Turn:
    """A client's conversation under a name; the request that opens its third question comes trimmed."""
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    headers = [CREDENTIAL, NAMED]
    asked = answered(client(name))
    opens = next(at for at, (body, _) in enumerate(asked) if text_of(cut(body).parsed[-1]).startswith("Q3: "))
    last = (trimmed(asked[opens][0]), asked[opens][1])
    turns = await drive(proxy.url, provider, [*asked[:opens], last], stream=name.endswith("_stream"), headers=headers)
    return turns[-1]


@pytest.mark.parametrize("name", each([n for n in CHAT if n not in (EDITED, NO_RETURNS, UNANSWERED, *SIDE_REQUEST)]))
async def test_what_a_trimmed_question_cited_is_carried_by_the_next_one(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turn = await third_question_trimmed(start_here, provider, name)
    cited = {"c1"} if name == OMITTED else {"c1", "c3"}
    assert {chunk for chunk in CONTENT if times_shown(turn.sent, chunk)} == {"c5", "c6"}
    assert {chunk for chunk in CONTENT if times_shown(turn.forwarded, chunk)} == cited
    assert turn.evidence.startswith(f"compacted; question=3; capsule={len(cited)}; receipts=0;")
    done = turn.rewrite()  # promise 1: nothing but evidence changed
    assert done.removed == [] and done.ids == [[(chunk,) for chunk in sorted(cited)]]


@pytest.mark.parametrize("name", each([n for n in in_items.CARRIED if n != in_items.INTERRUPTED]))
async def test_what_a_trimmed_question_cited_is_carried_by_the_next_one_in_items_too(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    asked = in_items.answered(client(name))
    opens = next(
        at
        for at, (body, _) in enumerate(asked)
        if text_of(cut(body).parsed[-1]).startswith("Q3: ") and b"<current_conversation>" not in body
    )
    last = (trimmed(asked[opens][0]), asked[opens][1])
    stream = name.endswith("_stream")
    turns = await drive(
        proxy.url, provider, [*asked[:opens], last], stream=stream, headers=[CREDENTIAL, NAMED], target="/v1/responses"
    )
    turn = turns[-1]
    assert {chunk for chunk in CONTENT if times_shown(turn.sent, chunk)} == {"c5", "c6"}
    assert {chunk for chunk in CONTENT if times_shown(turn.forwarded, chunk)} == {"c1", "c3"}
    assert turn.evidence.startswith("compacted; question=3; capsule=2; receipts=0;")
    done = turn.rewrite()  # promise 1: nothing but evidence changed
    # One client sends the calls of a reply in the order in which they ended: beta first.
    assert done.removed == [] and done.ids in ([[("c1",), ("c3",)]], [[("c3",), ("c1",)]])


@pytest.mark.parametrize("name", each([EDITED]))
async def test_what_a_host_cleared_itself_is_carried_as_it_was_shown(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    turns = await drive(proxy.url, provider, answered(client(name)), headers=[CREDENTIAL, NAMED])
    for turn in turns:
        assert all(cut(turn.sent).parsed[index]["content"] == "[cleared]" for index in turn.rewrite().replaced)
    # `c1` was cleared before any model saw it; `c3` was shown, cited, and cleared.
    last = cut(turns[-1].forwarded).parsed
    (capsule,) = [text_of(m) for m in last if m["role"] == "tool" and wording.HEADER in text_of(m)]
    assert CONTENT["c3"] in capsule and CONTENT["c1"] not in json.dumps(last, ensure_ascii=False)
    assert not times_shown(turns[-1].sent, "c3")
