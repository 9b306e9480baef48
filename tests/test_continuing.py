"""A request is read from where the one before it ended, and that is never seen: the same as if all of it were read."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.conversation import Asked, Conversations
from proxy.gateway.seen import Seen, SeenRequests
from proxy.ledger import transcript
from proxy.ledger.transcript import Transcript
from proxy.settings import Settings
from proxy.wire import chat, responses
from proxy.wire.messages import Request
from tests import captures
from tests.fake_store import FakeStore
from tests.house.provider import completion
from tests.talk import body, calls, cited, returns, says, searched, user
from tests.test_wire import MESSAGE, SPACE, VALUE


def alike(one: Request, other: Request) -> bool:
    """Whether two cuts say the same of a body, but for how they came by it."""
    facts = [
        (r.body, r.messages, r.choices, r.history, r.in_conversation, r.stored, r.in_background) for r in (one, other)
    ]
    return repr(facts[0]) == repr(facts[1])


def read_alike(one: Transcript, other: Transcript) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("first_users", "replies", "returns", "users", "key", "shown", "shown_before")
    )


@st.composite
def two_bodies(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two bodies that begin alike, and go on as they like: with more messages, other ones, fewer, other members."""
    before = draw(st.sampled_from(["", '"n":2,', '"n":3,"other":[1],', '"m\\u0065ssages":[],', '"messages":[{}],']))
    head = "{" + draw(SPACE) + before + '"messages"' + draw(SPACE) + ":[" + draw(SPACE)
    shared = draw(st.lists(MESSAGE, max_size=4))
    bodies = []
    for _ in range(2):
        own = [*shared[: draw(st.integers(0, len(shared)))], *draw(st.lists(MESSAGE, max_size=2))]
        messages = ",".join(message + draw(SPACE) for message in own)
        behind = draw(
            st.sampled_from(["", ',"n":1', ',"n":null', ',"messages":[]', ',"\\u006e":7', ',"x":{"messages":[{}]}'])
        )
        end = draw(st.sampled_from(["]", "]", "]", ",]", ""]))
        bodies.append((head + messages + end + behind + draw(SPACE) + "}").encode())
    return bodies[0], bodies[1]


@given(two_bodies())
def test_a_body_cut_as_a_continuation_says_what_a_whole_cut_says(bodies: tuple[bytes, bytes]) -> None:
    for first, second in (bodies, bodies[::-1], (bodies[0], bodies[0])):
        try:
            known = chat.cut(first)
        except ValueError:
            continue
        try:
            whole = chat.cut(second)
        except ValueError as refused:
            with pytest.raises(type(refused)):
                chat.cut(second, known)
            continue
        assert alike(chat.cut(second, known), whole)


@given(st.lists(VALUE, min_size=1, max_size=3), st.sampled_from(['"store":false,', "", '"background":true,']))
def test_a_responses_body_too(values: list[str], before: str) -> None:
    items = [f'{{"type":"message","role":"user","content":{value}}}' for value in values]
    whole = [f'{{{before}"input":[{",".join(items[:count])}]}}'.encode() for count in range(len(items) + 1)]
    for first, second in pairwise(whole):
        assert alike(responses.cut(second, responses.cut(first)), responses.cut(second))


def test_members_that_stand_before_and_behind_the_messages_count_as_the_last_of_them_says() -> None:
    first = b'{"n":2,"messages":[{"role":"user","content":"a"}]}'
    known = chat.cut(first)
    assert known.choices == 2
    for tail, choices in ((b"", 2), (b',"n":3', 3), (b',"n":null', 1), (b',"\\u006e":4', 4)):
        longer = first[:-2] + b',{"role":"user","content":"b"}]' + tail + b"}"
        assert (chat.cut(longer, known).choices, chat.cut(longer).choices) == (choices, choices)


CONVERSATION = [
    user("one"), *searched("[a] alpha\n[b] beta", "s1"), *cited(["a"], call_id="c1"), says("A."),
    user("two"), calls(("s2", "search", {"q": 1.0}), ("s3", "search", {"q": "x"})), returns("s3", "[c] gamma"),
    returns("s2", "[d] delta"), *cited(["c"], call_id="c2"), says("B <think>no</think>."), user("three"), user("and?"),
]  # fmt: skip


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_transcript_read_in_steps_is_the_transcript(step: int) -> None:
    known: Transcript | None = None
    for count in [*range(step, len(CONVERSATION), step), len(CONVERSATION)]:
        raw = body(*CONVERSATION[:count])
        longer = transcript.read(chat.cut(raw, known.request if known else None), known)
        assert longer.request.known == (len(known.request.messages) if known else 0)
        assert read_alike(longer, transcript.read(chat.cut(raw)))
        known = longer


@pytest.mark.parametrize("cut_back", range(len(CONVERSATION)))
def test_a_transcript_that_goes_back_and_on_in_another_way_is_read_anew_from_there(cut_back: int) -> None:
    known = transcript.read(chat.cut(body(*CONVERSATION)))
    raw = body(*CONVERSATION[:cut_back], says("Otherwise."), user("and now?"))
    branched = transcript.read(chat.cut(raw, known.request), known)
    assert branched.request.known == cut_back
    assert read_alike(branched, transcript.read(chat.cut(raw)))


@pytest.mark.parametrize("name", captures.each(captures.scenarios()))
def test_every_captured_request_read_after_the_one_before_it_is_read_the_same(name: str) -> None:
    for arm in ("B", "P"):
        known: Transcript | None = None
        for asked in captures.scenario(name).arms.get(arm, []):
            if asked.body is None:
                continue
            longer = transcript.read(chat.cut(asked.body, known.request if known else None), known)
            assert alike(longer.request, chat.cut(asked.body))
            assert read_alike(longer, transcript.read(chat.cut(asked.body)))
            known = longer


# In the process.


def seen(raw: bytes) -> Seen:
    return Seen(transcript.read(chat.cut(raw)), {}, (), False)


LONG = "x" * 500


def test_promise_9_what_was_read_for_one_tenant_is_not_found_for_another() -> None:
    kept = SeenRequests()
    first = body(user(LONG), says("A."))
    kept.keep(b"a", "chat", seen(first), None)
    longer = body(user(LONG), says("A."), user("more"))
    assert kept.before(b"a", "chat", longer)[0] is not None
    assert kept.before(b"b", "chat", longer)[0] is None and kept.before(b"a", "responses", longer)[0] is None


def test_of_conversations_that_begin_alike_the_one_that_a_body_continues_is_found() -> None:
    kept = SeenRequests()
    one, two = (seen(body(user(LONG), says("A."), user(LONG + end))) for end in ("1", "2"))
    for each in (one, two):
        kept.keep(b"t", "chat", each, None)
    for each, end in ((one, "1"), (two, "2")):
        found, known_bytes = kept.before(b"t", "chat", body(user(LONG), says("A."), user(LONG + end), says("then")))
        assert found is each and known_bytes > len(LONG)
    found, known_bytes = kept.before(b"t", "chat", body(user(LONG), says("A."), user(LONG + "3")))
    assert found in (one, two) and known_bytes == 0, "one that begins alike is offered, and nothing of it is promised"


def test_conversations_that_differ_in_their_first_question_only_are_all_remembered() -> None:
    kept = SeenRequests()
    turns = [[user(f"Question {number}: " + LONG), says("A."), user(LONG)] for number in range(50)]
    each = [seen(body(*messages)) for messages in turns]
    for one in each:
        kept.keep(b"t", "chat", one, None)
    for one, messages in zip(each, turns, strict=True):
        found, known_bytes = kept.before(b"t", "chat", body(*messages, says("B.")))
        assert found is one and known_bytes > 2 * len(LONG)


def test_what_is_remembered_is_bounded_and_one_conversation_takes_one_place() -> None:
    kept = SeenRequests(most_bytes=30_000, most_bytes_of_one=20_000)
    last: Seen | None = None
    for count in range(2, 8):
        now = seen(body(*[user(LONG + str(number)) for number in range(count)]))
        kept.keep(b"t", "chat", now, last)
        last = now
        assert kept.size == now.size, "what a request continues leaves with it"
    for number in range(100):
        kept.keep(b"t", "chat", seen(body(user(str(number) * 900))), None)
        assert kept.size <= 30_000
    huge = seen(body(user("y" * 20_000)))
    kept.keep(b"t", "chat", huge, None)
    assert kept.before(b"t", "chat", huge.transcript.request.body)[0] is None


async def test_promise_7_a_process_that_saw_the_conversation_writes_what_one_that_did_not_writes() -> None:
    table = {"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}
    chosen = Settings.model_validate({"evidence": [table]})
    store = FakeStore()
    old = Conversations(chosen, store)  # type: ignore[arg-type]
    history: list[Any] = []
    compacted = 0
    for message in [*CONVERSATION, says("C."), user("four"), *searched("[e] epsilon", "s4"), says("D.")]:
        if message["role"] == "assistant":
            raw = body(*history)
            exchange = await old.ask(Asked(raw, "key"))
            fresh = await Conversations(chosen, store).ask(Asked(raw, "key"))  # type: ignore[arg-type]
            assert exchange.body == fresh.body and exchange.header == fresh.header
            compacted += exchange.header.startswith("compacted")
            made = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
            exchange.feed(json.dumps(completion(message["content"], made)).encode())
            await exchange.ended(True)
        history.append(message)
    assert compacted >= 4
