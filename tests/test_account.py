"""The account of a decision says, message by message, what the bytes say: as they came and as they went."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.commands.rehearsing import Rehearsal, Rehearsed
from proxy.compaction.account import REASONS, WORDS, Fate, Why, content_of
from proxy.compaction.outcome import Reason
from proxy.settings import Settings
from proxy.wire.messages import Picture, Text
from tests.house.keys import KEYS
from tests.rewrites import cut, read_ours
from tests.talk import body, calls, cited, returns, says, searched, user

KB = {"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}
ONE = json.dumps([{"id": "c1", "text": "The pump runs at 3 bar.", "title": "Pumps"}, {"id": "c2", "text": "Blue."}])
TWO = json.dumps([{"id": "c3", "text": "The valve opens at 5 bar."}])


async def explained(raw: bytes, api: str = "chat", **sections: Any) -> Rehearsed:
    """What the proxy would make of a request all of whose answered questions were recorded."""
    given = {"evidence": [KB], "store": {"uri": "memory://"}, **sections}
    return await Rehearsal(Settings(**given), KEYS).decide(raw, api)


def fates(done: Rehearsed) -> dict[int, tuple[Fate, Why]]:
    """The fate of each return that a tool gave, by message."""
    assert done.account is not None
    return {line.index: (line.fate, line.why) for line in done.account.lines if line.role.value == "tool"}


def as_told(done: Rehearsed) -> bytes:
    """The body as the account says that it went, put together from its lines."""
    assert done.account is not None
    came = cut(done.conversed.came)
    messages = [
        done.conversed.came[line.span.start : line.span.end] if line.went is None and line.span else line.went
        for line in done.account.lines
    ]
    return came.head + b",".join(raw for raw in messages if raw) + came.tail


TALK = [
    user("How does the pump run?"),
    *searched(ONE, "s1"),
    *cited(["c1"], call_id="k1"),
    says("At 3 bar."),
    user("And the valve?"),
    *searched(TWO, "s2"),
    *cited([], call_id="k2"),
    says("No idea."),
    user("Thanks. And the pipe?"),
    *searched(TWO, "s3"),
]


async def test_every_return_has_the_fate_that_the_bytes_show() -> None:
    done = await explained(body(*TALK))

    rewrite = read_ours(done.conversed.came, done.conversed.went)
    told = fates(done)
    assert [index for index, (fate, _) in told.items() if fate is Fate.RECEIPT] == rewrite.receipts == [2]
    assert [index for index, (fate, _) in told.items() if fate is Fate.CARRIER] == [rewrite.carrier] == [8]
    assert told[2] == (Fate.RECEIPT, Why.MOVED)
    assert told[4] == (Fate.SAME, Why.CITES)
    assert told[14] == (Fate.CURRENT, Why.CURRENT)
    assert (
        as_told(done) == done.conversed.went.replace(b", ", b",")
        or cut(as_told(done)).messages == cut(done.conversed.went).messages
    )


async def test_a_capsule_names_the_question_that_cited_each_chunk_and_the_message_where_it_stood() -> None:
    done = await explained(body(*TALK))

    assert done.account is not None
    (carrier,) = [line for line in done.account.lines if line.fate is Fate.CARRIER]
    (group,) = carrier.groups
    assert group.question == 1
    assert [(chunk.ids, chunk.message, chunk.source) for chunk in group.chunks] == [(("c1",), 2, '"Pumps"')]
    assert [line.shows for line in done.account.lines if line.index == 2] == [("c1", "c2")]


async def test_questions_are_told_with_what_they_declared_and_cited() -> None:
    done = await explained(body(*TALK))

    told = [(one.question, one.message, one.declaration, one.cited, one.evidence) for one in done.questions]
    assert told == [
        (1, 0, "grounded", ("c1",), (2,)),
        (2, 6, "ungrounded", (), (8,)),
        (3, 12, None, (), (14,)),
    ]


async def test_what_a_question_that_never_declared_retrieved_says_so() -> None:
    silent = [
        user("q1"),
        *searched(ONE, "s1"),
        says("a1"),
        user("q2"),
        *searched(TWO, "s2"),
        *cited(["c3"]),
        says("a2"),
    ]
    done = await explained(body(*silent, user("q3")))

    assert fates(done)[2] == (Fate.KEPT, Why.UNDECLARED)
    assert fates(done)[6] == (Fate.CARRIER, Why.CARRIES)


async def test_an_id_that_stands_only_as_text_keeps_its_return_and_says_so() -> None:
    odd = "Results are filed under doc-77, doc-78 and nowhere else, each in one line."
    done = await explained(
        body(user("q1"), *searched(ONE, "a"), *searched(odd, "b"), *cited(["c1", "doc-77"]), says("a1"), user("q2"))
    )

    assert fates(done)[2][0] is Fate.CARRIER
    assert fates(done)[4][0] is Fate.KEPT
    assert fates(done)[4][1] in (Why.NO_IDS, Why.CITED_AS_TEXT)


@pytest.mark.parametrize(
    ("messages", "evidence", "reason", "index", "why"),
    [
        ([user("q"), *searched(ONE)], [KB], "nothing-earlier", 2, Why.CURRENT),
        ([user("q"), *searched(ONE), says("a"), user("r")], [{**KB, "cite": None}], "no-citations", 2, Why.NO_CITE),
        ([user("q"), *searched(ONE), says("a"), user("r")], [], "no-evidence", 2, Why.NOT_OURS),
        (
            [user("q"), *searched("Wrong.\n\nFix the errors and try again."), says("a"), user("r")],
            [KB],
            "no-evidence",
            2,
            Why.ASKS_AGAIN,
        ),
    ],
)
async def test_a_request_that_goes_up_as_it_came_says_why_each_return_stays(
    messages: list[dict[str, Any]], evidence: list[dict[str, Any]], reason: str, index: int, why: Why
) -> None:
    done = await explained(body(*messages), evidence=evidence)

    assert done.conversed.outcome.header() == f"untouched; reason={reason}"
    assert fates(done)[index][1] is why
    assert done.account is not None
    assert all(line.went is None for line in done.account.lines)


async def test_under_observe_the_fates_are_those_that_would_have_been() -> None:
    done = await explained(body(*TALK), compaction={"mode": "observe"})

    assert done.conversed.went is done.conversed.came
    assert fates(done)[2][0] is Fate.RECEIPT
    assert done.conversed.would is not None
    assert cut(as_told(done)).messages == cut(done.conversed.would).messages


async def test_layout_append_has_a_carrier_for_each_question() -> None:
    twice = [*TALK[:-2], *searched(TWO, "s3"), *cited(["c3"], call_id="k3"), says("At 5."), user("q4")]
    done = await explained(body(*twice), compaction={"layout": "append"})

    carriers = [i for i, (fate, _) in fates(done).items() if fate is Fate.CARRIER]
    assert carriers == [2, 14]
    assert cut(as_told(done)).messages == cut(done.conversed.went).messages


async def test_a_tool_that_is_offered_beside_the_messages_is_told_in_bytes() -> None:
    done = await explained(body(*TALK), evidence=[{**KB, "cite": "managed", "undeclared": "receipt"}])

    assert done.account is not None
    came, went = done.conversed.came, done.conversed.went
    told = cut(as_told(done))
    assert told.messages == cut(went).messages
    assert done.account.beside == len(went) - len(came) - sum(one.after - one.before for one in done.account.lines)
    assert done.account.beside > 100


async def test_a_history_that_the_provider_keeps_is_told_by_what_the_request_itself_holds() -> None:
    raw = json.dumps({"previous_response_id": "resp_1", "input": "And then?"}).encode()
    done = await explained(raw, "responses")
    assert done.conversed.outcome.header() == "untouched; reason=server-side-history"
    assert done.account is not None
    assert [(line.role.value, line.before) for line in done.account.lines] == [("user", len('"And then?"'))]


async def test_a_tool_message_before_any_reply_is_told_like_any_other() -> None:
    done = await explained(body(returns("x", ONE), user("q"), calls(("s", "search", {})), returns("s", ONE)))

    assert fates(done)[0] == (Fate.SAME, Why.NOT_OURS)


def test_every_fate_and_reason_has_its_words() -> None:
    assert set(WORDS) == set(Why)
    assert set(REASONS) == set(Reason)


def test_what_a_message_holds_is_read_from_its_bytes_alone() -> None:
    from proxy.wire import chat, responses

    url = "data:image/png;base64,AAAA"
    in_chat = json.dumps({"role": "user", "content": [{"type": "text", "text": "a"}, _image(url)]}).encode()
    item = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "b"}]}
    assert content_of(chat, in_chat) == (Text("a"), Picture(url))
    assert content_of(responses, json.dumps(item).encode()) == (Text("b"),)
    assert content_of(responses, b'"just a text"') == (Text("just a text"),)
    assert content_of(chat, b"") == content_of(chat, b"{") == ()


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}
