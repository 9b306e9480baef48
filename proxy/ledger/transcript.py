"""A transcript, read once: replies and the returns that answer them, each with its key.

A key is a digest of the conversation as the client wrote it: user messages, tool calls and tool returns, in
canonical form (the returns of one reply in the order of its calls; arguments as parsed JSON; pictures by their decoded
bytes). Assistant text, reasoning and system messages do not count, since clients edit them or leave them out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from proxy.evidence.pictures import picture_digest
from proxy.wire.messages import Call, Message, OtherPart, Picture, Request, Role, Text

_THINKING = re.compile(r"<(?P<end>/)?think(?:ing)?>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Return:
    """A tool's return: its place among all returns of the transcript, in canonical order, and the call it answers."""

    ordinal: int
    message: Message
    call: Call | None

    @property
    def tool(self) -> str | None:
        return self.call.name if self.call is not None else None


@dataclass(slots=True)
class ReplyStep:
    """One reply of the model, and what stands between it and the next one.

    `key` and `shown` are digests of everything before it: without, and with, what the assistant said.
    `opens` is the user message after it, where the reply ended a question.
    """

    messages: list[Message]
    key: bytes
    shown: bytes
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    users: list[tuple[int, Message]] = field(default_factory=list)  # with their ordinal among all user messages

    @property
    def digest(self) -> bytes:
        return reply_digest(self.text, self.calls)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of a request, in replies. `key` and `shown` are digests of all of it.

    `shown_before` are `shown` as it was before each further user message at the end: a client whose question failed
    may have asked again below it.
    """

    request: Request
    first_users: list[tuple[int, Message]]
    replies: list[ReplyStep]
    returns: list[Return]
    users: list[Message]
    key: bytes
    shown: bytes
    shown_before: tuple[bytes, ...] = ()

    @property
    def beginning(self) -> bytes | None:
        """A digest of all through the first tool returns, whose call ids tell one conversation from another that opens
        with the same words; None before there are any."""
        first = next((index for index, step in enumerate(self.replies) if step.returns), None)
        if first is None:
            return None
        return self.replies[first + 1].key if first + 1 < len(self.replies) else self.key


def canonical_arguments(arguments: str) -> str:
    """A call's arguments as a canonical text: parsed JSON with sorted keys, or as they stand where they are not JSON.

    Whole floats are written as integers, since JavaScript clients replay `1.0` as `1`.
    """
    try:
        return "json:" + json.dumps(_whole(json.loads(arguments)), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return "text:" + arguments


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value


def reply_digest(text: str, calls: list[Call] | tuple[Call, ...]) -> bytes:
    """16 bytes that stand for a reply: its text without thinking blocks and outer white space, and its calls."""
    state = hashlib.sha256()
    _frame(state, b"text", without_thinking(text).strip())
    for call in calls:
        _frame(state, b"call", call.name)
        _frame(state, b"arguments", canonical_arguments(call.arguments))
    return state.digest()[:16]


def without_thinking(text: str) -> str:
    """The text without its thinking blocks, which some clients take out; one that never ends stays."""
    kept: list[str] = []
    at = begins = 0
    thinking = False
    for mark in _THINKING.finditer(text):
        if not thinking and not mark["end"]:
            begins, thinking = mark.start(), True
        elif thinking and mark["end"]:
            kept.append(text[at:begins])
            at, thinking = mark.end(), False
    return "".join([*kept, text[at:]])


def read(request: Request) -> Transcript:
    """Read a request's messages into replies, returns and user messages, with their digests."""
    return _Reader(request).read()


def _frame(state: Any, kind: bytes, *texts: str) -> None:
    state.update(kind)
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        state.update(b":%d:" % len(raw))
        state.update(raw)


def content_digest(message: Message) -> bytes:
    """The digest of what a message holds: adjacent text as one, pictures by their bytes, other parts as they are."""
    state = hashlib.sha256()
    if message.plain and len(message.parts) == 1 and isinstance(message.parts[0], Text):
        _frame(state, b"text", message.parts[0].text)
        return state.digest()
    text: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            text.append(part.text)
            continue
        if text:
            _frame(state, b"text", "".join(text))
            text = []
        if isinstance(part, Picture):
            state.update(b"picture" + picture_digest(part.url))
        elif isinstance(part, OtherPart):
            _frame(state, b"part", json.dumps(part.value, sort_keys=True, separators=(",", ":"), default=str))
    if text:
        _frame(state, b"text", "".join(text))
    return state.digest()


class _Reader:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.key = hashlib.sha256(b"conversation 1")
        self.shown = hashlib.sha256(b"conversation 1, as shown")
        self.first_users: list[tuple[int, Message]] = []
        self.replies: list[ReplyStep] = []
        self.returns: list[Return] = []
        self.users: list[Message] = []
        self.tools: list[Message] = []
        self.before: list[bytes] = []

    def read(self) -> Transcript:
        speaking = False
        for message in self.request.messages:
            if message.role is Role.ASSISTANT:
                if not speaking:
                    self.close_reply()
                    self.replies.append(ReplyStep([], self.key.copy().digest(), self.shown.copy().digest()))
                speaking = True
                self.speak(message)
            elif message.role is Role.TOOL:
                speaking = False
                self.tools.append(message)
            elif message.role is Role.USER:
                speaking = False
                place = (len(self.users), message)
                self.users.append(message)
                (self.replies[-1].users if self.replies else self.first_users).append(place)
        self.close_reply()
        return Transcript(
            request=self.request,
            first_users=self.first_users,
            replies=self.replies,
            returns=self.returns,
            users=self.users,
            key=self.key.digest(),
            shown=self.shown.digest(),
            shown_before=tuple(self.before),
        )

    def speak(self, message: Message) -> None:
        reply = self.replies[-1]
        reply.messages.append(message)
        reply.calls.extend(message.calls)
        reply.text += message.text()

    def close_reply(self) -> None:
        """Everything up to here is one reply (or the opening): put it under the digests, in canonical order."""
        reply = self.replies[-1] if self.replies else None
        if reply is not None:
            self.shown.update(reply.digest)
            for call in reply.calls:
                self.add(b"call", call.id or "", call.name, canonical_arguments(call.arguments))
        for message, answered in self.matched(reply.calls if reply else []):
            found = Return(len(self.returns), message, answered)
            self.returns.append(found)
            if reply is not None:
                reply.returns.append(found)
            self.add(b"return", message.call_id or "")
            self.add_content(message)
        self.before = []
        for position, (_, message) in enumerate(reply.users if reply else self.first_users):
            if position:
                self.before.append(self.shown.copy().digest())
            self.add(b"user")
            self.add_content(message)
        self.tools = []

    def matched(self, calls: list[Call]) -> list[tuple[Message, Call | None]]:
        """The tool messages of this reply with their calls, in the order of the calls.

        Ids are scoped to the reply, since some servers count them anew in each. Where one reply repeats an id, the
        first return is the first call's, if both called the same tool: else nobody knows whose it is. A return that
        names no call takes the next one that is free.
        """
        free = dict(enumerate(calls))
        by_id: dict[str | None, deque[int]] = {}
        tools: dict[str | None, set[str]] = {}
        for position, call in enumerate(calls):
            by_id.setdefault(call.id, deque()).append(position)
            tools.setdefault(call.id, set()).add(call.name)
        placed: list[tuple[int, Message, Call | None]] = []
        for message in self.tools:
            position = len(calls)
            if message.call_id is None:
                position = next(iter(free), position)
            else:
                waiting = by_id.get(message.call_id) or deque()
                while waiting and waiting[0] not in free:
                    waiting.popleft()
                position = waiting.popleft() if waiting else position
            call_of = free.pop(position, None)
            if call_of is not None and message.call_id is not None and len(tools[message.call_id]) > 1:
                call_of = None
            placed.append((position, message, call_of))
        placed.sort(key=lambda item: item[0])
        return [(message, call_of) for _, message, call_of in placed]

    def add(self, kind: bytes, *texts: str) -> None:
        _frame(self.key, kind, *texts)
        _frame(self.shown, kind, *texts)

    def add_content(self, message: Message) -> None:
        content = content_digest(message)
        self.key.update(content)
        self.shown.update(content)
