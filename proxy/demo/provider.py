"""The scripted provider: an OpenAI-compatible server on 127.0.0.1 that plays a model by the script.

It decides from nothing but the request in front of it, as a model does: which question is open, what was searched and
cited since, and whether the sentence that its answer would repeat is there to be read. It keeps what it received, so
that the demo measures what went over the wire and does not have to believe anybody's figures.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from proxy.demo.script import QUESTIONS, Question

MODEL = "scripted"
BLIND = "I cannot see the passage that I would answer from"


class ScriptedProvider:
    """Answers `POST /v1/chat/completions` by the script. `received` holds the bodies as they came, oldest first."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._ids = itertools.count(1)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a free port of 127.0.0.1; gives the base URL."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append(body)
        asked = json.loads(body)
        if not asked.get("stream"):
            return web.json_response(_error("the scripted provider only streams: set stream to true"), status=400)
        deltas, finish = self._next_reply(asked["messages"])
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await reply.prepare(request)
        number = next(self._ids)
        common = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": number, "model": MODEL}
        for delta in ({"role": "assistant"}, *deltas):
            await _send(reply, {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            await asyncio.sleep(0.004)
        await _send(reply, {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        # A provider counts tokens; this one has no tokenizer, and says bytes / 4, which is near enough for English.
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": len(deltas), "total_tokens": len(body) // 4}
        await _send(reply, {**common, "choices": [], "usage": usage})
        await reply.write(b"data: [DONE]\n\n")
        await reply.write_eof()
        return reply

    def _next_reply(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """The deltas of the next reply and its finish reason."""
        question, since = _open_question(messages)
        replies = sum(1 for message in since if message.get("tool_calls"))
        if replies < len(question.searches):
            return list(self._calls("search", [{"query": query} for query in question.searches[replies]])), "tool_calls"
        if replies == len(question.searches):
            return list(self._calls("cite", [{"chunk_ids": question.cites}])), "tool_calls"
        return [{"content": word} for word in _words(_answer(question, messages))], "stop"

    def _calls(self, name: str, arguments: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for index, given in enumerate(arguments):
            call: dict[str, Any] = {"index": index, "id": f"call_{next(self._ids):04}", "type": "function"}
            text = json.dumps(given)
            yield {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}
            # Arguments arrive in pieces from every real provider, so they do here.
            for start in range(0, len(text), 12):
                yield {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + 12]}}]}


def _open_question(messages: list[dict[str, Any]]) -> tuple[Question, list[dict[str, Any]]]:
    """The scripted question that was asked last, and the messages after it."""
    by_text = {question.text: question for question in QUESTIONS}
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if message["role"] == "user" and isinstance(message["content"], str) and message["content"] in by_text:
            return by_text[message["content"]], messages[at + 1 :]
    raise web.HTTPBadRequest(text=json.dumps(_error("no question of the script was asked")))


def _answer(question: Question, messages: list[dict[str, Any]]) -> str:
    shown = "\n".join(text for message in messages if message["role"] != "assistant" for text in texts_of(message))
    missing = [chunk for chunk, words in question.rests_on.items() if words not in shown]
    if missing:
        return f"{BLIND}: {', '.join(missing)}"
    return question.answer.format_map(question.rests_on)


def texts_of(message: dict[str, Any]) -> list[str]:
    """The texts that a message of the wire shows the model."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if part.get("type") == "text"]


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]]


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}


async def _send(reply: web.StreamResponse, event: dict[str, Any]) -> None:
    await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
