"""The judge's cases, small and in our own words: what a question leaves for the next one, over a socket.

Each test plays a conversation as an agent would hold it and says what its last request must look like upstream. What
holds of every request (promises 1, 2, 4, 6 and 7) is checked of all of them at the end.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from PIL import Image

from tests.conftest import StartHere
from tests.house.provider import Provider, completion
from tests.rewrites import Entry, NotARewrite, Turn, assert_pairs, assert_stable, cut, drive, pictures_in, read_ours

KB = {"name": "kb", "format": "haiku", "tools": ["search", "execute_code"]}


def chunk_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


TIDE, MOON, REEF, SALT = (chunk_id(name) for name in ("tide", "moon", "reef", "salt"))


def found(*chunks: tuple[str, str] | tuple[str, str, str | None] | tuple[str, str, str | None, str]) -> str:
    """A search's return, as haiku.rag writes one: chunks of (id, content, source, collection)."""
    pieces = []
    for rank, (name, content, *more) in enumerate(chunks, 1):
        lines = [f"[{name}] [rank {rank} of {len(chunks)}]"]
        lines += [f"{key}: {value}" for key, value in zip(("Source", "Collection"), more, strict=False) if value]
        pieces.append("\n".join([*lines, "Content:", content]))
    return "\n\n---\n\n".join(pieces)


def picture(colour: str) -> tuple[str, bytes]:
    """A small picture as a data URL, and its bytes."""
    out = io.BytesIO()
    Image.new("RGB", (2, 2), colour).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode(), out.getvalue()


def label(name: str, reference: str) -> str:
    return f"Result picture [{name}] ({reference}). Not provided by the user. [haiku.rag/retrieved-image]"


class Talk:
    """An agent's side of a conversation: it sends its whole history with each request, and never changes it."""

    def __init__(self, url: str, provider: Provider, stream: bool) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer from what you find. \u2713"}]
        self.turns: list[tuple[int, Turn]] = []
        self._url, self._provider, self._stream = url, provider, stream
        self._opened: list[int] = []
        self._calls = 0

    def asks(self, text: str) -> None:
        """A new question."""
        self._opened.append(len(self.messages))
        self.says(text)

    def says(self, content: str | list[dict[str, Any]]) -> None:
        """A user message inside the question."""
        self.messages.append({"role": "user", "content": content})

    def shows(self, *pictures: tuple[str, str]) -> None:
        """A user message of (label, picture), as frameworks send what a tool returned besides text."""
        self.says(
            [
                part
                for line, url in pictures
                for part in (
                    {"type": "text", "text": line},
                    {"type": "image_url", "image_url": {"url": url}},
                )
            ]
        )

    async def calls(self, *tools: tuple[str, dict[str, Any], Any], text: str | None = None) -> Turn:
        """The model calls tools (name, arguments, what each returns), in one reply; None is still to come."""
        named = []
        for name, arguments, _ in tools:
            self._calls += 1
            named.append((f"call_{self._calls}", name, json.dumps(arguments)))
        turn = await self._reply(text, named)
        for (call, _, _), (_, _, content) in zip(named, tools, strict=True):
            if content is not None:
                self.returns(call, content)
        return turn

    def returns(self, call: str, content: Any) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call, "content": content})

    async def searches(self, *returns: Any) -> Turn:
        return await self.calls(*(("search", {"query": f"q{n}"}, content) for n, content in enumerate(returns)))

    async def cites(self, *ids: str) -> Turn:
        said = f"Registered {len(ids)} citation(s)." if ids else "Recorded: nothing is cited."
        return await self.calls(("cite", {"chunk_ids": list(ids)}, said))

    async def answers(self, text: str = "So it is.") -> Turn:
        return await self._reply(text, [])

    async def _reply(self, text: str | None, calls: list[tuple[str, str, str]]) -> Turn:
        body = json.dumps(
            {"model": "m", "stream": self._stream, "messages": self.messages, "tools": [], "x": 1.0},
            ensure_ascii=False,
        ).encode()
        (turn,) = await drive(self._url, self._provider, [(body, completion(text, calls))], stream=self._stream)
        self.turns.append((len(self._opened), turn))
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            said["tool_calls"] = [
                {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call, name, arguments in calls
            ]
        self.messages.append(said)
        return turn

    def holds(self) -> None:
        """What is promised of every request."""
        for question, turn in self.turns:
            assert_pairs(turn.forwarded)  # promise 4
            done = turn.rewrite()  # promise 1: it raises where anything but evidence changed
            assert all(at < self._opened[question - 1] for at in [*done.replaced, *done.removed]), "promise 2"
            assert len(pictures_in(turn.forwarded)) <= len(pictures_in(turn.sent)), "promise 6"
        for (before, turn), (after, following) in pairwise(self.turns):
            assert before != after or assert_stable(turn, following), "promise 7"


StartTalk = Callable[..., Awaitable[Talk]]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
async def start(request: pytest.FixtureRequest, start_here: StartHere, provider: Provider) -> AsyncIterator[StartTalk]:
    """Starts a conversation through a fresh proxy; at the end, what is promised of every request must hold."""
    talks: list[Talk] = []

    async def begin(**table: Any) -> Talk:
        proxy = await start_here(evidence=[{**KB, **table}])
        talks.append(Talk(proxy.url, provider, request.param))
        return talks[-1]

    yield begin
    for talk in talks:
        talk.holds()


async def test_promise_8_the_next_question_sees_what_was_cited_whole_and_nothing_else(start: StartTalk) -> None:
    talk = await start()
    talk.asks("What moves the sea?")
    first = await talk.searches(
        found((TIDE, "Tides rise.\n\nTwice a day.", '"Sea" > Tides'), (MOON, "The moon pulls."))
    )
    assert first.evidence == "untouched; reason=no-evidence"
    second = await talk.cites(TIDE)
    assert second.evidence == "untouched; reason=nothing-earlier" and second.forwarded == second.sent
    await talk.answers()
    talk.asks("And what else?")
    turn = await talk.answers()
    done = turn.rewrite()
    assert (done.carrier, done.receipts) == (3, [])
    assert done.groups == [[Entry((TIDE,), "Tides rise.\n\nTwice a day.", '"Sea" > Tides')]]
    size = f"before={len(turn.sent)}; after={len(turn.forwarded)}"
    assert turn.evidence == f"compacted; question=2; capsule=1; receipts=0; {size}"


async def test_promises_5_and_8_groups_are_by_the_newest_question_that_cited_and_content_is_of_the_newest_that_found(
    start: StartTalk,
) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise."), (MOON, "The moon pulls.")))
    await talk.cites(TIDE, MOON)
    await talk.answers()
    talk.asks("Two?")
    await talk.searches(found((SALT, "Salt stays.")))
    await talk.cites()
    await talk.answers()
    talk.asks("Three?")
    await talk.searches(found((TIDE, "At noon the tides rise, says the almanac."), (REEF, "Reefs break waves.")))
    during = await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Four?")
    turn = await talk.answers()
    assert sorted(entry.ids for entry in during.rewrite().entries) == sorted([(TIDE,), (MOON,)])
    done = turn.rewrite()
    assert done.replaced == [3, 9, 15] and done.carrier == 15
    assert [[(e.ids, e.content) for e in group] for group in done.groups] == [
        [((TIDE,), "At noon the tides rise, says the almanac.")],
        [((MOON,), "The moon pulls.")],
    ]


async def test_promise_8_cited_again_without_being_found_again_it_keeps_its_content(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise."), (MOON, "The moon pulls.")))
    await talk.cites(TIDE, MOON)
    await talk.answers()
    talk.asks("Two?")
    await talk.cites(MOON)
    await talk.answers()
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert done.groups == [[Entry((MOON,), "The moon pulls.")], [Entry((TIDE,), "Tides rise.")]]


async def test_promises_4_and_5_of_parallel_searches_the_last_carries_and_an_overlap_is_kept_once(
    start: StartTalk,
) -> None:
    talk = await start()
    talk.asks("Both?")
    await talk.searches(
        found((TIDE, "Tides rise."), (MOON, "The moon pulls.")), found((SALT, "Salt stays."), (TIDE, "Tides rise."))
    )
    await talk.cites(TIDE, SALT)
    await talk.answers()
    talk.asks("So?")
    done = (await talk.answers()).rewrite()
    assert (done.receipts, done.carrier) == ([3], 4)
    assert sorted(entry.ids for entry in done.entries) == sorted([(TIDE,), (SALT,)])
    assert done.content == {TIDE: "Tides rise.", SALT: "Salt stays."}


async def test_promise_6_cited_pictures_come_back_and_a_picture_that_does_not_decode_has_no_label(
    start: StartTalk,
) -> None:
    red, red_bytes = picture("red")
    blue, _ = picture("blue")
    damaged = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\nno more").decode()
    talk = await start()
    talk.asks("A drawing?")
    await talk.searches(found((TIDE, "A drawing of tides."), (MOON, "A drawing of the moon.")))
    talk.shows((label(TIDE, "#/pictures/0"), red), (label(TIDE, "#/pictures/1"), damaged), (label(MOON, "#/p/2"), blue))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("And now?")
    turn = await talk.answers()
    done = turn.rewrite()
    assert done.removed == [4] and done.pictures_after in (3, 4)
    assert [(p.chunk_id, p.reference, p.picture) for p in done.pictures] == [(TIDE, "#/pictures/0", red_bytes)]
    assert pictures_in(turn.forwarded) == [red_bytes]


async def test_promise_6_pictures_of_what_was_not_cited_go_with_it(start: StartTalk) -> None:
    red, _ = picture("red")
    talk = await start()
    talk.asks("A drawing?")
    await talk.searches(found((TIDE, "A drawing of tides."), (MOON, "The moon pulls.")))
    talk.shows((label(TIDE, "#/pictures/0"), red))
    await talk.cites(MOON)
    await talk.answers()
    talk.asks("And now?")
    turn = await talk.answers()
    assert (turn.rewrite().removed, turn.rewrite().pictures) == ([4], [])


async def test_promise_1_a_users_own_picture_stays_whatever_its_words(start: StartTalk) -> None:
    red, red_bytes = picture("red")
    talk = await start()
    talk.asks("A drawing?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("placeholder")
    talk.messages.pop()
    talk.shows((label(TIDE, "#/pictures/0"), red))  # it opens the question: it is the user's own
    await talk.answers()
    talk.asks("And now?")
    turn = await talk.answers()
    assert turn.rewrite().removed == [] and turn.rewrite().carrier == 3
    assert pictures_in(turn.forwarded) == [red_bytes]


async def test_promise_8_collections_are_named_where_entries_span_more_than_one(start: StartTalk) -> None:
    red, red_bytes = picture("red")
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.", '"Sea"', "sea"), (MOON, "The moon pulls.", '"Sky"', "sky")))
    marked = f"Result picture [{TIDE}] (#/p/0). Collection: sea. Not provided by the user. [haiku.rag/retrieved-image]"
    talk.shows((marked, red))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    one = (await talk.searches(found((REEF, "Reefs break waves.", None, "sky")))).rewrite()
    await talk.cites(REEF)
    await talk.answers()
    talk.asks("Three?")
    two = (await talk.answers()).rewrite()
    assert one.groups == [[Entry((TIDE,), "Tides rise.", '"Sea"')]]
    assert [p.collection for p in one.pictures] == [None]
    assert two.groups == [
        [Entry((REEF,), "Reefs break waves.", None, "sky")],
        [Entry((TIDE,), "Tides rise.", '"Sea"', "sea")],
    ]
    assert [(p.collection, p.picture) for p in two.pictures] == [("sea", red_bytes)]


async def test_promise_5_with_nothing_cited_there_are_only_receipts(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.answers()
    talk.asks("Two?")
    await talk.searches(found((MOON, "The moon pulls.")))
    await talk.cites()
    await talk.answers()
    talk.asks("Three?")
    turn = await talk.answers()
    assert turn.rewrite().receipts == [3, 7] and turn.rewrite().carrier is None
    assert turn.evidence.startswith("compacted; question=3; capsule=0; receipts=2;")


async def test_promise_3_a_question_that_never_declared_keeps_its_evidence_where_the_table_says_so(
    start: StartTalk,
) -> None:
    talk = await start(undeclared="keep")
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.answers()
    talk.asks("Two?")
    await talk.searches(found((MOON, "The moon pulls.")))
    await talk.cites()
    await talk.answers()
    talk.asks("Three?")
    turn = await talk.answers()
    assert turn.rewrite().replaced == [7]
    assert turn.figures["kept"] == "1"


async def test_promise_5_a_search_that_found_nothing_is_evidence_and_can_carry(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    await talk.searches("No results found.")
    await talk.cites()
    await talk.answers()
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert (done.receipts, done.carrier) == ([3], 9)
    assert done.content == {TIDE: "Tides rise."}


async def test_promise_8_an_id_cited_out_of_a_programs_output_keeps_that_whole_output(start: StartTalk) -> None:
    printed = f"{TIDE} Tides rise.\n{MOON} The moon pulls.\n\nthree rows\n"
    talk = await start()
    talk.asks("One?")
    await talk.calls(("execute_code", {"code": "print(1)"}, printed))
    await talk.cites(MOON, TIDE)
    await talk.answers()
    talk.asks("Two?")
    await talk.calls(("execute_code", {"code": "print(2)"}, "42\n"))
    await talk.cites()
    await talk.answers()
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert (done.receipts, done.carrier) == ([3], 9)
    (entry,) = done.entries  # once, under both ids
    assert sorted(entry.ids) == sorted([TIDE, MOON])
    assert (entry.content, entry.source) == (printed, None)


async def test_promise_5_a_tool_that_failed_is_a_return_like_any_other(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.calls(("execute_code", {"code": "1/0"}, '{"error":"ZeroDivisionError: division by zero"}'))
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    done = (await talk.answers()).rewrite()
    assert (done.receipts, done.carrier) == ([3], 5)


async def test_promise_5_a_refused_search_is_the_newest_return_and_carries(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.searches('{"error":"Search limit reached. Use what you have."}')
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    done = (await talk.answers()).rewrite()
    assert (done.receipts, done.carrier, done.content) == ([3], 5, {TIDE: "Tides rise."})


async def test_promise_1_a_retry_prompt_in_a_returns_place_is_no_return(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches("1 validation error:\nlimit: not a number\n\nFix the errors and try again.")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    assert (await talk.answers()).rewrite().replaced == [5]


async def test_promises_2_and_7_a_question_that_waits_for_a_human_and_resumes_is_one_question(
    start: StartTalk,
) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    await talk.searches(found((MOON, "The moon pulls.")))
    paused = await talk.calls(("ask_human", {"question": "go on?"}, None))
    talk.returns(talk.messages[-1]["tool_calls"][0]["id"], "yes")
    resumed = await talk.cites(MOON)
    await talk.answers()
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert paused.rewrite().replaced == resumed.rewrite().replaced == [3]
    assert (done.receipts, done.carrier) == ([3], 9)
    assert done.content == {MOON: "The moon pulls.", TIDE: "Tides rise."}


async def test_promise_5_an_output_tools_call_ends_a_question(start: StartTalk) -> None:
    talk = await start()
    talk.asks("One, in structured form?")
    await talk.searches(found((TIDE, "Tides rise."), (MOON, "The moon pulls.")))
    await talk.cites(MOON)
    await talk.calls(("final_result", {"answer": "the moon"}, "Final result processed."))
    talk.asks("Two?")
    turn = await talk.answers()
    assert turn.rewrite().groups == [[Entry((MOON,), "The moon pulls.")]]
    assert turn.figures["question"] == "2"


@pytest.mark.parametrize(
    "feedback",
    [
        "Validation feedback:\ntoo long\n\nFix the errors and try again.",
        "2 validation errors:\n[]\n\nFix the errors and try again.",
        "Please cite first. [haiku.rag/citation-redirect]",
        "Your previous response failed the application's validation (this is automated feedback, not a message "
        "from the user):\n<pyai:validation_errors>\n[]\n</pyai:validation_errors>",
    ],
    ids=["retry", "errors", "redirect", "validation"],
)
async def test_promise_2_a_framework_that_asks_for_a_correction_opens_nothing(start: StartTalk, feedback: str) -> None:
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise.")))
    await talk.answers("A very long answer.")
    talk.says(feedback)
    corrected = await talk.cites(TIDE)
    assert corrected.forwarded == corrected.sent
    await talk.answers("Short.")
    talk.asks("Two?")
    assert (await talk.answers()).rewrite().content == {TIDE: "Tides rise."}


async def test_promise_2_what_is_cited_now_changes_nothing_until_the_next_question(start: StartTalk) -> None:
    """`run_stream`, where text and calls come in one reply, and a search stands beside the cite."""
    talk = await start()
    talk.asks("One?")
    await talk.searches(found((TIDE, "Tides rise."), (MOON, "The moon pulls.")))
    await talk.cites(TIDE)
    await talk.answers()
    talk.asks("Two?")
    first = await talk.calls(
        ("search", {"query": "reef"}, found((REEF, "Reefs break waves."))),
        ("cite", {"chunk_ids": [MOON]}, "Registered 1 citation(s)."),
        text="Let me look again.",
    )
    second = await talk.answers()
    assert first.rewrite().groups == second.rewrite().groups == [[Entry((TIDE,), "Tides rise.")]]
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert done.content == {MOON: "The moon pulls.", TIDE: "Tides rise."}
    assert done.ids == [[(MOON,)], [(TIDE,)]]


# What tools of any framework return.

AUTO = {"format": "auto", "tools": ["search"], "cite": "cite"}
RECORDS = [
    {"chunk_id": "c1", "text": "Café at nine.", "score": 0.5},
    {"chunk_id": "c2", "text": "No menu.", "score": None},
]
DOCUMENTS = [
    {"id": "c1", "page_content": "Café at nine.", "metadata": {}, "type": "Document"},
    {"id": "c2", "page_content": "No menu.", "metadata": {}, "type": "Document"},
]
CONTRACT = {"results": [{"id": "c1", "text": "Café at nine."}, {"id": "c2", "text": "No menu."}]}
TEXT = "[c1] Café at nine.\n[c2] No menu."


@pytest.mark.parametrize(
    "returned",
    [
        json.dumps(RECORDS),
        json.dumps(RECORDS, ensure_ascii=False, separators=(",", ":")),
        repr(RECORDS),
        json.dumps(DOCUMENTS),
        json.dumps(CONTRACT),
        TEXT,
        json.dumps({"result": TEXT}),
        json.dumps([TEXT]),
        [{"type": "text", "text": TEXT}],
    ],
    ids=["spaced", "compact", "repr", "documents", "contract", "text", "wrapped", "listed", "part"],
)
async def test_promises_5_and_8_what_a_tool_of_any_framework_returns_is_read(start: StartTalk, returned: Any) -> None:
    talk = await start(**AUTO)
    talk.asks("One?")
    await talk.searches(returned)
    await talk.cites("c1")
    await talk.answers()
    talk.asks("Two?")
    turn = await talk.answers()
    assert turn.rewrite().groups == [[Entry(("c1",), "Café at nine.")]]
    assert b"No menu." not in turn.forwarded


async def test_promise_3_a_question_that_never_declared_keeps_its_evidence_in_any_frameworks_form(
    start: StartTalk,
) -> None:
    talk = await start(**AUTO)
    talk.asks("One?")
    await talk.searches(TEXT)
    await talk.answers()
    talk.asks("Two?")
    turn = await talk.answers()
    assert turn.forwarded == turn.sent and turn.evidence == "untouched; reason=no-citations"


async def test_promise_6_a_picture_inside_a_return_comes_back_inside_the_carrier(start: StartTalk) -> None:
    red, red_bytes = picture("red")
    blue, _ = picture("blue")
    talk = await start(**AUTO)
    talk.asks("One?")
    await talk.searches(
        [
            {"type": "text", "text": "[c1] A red square."},
            {"type": "image_url", "image_url": {"url": red}},
            {"type": "text", "text": "[c2] A blue square."},
            {"type": "image_url", "image_url": {"url": blue}},
        ]
    )
    await talk.cites("c1")
    await talk.answers()
    talk.asks("Two?")
    turn = await talk.answers()
    done = turn.rewrite()
    assert done.pictures_after == -1 and done.content == {"c1": "A red square."}
    assert [(p.chunk_id, p.picture) for p in done.pictures] == [("c1", red_bytes)]
    assert pictures_in(turn.forwarded) == [red_bytes]


async def test_promise_1_a_picture_that_nothing_marks_as_ours_stays(start: StartTalk) -> None:
    red, red_bytes = picture("red")
    talk = await start(**AUTO)
    talk.asks("One?")
    await talk.searches(TEXT)
    talk.shows(("Image for chunk c2:", red))
    await talk.cites("c1")
    await talk.answers()
    talk.asks("Two?")
    turn = await talk.answers()
    assert turn.rewrite().removed == [] and pictures_in(turn.forwarded) == [red_bytes]


async def test_promise_8_a_number_of_two_searches_is_two_chunks(start: StartTalk) -> None:
    talk = await start(**AUTO)
    talk.asks("One?")
    await talk.searches("[1] Café at nine.\n[2] No menu.")
    await talk.cites("1")
    await talk.answers()
    talk.asks("Two?")
    await talk.searches("[1] Closed in May.\n[2] Open in June.")
    await talk.cites("1")
    await talk.answers()
    talk.asks("Three?")
    done = (await talk.answers()).rewrite()
    assert done.groups == [[Entry(("1",), "Closed in May.")], [Entry(("1",), "Café at nine.")]]


def test_the_reading_of_these_tests_sees_any_byte_that_changed() -> None:
    """Promise 1 is checked on raw slices: numbers, escapes and white space count."""
    user = b'{"role":"user","content":"caf\\u00e9"}'
    tool = b'{"role":"tool","content":"","n":1.0}'
    before = b'{"model":"m","messages":[' + user + b", " + tool + b'],"x":1e5}'
    assert read_ours(before, before).replaced == []
    assert cut(before).messages == [user, tool]
    for old, new in [(b"1e5", b"100000"), (b"\\u00e9", "é".encode()), (b"}, {", b"} ,{"), (b"1.0", b"1")]:
        with pytest.raises(NotARewrite):
            read_ours(before, before.replace(old, new))
