"""The shape of the Responses API: requests cut into messages, replies read. Source: OpenAI's reference, "Responses".

Bytes are only pointed at; what is decoded is what the rooms below need to know. What each item means stands in
`responses_items`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any, Literal, cast

import msgspec

from proxy.wire import added, parts, responses_items, responses_written, spans
from proxy.wire.bodies import Cutter, json_text
from proxy.wire.glancing import Glancer
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
    Text,
)
from proxy.wire.responses_items import named
from proxy.wire.responses_reply import ResponsesLiveReader, ResponsesReplyReader
from proxy.wire.responses_rounds import ResponsesRounds
from proxy.wire.rounds import Holds


class _Body(msgspec.Struct):
    input: list[msgspec.Raw] | str
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    store: Any = None
    background: Any = None
    model: Any = None


class _Said(msgspec.Struct, gc=False):
    """A message, or what the model thought: neither a call nor what came of one."""

    type: Literal["message", "reasoning"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None


class _Talk(msgspec.Struct):
    input: list[_Said] | str
    previous_response_id: None = None
    conversation: None = None
    store: Any = None
    background: bool | None = None
    model: Any = None


MEMBER = "input"
# A stored prompt, or a history on the provider's side, may be all that a request says.
_cutter = Cutter(
    MEMBER, _Body, responses_items.Fields, instead=frozenset({"prompt", "previous_response_id", "conversation"})
)
_glancer = Glancer(_Talk)


def cut(body: bytes, known: Request | None = None, whole: bool = False) -> Request:
    """Cut a request body into its items. Raises NotJson when it is not a response's body.

    What it has in common with `known` is not read again; `whole`: it surely begins with all of that.
    """
    shared, found = _cutter.continued(body, known, whole)
    conversation = found.beside["conversation"]
    kept_in = named(conversation.get("id") if isinstance(conversation, dict) else conversation)
    messages: list[Message] = list(known.messages[:shared]) if known is not None else []
    end = messages[-1].span.end if messages else 0
    if found.text is not None:
        messages.append(Message(index=0, role=Role.USER, span=found.text, parts=(Text(_string(body, found.text)),)))
    for span, fields in found.items or ():
        messages += responses_items.read(len(messages), span, fields)
    return Request(
        api=cast(Api, sys.modules[__name__]),
        body=body,
        messages=tuple(messages),
        history=kept_in or named(found.beside["previous_response_id"]),
        in_conversation=kept_in is not None,
        stored=found.beside["store"] is not False,
        in_background=found.beside["background"] is True,
        known=shared,
        continuation=found.continuation(end),
        model=named(found.beside["model"]),
    )


def glance(body: bytes) -> Request | None:
    """See `messages.Api`: without messages, of a body that surely holds none of a tool."""
    found = _glancer.look(body)
    if found is None or found.background:
        return None
    if not isinstance(found.input, str):
        said = [item for item in found.input if item.type != "reasoning"]
        if any(item.role is None for item in said) or all(item.role != "user" for item in said):
            return None
    stored, model = found.store is not False, named(found.model)
    return Request(cast(Api, sys.modules[__name__]), body, (), stored=stored, model=model)


def _string(body: bytes, span: Span) -> str:
    try:
        return cast(str, json.loads(body[span.start : span.end]))
    except ValueError as error:
        raise NotJson("expected JSON in UTF-8") from error


def reader(request: Request) -> ResponsesReplyReader:
    """A reader for the reply to this request."""
    return ResponsesReplyReader(request.history if request.in_conversation else None, request.stored)


def live_reader(request: Request) -> ResponsesLiveReader:
    """The same, which also tells what has been said so far."""
    return ResponsesLiveReader(request.history if request.in_conversation else None, request.stored)


def _member(message: Message) -> str:
    if message.only_text:
        return "results"
    return "output" if message.role is Role.TOOL else "content"


# What a rewrite does.


def picture_again(request: Request, message: Message, nth: int, label: str) -> LabelledPicture:
    """The how-manieth picture part of an item, under a label."""
    return parts.picture_again(request, message, _member(message), nth, label)


def picture_part(url: str) -> bytes:
    """A new picture part of this URL, for a picture that does not stand in the request."""
    return json.dumps({"type": "input_image", "image_url": url}, separators=(",", ":")).encode()


def replace_content(
    request: Request, message: Message, text: str, added: Sequence[LabelledPicture | str], beside: Beside = ALONE
) -> Splice:
    """Put a text, and what is added after it, in place of a call's output; the item's other fields stay as they are.

    In a file search the text becomes its only result, which can hold no picture. Raises ValueError where there is
    nothing to replace.
    """
    if not message.only_text:
        return parts.replace(request, message, _member(message), text, added, "input_text", beside)
    span = spans.member_span(request.body, message.span, _member(message))
    if span is None or any(isinstance(one, LabelledPicture) for one in added):
        raise ValueError(f"message {message.index} cannot hold {'pictures' if added else 'results'}")
    whole = "\n\n".join([text, *(one for one in added if isinstance(one, str))])
    return Splice(span.start, span.end, b'[{"text":' + json_text(whole) + b"}]")


def remove_parts(request: Request, message: Message, gone: Collection[int]) -> list[Splice]:
    """Take parts (by index) out of an item with other ones, which stay as they are."""
    return parts.remove_some(request, message, _member(message), gone)


def remove_message(request: Request, message: Message) -> Splice:
    """Take an item out, with the comma before it. It must not be the first one."""
    return parts.remove(request, message)


def add_user_message(request: Request, after: Message, pictures: Sequence[LabelledPicture]) -> Splice:
    """A new user item of these pictures, after another item."""
    return parts.user_message(after, pictures, "input_text")


# What a request of our own adds to the client's, and what it leaves out.

#: What asks for a stream, or for a form that a cite call has not.
_NOT_OURS = ("stream", "stream_options", "text")


def offered(request: Request) -> tuple[str, ...]:
    """The names of the tools that the model may call."""
    names = (tool.get("name") for tool in added.callable_tools(request.body))
    return tuple(name for name in names if isinstance(name, str))


def streams(request: Request) -> bool:
    """Whether the client wants a stream."""
    return added.members(request.body, "stream")["stream"] is True


def plain(request: Request) -> list[Splice]:
    """Ask for one whole reply in no set form, in which any tool may be called."""
    return added.without(request.body, (*_NOT_OURS, *added.tied_choice(request.body)))


def appended(request: Request, messages: Sequence[Message]) -> Splice:
    """Put items of ours (texts, calls and outputs) at the end of the conversation; one that was a string becomes a
    list."""
    return added.at_the_end(request, [item for message in messages for item in written(message)])


def tool(name: str, description: str, parameters: dict[str, Any]) -> bytes:
    """A function that the model may call. Here a schema is strict unless the tool says otherwise, and some servers know
    no strict ones. Source: OpenAI's API reference, "Responses", `tools`."""
    return b'{"type":"function",' + added.described(name, description, parameters) + b',"strict":false}'


def rounds(request: Request, own: str, holds: Holds) -> ResponsesRounds:
    """Reads replies to this request without the calls of the tool `own`."""
    return ResponsesRounds(own, holds, request.stored)


def written(message: Message) -> list[bytes]:
    """A message of ours as items: what it says, and each call."""
    said = json_text(message.text())
    if message.role is Role.TOOL:
        call_id = json_text(message.call_id or "")
        return [b'{"type":"function_call_output","call_id":' + call_id + b',"output":' + said + b"}"]
    spoken = [b'{"role":' + json_text(message.role.value) + b',"content":' + said + b"}"] if message.parts else []
    return spoken + [responses_written.call(call) for call in message.calls]


def written_reply(calls: Sequence[Call], like: bytes, streamed: bool, created: int, identity: str) -> list[bytes]:
    """A reply of ours that calls tools: see `messages.Api`."""
    return responses_written.reply(calls, like, streamed, created, identity)
