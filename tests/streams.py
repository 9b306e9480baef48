"""Two hundred streams as providers send them: a corpus that is made, always the same, from what each is known to do.

`corpus` gives every stream as the HTTP chunks of its body. The shapes are those that the providers document (and what
their clients have learnt to read beside): reasoning under several names, usage in a chunk without choices, chunks
without choices at the start, errors inside a stream, keep-alive comments, and ends without `[DONE]`. Each stands in
several ways of writing it: line ends, cuts, comments, a byte order mark, no final newline.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
TEXT = "Zürich: naïve “quotes” 😀\n\n[c1] done."


@dataclass(frozen=True)
class Stream:
    """One stream. `finishes` says whether a question is settled by it: it ends with `stop` and without an error."""

    name: str
    api: str
    chunks: tuple[bytes, ...]
    finishes: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


@dataclass(frozen=True)
class _Told:
    """What a provider says: the lines of its events without their line ends, an event each."""

    events: tuple[tuple[str, ...], ...]
    finishes: bool = True
    api: str = "chat"


def _data(*values: Json | str) -> tuple[tuple[str, ...], ...]:
    return tuple((f"data: {value if isinstance(value, str) else _json(value)}",) for value in values)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _chunk(delta: Json | None, finish: str | None = None, index: int = 0, **more: Any) -> Json:
    choices = [] if delta is None else [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]
    head = {"id": "chatcmpl-B1", "object": "chat.completion.chunk", "created": 1764500000, "model": "m"}
    return {**head, "choices": choices, **more}


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 0}}


def openai_text() -> _Told:
    said = [_chunk({"content": piece}, obfuscation="x" * n) for n, piece in enumerate(_pieces(TEXT, 5))]
    first = _chunk({"role": "assistant", "content": "", "refusal": None}, service_tier="default")
    return _Told(_data(first, *said, _chunk({}, "stop"), _chunk(None, usage=USAGE), "[DONE]"))


def openai_tools() -> _Told:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "search", "arguments": ""}}
    args = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in _pieces('{"q": "Zürich"}', 3)]
    deltas = [{"role": "assistant", "content": None, "tool_calls": [call]}, *args]
    return _Told(_data(*map(_chunk, deltas), _chunk({}, "tool_calls"), "[DONE]"), finishes=False)


def openai_choices() -> _Told:
    deltas = [_chunk({"content": piece}, index=n % 2) for n, piece in enumerate(_pieces(TEXT, 4))]
    return _Told(_data(*deltas, _chunk({}, "stop", 1), _chunk({}, "stop", 0), "[DONE]"))


def openai_refusal() -> _Told:
    return _Told(_data(_chunk({"role": "assistant", "refusal": "I can't"}), _chunk({}, "stop"), "[DONE]"))


def openai_length() -> _Told:
    return _Told(_data(_chunk({"content": TEXT}), _chunk({}, "length"), "[DONE]"), finishes=False)


def openai_error_inside() -> _Told:
    error = {"error": {"message": "The server had an error", "type": "server_error", "param": None, "code": None}}
    return _Told(_data(_chunk({"content": "Zür"}), error), finishes=False)


def openai_responses() -> _Told:
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}]}  # fmt: skip
    response = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [item],
        "usage": {"input_tokens": 9},
    }
    events: list[Json] = [{"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}]
    events += [{"type": "response.output_text.delta", "item_id": "msg_1", "delta": piece} for piece in _pieces(TEXT, 6)]
    events += [{"type": "response.output_item.done", "output_index": 0, "item": item}]
    events += [{"type": "response.completed", "response": response}]
    told = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return _Told(tuple((f"event: {event['type']}", f"data: {_json(event)}") for event in told), api="responses")


def openai_responses_failed() -> _Told:
    error = {"code": "server_error", "message": "no"}
    response = {"id": "resp_1", "status": "failed", "error": error}
    failed = {"type": "response.failed", "sequence_number": 1, "response": response}
    return _Told((("event: response.failed", f"data: {_json(failed)}"),), finishes=False, api="responses")


def azure() -> _Told:
    """The first chunk has no choices, but what the prompt was judged to be; so have those of an asynchronous filter."""
    judged = {"hate": {"filtered": False, "severity": "safe"}, "jailbreak": {"filtered": False, "detected": False}}
    first = {"choices": [], "created": 0, "id": "", "model": "", "object": "",
             "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": judged}]}  # fmt: skip
    later = {"choices": [{"content_filter_offsets": {"check_offset": 0, "start_offset": 0, "end_offset": 9},
                          "content_filter_results": judged, "finish_reason": None, "index": 0}],
             "created": 0, "id": "", "model": "", "object": ""}  # fmt: skip
    said = [_chunk({"content": piece}) for piece in _pieces(TEXT, 7)]
    return _Told(_data(first, *said, later, _chunk({}, "stop"), "[DONE]"))


def azure_filtered() -> _Told:
    return _Told(_data(_chunk({"content": "Zür"}), _chunk({}, "content_filter"), "[DONE]"), finishes=False)


def vllm() -> _Told:
    """Reasoning under `reasoning_content`, usage in every chunk, token ids beside."""
    think = [_chunk({"reasoning_content": piece}, usage=USAGE) for piece in _pieces("let me think", 4)]
    said = [_chunk({"content": piece}, usage=USAGE, prompt_token_ids=None) for piece in _pieces(TEXT, 3)]
    end = _chunk({"content": "", "tool_calls": []}, "stop", stop_reason=None)
    return _Told(
        _data(_chunk({"role": "assistant", "content": ""}), *think, *said, end, _chunk(None, usage=USAGE), "[DONE]")
    )


def vllm_error_inside() -> _Told:
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
    return _Told(_data(_chunk({"content": "Zür"}), error, "[DONE]"), finishes=False)


def ollama() -> _Told:
    """Its own reasoning field, an empty role at every delta, no usage unless asked."""
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "qwen3:8b",
        "system_fingerprint": "fp_ollama",
    }

    def told(finish: str | None = None, **delta: str) -> Json:
        said = {"role": "assistant", "content": "", **delta}
        return {**head, "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}

    think = [told(reasoning=piece) for piece in _pieces("hm hm hm", 2)]
    said = [told(content=piece) for piece in _pieces(TEXT, 8)]
    return _Told(_data(*think, *said, told("stop"), "[DONE]"))


def ollama_whole_call() -> _Told:
    """A tool call in one piece, with an index, and `stop` or `tool_calls` after it."""
    call = {"id": "call_x", "index": 0, "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}
    return _Told(
        _data(_chunk({"role": "assistant", "content": "", "tool_calls": [call]}), _chunk({}, "tool_calls"), "[DONE]"),
        False,
    )


def openrouter() -> _Told:
    """Comments while it works, reasoning twice, what the provider itself said, usage with costs in the last chunk."""
    wait = ((": OPENROUTER PROCESSING",),)
    think = _chunk({"role": "assistant", "content": "", "reasoning": "hm",
                    "reasoning_details": [{"type": "reasoning.text", "text": "hm", "format": "unknown", "index": 0}]},
                   provider="Together")  # fmt: skip
    said = [_chunk({"role": "assistant", "content": piece}, provider="Together") for piece in _pieces(TEXT, 9)]
    end = _chunk({"role": "assistant", "content": ""}, "stop", provider="Together")
    end["choices"][0]["native_finish_reason"] = "eos"
    usage = _chunk({"role": "assistant", "content": ""}, usage={**USAGE, "cost": 0.00001, "is_byok": False})
    return _Told(wait * 3 + _data(think) + wait + _data(*said, end, usage, "[DONE]"))


def openrouter_error_inside() -> _Told:
    broken = _chunk({"content": ""}, "error", error={"code": 502, "message": "Provider disconnected"}, provider="X")
    return _Told(((": OPENROUTER PROCESSING",), *_data(_chunk({"content": "Zür"}), broken, "[DONE]")), finishes=False)


def deepseek() -> _Told:
    """`reasoning_content` beside `content: null`, cache figures at the top of usage, usage with the finish."""
    think = [_chunk({"content": None, "reasoning_content": piece}) for piece in _pieces("think think", 4)]
    said = [_chunk({"content": piece, "reasoning_content": None}) for piece in _pieces(TEXT, 4)]
    usage = {**USAGE, "prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 9}
    return _Told(((": keep-alive",), *_data(*think, *said, _chunk({"content": ""}, "stop", usage=usage), "[DONE]")))


def deepseek_busy() -> _Told:
    return _Told(
        ((": keep-alive",),) * 20 + _data(_chunk({}, "insufficient_system_resource"), "[DONE]"), finishes=False
    )


def litellm() -> _Told:
    """Members of other providers passed on, `stream_options` usage, and a last chunk that says nothing."""
    beside = {"role": "assistant", "provider_specific_fields": {"citations": None}}
    said = [_chunk({"content": piece, **beside}, citations=None) for piece in _pieces(TEXT, 6)]
    thought = _chunk(
        {
            "content": "",
            "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}],
            "reasoning_content": "hm",
        }
    )
    return _Told(_data(thought, *said, _chunk({}, "stop"), _chunk({}, usage=USAGE), "[DONE]"))


def litellm_error_inside() -> _Told:
    error = {"error": {"message": "litellm.APIConnectionError: …", "type": None, "param": None, "code": "500"}}
    return _Told(_data(_chunk({"content": "Zür"}), error), finishes=False)


TELLERS: tuple[Callable[[], _Told], ...] = (
    openai_text, openai_tools, openai_choices, openai_refusal, openai_length, openai_error_inside, openai_responses,
    openai_responses_failed, azure, azure_filtered, vllm, vllm_error_inside, ollama, ollama_whole_call, openrouter,
    openrouter_error_inside, deepseek, deepseek_busy, litellm, litellm_error_inside,
)  # fmt: skip

WAYS = ("plain", "crlf", "one byte", "any cuts", "whole", "no done", "commented", "mark", "no final newline", "spread")


def corpus() -> Iterator[Stream]:
    """Twenty shapes, each written in ten ways."""
    for teller in TELLERS:
        for way in WAYS:
            told = teller()
            yield Stream(
                f"{teller.__name__}, {way}", told.api, tuple(_written(told, way, teller.__name__)), told.finishes
            )


def _written(told: _Told, way: str, seed: str) -> list[bytes]:
    dice = random.Random(f"{seed} {way}")
    events = list(told.events)
    if way == "no done":
        events = [event for event in events if event != ("data: [DONE]",)]
    if way == "commented":
        events = [
            one for event in events for one in ((": ping - 2026-11-30 15:00:00",), ("id: 7", "retry: 3000", *event))
        ]
    if way == "spread":  # JSON over several lines of data
        events = [tuple(_spread(line) if line.startswith("data: {") else line for line in event) for event in events]
    end = {"crlf": "\r\n"}.get(way, "\n")
    blocks = [("".join(line.replace("\n", end) + end for line in event) + end).encode() for event in events]
    if way == "mark":
        blocks[0] = b"\xef\xbb\xbf" + blocks[0]
    if way == "no final newline":
        blocks[-1] = blocks[-1].rstrip(b"\n")
    body = b"".join(blocks)
    if way == "whole":
        return [body]
    if way == "one byte":
        return [bytes([byte]) for byte in body]
    if way == "any cuts":
        cuts = sorted(dice.sample(range(1, len(body)), min(40, len(body) - 1)))
        return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    return blocks


def _spread(line: str) -> str:
    text = json.dumps(json.loads(line[6:]), ensure_ascii=False, indent=1)
    return "\n".join(f"data: {piece}" for piece in text.split("\n"))
