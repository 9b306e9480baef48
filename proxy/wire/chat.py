"""The shape of chat completions: requests cut into messages, replies read. Source: OpenAI's API reference, "Chat".

Bytes are only pointed at; what is decoded is what the rooms below need to know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from proxy.wire import spans
from proxy.wire.chat_reply import ChatReplyReader
from proxy.wire.messages import (
    Api,
    Call,
    LabelledPicture,
    Message,
    NotJson,
    OtherPart,
    Part,
    Picture,
    Request,
    Role,
    Span,
    Splice,
    Text,
)

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,  # the deprecated form: a return that names its function instead of a call
}


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw]
    n: Any = None


class _Fields(msgspec.Struct):
    role: Any = None
    content: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None


_body_decoder = msgspec.json.Decoder(_Body)
_fields_decoder = msgspec.json.Decoder(_Fields)


def cut(body: bytes) -> Request:
    """Cut a request body into its messages. Raises NotJson when it is not a chat completion's body."""
    try:
        return _cut_quickly(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # msgspec refuses what JSON permits or what lenient servers read (lone surrogates, NaN): walk it instead.
        return _cut_carefully(body)
    except RecursionError as error:
        raise NotJson("the body nests deeper than this proxy reads") from error


def reader(request: Request) -> ChatReplyReader:
    """A reader for the reply to this request."""
    return ChatReplyReader(request.choices)


def _request(body: bytes, messages: tuple[Message, ...], choices: int) -> Request:
    return Request(api=cast(Api, sys.modules[__name__]), body=body, messages=messages, choices=choices)


def _cut_quickly(body: bytes) -> Request:
    decoded = _body_decoder.decode(body)
    placed = _place(body.decode("latin-1"), [len(memoryview(raw)) for raw in decoded.messages])
    if placed is None:
        return _cut_carefully(body)
    messages = tuple(
        _message(index, span, _fields_decoder.decode(raw))
        for index, (span, raw) in enumerate(zip(placed, decoded.messages, strict=True))
    )
    return _request(body, messages, _choices(decoded.n))


def _place(text: str, lengths: list[int]) -> list[Span] | None:
    """Where messages of these lengths stand; None where "messages" stands twice, or not as expected."""
    walk = spans.members(text, 0)
    placed: list[Span] | None = None
    try:
        key, at = next(walk)
        while True:
            end = None
            if key == "messages":
                known = spans.known_elements(text, at, lengths) if placed is None else None
                if known is None:
                    return None
                placed, end = known
            key, at = walk.send(end)
    except StopIteration:
        return placed


def _cut_carefully(body: bytes) -> Request:
    text = body.decode("latin-1")
    at: int | None = None
    choices = 1
    for key, start in spans.members(text, 0):
        if key == "messages":
            at = start
        elif key == "n":
            choices = _choices(_loads(body[start : spans.value_end(text, start)]))
    if at is None:
        raise NotJson('expected a JSON object with "messages"')
    messages = []
    for index, span in enumerate(spans.elements(text, at)):
        value = _loads(body[span.start : span.end])
        if not isinstance(value, dict):
            raise NotJson(f"expected messages[{index}] to be an object")
        known = {name: value.get(name) for name in _Fields.__struct_fields__}
        messages.append(_message(index, span, _Fields(**known)))
    return _request(body, tuple(messages), choices)


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NotJson("expected JSON in UTF-8") from error


def _choices(n: object) -> int:
    return n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1


def _message(index: int, span: Span, fields: _Fields) -> Message:
    role = _ROLES.get(fields.role, Role.OTHER) if isinstance(fields.role, str) else Role.OTHER
    parts, plain = _parts(fields.content)
    return Message(
        index=index,
        role=role,
        span=span,
        parts=parts,
        plain=plain,
        calls=_calls(fields) if role is Role.ASSISTANT else (),
        call_id=fields.tool_call_id if isinstance(fields.tool_call_id, str) else None,
    )


def _parts(content: object) -> tuple[tuple[Part, ...], bool]:
    if content is None:
        return (), True
    if isinstance(content, str):
        return (Text(content),), True
    if isinstance(content, list):
        return tuple(_part(value) for value in content), False
    return (OtherPart(content),), False


def _part(value: object) -> Part:
    if isinstance(value, dict):
        text, picture = value.get("text"), value.get("image_url")
        if value.get("type") == "text" and isinstance(text, str):
            return Text(text)
        if value.get("type") == "image_url":
            url = picture.get("url") if isinstance(picture, dict) else picture
            if isinstance(url, str):
                return Picture(url)
    elif isinstance(value, str):
        return Text(value)
    return OtherPart(value)


def _calls(fields: _Fields) -> tuple[Call, ...]:
    values = list(fields.tool_calls) if isinstance(fields.tool_calls, list) else []
    if isinstance(fields.function_call, dict):
        values.append({"function": fields.function_call})
    return tuple(call for value in values if (call := _call(value)) is not None)


def _call(value: object) -> Call | None:
    """A call of any kind: unknown kinds (custom tools) are calls too, so that they do not look like an answer."""
    if not isinstance(value, dict):
        return None
    known = value.get("function") or value.get("custom")
    function = known if isinstance(known, dict) else {}
    name, call_id = function.get("name"), value.get("id")
    written = function.get("arguments", function.get("input"))
    return Call(
        id=call_id if isinstance(call_id, str) else None,
        name=name if isinstance(name, str) else "",
        arguments=written if isinstance(written, str) else json.dumps(written if written is not None else {}),
    )


# What a rewrite writes.


def json_text(text: str) -> bytes:
    """`text` as a JSON string in UTF-8; lone surrogates, which UTF-8 cannot carry, as escapes."""
    try:
        return msgspec.json.encode(text)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return json.dumps(text).encode()


def picture_parts(request: Request, message: Message) -> list[bytes]:
    """The bytes of each picture part of a message, in order."""
    content = spans.member_span(request.body, message.span, "content")
    if content is None or message.plain:
        return []
    parts = spans.element_spans(request.body, content)
    return [
        request.body[span.start : span.end]
        for span, part in zip(parts, message.parts, strict=True)
        if isinstance(part, Picture)
    ]


def replace_content(request: Request, message: Message, text: str, pictures: Sequence[LabelledPicture]) -> Splice:
    """Put a text, and pictures after it, in place of a tool message's content; its other fields stay as they are.

    The content stays a string where it was one, unless pictures go with it. Raises ValueError where there is none.
    """
    span = spans.member_span(request.body, message.span, "content")
    if span is None:
        raise ValueError(f"messages[{message.index}] has no content to replace")
    if message.plain and not pictures:
        return Splice(span.start, span.end, json_text(text))
    parts = [_text_part(text, _cache_hint(request, span, message)), *_labelled(pictures)]
    return Splice(span.start, span.end, b"[" + b",".join(parts) + b"]")


def remove_message(request: Request, message: Message) -> Splice:
    """Take a message out, with the comma before it. It must not be the first one."""
    return Splice(request.messages[message.index - 1].span.end, message.span.end)


def add_user_message(request: Request, after: Message, pictures: Sequence[LabelledPicture]) -> Splice:
    """A new user message of these pictures, after another message."""
    at = after.span.end
    return Splice(at, at, b',{"role":"user","content":[' + b",".join(_labelled(pictures)) + b"]}")


def _labelled(pictures: Sequence[LabelledPicture]) -> list[bytes]:
    return [part for picture in pictures for part in (_text_part(picture.label), picture.part)]


def _text_part(text: str, cache_hint: bytes | None = None) -> bytes:
    hint = b',"cache_control":' + cache_hint if cache_hint is not None else b""
    return b'{"type":"text","text":' + json_text(text) + hint + b"}"


def _cache_hint(request: Request, content: Span, message: Message) -> bytes | None:
    """The last `cache_control` of a message's parts (JSON bytes), which gateways to other providers read."""
    if message.plain or request.body.find(b'"cache_control"', content.start, content.end) < 0:
        return None
    hint: bytes | None = None
    for part in spans.element_spans(request.body, content):
        if request.body.startswith(b"{", part.start):
            found = spans.member_span(request.body, part, "cache_control")
            hint = request.body[found.start : found.end] if found is not None else hint
    return hint
