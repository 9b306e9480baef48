"""The shape of chat completions: requests cut into messages, replies read. Source: OpenAI's API reference, "Chat".

Bytes are only pointed at; what is decoded is what the rooms below need to know.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any, Literal, cast

import msgspec

from proxy.wire import added, chat_written, parts
from proxy.wire.bodies import Cutter, json_text
from proxy.wire.chat_reply import ChatLiveReader, ChatReplyReader
from proxy.wire.chat_rounds import ChatRounds
from proxy.wire.glancing import Glancer
from proxy.wire.messages import (
    ALONE,
    Api,
    Beside,
    Call,
    Found,
    LabelledPicture,
    Message,
    NotJson,
    Request,
    Role,
    Span,
    Splice,
)
from proxy.wire.rounds import Holds

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


class _Said(msgspec.Struct, gc=False):
    """A message that neither calls a tool nor answers a call."""

    role: Literal["system", "developer", "user", "assistant"]
    tool_calls: tuple[()] | None = None
    function_call: None = None


class _Talk(msgspec.Struct):
    messages: list[_Said]
    n: Any = None
    model: Any = None


MEMBER = "messages"
_cutter = Cutter(MEMBER, _Body, _Fields)
_glancer = Glancer(_Talk)


def cut(body: bytes, known: Request | None = None, whole: bool = False) -> Request:
    """Cut a request body into its messages. Raises NotJson when it is not a chat completion's body.

    What it has in common with `known` is not read again; `whole`: it surely begins with all of that.
    """
    shared, found = _cutter.continued(body, known, whole)
    if found.items is None:
        raise NotJson('expected "messages" to be an array')
    old = known.messages[:shared] if known is not None else ()
    new = [_message(index, span, fields) for index, (span, fields) in enumerate(found.items, shared)]
    model = found.beside["model"]
    return Request(
        api=cast(Api, sys.modules[__name__]),
        body=body,
        messages=(*old, *new),
        choices=_choices(found.beside["n"]),
        known=shared,
        continuation=found.continuation(old[-1].span.end if old else 0),
        model=model if isinstance(model, str) else None,
    )


def glance(body: bytes) -> Request | None:
    """See `messages.Api`: without messages, of a body that surely holds none of a tool."""
    found = _glancer.look(body)
    if found is None or not any(said.role == "user" for said in found.messages):
        return None
    model = found.model if isinstance(found.model, str) else None
    return Request(cast(Api, sys.modules[__name__]), body, (), choices=_choices(found.n), model=model)


def reader(request: Request) -> ChatReplyReader:
    """A reader for the reply to this request."""
    return ChatReplyReader(request.choices)


def live_reader(request: Request) -> ChatLiveReader:
    """The same, which also tells what has been said so far."""
    return ChatLiveReader(request.choices)


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
        found=None if plain else Found(),
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


def picture_again(request: Request, message: Message, nth: int, label: str) -> LabelledPicture:
    """A picture part of a message, the `nth` from 0, under a label."""
    return parts.picture_again(request, message, "content", nth, label)


def picture_part(url: str) -> bytes:
    """A new picture part of this URL, for a picture that does not stand in the request."""
    return json.dumps({"type": "image_url", "image_url": {"url": url}}, separators=(",", ":")).encode()


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


# What a request of our own adds to the client's, and what it leaves out.

#: What asks for a stream, for more than one choice, or for a form that a cite call has not.
_NOT_OURS = ("stream", "stream_options", "n", "response_format")


def offered(request: Request) -> tuple[str, ...]:
    """The names of the tools that the model may call. Those of the deprecated `functions` are none: their calls have
    another shape."""
    tools = added.callable_tools(request.body)
    described = (tool.get("function") or tool.get("custom") for tool in tools)
    names = (tool.get("name") for tool in described if isinstance(tool, dict))
    return tuple(name for name in names if isinstance(name, str))


def streams(request: Request) -> bool:
    """Whether the client wants a stream."""
    return added.members(request.body, "stream")["stream"] is True


def plain(request: Request) -> list[Splice]:
    """Ask for one whole reply in no set form, in which any tool may be called."""
    return added.without(request.body, (*_NOT_OURS, *added.tied_choice(request.body)))


def appended(request: Request, messages: Sequence[Message]) -> Splice:
    """Put messages of ours (texts, calls and returns) at the end of the conversation."""
    return added.at_the_end(request, [item for message in messages for item in written(message)])


def written(message: Message) -> list[bytes]:
    """A message of ours as an element of the conversation."""
    return [_written(message)]


def tool(name: str, description: str, parameters: dict[str, Any]) -> bytes:
    """A function that the model may call. Source: OpenAI's API reference, "Chat", `tools`."""
    return b'{"type":"function","function":{' + added.described(name, description, parameters) + b"}}"


def rounds(request: Request, own: str, holds: Holds) -> ChatRounds:
    """Reads replies to this request without the calls of the tool `own`."""
    return ChatRounds(own, holds)


def _written(message: Message) -> bytes:
    said = json_text(message.text())
    if message.role is Role.TOOL:
        return b'{"role":"tool","tool_call_id":' + json_text(message.call_id or "") + b',"content":' + said + b"}"
    if not message.calls:
        return b'{"role":' + json_text(message.role.value) + b',"content":' + said + b"}"
    content = said if message.parts else b"null"
    calls = b",".join(chat_written.call(call) for call in message.calls)
    return b'{"role":"assistant","content":' + content + b',"tool_calls":[' + calls + b"]}"


def written_reply(calls: Sequence[Call], like: bytes, streamed: bool, created: int, identity: str) -> list[bytes]:
    """A reply of ours that calls tools: see `messages.Api`."""
    return chat_written.reply(calls, like, streamed, created, identity)
