"""Read a response, streamed or whole, for what it says about the question. Source: OpenAI's reference, "Responses".

A stream's last event carries the whole response, so its deltas need not be put together. Some servers leave the
items out of that event; then those of the events before it count.
"""

from __future__ import annotations

from typing import Any

from proxy.wire import responses_items
from proxy.wire.messages import Call, Message, Reply, Role, Span, Usage
from proxy.wire.responses_items import Fields, named
from proxy.wire.side_reader import SideReader, read_json, usage

_COMPLETED = b'"response.completed"'
_CUT_OFF = (b'"response.incomplete"', b'"response.failed"')  # what these used was used all the same
_ITEM_DONE = b'"response.output_item.done"'
_ITEM_ADDED = b'"response.output_item.added"'
_TEXT_DELTA = b'"response.output_text.delta"'


class ResponsesReplyReader(SideReader):
    """Reads a response. `conversation` is the id of the conversation that the request named, if it named one; `stored`
    says whether the provider keeps what it replies."""

    def __init__(self, conversation: str | None = None, stored: bool = True) -> None:
        super().__init__()
        self._reply: Reply | None = None
        self._id: str | None = None
        self._conversation = conversation
        self._stored = stored
        self._items: list[Any] = []

    def continued_by(self) -> tuple[str, ...]:
        """The response's own id, and the conversation's where it belongs to one."""
        return tuple(name for name in (self._id, self._conversation) if name is not None) if self._stored else ()

    def _ended(self, over: bool) -> bool:
        return self._reply is not None

    def _said(self) -> list[Reply]:
        return [self._reply] if self._reply is not None else []

    def _body(self, value: Any) -> None:
        self._response(value)

    def _event(self, data: bytes) -> None:
        # Every event names its type near its start or its end; most say nothing that the last one does not say again.
        ends = data[:256] + data[-256:]
        if _COMPLETED in ends:
            event = read_json(data)
            if event.get("type") == "response.completed":
                self._response(event.get("response") or {})
        elif any(kind in ends for kind in _CUT_OFF):
            event = read_json(data)
            if event.get("type") in ("response.incomplete", "response.failed"):
                self._told_beside(event.get("response") or {}, _usage)
        elif _ITEM_DONE in ends:
            event = read_json(data)
            if event.get("type") == "response.output_item.done":
                self._hold(len(data))
                self._items.append(event.get("item"))

    def _response(self, response: Any) -> None:
        self._told_beside(response, _usage)
        if response.get("status", "completed") != "completed" or response.get("error"):
            return
        items = response.get("output") or self._items
        self._id = named(response.get("id"))
        conversation = response.get("conversation")
        if self._conversation is None and isinstance(conversation, dict):
            self._conversation = named(conversation.get("id"))
        self._reply = _reply([item for item in items if isinstance(item, dict)])
        self._items = []


class ResponsesLiveReader(ResponsesReplyReader):
    """Reads a response while it is held: what has been said so far counts, too."""

    def __init__(self, conversation: str | None = None, stored: bool = True) -> None:
        super().__init__(conversation, stored)
        self._begun: list[str] = []
        self._news: list[str] = []

    def begun(self) -> tuple[str, ...]:
        """The names of the tools that it has begun to call, or the kinds of calls that name none."""
        return tuple(self._begun)

    def news(self) -> str:
        """The text that was said since the last time that this was asked."""
        fresh, self._news = "".join(self._news), []
        return fresh

    def _event(self, data: bytes) -> None:
        super()._event(data)
        ends = data[:256] + data[-256:]
        if _ITEM_ADDED in ends:
            item = read_json(data).get("item") or {}
            kind = str(item.get("type"))
            if responses_items.is_call(kind):
                self._begun.append(named(item.get("name")) or kind)
        elif _TEXT_DELTA in ends:
            delta = read_json(data).get("delta")
            if isinstance(delta, str):
                self._hold(len(delta))
                self._news.append(delta)


def _usage(told: dict[str, Any]) -> Usage:
    return usage(told, "input_tokens", "output_tokens")


def _reply(items: list[dict[str, Any]]) -> Reply:
    """What the items of a response say: everything up to the last return in it was the provider's own doing."""
    messages: list[Message] = []
    said: list[bool] = []  # beside each message: whether it is an answer, or part of one
    for item in items:
        fields = Fields(**{name: item[name] for name in Fields.__struct_fields__ if name in item})
        read = responses_items.read(len(messages), Span(0, 0), fields)
        messages += read
        said += [item.get("type") == "message" and item.get("phase") != "commentary"] * len(read)
    answered = {message.call_id for message in messages if message.role is Role.TOOL}
    still_open = tuple(call for message in messages for call in message.calls if call.id not in answered)
    ran = max((message.index + 1 for message in messages if message.role is Role.TOOL), default=0)
    last = messages[ran:]
    return Reply(
        text="".join(message.text() for message in last if message.role is Role.ASSISTANT),
        calls=still_open,
        finish=_finish(still_open, any(said[ran:])),
        cites=tuple(dict.fromkeys(names for message in last for names in message.cites)),
        ran=tuple(messages[:ran]),
    )


def _finish(calls: tuple[Call, ...], answered: bool) -> str | None:
    """A response may complete without an answer: a call stands open, or it only thought, or told what it will do."""
    if calls:
        return "tool_calls"
    return "stop" if answered else None
