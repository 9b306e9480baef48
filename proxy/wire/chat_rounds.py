"""Take the calls of one tool out of chat completions, streamed or whole, over several rounds.

Source: OpenAI's API reference, "Chat": the completion object and its chunks. What reads replies without changing them
is `chat_reply`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from proxy.wire import edits
from proxy.wire.bodies import json_text
from proxy.wire.chat_reply import finished_normally
from proxy.wire.messages import Call, Splice, Usage, splice
from proxy.wire.raw_events import RawEvent, RawEvents
from proxy.wire.repeating import Repeating
from proxy.wire.rounds import Holds, Pieces, Said
from proxy.wire.side_reader import read_json, usage

_DONE = b"data: [DONE]\n\n"


@dataclass
class _Called:
    """A call as its deltas come: whose it is shows with its name. `place` is its index as the client counts."""

    own: bool | None = None
    id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    place: int = 0
    beside: dict[str, Any] = field(default_factory=dict)
    waiting: list[bytes] = field(default_factory=list)

    def call(self) -> Call:
        return Call(self.id, self.name, "".join(self.arguments))

    def again(self) -> bytes:
        """The call as a further request carries it: with what the provider put beside it (signatures of thoughts)."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return json.dumps(
            {"id": self.id or "", "type": "function", "function": function, **self.beside},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode("utf-8", "surrogatepass")


class ChatRounds(Pieces):
    """`own` is the name of the tool whose calls the client never sees. Only replies of one choice are read."""

    def __init__(self, own: str, holds: Holds = lambda said: bool(said.own) and not said.others) -> None:
        self._own = own
        self._holds = holds
        self._given: list[str] = []  # all text that the client has
        self._named: dict[str, bytes] = {}  # what all chunks of one reply call it by, of the first round
        self._round = 0
        self._spoke = False  # whether a chunk said already whose reply this is
        self._spare: list[bytes] = []  # the end of the last round that said something, or its whole body
        self._spare_whole = False
        self._start()

    def _start(self) -> None:
        self._take()
        self._round += 1
        self._calls: dict[object, _Called] = {}
        self._text: list[str] = []
        self._finish: str | None = None
        self._error: bytes | None = None
        self._used: Usage | None = None
        self._repeating = Repeating(self.text)

    @property
    def text(self) -> str:
        return "".join(self._given)

    def begin(self) -> None:
        if self._events is None and self._whole is None:
            return
        if self._held and self._finish and self._error is None:
            self._spare, self._spare_whole = self._held, self._whole is not None
        self._start()

    def _said(self) -> Said:
        own = [called for called in self._calls.values() if called.own]
        others = tuple(called.call() for called in self._calls.values() if not called.own)
        text = "".join(self._text)
        content = json_text(text) if text or not own else b"null"
        calls = b",".join(called.again() for called in own)
        message = b'{"role":"assistant","content":' + content
        message += b',"tool_calls":[' + calls + b"]}" if own else b"}"
        return Said(
            text=text,
            own=tuple(called.call() for called in own),
            others=others,
            finish=self._finish,
            again=(message,),
            error=self._error,
            usage=self._used,
        )

    def conclude(self) -> bytes:
        held, whole = (self._held, self._whole is not None) if self._finish else (self._spare, self._spare_whole)
        if whole:
            return b"".join(self._answered(data) for data in held)
        events = [RawEvents() for _ in held]
        out = [
            event for reader, raw in zip(events, held, strict=True) for event in (*reader.feed(raw), *reader.close())
        ]
        told = [event.saying(self._answered(event.data)) if event.data is not None else event.raw for event in out]
        return b"".join(told or [_DONE])

    def failed(self, error: bytes) -> bytes:
        return b"data: " + error.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"

    def _answered(self, data: bytes) -> bytes:
        """A reply, or the end of one, that called our tool: as that of an answer."""
        if not data.startswith(b"{") or not (read_json(data).get("choices") or ()):
            return data
        return splice(data, edits.put(data, b'"stop"', "choices", 0, "finish_reason"))

    # Streams.

    def _event(self, event: RawEvent) -> bytes:
        data = event.data
        if data is None:
            return event.raw
        if not data.startswith(b"{"):
            if self._held or self._only_own() or self._drops():
                self._held.append(event.raw)
                return b""
            return event.raw
        try:
            value = read_json(data)
            return self._chunk(event, data, value)
        except (ValueError, AttributeError, TypeError):
            return event.raw  # no chunk that this version knows: whatever it is, it is the client's

    def _chunk(self, event: RawEvent, data: bytes, value: Any) -> bytes:
        self._count(value)
        if value.get("error"):
            self._error = data
            return b"" if self._drops() else event.raw
        changes = self._renamed(data)
        choices = value.get("choices")
        if not choices or self._drops():
            out = event.saying(splice(data, changes)) if changes else event.raw
            if self._held or self._drops():
                self._held.append(out)
                return b""
            return out
        choice = choices[0]
        member = next((name for name in ("delta", "message") if choice.get(name)), "delta")
        delta = choice.get(member) or {}
        said = self._delta(data, delta, ("choices", 0, member))
        changes += said.changes
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._finish = finish
            if self._withholds(finish):
                return self._withheld(event, data, value, member, changes, said.visible)
        elif said.changes and not said.visible and not value.get("usage"):
            return b""
        return event.saying(splice(data, changes)) if changes else event.raw

    def _count(self, value: Any) -> None:
        if isinstance(used := value.get("usage"), dict):
            self._used = usage(used, "prompt_tokens", "completion_tokens")

    def _withheld(
        self, event: RawEvent, data: bytes, value: Any, member: str, changes: list[Splice], visible: bool
    ) -> bytes:
        """Keep a reply's last chunk back, but for what it says beside that it is the last."""
        at = edits.place(data, "choices", 0, member)
        bare = [Splice(at.start, at.end, b"{}")] if at is not None else []
        last = self._renamed(data) + bare
        self._held.append(event.saying(splice(data, last)))
        if not visible:
            return b""
        unused = edits.put(data, b"null", "usage") if value.get("usage") else []
        going_on = edits.put(data, b"null", "choices", 0, "finish_reason")
        return event.saying(splice(data, [*changes, *unused, *going_on]))

    def _withholds(self, finish: str) -> bool:
        return finished_normally(finish) and self._holds(self._said())

    def _drops(self) -> bool:
        """Whether an error came that the client need not hear of, since there is something else to give it."""
        return self._error is not None and self._round > 1

    def _only_own(self) -> bool:
        return bool(self._calls) and all(called.own for called in self._calls.values())

    def _renamed(self, data: bytes) -> list[Splice]:
        """The names that all chunks of one reply share, so that several replies are one."""
        changes: list[Splice] = []
        for name in ("id", "created"):
            if self._round == 1:
                if name not in self._named and (at := edits.place(data, name)) is not None:
                    self._named[name] = data[at.start : at.end]
            elif name in self._named:
                changes += edits.put(data, self._named[name], name)
        return changes

    def _delta(self, data: bytes, delta: dict[str, Any], path: tuple[str | int, ...]) -> _Delta:
        said = _Delta()
        if "role" in delta:
            if self._spoke and (at := edits.place(data, *path)) is not None:
                said.changes += edits.without_member(data, at, "role")
            said.visible = not self._spoke
            self._spoke = True
        self._content(data, delta, path, said)
        self._tool_calls(data, delta, path, said)
        if delta.get("function_call"):
            self._calls.setdefault("function", _Called(own=False, name="function"))
        said.visible |= any(v for name, v in delta.items() if name not in ("role", "content", "tool_calls"))
        return said

    def _content(self, data: bytes, delta: dict[str, Any], path: tuple[str | int, ...], said: _Delta) -> None:
        content = delta.get("content")
        if not isinstance(content, str) or not content:
            said.visible |= bool(content)
            return
        self._text.append(content)
        new = self._repeating.feed(content)
        if new != content:
            said.changes += edits.put(data, json_text(new), *path, "content")
        if new:
            self._given.append(new)
            said.visible = True

    def _tool_calls(self, data: bytes, delta: dict[str, Any], path: tuple[str | int, ...], said: _Delta) -> None:
        entries = delta.get("tool_calls")
        if not isinstance(entries, list) or not entries:
            return
        gone: set[int] = set()
        waited: list[bytes] = []
        kept: list[Splice] = []
        for position, entry in enumerate(entries):
            called = self._called(position, entry)
            at = edits.place(data, *path, "tool_calls", position)
            if called.own is not False:
                gone.add(position)
                if called.own is None and at is not None:
                    called.waiting.append(data[at.start : at.end])
                continue
            waited += [self._counted(raw, called) for raw in called.waiting]
            called.waiting = []
            index = entry.get("index")
            if isinstance(index, int) and index != called.place:
                kept += edits.put(data, str(called.place).encode(), *path, "tool_calls", position, "index")
        span = edits.place(data, *path, "tool_calls")
        if len(gone) == len(entries):
            at = edits.place(data, *path)
            said.changes += edits.without_member(data, at, "tool_calls") if at is not None else []
            return
        said.visible = True
        if span is not None and (gone or waited):
            said.changes += edits.without_elements(data, span, gone, waited)
        said.changes += kept

    def _counted(self, raw: bytes, called: _Called) -> bytes:
        return splice(raw, edits.put(raw, str(called.place).encode(), "index"))

    def _called(self, position: int, entry: dict[str, Any]) -> _Called:
        """The call that a delta goes on with, with what it adds."""
        index = entry.get("index")
        key: object = index if index is not None else (entry.get("id") or position)
        called = self._calls.setdefault(key, _Called())
        function = entry.get("function") or entry.get("custom") or {}
        if isinstance(entry.get("id"), str) and entry["id"]:
            called.id = entry["id"]
        if isinstance(function.get("name"), str) and function["name"]:
            called.name = function["name"]
        arguments = function.get("arguments", function.get("input"))
        if isinstance(arguments, str):
            called.arguments.append(arguments)
        elif isinstance(arguments, dict):
            called.arguments.append(json.dumps(arguments))
        called.beside |= {k: v for k, v in entry.items() if k not in ("index", "id", "type", "function", "custom")}
        if called.own is None and called.name:
            called.own = called.name == self._own
            before = sum(bool(other.own) for other in self._calls.values() if other is not called)
            called.place = index - before if isinstance(index, int) else 0
        return called

    # Whole replies.

    def _read_whole(self, data: bytes) -> None:
        self._held = [data]
        try:
            value = read_json(data)
            self._count(value)
            if value.get("error"):
                self._error = data
                return
            choice = value["choices"][0]
            self._held = [splice(data, self._message(data, choice.get("message") or {}))]
        except (ValueError, AttributeError, TypeError, LookupError):
            return  # no completion that this version knows: it is the client's as it is
        finish = choice.get("finish_reason")
        self._finish = finish if isinstance(finish, str) and finish else None

    def _message(self, data: bytes, message: dict[str, Any]) -> list[Splice]:
        """A whole message without our calls, and with the text of the rounds before it."""
        path = ("choices", 0, "message")
        said = _Delta()
        self._tool_calls(data, message, path, said)
        content = message.get("content")
        if isinstance(content, str) and content:
            self._text.append(content)
            self._given.append(self._repeating.feed(content))
        at = edits.place(data, *path)
        if at is None or content == self.text or not (content is None or isinstance(content, str)) or not self.text:
            return said.changes
        if "content" in message:
            return [*said.changes, *edits.put(data, json_text(self.text), *path, "content")]
        return [*said.changes, Splice(at.start + 1, at.start + 1, b'"content":' + json_text(self.text) + b",")]


@dataclass
class _Delta:
    """What a delta becomes: its changes, and whether anything of it is for the client."""

    changes: list[Splice] = field(default_factory=list)
    visible: bool = False
