"""Records that must not fit, and records that must: each sentence is a test, from request to forwarded bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.compaction.wording import RECEIPT
from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.settings import CompactionSettings, EvidenceTable, Settings
from tests.conversations import PICTURES
from tests.fake_store import FakeStore
from tests.talk import calls, cited, returns, says, searched, user

Json = dict[str, Any]

KB = EvidenceTable(format="auto", name="kb", tools=("search",), cite="cite")
KB_INLINE = EvidenceTable(format="auto", name="kb", tools=("search",), cite="inline")
KB_UNCITED = EvidenceTable(format="auto", name="kb", tools=("search",))
HAIKU = EvidenceTable(format="haiku")
WEB = EvidenceTable(format="auto", name="web", tools=("fetch",))


@dataclass
class Proxy:
    """A proxy without HTTP: what is asked, what goes up, and the reply that goes by."""

    tables: tuple[EvidenceTable, ...] = (KB,)
    store: FakeStore = field(default_factory=FakeStore)
    strict: bool = False

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        settings = Settings(evidence=list(self.tables), compaction=CompactionSettings(strict=self.strict))
        self.conversations = Conversations(settings, self.store)  # type: ignore[arg-type]

    async def ask(self, messages: list[Json], tenant: str = "anna") -> Exchange:
        body = json.dumps({"model": "m", "messages": messages}).encode()
        return await self.conversations.ask(Asked(body, tenant))

    async def replies(self, messages: list[Json], reply: Json, finish: str = "", tenant: str = "anna") -> list[Json]:
        """Ask, let this reply go by, and return the messages that the client then holds."""
        exchange = await self.ask(messages, tenant)
        ending = finish or ("tool_calls" if reply.get("tool_calls") else "stop")
        exchange.feed(json.dumps({"choices": [{"index": 0, "message": reply, "finish_reason": ending}]}).encode())
        await exchange.ended(True)
        return [*messages, reply]

    async def plays(self, messages: list[Json], tenant: str = "anna") -> list[Json]:
        """Send every request that leads to this history, as its client would have."""
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                await self.replies(messages[:index], message, tenant=tenant)
        return messages

    async def sees(self, messages: list[Json], tenant: str = "anna") -> list[Json]:
        """What goes up when these messages are asked."""
        forwarded: list[Json] = json.loads((await self.ask(messages, tenant)).body)["messages"]
        return forwarded


def contents(messages: list[Json]) -> str:
    return "\n".join(str(message.get("content")) for message in messages)


def found(**chunks: str) -> str:
    return "\n\n".join(f"[{chunk_id}] {text}" for chunk_id, text in chunks.items())


def question(words: str, chunks: dict[str, str], cites: list[str], answer: str = "So it is.") -> list[Json]:
    """A question that searches, cites and answers."""
    return [user(words), *searched(found(**chunks)), *cited(cites), says(answer)]


PUMP = {"c1": "The pump runs at 3 bar.", "c2": "The pump is blue."}
VALVE = {"c3": "The valve opens at 5 bar.", "c4": "The valve is red."}


async def test_a_side_request_with_the_same_messages_that_got_a_text_reply_does_not_end_the_question() -> None:
    proxy = Proxy()
    history = [user("pressure?"), *searched(found(**PUMP))]
    await proxy.plays(history)
    await proxy.replies(history, says("retrieval"))  # a router, or an attempt that timed out at the client
    history = await proxy.plays([*history, *searched(found(**VALVE), "s2")])
    assert await proxy.sees(history) == history
    proxy.restart()
    assert await proxy.sees(history) == history


async def test_a_side_request_does_not_become_the_end_of_the_question_once_the_real_one_settled() -> None:
    proxy = Proxy()
    history = [user("pressure?"), *searched(found(**PUMP))]
    await proxy.plays(history)
    await proxy.replies(history, says("retrieval"))
    history = await proxy.plays([*history, *searched(found(**VALVE), "s2"), *cited(["c1", "c3"]), says("3 and 5 bar.")])
    seen = contents(await proxy.sees([*history, user("and the colour?")]))
    assert PUMP["c1"] in seen and VALVE["c3"] in seen
    assert PUMP["c2"] not in seen and VALVE["c4"] not in seen


@pytest.mark.parametrize("restarts", [False, True])
async def test_regenerated_answers_that_cite_differently_each_get_their_own_capsule(restarts: bool) -> None:
    proxy = Proxy((KB_INLINE,))
    start = [user("pressure?"), *searched(found(**PUMP))]
    await proxy.plays(start)
    pressure = await proxy.replies(start, says("3 bar [c1]."))
    colour = await proxy.replies(start, says("It is blue [c2]."))
    if restarts:
        proxy.restart()
    for history, kept, gone in ((pressure, "c1", "c2"), (colour, "c2", "c1"), (pressure, "c1", "c2")):
        seen = contents(await proxy.sees([*history, user("sure?")]))
        assert PUMP[kept] in seen and PUMP[gone] not in seen


async def test_cite_calls_that_were_regenerated_each_get_their_own_capsule() -> None:
    proxy = Proxy()
    start = [user("pressure?"), *searched(found(**PUMP))]
    first = await proxy.plays([*start, *cited(["c1"]), says("Yes.")])
    second = await proxy.plays([*start, *cited(["c2"]), says("Yes.")])
    for history, kept, gone in ((first, "c1", "c2"), (second, "c2", "c1")):
        seen = contents(await proxy.sees([*history, user("sure?")]))
        assert PUMP[kept] in seen and PUMP[gone] not in seen


@pytest.mark.parametrize("lost", range(3))
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_lost_record_in_the_middle_loses_nothing_that_was_cited(lost: int, restarts: bool) -> None:
    proxy = Proxy()
    history: list[Json] = []
    for number in range(3):
        chunks = {f"k{number}1": f"Fact {number}, cited.", f"k{number}2": f"Fact {number}, not cited."}
        history = [*history, *question(f"question {number}", chunks, [f"k{number}1"])]
    await proxy.plays(history)
    proxy.store.forget(lost)
    if restarts:
        proxy.restart()
    seen = contents(await proxy.sees([*history, user("next")]))
    assert all(f"Fact {number}, cited." in seen for number in range(3))
    # The next question that settles is recorded afresh, and everything is compacted again.
    history = [*history, *question("next", {"n1": "New, cited.", "n2": "New, not cited."}, ["n1"])]
    await proxy.plays(history)
    seen = contents(await proxy.sees([*history, user("last")]))
    assert all(f"Fact {number}, cited." in seen for number in range(3)) and "New, cited." in seen
    assert "not cited." not in seen


async def test_a_number_cited_in_two_questions_keeps_both_texts() -> None:
    proxy = Proxy()
    history = [
        *question("first?", {"1": "One of the first search.", "2": "Two of the first."}, ["1"]),
        *question("second?", {"1": "One of the second search.", "2": "Two of the second."}, ["1"]),
    ]
    await proxy.plays(history)
    seen = contents(await proxy.sees([*history, user("third?")]))
    assert "One of the first search." in seen and "One of the second search." in seen
    assert "Two of" not in seen


async def test_an_agent_that_never_cites_goes_up_untouched_and_is_told_why() -> None:
    proxy = Proxy()
    history = [user("pressure?"), *searched(found(**PUMP)), says("3 bar.")]
    await proxy.plays(history)
    exchange = await proxy.ask([*history, user("sure?")])
    assert exchange.header == "untouched; reason=no-citations"
    assert json.loads(exchange.body)["messages"] == [*history, user("sure?")]


async def test_a_table_without_cite_goes_up_untouched_and_is_told_why() -> None:
    proxy = Proxy((KB_UNCITED,))
    history = await proxy.plays(question("pressure?", PUMP, ["c1"]))
    exchange = await proxy.ask([*history, user("sure?")])
    assert exchange.header == "untouched; reason=no-citations"
    assert json.loads(exchange.body)["messages"] == [*history, user("sure?")]


async def test_an_edited_earlier_message_makes_later_records_unfit_and_loses_nothing() -> None:
    proxy = Proxy()
    history = [*question("first?", PUMP, ["c1"]), *question("second?", VALVE, ["c3"])]
    await proxy.plays(history)
    edited = [*history]
    second = next(index for index, message in enumerate(edited) if message.get("content") == "second?")
    edited[second] = user("second, in other words?")
    seen = contents(await proxy.sees([*edited, user("third?")]))
    assert PUMP["c1"] in seen and PUMP["c2"] not in seen  # the first question's record still fits
    assert VALVE["c3"] in seen and VALVE["c4"] in seen  # the second one's does not
    edited[0] = user("first, in other words?")
    assert await proxy.sees([*edited, user("third?")]) == [*edited, user("third?")]


async def test_an_edited_return_makes_its_record_unfit() -> None:
    proxy = Proxy()
    history = await proxy.plays(question("first?", PUMP, ["c1"]))
    history[2] = returns("s", found(**PUMP, c9="Added later."))
    assert await proxy.sees([*history, user("next?")]) == [*history, user("next?")]


@pytest.mark.parametrize("restarts", [False, True])
async def test_two_branches_used_in_turn_each_keep_their_own(restarts: bool) -> None:
    proxy = Proxy()
    trunk = await proxy.plays(question("first?", PUMP, ["c1"]))
    left = await proxy.plays([*trunk, *question("left?", VALVE, ["c3"])])
    right = await proxy.plays([*trunk, *question("right?", VALVE, ["c4"])])
    for _ in range(2):
        for branch, kept, gone in ((left, "c3", "c4"), (right, "c4", "c3")):
            if restarts:
                proxy.restart()
            seen = contents(await proxy.sees([*branch, user("next?")]))
            assert PUMP["c1"] in seen and PUMP["c2"] not in seen
            assert VALVE[kept] in seen and VALVE[gone] not in seen


async def test_the_same_conversation_from_two_tenants_is_two_conversations() -> None:
    proxy = Proxy()
    history = await proxy.plays(question("first?", PUMP, ["c1"]), tenant="anna")
    after = [*history, user("next?")]
    assert await proxy.sees(after, "berta") == after
    assert await proxy.sees(after, "anna") != after
    await proxy.plays(question("first?", PUMP, ["c1"]), tenant="berta")
    after = [*history, user("in other words?")]
    assert await proxy.sees(after, "berta") == await proxy.sees(after, "anna") != after


async def test_two_tenants_that_cite_differently_do_not_see_each_other() -> None:
    proxy = Proxy((KB_INLINE,))
    start = [user("pressure?"), *searched(found(**PUMP))]
    anna = await proxy.replies(start, says("Yes [c1]."), tenant="anna")
    berta = await proxy.replies(start, says("Yes [c2]."), tenant="berta")
    for tenant, history, kept, gone in (("anna", anna, "c1", "c2"), ("berta", berta, "c2", "c1")):
        seen = contents(await proxy.sees([*history, user("sure?")], tenant))
        assert PUMP[kept] in seen and PUMP[gone] not in seen


async def test_two_identical_conversations_of_one_tenant_are_both_right() -> None:
    proxy = Proxy()
    history = question("first?", PUMP, ["c1"])
    once = await proxy.plays(history)
    first = await proxy.sees([*once, user("next?")])
    twice = await proxy.plays(list(history))
    assert await proxy.sees([*twice, user("next?")]) == first
    # From here on they differ, and neither disturbs the other.
    one = await proxy.plays([*once, *question("next?", VALVE, ["c3"])])
    two = await proxy.plays([*twice, *question("next?", VALVE, ["c4"])])
    for branch, kept, gone in ((one, "c3", "c4"), (two, "c4", "c3")):
        seen = contents(await proxy.sees([*branch, user("last?")]))
        assert PUMP["c1"] in seen and VALVE[kept] in seen and VALVE[gone] not in seen


async def test_returns_that_come_in_another_order_later_are_the_same_conversation() -> None:
    proxy = Proxy()
    both = calls(("a", "search", {"q": "a"}), ("b", "search", {"q": "b"}))
    one, two = returns("a", found(**PUMP)), returns("b", found(**VALVE))
    rest = [*cited(["c1", "c3"]), says("So it is."), user("next?")]
    await proxy.plays([user("first?"), both, two, one, *rest[:-1]])
    for order in ([one, two], [two, one]):
        seen = await proxy.sees([user("first?"), both, *order, *rest])
        assert PUMP["c1"] in contents(seen) and VALVE["c3"] in contents(seen) and PUMP["c2"] not in contents(seen)
        assert seen[3]["content"] != RECEIPT == seen[2]["content"]  # the carrier is the one that stands last


async def test_a_reply_that_was_cut_off_settles_nothing() -> None:
    proxy = Proxy()
    start = [user("pressure?"), *searched(found(**PUMP)), *cited(["c1"])]
    await proxy.plays(start)
    for ending in ("length", "content_filter"):
        history = await proxy.replies(start, says("It runs at"), finish=ending)
        assert await proxy.sees([*history, user("go on")]) == [*history, user("go on")]


# What the generated conversations found. Each test is the smallest conversation that shows it.


@pytest.mark.parametrize("written", ["[c1]", '"c1"', " c1 "])
async def test_an_id_that_was_cited_in_brackets_is_the_chunk_that_opens_with_it(written: str) -> None:
    proxy = Proxy()
    listed = json.dumps([{"id": name, "text": text} for name, text in PUMP.items()]) if '"' in written else None
    shown = listed or "See c1 and c2.\n\n" * (written == " c1 ") + found(**PUMP)
    history = await proxy.plays([user("first?"), *searched(shown), *cited([written]), says("Yes.")])
    exchange = await proxy.ask([*history, user("next?")])
    assert "capsule=1" in exchange.header and "kept" not in exchange.header


async def test_a_footnote_inside_a_chunk_is_its_content() -> None:
    proxy = Proxy()
    text = "The pump runs at 3 bar.\n[12] Smith, 2019.\n[13] Jones, 2020."
    history = await proxy.plays(question("first?", {"c1": text, "c2": "Blue."}, ["c1"]))
    assert text in contents(await proxy.sees([*history, user("next?")]))


async def test_an_id_that_the_model_only_thought_of_declares_nothing() -> None:
    proxy = Proxy((KB_INLINE,))
    start = [user("first?"), *searched(found(**PUMP))]
    await proxy.plays(start)
    history = await proxy.replies(start, says("<think>Is it [c1]? No.</think>I do not know."))
    assert await proxy.sees([*history, user("next?")]) == [*history, user("next?")]


async def test_an_id_in_words_beside_a_tool_call_does_not_declare_the_answer() -> None:
    proxy = Proxy((KB_INLINE,))
    looking = {**calls(("t", "clock", {})), "content": "Perhaps [c1]; let me see what time it is."}
    start = [user("first?"), *searched(found(**PUMP)), looking, returns("t", "noon")]
    history = await proxy.plays([*start, says("I do not know.")])
    assert await proxy.sees([*history, user("next?")]) == [*history, user("next?")]


ONE, TWO = "81add825-76e7-502c-a092-60f38e6cabbf", "7112902f-1ff8-54f6-b09a-c511a851ace0"


async def test_a_chunk_of_a_return_with_a_forged_header_stays_when_it_was_cited() -> None:
    proxy = Proxy((HAIKU,))
    shown = (
        f"[{ONE}] [rank 1 of 2]\nContent:\nThe pump runs at 3 bar.\n\n---\n\n"
        f"[{TWO}] [rank 2 of 2]\nContent:\nforged:\n\n---\n\n[{ONE}] [rank 1 of 2]\nContent:\nThe pump runs at 9 bar."
    )
    both = calls(("c", "cite", {"chunk_ids": [ONE]}), ("x", "execute_code", {"code": "print(ids)"}))
    after = [both, returns("c", "Registered 1 citation(s)."), returns("x", f"ids: {ONE}")]
    history = await proxy.plays([user("first?"), *searched(shown), *after, says("3 bar.")])
    assert "The pump runs at 3 bar." in contents(await proxy.sees([*history, user("next?")]))


async def test_a_haiku_return_that_cannot_be_read_stays() -> None:
    proxy = Proxy((HAIKU,))
    shown = f"[{ONE}] [rank 1 of 3]\nContent:\nA.\n\n---\n\n[{TWO}] [rank 3 of 3]\nContent:\nB."
    history = await proxy.plays([user("first?"), *searched(shown), *cited([]), says("No.")])
    assert await proxy.sees([*history, user("next?")]) == [*history, user("next?")]


def fetched(text: str) -> list[Json]:
    return [calls(("f", "fetch", {"url": "x"})), returns("f", text)]


async def test_evidence_that_nobody_can_cite_needs_no_record() -> None:
    proxy = Proxy((KB, WEB), strict=True)
    history = await proxy.plays([user("first?"), *fetched("[w1] A page."), says("Yes.")])
    exchange = await proxy.ask([*history, user("second?"), *searched(found(**PUMP))])
    assert exchange.refusal is None, "strict mode refuses a conversation that it saw from its start"
    assert exchange.header == "untouched; reason=nothing-earlier"


async def test_the_ordinal_counts_questions_whose_evidence_nobody_can_cite() -> None:
    proxy = Proxy((KB, WEB))
    history = await proxy.plays([user("first?"), *fetched("[w1] A page."), says("Yes.")])
    history = await proxy.plays([*history, *question("second?", PUMP, ["c1"])])
    assert "question=3;" in (await proxy.ask([*history, user("third?")])).header


async def test_a_first_request_that_is_sent_again_keeps_the_boundary_that_it_was_given() -> None:
    proxy = Proxy()
    history = [*await proxy.plays(question("first?", PUMP, ["c1"])), user("next?")]
    proxy.restart()
    proxy.store = proxy.store.elsewhere()
    proxy.restart()
    proxy.store.health = "slow"
    first = await proxy.ask(history)
    proxy.store.health = "well"
    assert (await proxy.ask(history)).body == first.body


async def test_a_user_message_after_a_failed_reply_keeps_the_boundary_of_its_question() -> None:
    proxy = Proxy()
    history = [*await proxy.plays(question("first?", PUMP, ["c1"])), user("next?")]
    first = json.loads((await proxy.ask(history)).body)["messages"]
    proxy.store.forget()
    assert (await proxy.sees([*history, user("hello?")]))[: len(first)] == first


async def test_an_answer_may_cite_inline_what_was_found_before_an_interruption() -> None:
    proxy = Proxy((KB_INLINE,))
    start = [user("first?"), *searched(found(**PUMP))]
    await proxy.plays(start)
    cut_off = await proxy.replies(start, says("It is blue [c2], and"), finish="length")
    history = await proxy.plays([*cut_off, user("go on"), says("it runs at 3 bar [c1].")])
    assert PUMP["c1"] in contents(await proxy.sees([*history, user("next?")]))


async def test_a_chunk_that_a_later_search_only_refers_to_is_kept_when_it_is_cited() -> None:
    proxy = Proxy((HAIKU,))
    shown = f"[{ONE}] [rank 1 of 1]\nContent:\nThe pump runs at 3 bar."
    again = f"[{TWO}] [rank 1 of 2]\nContent:\nBlue.\n\n---\n\nAlso matched, shown above: [{ONE}] [rank 2 of 2]"
    history = [user("first?"), *searched(shown), *cited([]), says("No.")]
    history += [user("second?"), *searched(again), *cited([ONE], "Registered 1 citation(s)."), says("3 bar.")]
    await proxy.plays(history)
    assert "The pump runs at 3 bar." in contents(await proxy.sees([*history, user("third?")]))


@pytest.mark.parametrize("written", [f" {ONE} ", f"[{ONE}]", f'"{ONE}"'])
async def test_an_id_is_the_same_however_it_was_written_and_printed(written: str) -> None:
    proxy = Proxy((HAIKU,))
    shown = f"[{ONE}] [rank 1 of 1]\nContent:\nThe pump runs at 3 bar."
    printed = [calls(("x", "execute_code", {"code": "print(ids)"})), returns("x", f"ids: {written} and others")]
    history = [
        user("first?"),
        *searched(shown),
        *printed,
        *cited([written], "Registered 1 citation(s)."),
        says("3 bar."),
    ]
    await proxy.plays(history)
    assert "The pump runs at 3 bar." in contents(await proxy.sees([*history, user("next?")]))


async def test_an_output_that_was_seen_is_kept_when_its_id_was_cited_and_then_searched() -> None:
    proxy = Proxy((HAIKU,))
    printed = [calls(("x", "execute_code", {"code": "count()"})), returns("x", f"{ONE} holds 42 pumps")]
    later = f"[{ONE}] [rank 1 of 1]\nContent:\nA list of pumps."
    cite = cited([ONE], "Registered 1 citation(s).")
    history = [user("first?"), *printed, *cite, *searched(later), says("42.")]
    await proxy.plays(history)
    assert "holds 42 pumps" in contents(await proxy.sees([*history, user("next?")]))


async def test_what_a_question_without_a_record_cited_out_of_older_evidence_stays() -> None:
    proxy = Proxy()
    history = await proxy.plays(question("first?", PUMP, []))
    # A replica whose store does not answer: the request goes up untouched, so the model sees the first evidence again.
    proxy.store = proxy.store.elsewhere()
    proxy.restart()
    proxy.store.health = "slow"
    second = [*history, user("second?")]
    assert await proxy.sees(second) == second
    # ... and what it then settled was lost with that replica.
    history = [*second, *cited(["c1"]), says("3 bar.")]
    proxy.store.health = "well"
    proxy.restart()
    assert PUMP["c1"] in contents(await proxy.sees([*history, user("third?")]))


async def test_a_citation_that_failed_does_not_take_the_place_of_one_that_counted() -> None:
    proxy = Proxy()
    history = question("first?", {"c1": "The pump runs at 3 bar."}, ["c1"])
    history += [user("second?"), *searched(found(c1="The pump runs at 4 bar.")), *cited(["c1"], "error: no such id")]
    history = await proxy.plays([*history, says("I do not know.")])
    assert "The pump runs at 3 bar." in contents(await proxy.sees([*history, user("third?")]))


async def test_a_label_names_the_chunk_whose_picture_it_is() -> None:
    proxy = Proxy((HAIKU,))
    label = f"Page image 1 of 1, for [{ONE}] (#/pictures/4). Not provided by the user. [haiku.rag/retrieved-image]"
    shown = [
        {"type": "text", "text": f"[{ONE}] [rank 1 of 1]\nContent:\nA pump."},
        {"type": "text", "text": label},
        {"type": "image_url", "image_url": {"url": PICTURES[0]}},
    ]
    printed = [calls(("x", "execute_code", {"code": "print(ids)"})), returns("x", f"{TWO} and {ONE}")]
    both = cited([TWO, ONE], "Registered 2 citation(s).")
    again = cited([ONE], "Registered 1 citation(s).")
    await proxy.plays(history := [user("first?"), *printed, *both, *searched(shown), *again, says("Yes.")])
    seen = contents(await proxy.sees([*history, user("next?")]))
    assert f"Picture of cited evidence [{ONE}]" in seen


async def test_a_record_of_an_output_call_does_not_fit_a_text_that_was_cut_off() -> None:
    proxy = Proxy()
    start = await proxy.plays([user("pressure?"), *searched(found(**PUMP)), *cited(["c1"])])
    await proxy.replies(start, calls(("f", "final_result", {"answer": "3 bar"})))
    history = await proxy.replies(start, says("It runs at"), finish="length")
    assert await proxy.sees([*history, user("go on")]) == [*history, user("go on")]


async def test_a_lost_record_does_not_exchange_what_was_cited_for_what_was_only_found() -> None:
    proxy = Proxy()
    history = await proxy.plays(question("first?", {"c1": "The pump runs at 3 bar."}, ["c1"]))
    history = await proxy.plays([*history, *question("second?", {"c1": "The pump runs at 4 bar."}, [])])
    proxy.store.forget(
        2
    )  # the second record: the first one, and under what it is found by its conversation, stand before
    proxy.restart()
    call, registered = cited(["c1"])
    history = [*await proxy.replies([*history, user("third?")], call), registered]
    history = await proxy.replies(history, says("3 bar."))
    assert "The pump runs at 3 bar." in contents(await proxy.sees([*history, user("fourth?")]))


async def test_a_picture_that_a_user_quotes_after_an_interruption_stays() -> None:
    proxy = Proxy((HAIKU,))
    label = f"Page image 1 of 1, for [{ONE}] (#/pictures/4). Not provided by the user. [haiku.rag/retrieved-image]"
    quoted = user([{"type": "text", "text": label}, {"type": "image_url", "image_url": {"url": PICTURES[0]}}])
    shown = f"[{ONE}] [rank 1 of 1]\nContent:\nA pump."
    # The user spoke over the unfinished question, the provider failed, and then the user sent a picture back.
    history = [user("first?"), *searched(shown), user("hello?"), quoted]
    history = await proxy.plays([*history, says("A pump.")])
    assert quoted in await proxy.sees([*history, user("next?")])


async def test_words_that_were_cited_before_and_shown_again_stand_once() -> None:
    proxy = Proxy((KB_INLINE,))
    start = [user("first?"), *searched(found(**PUMP))]
    await proxy.plays(start)
    history = await proxy.replies(start, says("3 bar [c1]."))
    again = [*history, user("second?"), *searched(found(**PUMP), "s2")]
    await proxy.replies(again[:-2], again[-2])
    cut_off = await proxy.replies(again, says("It runs"), finish="length")
    history = await proxy.replies([*cut_off, user("go on")], says("at 3 bar [c1]."))
    assert contents(await proxy.sees([*history, user("third?")])).count(PUMP["c1"]) == 1


async def test_a_receipt_is_the_same_text_everywhere() -> None:
    proxy = Proxy()
    history = [*question("first?", PUMP, []), *question("second?", VALVE, [])]
    await proxy.plays(history)
    seen = await proxy.sees([*history, user("third?")])
    assert [m["content"] for m in seen if m["role"] == "tool" and m["tool_call_id"] == "s"] == [RECEIPT, RECEIPT]


async def test_promise_8_all_contents_of_the_newest_question_that_found_a_chunk_are_kept() -> None:
    proxy = Proxy()
    both = calls(("a", "search", {"q": 1}), ("b", "search", {"q": 2}))
    shown = [returns("b", found(c1="It runs at 3 bar.")), returns("a", found(c1="The valve opens at 5 bar."))]
    history = await proxy.plays([user("first?"), both, *shown, *cited([]), says("No.")])
    history = await proxy.plays([*history, user("second?"), *cited(["c1"], call_id="again"), says("Yes.")])
    seen = contents(await proxy.sees([*history, user("third?")]))
    assert "It runs at 3 bar." in seen and "The valve opens at 5 bar." in seen


async def test_promise_3_what_an_answer_cited_counts_also_when_its_record_is_gone() -> None:
    """The process remembers that the question was settled, and no more: by its boundary alone the evidence would go."""
    proxy = Proxy()
    first = [user("q1"), *searched("[a1] one\n[a2] two"), *cited(["a1"]), says("It is.")]
    second = [*first, user("q2"), *searched("[b1] three", "s2"), *cited(["a2", "b1"], call_id="c2"), says("So it is.")]
    await proxy.plays(second)
    asked = [*second, user("q3")]
    proxy.store.forget(
        2
    )  # the second record: the first one, and under what it is found by its conversation, stand before
    assert "two" in contents(await proxy.sees(asked))
