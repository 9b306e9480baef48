"""Promise 10 over real streams: what OpenAI, Azure, vLLM, Ollama, OpenRouter, DeepSeek and LiteLLM send comes back to
the byte and chunk by chunk, and settles a question where, and only where, it says that the answer is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import accumulate

from tests.conftest import StartHere
from tests.house.client import Seen, ask
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Received, Reply
from tests.streams import TELLERS, WAYS, Stream, corpus

STREAMS = list(corpus())
KIND = [("Content-Type", "text/event-stream; charset=utf-8")]
TABLES = [{"format": "auto", "tools": ["search"], "cite": "cite"}]


def test_the_corpus_has_two_hundred_streams_that_differ() -> None:
    assert len(STREAMS) == len(TELLERS) * len(WAYS) == 200
    assert len({(stream.name, stream.chunks) for stream in STREAMS}) == 200


def _question(number: int, stream: Stream, answered: bool = False) -> bytes:
    """A question that searched, once more with its answer and a next question if it is `answered`."""
    name = f"{number}: {stream.name}?"
    if stream.api == "responses":
        items = [
            {"role": "user", "content": name},
            {"type": "function_call", "call_id": "s", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "s", "output": "[c1] one\nfirst\n\n[c2] two\nsecond"},
            {"type": "function_call", "call_id": "c", "name": "cite", "arguments": '{"ids": ["c1"]}'},
            {"type": "function_call_output", "call_id": "c", "output": "registered"},
        ]
        more = [{"role": "assistant", "content": "an answer"}, {"role": "user", "content": "next?"}]
        return json.dumps({"stream": True, "input": items + (more if answered else [])}).encode()
    calls = [
        {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": a}}]}
        for i, n, a in (("s", "search", "{}"), ("c", "cite", '{"ids": ["c1"]}'))
    ]
    messages = [
        {"role": "user", "content": name},
        calls[0],
        {"role": "tool", "tool_call_id": "s", "content": "[c1] one\nfirst\n\n[c2] two\nsecond"},
        calls[1],
        {"role": "tool", "tool_call_id": "c", "content": "registered"},
    ]
    more = [{"role": "assistant", "content": "an answer"}, {"role": "user", "content": "next?"}]
    return json.dumps({"stream": True, "messages": messages + (more if answered else [])}).encode()


def _target(stream: Stream) -> str:
    return "/v1/responses" if stream.api == "responses" else "/v1/chat/completions"


class _Numbered:
    """A provider's part: the stream whose number the request names."""

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = {}

    def __call__(self, received: Received) -> Reply:
        number = int(received.value("x-number") or 0)
        self.bodies.setdefault(number, []).append(received.body)
        return Reply(headers=KIND, steps=list(STREAMS[number].chunks))


async def _all(url: str, answered: bool = False) -> list[Seen]:
    """All streams, twenty at once, each a conversation of its own."""
    turn = asyncio.Semaphore(20)

    async def one(number: int, stream: Stream) -> Seen:
        async with turn:
            body = _question(number, stream, answered)
            lines: list[tuple[str | bytes, str | bytes]] = [("Authorization", "Bearer a"), ("X-Number", str(number))]
            return await ask(url, body, target=_target(stream), headers=lines)

    return list(await asyncio.gather(*(one(number, stream) for number, stream in enumerate(STREAMS))))


def _ends(chunks: Sequence[bytes]) -> set[int]:
    return set(accumulate(len(chunk) for chunk in chunks))


async def test_promise_10_two_hundred_streams_come_back_to_the_byte_and_settle_what_they_finish(
    provider: Provider, start_here: StartHere
) -> None:
    answers = _Numbered()
    provider.always(answers)
    proxy = await start_here(evidence=TABLES)

    streamed = await _all(proxy.url)
    later = await _all(proxy.url, answered=True)

    for number, (stream, seen) in enumerate(zip(STREAMS, streamed, strict=True)):
        assert seen.status == 200, stream.name
        assert seen.body == stream.body, stream.name
        # Of the chunk that finishes a question the last byte waits for the record: it may be cut there.
        assert _ends(stream.chunks) <= _ends(seen.chunks), stream.name
        assert len(seen.chunks) <= len(stream.chunks) + 1, stream.name
        assert answers.bodies[number][0] == _question(number, stream), stream.name
    outcomes = {stream.name: seen.evidence.split(";")[0] for stream, seen in zip(STREAMS, later, strict=True)}
    expected = {stream.name: "compacted" if stream.finishes else "untouched" for stream in STREAMS}
    assert outcomes == expected


async def test_promise_10_the_same_streams_on_a_path_that_is_no_conversation(
    provider: Provider, start_here: StartHere
) -> None:
    provider.always(_Numbered())
    proxy = await start_here(Conversation())
    for number, stream in enumerate(STREAMS):
        seen = await ask(proxy.url, b"{}", target="/v1/completions", headers=[("X-Number", str(number))])
        assert seen.chunks == list(stream.chunks), stream.name
