"""The bytes of managed citing: the tool goes in, its calls never reach the client, and several replies are one.

Promises 1 and 10, and what section 7 of the design allows beside them. No network: bytes in, bytes out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from proxy.policy import cite_tool
from proxy.wire import chat, offering, responses
from proxy.wire.chat_rounds import ChatRounds
from proxy.wire.messages import Api, splice
from proxy.wire.repeating import Repeating
from proxy.wire.responses_rounds import ResponsesRounds
from proxy.wire.rounds import Rounds, Said
from tests.house.provider import completion, events
from tests.house.responding import item, response, response_events
from tests.talk import grows_gently

OWN = cite_tool.NAME
CITE = ("call_cite", OWN, {"ids": ["c1"]})
SEARCH = ("call_search", "search", {"q": "more"})

Json = dict[str, Any]


# The tool goes in.


def offer_to(body: bytes, api: Api = chat) -> bytes | None:  # type: ignore[assignment]
    request = api.cut(body)
    offer = offering.read(request)
    if offer.place is None:
        return None
    name = cite_tool.name_beside(offer.names)
    return splice(body, [offering.add(offer.place, cite_tool.definition(api, name))])


CHAT = b'{"messages" : [{"role":"user","content":"q"}]%b}'
TOOL = b'{"type":"function","function":{"name":"search","x":1.0}}'


@pytest.mark.parametrize(
    "beside, tools",
    [
        (b"", 0),
        (b', "tools" : [ ]', 0),
        (b',"tools":null , "n":1', 0),
        (b',"tools": [ ' + TOOL + b" ]", 1),
        (b', "tools":[' + TOOL + b"," + TOOL + b'],"x":1e5', 2),
        (b',"tools":[' + TOOL + b'],"tool_choice":"required","parallel_tool_calls":false', 1),
        (b',"response_format":{"type":"json_object"},"tool_choice":"none"', 0),
    ],
)
def test_promise_1_the_tool_stands_last_and_every_other_byte_stays(beside: bytes, tools: int) -> None:
    body = CHAT % beside
    out = offer_to(body)
    assert out is not None
    before, after = json.loads(body), json.loads(out)
    assert after["tools"][:tools] == (before.get("tools") or [])
    assert [tool["function"]["name"] for tool in after["tools"][tools:]] == [OWN]
    before.pop("tools", None), after.pop("tools")
    assert after == before
    start = next(i for i in range(len(body)) if body[i] != out[i])
    end = next(i for i in range(1, len(body) - start + 2) if i > len(body) - start or body[-i] != out[-i])
    assert body[start : len(body) - end + 1].strip() in (b"", b"null", b"[ ]")


def test_the_tools_bytes_are_the_same_in_every_request_and_fit_a_strict_schema() -> None:
    bodies = [CHAT % b"", CHAT % (b',"tools":[' + TOOL + b"]"), CHAT % b',"tools":[]']
    definition = cite_tool.definition(chat, OWN)  # type: ignore[arg-type]
    assert all(definition in (offer_to(body) or b"") for body in bodies)
    schema = json.loads(definition)["function"]["parameters"]
    assert schema["additionalProperties"] is False and schema["required"] == list(schema["properties"])
    flat = json.loads(cite_tool.definition(responses, OWN))  # type: ignore[arg-type]
    assert (flat["type"], flat["name"], flat["parameters"]) == ("function", OWN, schema)


def test_a_clients_tool_of_the_same_name_keeps_it_and_ours_takes_another() -> None:
    taken = b'{"type":"function","function":{"name":"cite_evidence"}}'
    out = offer_to(CHAT % (b',"tools":[' + taken + b"]"))
    assert out is not None
    assert [tool["function"]["name"] for tool in json.loads(out)["tools"]] == ["cite_evidence", "cite_evidence_2"]


@pytest.mark.parametrize(
    "beside", [b',"functions":[{"name":"search"}]', b',"tools":[],"tools":[]', b',"tools":{}', b',"tools":"all"']
)
def test_promise_1_where_a_tool_cannot_be_added_nothing_is(beside: bytes) -> None:
    assert offer_to(CHAT % beside) is None


@pytest.mark.parametrize("said", [b'"q"', b'[{"role":"user","content":"q"}]', b'[{"type":"item_reference","id":"x"}]'])
@pytest.mark.parametrize("tools", [b"", b',"tools":[{"type":"function","name":"search"},{"type":"web_search"}]'])
def test_responses_offer_it_alike(said: bytes, tools: bytes) -> None:
    body = b'{"input":' + said + tools + b"}"
    out = offer_to(body, responses)  # type: ignore[arg-type]
    assert out is not None
    assert json.loads(out)["tools"][-1]["name"] == OWN
    assert json.loads(out)["tools"][:-1] == json.loads(body).get("tools", [])


def test_the_tools_place_moves_with_the_conversation_that_stands_before_it() -> None:
    body = b'{"tools":[' + TOOL + b'],"messages":[{"role":"user","content":"q"}]}'
    after = b'{"messages":[{"role":"user","content":"q"}],"tools":[' + TOOL + b"]}"
    for raw in (body, after):
        request = chat.cut(raw)
        place = offering.read(request).place
        assert place is not None
        change = offering.add(place, b'{"n":1}')
        shorter = raw.replace(b'"q"', b'""')
        assert json.loads(splice(shorter, [offering.moved(change, request, len(shorter))]))["tools"][-1] == {"n": 1}


# Its calls come out.


def chat_stream(whole: Json) -> list[bytes]:
    return events(whole)


Wire = tuple[Callable[..., Rounds], Callable[..., Json], Callable[[Json], list[bytes]]]


def one(text: str | None = None, calls: Sequence[tuple[str, str, Any]] = (), **beside: Any) -> Json:
    return completion(text, calls, **beside)


def play(rounds: Rounds, replies: Sequence[Json], streamed: bool, stream: Callable[[Json], list[bytes]]) -> bytes:
    """What the client gets when these replies follow each other, the last one released."""
    out = b""
    for number, whole in enumerate(replies):
        if number:
            rounds.begin()
        for piece in stream(whole) if streamed else [json.dumps(whole).encode()]:
            out += rounds.feed(piece)
        rounds.end(True)
    return out + rounds.release()


def read_chat(out: bytes, streamed: bool) -> Json:
    """The message that a client puts together."""
    if not streamed:
        value = json.loads(out)
        message = value["choices"][0]["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
        return {"text": message.get("content"), "calls": calls, "finish": value["choices"][0]["finish_reason"]}
    said: Json = {"text": "", "calls": {}, "finish": None}
    ids = set()
    blocks = [block for block in out.decode().split("\n\n") if block]
    assert blocks[-1] == "data: [DONE]" and blocks.count("data: [DONE]") == 1
    roles = 0
    for block in blocks[:-1]:
        chunk = json.loads(block.removeprefix("data: "))
        ids.add(chunk["id"])
        for choice in chunk["choices"]:
            assert said["finish"] is None, "something came after the finish"
            delta = choice["delta"]
            roles += "role" in delta
            said["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                known = said["calls"].setdefault(call["index"], ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            said["finish"] = choice["finish_reason"]
    assert len(ids) == 1 and roles == 1
    assert list(said["calls"]) == list(range(len(said["calls"])))
    return said | {"calls": [tuple(call) for call in said["calls"].values()]}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "replies, text, calls, finish",
    [
        ([one(None, [CITE]), one("The answer.")], "The answer.", [], "stop"),
        ([one("The answer.", [CITE]), one("")], "The answer.", [], "stop"),
        ([one("The answer.", [CITE]), one("The answer.")], "The answer.", [], "stop"),
        ([one("The answer.", [CITE]), one("The  answer.\nAnd more.")], "The answer.\nAnd more.", [], "stop"),
        ([one("Let me see.", [CITE]), one("The answer.")], "Let me see.\n\nThe answer.", [], "stop"),
        ([one("First: a long enough answer.", [CITE]), one("a long enough answer.")],
         "First: a long enough answer.", [], "stop"),
        ([one(None, [CITE]), one(None, [CITE]), one("The answer.")], "The answer.", [], "stop"),
        ([one(None, [CITE, SEARCH])], None, [("search", '{"q": "more"}')], "tool_calls"),
        ([one("So.", [SEARCH, CITE, SEARCH])], "So.", [("search", '{"q": "more"}')] * 2, "tool_calls"),
        ([one(None, [CITE]), one("Now.", [SEARCH])], "Now.", [("search", '{"q": "more"}')], "tool_calls"),
        ([one("It breaks", [CITE], finish="length")], "It breaks", [], "length"),
    ],
)  # fmt: skip
def test_the_client_sees_one_reply_without_our_calls(
    streamed: bool, replies: list[Json], text: str | None, calls: list[Any], finish: str
) -> None:
    said = read_chat(play(ChatRounds(OWN), replies, streamed, events), streamed)
    assert (said["text"] or "", said["calls"], said["finish"]) == (text or "", calls, finish)


@pytest.mark.parametrize("stream", [events, lambda whole: [json.dumps(whole).encode()]], ids=["streamed", "whole"])
def test_promise_10_a_reply_without_our_calls_keeps_its_bytes(stream: Callable[[Json], list[bytes]]) -> None:
    for whole in (one("The answer."), one("So.", [SEARCH, ("c", "cite", {"ids": []})]), one("cut", finish="length")):
        pieces = stream(whole)
        rounds = ChatRounds(OWN)
        out = b"".join(map(rounds.feed, pieces))
        rounds.end(True)
        assert out + rounds.release() == b"".join(pieces)


def test_text_streams_through_live() -> None:
    rounds = ChatRounds(OWN)
    for piece in events(one("The answer, said in many words.", [CITE])):
        out = rounds.feed(piece)
        assert (b'"content": ' in piece) == bool(out)


def test_an_event_may_come_in_any_cut_and_with_any_line_ends() -> None:
    replies = [one("Let me see.", [SEARCH, CITE]), one("x")]
    whole = b"".join(events(replies[0]))
    expected = read_chat(play(ChatRounds(OWN), replies[:1], True, events), True)
    cutting = random.Random(7)
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        raw = whole.replace(b"\n\n", end)
        for _ in range(50):
            at = sorted(cutting.sample(range(len(raw)), 5))
            rounds = ChatRounds(OWN)
            pieces = [raw[i:j] for i, j in zip([0, *at], [*at, len(raw)], strict=True)]
            out = b"".join(map(rounds.feed, pieces))
            rounds.end(True)
            assert read_chat((out + rounds.release()).replace(end, b"\n\n"), True) == expected


def test_a_call_whose_name_comes_late_is_known_in_the_end() -> None:
    """Some servers send a call's id first; nothing of it goes out before it is known whose it is."""

    def chunk(*calls: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": {"tool_calls": list(calls)} if calls else {}, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"

    def stream(name: str) -> list[bytes]:
        return [
            chunk({"index": 0, "id": "a", "function": {"arguments": ""}}),
            chunk({"index": 0, "function": {"name": name}}, {"index": 1, "id": "b", "function": {"name": "search"}}),
            chunk({"index": 0, "function": {"arguments": "{}"}}, {"index": 1, "function": {"arguments": "{}"}}),
            chunk(finish="tool_calls"),
        ]

    ours, theirs = ChatRounds(OWN), ChatRounds(OWN)
    seen = b"".join(map(ours.feed, stream(OWN)))
    assert b'"a"' not in seen and seen.count(b'"index": 0') + seen.count(b'"index":0') >= 2
    assert [c.name for c in ours.end(True).others] == ["search"]
    seen = b"".join(map(theirs.feed, stream("find")))
    assert seen.index(b'"id": "a"') < seen.index(b'"name": "find"')
    assert [c.name for c in theirs.end(True).others] == ["find", "search"]


def test_a_whole_reply_in_one_chunk_is_cut_apart() -> None:
    """Some servers stream one chunk that says everything at once."""
    message = one("The answer.", [CITE])["choices"][0]["message"]
    choice = {"index": 0, "delta": message, "finish_reason": "tool_calls"}
    raw = b"data: " + json.dumps({"id": "x", "choices": [choice], "usage": {"prompt_tokens": 1}}).encode() + b"\n\n"
    rounds = ChatRounds(OWN)
    out = rounds.feed(raw) + rounds.feed(b"data: [DONE]\n\n")
    rounds.end(True)
    assert OWN.encode() not in out and b"The answer." in out and b'"finish_reason": null' in out
    said = read_chat(out + rounds.conclude(), True)
    assert (said["text"], said["finish"]) == ("The answer.", "stop")


def test_what_was_said_can_be_the_answer_after_all() -> None:
    whole = one("The answer.", [CITE])
    for streamed in (False, True):
        rounds = ChatRounds(OWN)
        out = b"".join(map(rounds.feed, events(whole) if streamed else [json.dumps(whole).encode()]))
        rounds.end(True)
        rounds.begin()
        out += rounds.feed(
            b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n' if streamed else b""
        )
        rounds.end(False)
        said = read_chat(out + rounds.conclude(), streamed)
        assert (said["text"], said["calls"], said["finish"]) == ("The answer.", [], "stop")


def test_an_error_in_a_further_round_is_not_the_clients() -> None:
    rounds = ChatRounds(OWN)
    out = b"".join(map(rounds.feed, events(one("The answer.", [CITE]))))
    rounds.end(True)
    rounds.begin()
    assert rounds.feed(b'data: {"error":{"message":"overloaded"}}\n\ndata: [DONE]\n\n') == b""
    assert rounds.end(True).error == b'{"error":{"message":"overloaded"}}'
    assert read_chat(out + rounds.conclude(), True)["text"] == "The answer."


def test_what_goes_up_again_says_what_was_said_with_all_that_stood_beside_our_call() -> None:
    whole = one("Let me see.", [CITE])
    whole["choices"][0]["message"]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    for streamed in (False, True):
        rounds = ChatRounds(OWN)
        pieces = events(whole) if streamed else [json.dumps(whole).encode()]
        if streamed:
            signed = b'"type": "function", "extra_content": {"google": {"thought_signature": "s"}}'
            pieces = [piece.replace(b'"type": "function"', signed) for piece in pieces]
        for piece in pieces:
            rounds.feed(piece)
        said = rounds.end(True)
        (again,) = (json.loads(element) for element in said.again)
        assert again == whole["choices"][0]["message"]
        assert said.usage is not None or streamed


# Responses.


def read_response(out: bytes, streamed: bool) -> Json:
    if not streamed:
        return json.loads(out)  # type: ignore[no-any-return]
    told = [json.loads(block.split("data: ", 1)[1]) for block in out.decode().split("\n\n") if block]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told].count("response.created") == 1
    last = told[-1]["response"]
    indices = [event["output_index"] for event in told if event["type"] == "response.output_item.added"]
    assert indices == list(range(len(indices)))
    done = {event["output_index"]: event["item"] for event in told if event["type"] == "response.output_item.done"}
    assert [done[index] for index in sorted(done)] == last["output"]
    texts: dict[int, str] = {}
    for event in told:
        if event["type"] == "response.output_text.delta":
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
        if event["type"] == "response.output_text.done":
            assert texts[event["output_index"]] == event["text"]
    return last  # type: ignore[no-any-return]


def said_in(whole: Json) -> list[tuple[str, str]]:
    return [
        (one["type"], one["content"][0]["text"] if one["type"] == "message" else one.get("name", ""))
        for one in whole["output"]
    ]


def thought(seed: str) -> Json:
    return item("reasoning", seed, summary=[])


MESSAGE, FUNCTION, REASONING = "message", "function_call", ("reasoning", "")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "replies, items",
    [
        ([response(None, [CITE]), response("The answer.")], [(MESSAGE, "The answer.")]),
        ([response("The answer.", [CITE]), response("")], [(MESSAGE, "The answer.")]),
        ([response("The answer.", [CITE]), response("The answer.")], [(MESSAGE, "The answer.")]),
        ([response("The answer.", [CITE]), response("The answer. And more.")],
         [(MESSAGE, "The answer."), (MESSAGE, " And more.")]),
        ([response("Let me see.", [CITE]), response("The answer.")],
         [(MESSAGE, "Let me see."), (MESSAGE, "The answer.")]),
        ([response(None, [CITE, SEARCH])], [(FUNCTION, "search")]),
        ([response("So.", [SEARCH, CITE, SEARCH])], [(MESSAGE, "So."), (FUNCTION, "search"), (FUNCTION, "search")]),
        ([response(None, [CITE]), response(None, [CITE]), response("So.", [SEARCH])],
         [(MESSAGE, "So."), (FUNCTION, "search")]),
        # Reasoning stays with what it led to.
        ([response(None, [CITE], before=[thought("a")]), response("The answer.", before=[thought("b")])],
         [REASONING, (MESSAGE, "The answer.")]),
        ([response("So.", [CITE], before=[thought("a")]), response("The answer.", before=[thought("b")])],
         [REASONING, (MESSAGE, "So."), REASONING, (MESSAGE, "The answer.")]),
        ([response(None, [CITE, SEARCH], before=[thought("a")])], [REASONING, (FUNCTION, "search")]),
        ([response("The answer.", before=[thought("a")])], [REASONING, (MESSAGE, "The answer.")]),
    ],
)  # fmt: skip
def test_a_response_without_our_calls_is_one_response(
    streamed: bool, replies: list[Json], items: list[tuple[str, str]]
) -> None:
    out = play(ResponsesRounds(OWN), replies, streamed, response_events)
    assert OWN.encode() not in out
    assert said_in(read_response(out, streamed)) == items


@pytest.mark.parametrize(
    "stream", [response_events, lambda whole: [json.dumps(whole).encode()]], ids=["streamed", "whole"]
)
def test_promise_10_a_response_without_our_calls_keeps_its_bytes(stream: Callable[[Json], list[bytes]]) -> None:
    for whole in (
        response("The answer.", before=[thought("a")]),
        response("So.", [SEARCH, ("c", "cite", {"ids": []})]),
        response("cut", status="incomplete"),
    ):
        pieces = stream(whole)
        rounds = ResponsesRounds(OWN)
        out = b"".join(map(rounds.feed, pieces))
        rounds.end(True)
        assert out + rounds.release() == b"".join(pieces)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_what_a_response_said_can_be_the_answer_after_all(streamed: bool) -> None:
    rounds = ResponsesRounds(OWN)
    whole = response("The answer.", [CITE])
    out = b"".join(map(rounds.feed, response_events(whole) if streamed else [json.dumps(whole).encode()]))
    rounds.end(True)
    rounds.begin()
    rounds.end(False)
    out += rounds.conclude()
    last = read_response(out, streamed)
    assert (said_in(last), last["status"]) == ([(MESSAGE, "The answer.")], "completed")


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_reasoning_goes_up_again_where_the_provider_can_read_it(stored: bool, streamed: bool) -> None:
    hidden, sealed = thought("a"), thought("a") | {"encrypted_content": "x"}
    for mind, kept in ((hidden, stored), (sealed, True)):
        rounds = ResponsesRounds(OWN, stored=stored)
        whole = response(None, [CITE], before=[mind])
        for piece in response_events(whole) if streamed else [json.dumps(whole).encode()]:
            rounds.feed(piece)
        again = [json.loads(element) for element in rounds.end(True).again]
        assert again[0] == mind if kept else "id" not in again[0]
        assert again[-1]["call_id"] == "call_cite" and again[-1]["arguments"] == '{"ids": ["c1"]}'


# What was said already.


def fed(said: str, *pieces: str) -> str:
    repeating = Repeating(said)
    return "".join(map(repeating.feed, pieces))


@pytest.mark.parametrize(
    "said, again, new",
    [
        ("", "Hello", "Hello"),
        ("Hello", "Hello", ""),
        ("Hello", "Hel", ""),
        ("Hello", "Hello there", " there"),
        ("Hello", "Help", "\n\nHelp"),
        ("Hello\n", "Other", "Other"),
        ("One sentence. Another sentence.", "Another sentence. A third.", " A third."),
        ("I see", "e", ""),
        ("I see it", "it is", "\n\nit is"),
    ],
)
def test_what_is_said_again_is_not_sent_again(said: str, again: str, new: str) -> None:
    assert fed(said, again) == new == fed(said, *again)


def test_promise_10_nothing_new_is_ever_lost() -> None:
    """Whatever was said before: what the client has in the end holds all that the further round said."""
    drawing = random.Random(11)
    for _ in range(2000):
        said = "".join(drawing.choices("ab \n", k=drawing.randrange(40)))
        again = "".join(drawing.choices("ab \n", k=drawing.randrange(40)))
        at = sorted(drawing.sample(range(len(again) + 1), min(3, len(again) + 1)))
        given = said + fed(said, *(again[i:j] for i, j in zip([0, *at], [*at, len(again)], strict=True)))
        bare, wanted = "".join(given.split()), "".join(again.split())
        assert given.startswith(said) and wanted in bare


def test_saying_a_long_answer_again_takes_no_longer_than_saying_it() -> None:
    def works(size: int) -> Callable[[], object]:
        said = "".join(f"word {n} " for n in range(size))
        pieces = [said[at : at + 5] for at in range(0, len(said), 5)]
        return lambda: fed(said, *pieces, "and more")

    assert grows_gently(works, 200)


def test_a_stream_of_ten_thousand_deltas_passes_in_as_many_steps() -> None:
    def works(size: int) -> Callable[[], object]:
        pieces = events(one("x" * size), piece=1)
        rounds = ChatRounds(OWN)
        return lambda: [rounds.feed(piece) for piece in pieces]

    assert grows_gently(works, 200)
    pieces = events(one("x" * 10_000), piece=1)
    rounds = ChatRounds(OWN)
    assert [rounds.feed(piece) for piece in pieces] == pieces


def test_holds_is_told_of_every_reply_that_finishes_and_may_keep_its_end() -> None:
    told: list[Said] = []

    def holds(said: Said) -> bool:
        told.append(said)
        return True

    for make, stream, whole in ((ChatRounds, events, one("Hi")), (ResponsesRounds, response_events, response("Hi"))):
        rounds = make(OWN, holds)
        out = b"".join(map(rounds.feed, stream(whole)))
        rounds.end(True)
        assert b"Hi" in out and out + rounds.release() == b"".join(stream(whole))
    assert [said.text for said in told] == ["Hi", "Hi"]
