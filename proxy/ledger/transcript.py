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
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import orjson

from proxy.evidence.pictures import digest_of
from proxy.wire.messages import Call, Message, OtherPart, Picture, Request, Role, Text

_THINKING = re.compile(r"<(?P<end>/)?think(?:ing)?>", re.IGNORECASE)


class Return(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tool's return: its place among all returns of the transcript, in canonical order, and the call it answers.

    `told` is for those who ask the same of it in each request of a conversation: what they found out, which depends on
    nothing but the return and what they put into the key.
    """

    ordinal: int
    message: Message
    call: Call | None
    told: dict[Any, Any] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Return):
            return NotImplemented
        return (self.ordinal, self.message, self.call) == (other.ordinal, other.message, other.call)

    def __hash__(self) -> int:
        return hash((self.ordinal, self.call))

    @property
    def tool(self) -> str | None:
        return self.call.name if self.call is not None else None


class ReplyStep(msgspec.Struct, eq=False, gc=False):
    """One reply of the model, and what stands between it and the next one.

    `key` and `shown` are digests of everything before it: without, and with, what the assistant said.
    `opens` is the user message after it, where the reply ended a question.
    """

    messages: list[Message]
    key: bytes
    shown: bytes
    text: str = ""
    calls: list[Call] = []
    returns: list[Return] = []
    users: list[tuple[int, Message]] = []  # with their ordinal among all user messages
    told: dict[Any, Any] = {}  # as of a Return
    _digest: bytes | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplyStep):
            return NotImplemented
        return (self.messages, self.key, self.shown, self.text, self.calls, self.returns, self.users) == (
            (other.messages, other.key, other.shown, other.text, other.calls, other.returns, other.users)
        )

    @property
    def digest(self) -> bytes:
        """What `reply_digest` gives for it."""
        return self._digest if self._digest is not None else reply_digest(self.text, self.calls)

    def sealed(self, arguments: list[str]) -> bytes:
        """Its digest, of its calls' arguments in canonical form, now that nothing is added to it any more."""
        self._digest = _reply_digest(self.text, zip(self.calls, arguments, strict=True))
        return self._digest


class Transcript(msgspec.Struct, frozen=True, gc=False):
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
    checkpoint: Checkpoint | None = None
    ended: Checkpoint | None = None
    """Where reading goes on if a reply comes next; None where the last one may still go on."""

    shared: int = 0
    """How many returns, from the first on, are those of the transcript that this one continues."""

    @property
    def opening(self) -> bytes:
        """A digest of everything before the first reply: it stays while a conversation goes on, and so names it where
        nobody else does."""
        return self.replies[0].key if self.replies else self.key

    @property
    def beginning(self) -> bytes | None:
        """A digest of all through the first tool returns, whose call ids tell one conversation from another that opens
        with the same words; None before there are any."""
        first = next((index for index, step in enumerate(self.replies) if step.returns), None)
        if first is None:
            return None
        return self.replies[first + 1].key if first + 1 < len(self.replies) else self.key


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """The state of reading where a reply begins: the last one, from which on a longer conversation may read
    differently, or the one that comes next.

    `messages` is how many messages stand before it. What was read before is never changed again, and shared.
    """

    messages: int
    replies: int
    returns: int
    users: int
    key: Any
    shown: Any
    shared: int = 0


#: Numbers that are not short integers. It begins with what any of them has, so that a search hardly stops elsewhere.
_NUMBER = re.compile(
    r"[0-9](?:(?<=[:\[,\s][0-9])|(?<=[:\[,\s]-[0-9])|(?<=\A[0-9])|(?<=\A-[0-9]))(?:[0-9]*[.eE]|[0-9]{15})"
)


def _is_plain(arguments: str) -> bool:
    """Whether the quick reader and writer surely treat arguments as the careful ones do: not numbers that are no short
    integers, nor characters beyond ASCII, which one writes as escapes."""
    return (
        arguments.isascii() and "\\u" not in arguments and "\x7f" not in arguments and _NUMBER.search(arguments) is None
    )


def canonical_arguments(arguments: str) -> str:
    """A call's arguments as a canonical text: parsed JSON with sorted keys, or as they stand where they are not JSON.

    Whole floats are written as integers, since JavaScript clients replay `1.0` as `1`.
    """
    if _is_plain(arguments):
        try:
            return "json:" + orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
        except (ValueError, TypeError):
            pass  # the careful reader knows better
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
    return _reply_digest(text, ((call, canonical_arguments(call.arguments)) for call in calls))


def _reply_digest(text: str, calls: Iterable[tuple[Call, str]]) -> bytes:
    said = _framed(b"text", without_thinking(text).strip())
    for call, arguments in calls:
        said += _framed(b"call", call.name) + _framed(b"arguments", arguments)
    return hashlib.sha256(said).digest()[:16]


def without_thinking(text: str) -> str:
    """The text without its thinking blocks, which some clients take out; one that never ends stays."""
    if "<" not in text:
        return text
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


def read(request: Request, known: Transcript | None = None) -> Transcript:
    """Read a request's messages into replies, returns and user messages, with their digests.

    `known` is the transcript of the request that this one was cut as a continuation of: what cannot read differently
    in the longer one is taken from it.
    """
    return _Reader(request, known).read()


def _framed(kind: bytes, *texts: str) -> bytes:
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        kind += b":%d:" % len(raw) + raw
    return kind


def _frame(state: Any, kind: bytes, text: str) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    state.update(b"%b:%d:" % (kind, len(raw)))
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
            state.update(b"picture" + digest_of(part))
        elif isinstance(part, OtherPart):
            _frame(state, b"part", json.dumps(part.value, sort_keys=True, separators=(",", ":"), default=str))
    if text:
        _frame(state, b"text", "".join(text))
    return state.digest()


class _Reader:
    def __init__(self, request: Request, known: Transcript | None) -> None:
        self.request = request
        self.tools: list[Message] = []
        self.before: list[bytes] = []
        at = _goes_on(request, known) if known is not None else None
        if known is None or at is None:
            self.key = hashlib.sha256(b"conversation 1")
            self.shown = hashlib.sha256(b"conversation 1, as shown")
            self.first_users: list[tuple[int, Message]] = []
            self.replies: list[ReplyStep] = []
            self.returns: list[Return] = []
            self.users: list[Message] = []
            self.start = self.shared = 0
        else:
            self.key, self.shown = at.key.copy(), at.shown.copy()
            self.first_users = known.first_users
            self.replies = known.replies[: at.replies]
            self.returns = known.returns[: at.returns]
            self.users = known.users[: at.users]
            self.start, self.shared = at.messages, at.returns
        #: Returns that are read again, such as the last reply's, by the messages that both requests share.
        again = known.returns[self.shared :] if known is not None else []
        self.read_again = {id(found.message): found for found in again}
        self.opened: Checkpoint | None = None
        self.last = _last_reply(request.messages)
        #: What goes under both digests, until one of them is asked for.
        self.pending: list[bytes] = []

    def read(self) -> Transcript:
        speaking = False
        # Where it goes on, the reply before is closed already.
        fresh = self.start > 0
        for position in range(self.start, len(self.request.messages)):
            message = self.request.messages[position]
            if message.role is Role.ASSISTANT:
                if not speaking:
                    if not fresh:
                        self.close_reply()
                    fresh = False
                    self.open_reply(position)
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
        self.flush()
        end = len(self.request.messages)
        ended = Checkpoint(end, len(self.replies), len(self.returns), len(self.users), self.key, self.shown)
        return Transcript(
            request=self.request,
            first_users=self.first_users,
            replies=self.replies,
            returns=self.returns,
            users=self.users,
            key=self.key.digest(),
            shown=self.shown.digest(),
            shown_before=tuple(self.before),
            checkpoint=self.opened,
            ended=None if speaking else ended,
            shared=self.shared,
        )

    def open_reply(self, position: int) -> None:
        self.flush()
        if position == self.last:
            self.opened = Checkpoint(
                messages=position,
                replies=len(self.replies),
                returns=len(self.returns),
                users=len(self.users),
                key=self.key.copy(),
                shown=self.shown.copy(),
            )
        self.replies.append(ReplyStep([], self.key.digest(), self.shown.digest()))

    def speak(self, message: Message) -> None:
        reply = self.replies[-1]
        reply.messages.append(message)
        reply.calls.extend(message.calls)
        reply.text += message.text()

    def close_reply(self) -> None:
        """Everything up to here is one reply (or the opening): put it under the digests, in canonical order."""
        reply = self.replies[-1] if self.replies else None
        if reply is not None:
            # The digest frames its calls as the key does; their arguments are read once for both.
            arguments = [canonical_arguments(call.arguments) for call in reply.calls]
            self.flush()
            self.shown.update(reply.sealed(arguments))
            for call, written in zip(reply.calls, arguments, strict=True):
                self.add(b"call", call.id or "", call.name, written)
        for message, answered in self.matched(reply.calls if reply else []):
            found = Return(len(self.returns), message, answered)
            before = self.read_again.get(id(message))
            if before is not None and (before.ordinal, before.call) == (found.ordinal, answered):
                found.told.update(before.told)
            self.returns.append(found)
            if reply is not None:
                reply.returns.append(found)
            self.add(b"return", message.call_id or "")
            self.add_content(message)
        self.before = []
        for position, (_, message) in enumerate(reply.users if reply else self.first_users):
            if position:
                self.flush()
                self.before.append(self.shown.digest())
            self.add(b"user")
            self.add_content(message)
        self.tools = []

    def matched(self, calls: list[Call]) -> list[tuple[Message, Call | None]]:
        """The tool messages of this reply with their calls, in the order of the calls.

        Ids are scoped to the reply, since some servers count them anew in each. Where one reply repeats an id, the
        first return is the first call's, if both called the same tool: else nobody knows whose it is. A return that
        names no call takes the next one that is free.
        """
        if not self.tools:
            return []
        if len(calls) == 1 == len(self.tools) and self.tools[0].call_id in (None, calls[0].id):
            return [(self.tools[0], calls[0])]
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
        self.pending.append(_framed(kind, *texts))

    def add_content(self, message: Message) -> None:
        self.pending.append(content_digest(message))

    def flush(self) -> None:
        if self.pending:
            added = b"".join(self.pending)
            self.key.update(added)
            self.shown.update(added)
            self.pending.clear()


def _goes_on(request: Request, known: Transcript) -> Checkpoint | None:
    """Where reading goes on behind what was read before: at a place where another reply begins, or the one before it
    would be closed again."""
    most = min(request.known, len(request.messages) - 1)
    for at in (known.ended, known.checkpoint):
        if at is not None and 0 < at.messages <= most and request.messages[at.messages].role is Role.ASSISTANT:
            return at
    return None


def _last_reply(messages: Sequence[Message]) -> int:
    """Where the last reply begins: its first message; -1 where there is none."""
    start = -1
    for position in range(len(messages) - 1, -1, -1):
        role = messages[position].role
        if role is Role.ASSISTANT:
            start = position
        elif start >= 0 and role in (Role.TOOL, Role.USER):
            break
    return start
