"""What real agent SDKs send, replayed in order through a proxy that reads any framework's returns (`format = "auto"`).

All of them play one script: question 1 searches twice in parallel and cites `c1` and `c3`; question 2 searches once and
cites nothing; question 3 ends in structured output; question 4 is a follow-up. A question opens at the user message
that begins with its number, which is how these tests tell, without asking the product.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.captures import client, clients, each
from tests.conftest import StartHere
from tests.house.provider import Provider, completion
from tests.rewrites import Turn, assert_pairs, assert_stable, cut, drive, pictures_in, read_ours

EVIDENCE = [{"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}]
POLICY = {"output_tools": ["final_result", "Verdict"]}

#: What the script's searches return, by chunk id.
CONTENT = {
    "c1": "Alpha café opens at nine — “naïve” 日本 😀.",
    "c2": "Alpha menu <b>& prices</b>.",
    "c3": "Beta café closes at five.",
    "c4": "Beta has no menu.",
    "c5": "Gamma is closed.",
    "c6": "Gamma reopens in May.",
}

CHAT = clients("chat")
#: Its host replaces what tools returned, the cite tool too, by "[cleared]" one request later. Whatever was settled was
#: settled on another conversation than the one that it now shows.
EDITED = "langchain_edit-chat"
#: Its host omits the second search's text before the model ever saw it: `c3` was never shown.
OMITTED = "agents_session-chat"
#: Results stand in user messages; no tool role at all.
NO_RETURNS = "smolagents-chat"
#: `run_stream` took the text beside question 2's search for the answer, so its client asked question 3 without having
#: been answered: that continues question 2. The answer to it is then sent back for correction, and corrected.
UNANSWERED = "pydanticai-chat_stream"
#: Before question 4 it asks the model to rewrite that question, the whole conversation quoted in one user message.
SIDE_REQUEST = {"llamaindex-chat": 8, "llamaindex-chat_stream": 8}


def conversational(body: bytes) -> list[dict[str, Any]]:
    return [message for message in cut(body).parsed if message["role"] not in ("system", "developer")]


def answered(bodies: list[bytes]) -> list[tuple[bytes, dict[str, Any]]]:
    """Each request with the reply that it got: the assistant message that a later request shows in its place."""
    asked = []
    for number, body in enumerate(bodies):
        length = len(conversational(body))
        shown = next((later for later in map(conversational, bodies[number + 1 :]) if len(later) > length), None)
        said = shown[length] if shown is not None else {"role": "assistant", "content": "In one word: yes."}
        assert said["role"] == "assistant" or number + 1 in SIDE_REQUEST.values()
        calls = [
            (call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in said.get("tool_calls") or ()
        ]
        content = said.get("content")
        text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
        asked.append((body, completion(text or None, calls)))
    return asked


async def replayed(start_here: StartHere, provider: Provider, name: str) -> list[Turn]:
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    return await drive(proxy.url, provider, answered(client(name)), stream=name.endswith("_stream"))


def opening(body: bytes) -> int | None:
    """Where the current question begins: the newest user message with a question's number, unless it was put while a
    tool's return waited for an answer."""
    found, answered = None, True
    for index, message in enumerate(cut(body).parsed):
        if message["role"] == "user" and answered and re.match(r"Q\d: ", text_of(message)):
            found, answered = index, False
        elif message["role"] == "assistant":
            calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            answered = not calls or bool(set(calls) & set(POLICY["output_tools"]))
    return found


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def earlier_returns(body: bytes) -> list[int]:
    """The evidence returns before the current question."""
    searches: set[str] = set()
    found = []
    parsed = cut(body).parsed
    is_items = any("item" in message for message in parsed)  # there, each part of a reply stands alone
    for index, message in enumerate(parsed[: opening(body)]):
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            searches = (searches if is_items else set()) | {
                call["id"] for call in calls if call["function"]["name"] == "search"
            }
        elif message["role"] == "tool" and message["tool_call_id"] in searches:
            found.append(index)
    return found


def cited_earlier(body: bytes) -> set[str]:
    """What the earlier questions' own cite calls name."""
    return {
        chunk_id
        for message in cut(body).parsed[: opening(body)]
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] == "cite"
        for chunk_id in json.loads(call["function"]["arguments"])["chunk_ids"]
    }


def times_shown(body: bytes, chunk_id: str) -> int:
    """How often a chunk's content stands in a request's returns, however its JSON is escaped inside them."""
    content = CONTENT[chunk_id]
    spellings = {content, json.dumps(content)[1:-1], json.dumps(content, ensure_ascii=False)[1:-1]}
    returns = [text_of(message) for message in cut(body).parsed if message["role"] == "tool"]
    return sum(text.count(spelling) for text in returns for spelling in spellings)


def after_the_first_question(turns: list[Turn]) -> list[Turn]:
    return [turn for turn in turns if earlier_returns(turn.sent)]


@pytest.mark.parametrize("name", each(CHAT))
async def test_promises_1_2_and_4_only_earlier_evidence_changes_and_pairs_stay_pairs(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    for turn in await replayed(start_here, provider, name):
        assert_pairs(turn.forwarded)
        done = read_ours(turn.sent, turn.forwarded)  # everything else is the very bytes
        assert set(done.replaced) <= set(earlier_returns(turn.sent))
        assert done.removed == []  # no user message of these clients is provably ours
        assert len(cut(turn.sent).messages) == len(cut(turn.forwarded).messages)


@pytest.mark.parametrize("name", each([n for n in CHAT if n not in (EDITED, NO_RETURNS)]))
async def test_promise_5_all_earlier_questions_are_compacted_into_one_capsule_and_receipts(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    compacted = after_the_first_question(turns)
    assert len(compacted) == 5  # three requests of question 2, one of question 3, one of question 4
    for turn in compacted:
        done = turn.rewrite()
        # What shows no id could not be cited: it stays.
        stays = [at for at in earlier_returns(turn.sent) if "omitted]" in str(cut(turn.sent).parsed[at]["content"])]
        assert len(stays) == (name == OMITTED)
        assert done.replaced == [at for at in earlier_returns(turn.sent) if at not in stays]
        assert done.carrier == max(done.replaced)
        cited = ["c1"] if name == OMITTED else ["c1", "c3"]
        assert done.ids == [[(chunk_id,) for chunk_id in cited]]
        assert turn.evidence.startswith("compacted; question=")
        assert turn.figures["capsule"] == str(len(cited))
        assert turn.figures["receipts"] == str(len(done.receipts))
        assert turn.figures.get("kept") == ("1" if stays else None)
    questions = ["2", "2", "2", "2", "3"] if name == UNANSWERED else ["2", "2", "2", "3", "4"]
    assert [turn.figures["question"] for turn in compacted] == questions


@pytest.mark.parametrize("name", each(CHAT))
async def test_promises_3_and_8_cited_text_is_never_lost_and_stands_once(
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
        if turn.forwarded != turn.sent:
            for entry in turn.rewrite().entries:
                assert entry.content == CONTENT[entry.ids[0]]
    if name not in (EDITED, NO_RETURNS):  # and what was not cited is what goes
        last = turns[-1].forwarded
        assert {chunk_id for chunk_id in CONTENT if times_shown(last, chunk_id)} <= {"c1", "c3"}


@pytest.mark.parametrize("name", each(CHAT))
async def test_promise_6_pictures_stay_or_come_back_with_the_chunk_that_was_cited(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    for turn in await replayed(start_here, provider, name):
        came, went = pictures_in(turn.sent), pictures_in(turn.forwarded)
        assert sorted(went) == sorted(came)  # these clients' pictures belong to c1 and c3, which are cited
        for shown in turn.rewrite().pictures:
            assert shown.chunk_id in ("c1", "c3") and shown.picture in came


@pytest.mark.parametrize("name", each([name for name in CHAT if name != NO_RETURNS]))
async def test_promise_7_inside_a_question_the_rewritten_prefix_is_stable(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    shared = 0
    for before, after in pairwise(turns):
        if opening(before.sent) == opening(after.sent) is not None:
            shared += assert_stable(before, after)
    # Two steps in question 1 and two in question 2, unless the host edits what it sent.
    assert shared == {EDITED: 1, UNANSWERED: 5}.get(name, 4)


@pytest.mark.parametrize("name", each([EDITED]))
async def test_promise_3_a_host_that_clears_what_its_tools_returned_costs_compaction_and_loses_nothing(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    for turn in turns:
        for index in turn.rewrite().replaced:
            assert cut(turn.sent).parsed[index]["content"] == "[cleared]"
    assert all(turn.forwarded == turn.sent for turn in turns[:6])


@pytest.mark.parametrize("name", each([NO_RETURNS]))
async def test_promise_1_results_in_user_text_are_no_evidence_returns(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    for turn in await replayed(start_here, provider, name):
        assert turn.forwarded == turn.sent
        assert turn.evidence == "untouched; reason=no-evidence"


@pytest.mark.parametrize("name", each(sorted(SIDE_REQUEST) if CHAT else []))
async def test_promise_3_a_side_request_between_two_questions_changes_nothing(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    turns = await replayed(start_here, provider, name)
    side = turns.pop(SIDE_REQUEST[name] - 1)
    assert side.forwarded == side.sent and side.evidence == "untouched; reason=no-evidence"
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    bodies = [body for number, body in enumerate(client(name), 1) if number != SIDE_REQUEST[name]]
    without = await drive(proxy.url, provider, answered(bodies), stream=name.endswith("_stream"))
    assert turns == without


@pytest.mark.parametrize("name", each(clients("responses")))
async def test_promise_1_without_evidence_tables_responses_pass_byte_for_byte(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    proxy = await start_here()
    conversation = [(body, completion("ok")) for body in client(name)]
    for turn in await drive(proxy.url, provider, conversation, target="/v1/responses"):
        assert turn.forwarded == turn.sent
        assert turn.evidence.startswith("untouched; reason=")
