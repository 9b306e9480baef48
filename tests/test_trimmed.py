"""`Evidence-Conversation`: hosts that trim or rewrite their old history. Promises 1, 2, 3, 5, 6, 7, 8 and 9.

Each is held in chat messages and in the items of the Responses API: what goes up is put back into messages.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.compaction import wording
from tests.conftest import StartHere
from tests.house.client import ask
from tests.house.provider import Provider, completion, json_reply
from tests.house.responding import response
from tests.items import Rendered
from tests.rewrites import CREDENTIAL
from tests.talk import body, calls, cited, returns, says, user
from tests.test_pictures import picture, text

Json = dict[str, Any]
TABLE = {"format": "auto", "tools": ["search"], "cite": "cite"}
NAMED = ("Evidence-Conversation", "conv-7")


def question(number: int, *ids: str, found: Any = None, call: str | None = None) -> list[Json]:
    """A question that retrieves two chunks and cites some of them; all its call ids are its own."""
    shown = found if found is not None else f"[a{number}] A{number} is long. {'x' * 200}\n[a{number}9] B{number} too"
    search, cite = call or f"s{number}", f"c{number}"
    return [
        user(f"question {number}"),
        calls((search, "search", {"q": number})),
        returns(search, shown),
        *cited(list(ids), call_id=cite),
    ]


class Host:
    """A host that sends what it likes of its history, through a proxy, to the API of its choice."""

    def __init__(self, url: str, provider: Provider, api: str, *headers: tuple[str, str]) -> None:
        self.url = url
        self.api = api
        self.provider = provider
        self.headers: list[Any] = [CREDENTIAL, *headers]
        self.store: Any = None

    async def sends(self, *messages: Json, answer: str = "the answer") -> tuple[str, list[Json]]:
        """What the reply's header says, and the messages that went up."""
        if self.api == "chat":
            self.provider.reply(json_reply(completion(answer)))
            seen = await ask(self.url, body(*messages), headers=self.headers)
            went = self.provider.requests[-1].body
        else:
            rendered = Rendered.of(body(*messages))
            self.provider.reply(json_reply(response(answer)))
            seen = await ask(self.url, rendered.body, target="/v1/responses", headers=self.headers)
            went = rendered.back(self.provider.requests[-1].body)  # promise 1: nothing else changed
        assert seen.status == 200
        headers = self.provider.requests[-1].headers
        assert not any(name.lower() == b"evidence-conversation" for name, _ in headers)
        return seen.evidence, json.loads(went)["messages"]

    async def holds(self, *questions: list[Json]) -> list[Json]:
        """Ask these questions one after the other, untrimmed; returns the whole history, all answered."""
        history: list[Json] = []
        for number, messages in enumerate(questions, 1):
            history += messages
            await self.sends(*history, answer=f"answer {number}")
            history.append(says(f"answer {number}"))
        return history


@pytest.fixture(params=["chat", "responses"])
def start(start_here: StartHere, provider: Provider, request: pytest.FixtureRequest) -> Any:
    async def started(*headers: tuple[str, str], **more: Any) -> Host:
        proxy = await start_here(evidence=[TABLE], **more)
        host = Host(proxy.url, provider, request.param, *(headers or (NAMED,)))
        host.store = proxy.store
        return host

    return started


def carried(sent: list[Json]) -> str:
    """The text of the capsule that went up."""
    contents = [m["content"] for m in sent if m["role"] == "tool"]
    texts = [content if isinstance(content, str) else content[0]["text"] for content in contents]
    (capsule,) = [one for one in texts if one.startswith(wording.HEADER)]
    return str(capsule)


async def test_what_is_cited_but_no_longer_on_the_wire_comes_from_the_store(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    evidence, sent = await host.sends(*history[6:], user("question 3"))  # the whole first question is gone
    assert evidence.startswith("compacted; question=3; capsule=2; receipts=0;")
    capsule = carried(sent)
    assert "[a1]\nA1 is long. " + "x" * 200 in capsule and "[a29]\nB2 too" in capsule and "A2" not in capsule
    assert capsule.index("[a29]") < capsule.index("[a1]")  # newest group first


async def test_without_the_header_a_trimmed_history_has_no_record(start: Any) -> None:
    host = await start(("Evidence-Other", "x"))
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    assert (await host.sends(*history[6:], user("question 3")))[0] == "untouched; reason=no-record"


async def test_user_text_does_not_count(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    history[0] = user("a summary of the question")
    history[6] = user([{"type": "text", "text": "and another"}])
    evidence, sent = await host.sends(*history, user("question 3"))
    assert evidence.startswith("compacted; question=3; capsule=2; receipts=1;")
    assert [sent[0], sent[6], sent[-1]] == [history[0], history[6], user("question 3")]


async def test_promise_3_a_return_that_was_rewritten_stays_and_what_was_cited_of_it_comes_all_the_same(
    start: Any,
) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    history[2] = returns("s1", "[a1] A1 is… [shortened by the host]")
    evidence, sent = await host.sends(*history, user("question 3"))
    assert evidence.startswith("compacted; question=3; capsule=2; receipts=0; kept=1;")
    assert sent[2] == history[2] and "A1 is long. " + "x" * 200 in carried(sent)


async def test_promise_8_what_a_host_shows_again_stands_once(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"))
    cleared = [*history[:2], returns("s1", "[cleared]"), *history[3:]]
    second = [*cleared, *question(2, "a29")]
    await host.sends(*second, answer="answer 2")
    _, sent = await host.sends(*history, *second[6:], says("answer 2"), user("question 3"))
    assert json.dumps(sent).count("A1 is long") == 1 and "B2 too" in carried(sent)


async def test_promise_3_a_question_that_went_on_after_its_record_does_not_fit(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"))
    more = [calls(("s9", "search", {})), returns("s9", "[z] Z"), *cited(["a19"], call_id="c9")]
    went_on = [user("edited"), *history[1:5], *more, says("another answer")]
    assert (await host.sends(*went_on, user("question 2")))[0] == "untouched; reason=no-record"


async def test_a_question_without_returns_is_never_found(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), [user("thanks")])
    evidence, sent = await host.sends(user("edited"), *history[1:], user("question 3"))
    # Found is the question before it; everything after that one's answer is current.
    assert evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    assert sent[6:] == [*history[6:], user("question 3")]


async def test_promise_3_two_candidates_for_one_place_are_a_doubt(start: Any) -> None:
    host = await start()
    same = "[a] the very same"
    await host.holds(question(1, "a", found=same, call="call_0"), question(2, found=same, call="call_0"))
    bare = [user("?"), calls(("call_0", "search", {})), returns("call_0", same), says("answer 1")]
    evidence, sent = await host.sends(*bare, user("question 3"))
    assert evidence == "untouched; reason=no-record" and sent[2] == bare[2]


async def test_promise_3_of_two_places_of_one_return_nobody_can_tell_which_is_meant(start: Any) -> None:
    host = await start()
    same = "[a] the very same"
    history = await host.holds(
        question(1, "a", found=same, call="call_0"), question(2, "a", found=same, call="call_0"), question(3, "a3")
    )
    evidence, sent = await host.sends(user("edited"), *history[1:], user("question 4"))
    assert evidence.startswith("compacted; question=4; capsule=1; receipts=0; kept=2;")
    assert [sent[2], sent[8]] == [history[2], history[8]]


async def test_promise_9_another_tenant_or_another_id_finds_nothing(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    for headers in ([("Authorization", "Bearer other"), NAMED], [CREDENTIAL, ("Evidence-Conversation", "conv-8")]):
        host.headers = headers
        evidence, sent = await host.sends(*history[6:], user("question 3"))
        assert evidence == "untouched; reason=no-record" and "A1" not in json.dumps(sent)


async def test_a_conversation_goes_on_after_it_was_trimmed(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    rest = [*history[6:], *question(3, "a3")]
    await host.sends(*rest, answer="answer 3")
    evidence, sent = await host.sends(*rest, says("answer 3"), user("question 4"))  # found by what was sent
    assert evidence.startswith("compacted; question=4; capsule=3; receipts=1;")
    last = [*rest[6:], says("answer 3"), user("question 4")]
    evidence, sent = await host.sends(*last)  # and trimmed once more
    assert evidence.startswith("compacted; question=4; capsule=3; receipts=0;")
    assert [carried(sent).index(f"[{name}]") for name in ("a3", "a29", "a1")] == sorted(
        carried(sent).index(f"[{name}]") for name in ("a3", "a29", "a1")
    )


async def test_promise_7_within_a_question_what_goes_up_only_grows(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    _, first = await host.sends(*history[6:], user("question 3"))
    more = [calls(("s3", "search", {})), returns("s3", "[z] Z")]
    _, second = await host.sends(*history[6:], user("question 3"), *more)
    assert second[: len(first)] == first and second[len(first) :] == more


async def test_promise_6_pictures_that_were_trimmed_come_again_as_far_as_others_go(start: Any) -> None:
    host = await start()
    shown = [text("[a1] one"), picture(1)]
    other = [text("[a2] two"), picture(2)]
    history = await host.holds(question(1, "a1", found=shown), question(2, found=other))
    _, sent = await host.sends(*history[6:], user("question 3"))
    (parts,) = [m["content"] for m in sent if m["role"] == "tool" and isinstance(m["content"], list)]
    assert parts[1:] == [text(wording.label("a1", None, None)), picture(1)]


async def test_promise_6_and_not_where_none_go(start: Any) -> None:
    host = await start()
    history = await host.holds(question(1, "a1", found=[text("[a1] one"), picture(1)]), question(2, "a29"))
    _, sent = await host.sends(*history[6:], user("question 3"))
    assert "image_url" not in json.dumps(sent) and "[a1]\none" in carried(sent)


async def test_layout_append_keeps_what_was_cited_too(start: Any) -> None:
    host = await start(compaction={"layout": "append"})
    history = await host.holds(question(1, "a1"), question(2, "a29"), question(3, "a3"))
    evidence, sent = await host.sends(*history[6:], user("question 4"))
    assert evidence.startswith("compacted; question=4; capsule=3; receipts=0;")
    assert "A1 is long" in sent[2]["content"] and "B2 too" in sent[2]["content"] and "A3 is" in sent[8]["content"]


async def test_what_a_store_that_forgot_cannot_give_is_not_made_up(start: Any, start_here: StartHere) -> None:
    host = await start()
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    other = await start(NAMED)  # another process that shares nothing
    evidence, sent = await other.sends(*history[6:], user("question 3"))
    assert evidence == "untouched; reason=no-record" and sent == [*history[6:], user("question 3")]


async def test_what_a_host_clears_before_it_is_cited_is_kept_as_it_was_shown(start: Any) -> None:
    host = await start()
    opened = [user("q"), calls(("s1", "search", {})), returns("s1", "[c1] one, whole\n[c2] two")]
    await host.sends(*opened)
    cleared = [*opened[:2], returns("s1", "[cleared]"), *cited(["c1"]), says("the answer"), user("next")]
    await host.sends(*cleared[:5])
    second = [*cleared, calls(("s2", "search", {})), returns("s2", "[c5] five\n[c6] six"), *cited(["c6"], call_id="e")]
    await host.sends(*second)
    evidence, sent = await host.sends(*second, says("the answer"), user("last"))
    assert evidence.startswith("compacted; question=3; capsule=2;")
    assert "[c1]\none, whole" in carried(sent) and "[c6]\nsix" in carried(sent)


async def test_promise_3_a_call_id_that_repeats_restores_nothing(start: Any) -> None:
    host = await start()
    opened = [user("q"), calls(("s", "search", {})), returns("s", "[c1] one, whole\n[c2] two")]
    await host.sends(*opened)
    again = [*opened[:2], returns("s", "[cleared]"), calls(("s", "search", {})), returns("s", "[c3] three\n[c4] four")]
    await host.sends(*again, *cited(["c1", "c3"]))
    evidence, sent = await host.sends(*again, *cited(["c1", "c3"]), says("the answer"), user("next"))
    assert evidence.startswith("compacted; question=2; capsule=1;") and "one, whole" not in json.dumps(sent)


async def test_what_one_replica_wrote_another_finds(start: Any, tmp_path: Path) -> None:
    kept = {"uri": str(tmp_path), "read_timeout_ms": 5_000}
    host = await start(store=kept)
    history = await host.holds(question(1, "a1"), question(2, "a29"))
    rest = [*history[6:], user("question 3")]
    evidence, here = await host.sends(*rest)  # at once, in the process that wrote it
    assert evidence.startswith("compacted; question=3; capsule=2; receipts=0;")
    await asyncio.gather(host.store.records.flush(), host.store.contents.flush())
    await asyncio.sleep(0.6)
    other = await start(store=kept)
    assert await other.sends(*rest) == (evidence, here)  # promise 7: the same bytes
