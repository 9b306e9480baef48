"""The shape of the Responses API: requests cut into messages. Source: OpenAI's API reference, "Responses".

An item becomes a message of who speaks in it: calls and assistant messages are the assistant's, their outputs a
tool's. What this version does not know, and what belongs to the provider alone (reasoning, its built-in tools), is
passed over: it stays where it is, and separates nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any, cast

import msgspec

from proxy.wire import parts
from proxy.wire.bodies import Cutter
from proxy.wire.messages import (
    ALONE,
    Api,
    Beside,
    Call,
    LabelledPicture,
    Message,
    Request,
    Role,
    Span,
    Splice,
    Text,
)
from proxy.wire.responses_reply import CLIENT_CALLS, ResponsesReplyReader

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_OUTPUTS = frozenset({f"{call}_output" for call in CLIENT_CALLS} | {"mcp_approval_response"})


class _Body(msgspec.Struct):
    input: list[msgspec.Raw] | str
    previous_response_id: Any = None
    conversation: Any = None


class _Fields(msgspec.Struct):
    type: Any = None
    role: Any = None
    content: Any = None
    output: Any = None
    call_id: Any = None
    id: Any = None
    name: Any = None
    arguments: Any = None
    input: Any = None
    results: Any = None
    queries: Any = None


_cutter = Cutter("input", _Body, _Fields)


def cut(body: bytes) -> Request:
    """Cut a request body into its items. Raises NotJson when it is not a response's body."""
    found = _cutter.cut(body)
    previous = _named(found.beside["previous_response_id"])
    conversation = found.beside["conversation"]
    named = _named(conversation.get("id") if isinstance(conversation, dict) else conversation)
    messages: tuple[Message, ...]
    if found.items is None:
        assert found.text is not None
        text = json.loads(body[found.text.start : found.text.end])
        messages = (Message(index=0, role=Role.USER, span=found.text, parts=(Text(text),)),)
    else:
        messages = tuple(_message(index, span, fields) for index, (span, fields) in enumerate(found.items))
    return Request(
        api=cast(Api, sys.modules[__name__]),
        body=body,
        messages=messages,
        history=named or previous,
        in_conversation=named is not None,
    )


def _named(value: object) -> str | None:
    """An id, or None: explicit null means absent."""
    return value if isinstance(value, str) and value else None


def reader(request: Request) -> ResponsesReplyReader:
    """A reader for the reply to this request."""
    return ResponsesReplyReader(request.history if request.in_conversation else None)


def _message(index: int, span: Span, fields: _Fields) -> Message:
    kind = fields.type if isinstance(fields.type, str) else None
    if kind in (None, "message"):
        role = _ROLES.get(fields.role, Role.OTHER) if isinstance(fields.role, str) else Role.OTHER
        content, plain = parts.read(fields.content)
        return Message(index=index, role=role, span=span, parts=content, plain=plain)
    if kind in CLIENT_CALLS:
        return Message(index=index, role=Role.ASSISTANT, span=span, calls=(_call(kind, fields),))
    if kind in _OUTPUTS:
        content, plain = parts.read(fields.output)
        return Message(
            index=index, role=Role.TOOL, span=span, parts=content, plain=plain, call_id=_named(fields.call_id)
        )
    if kind == "item_reference":
        # What it stands for is on the provider's side; by its id, reasoning or something that the assistant said.
        reasoning = isinstance(fields.id, str) and fields.id.startswith("rs_")
        return Message(index=index, role=Role.OTHER if reasoning else Role.ASSISTANT, span=span)
    return Message(index=index, role=Role.OTHER, span=span)


def _call(kind: str, fields: _Fields) -> Call:
    written = fields.arguments if fields.arguments is not None else fields.input
    return Call(
        id=_named(fields.call_id) or _named(fields.id),
        name=fields.name if isinstance(fields.name, str) else kind,
        arguments=written if isinstance(written, str) else json.dumps(written if written is not None else {}),
    )


def _member(message: Message) -> str:
    return "output" if message.role is Role.TOOL else "content"


# What a rewrite does.


def picture_parts(request: Request, message: Message) -> list[bytes]:
    """The bytes of each picture part of an item, in order."""
    return parts.pictures(request, message, _member(message))


def replace_content(
    request: Request, message: Message, text: str, pictures: Sequence[LabelledPicture], beside: Beside = ALONE
) -> Splice:
    """Put a text, and pictures after it, in place of a call's output; the item's other fields stay as they are."""
    return parts.replace(request, message, _member(message), text, pictures, "input_text", beside)


def remove_parts(request: Request, message: Message, gone: Collection[int]) -> list[Splice]:
    """Take parts (by index) out of a message with other ones, which stay as they are."""
    return parts.remove_some(request, message, _member(message), gone)


def remove_message(request: Request, message: Message) -> Splice:
    """Take an item out, with the comma before it. It must not be the first one."""
    return parts.remove(request, message)


def add_user_message(request: Request, after: Message, pictures: Sequence[LabelledPicture]) -> Splice:
    """A new user item of these pictures, after another item."""
    return parts.user_message(after, pictures, "input_text")
