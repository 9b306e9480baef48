"""The shape of chat completions: requests cut into messages, replies read. Source: OpenAI's API reference, "Chat".

Bytes are only pointed at; what is decoded is what the rooms below need to know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any, cast

import msgspec

from proxy.wire import parts
from proxy.wire.bodies import Cutter
from proxy.wire.chat_reply import ChatReplyReader
from proxy.wire.messages import (
    ALONE,
    Api,
    Beside,
    Call,
    LabelledPicture,
    Message,
    NotJson,
    Request,
    Role,
    Span,
    Splice,
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
    model: Any = None


class _Fields(msgspec.Struct):
    role: Any = None
    content: Any = None
    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None


MEMBER = "messages"
_cutter = Cutter(MEMBER, _Body, _Fields)


def cut(body: bytes) -> Request:
    """Cut a request body into its messages. Raises NotJson when it is not a chat completion's body."""
    found = _cutter.cut(body)
    if found.items is None:
        raise NotJson('expected "messages" to be an array')
    messages = tuple(_message(index, span, fields) for index, (span, fields) in enumerate(found.items))
    api = cast(Api, sys.modules[__name__])
    model = found.beside["model"]
    return Request(
        api=api,
        body=body,
        messages=messages,
        choices=_choices(found.beside["n"]),
        model=model if isinstance(model, str) else None,
    )


def reader(request: Request) -> ChatReplyReader:
    """A reader for the reply to this request."""
    return ChatReplyReader(request.choices)


def _choices(n: object) -> int:
    return n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1


def _message(index: int, span: Span, fields: _Fields) -> Message:
    role = _ROLES.get(fields.role, Role.OTHER) if isinstance(fields.role, str) else Role.OTHER
    content, plain = parts.read(fields.content)
    return Message(
        index=index,
        role=role,
        span=span,
        parts=content,
        plain=plain,
        calls=_calls(fields) if role is Role.ASSISTANT else (),
        call_id=fields.tool_call_id if isinstance(fields.tool_call_id, str) else None,
    )


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


def picture_parts(request: Request, message: Message) -> list[bytes]:
    """The bytes of each picture part of a message, in order."""
    return parts.pictures(request, message, "content")


def replace_content(
    request: Request, message: Message, text: str, added: Sequence[LabelledPicture | str], beside: Beside = ALONE
) -> Splice:
    """Put a text, and what is added after it, in place of a tool message's content; its other fields stay."""
    return parts.replace(request, message, "content", text, added, "text", beside)


def remove_parts(request: Request, message: Message, gone: Collection[int]) -> list[Splice]:
    """Take parts (by index) out of a message with other ones, which stay as they are."""
    return parts.remove_some(request, message, "content", gone)


def remove_message(request: Request, message: Message) -> Splice:
    """Take a message out, with the comma before it. It must not be the first one."""
    return parts.remove(request, message)


def add_user_message(request: Request, after: Message, pictures: Sequence[LabelledPicture]) -> Splice:
    """A new user message of these pictures, after another message."""
    return parts.user_message(after, pictures, "text")
