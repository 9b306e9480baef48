"""Take the calls of one tool out of responses, streamed or whole, over several rounds.

Source: OpenAI's API reference, "Responses": the response object and its streaming events. What reads replies without
changing them is `responses_reply`.

An item of reasoning that leads to nothing but a call of ours goes with it: a client that replayed it alone would be
refused, since the provider wants what followed it. So reasoning is withheld until what follows it begins.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from proxy.wire import edits
from proxy.wire.bodies import json_text
from proxy.wire.messages import Call, Span, Splice, Usage, splice
from proxy.wire.raw_events import RawEvent
from proxy.wire.repeating import Repeating
from proxy.wire.responses_items import is_call, named
from proxy.wire.rounds import Holds, Pieces, Said
from proxy.wire.side_reader import read_json, usage

#: How a stream says that its response is over.
_ENDS = {"response.completed": "completed", "response.incomplete": "incomplete"}
_FAILURES = frozenset({"error", "response.failed"})
#: What opens a stream, once.
_OPENS = frozenset({"response.created", "response.in_progress", "response.queued"})
_COMPLETED = "completed"
_ANSWERED, _CALLED = "stop", "tool_calls"


@dataclass
class _Item:
    """An item of this round. `fate` is whether the client gets it; None while that is not known, and then its events
    wait. `skip` is how many characters of its text the client has already."""

    kind: str
    value: dict[str, Any]
    raw: bytes = b""
    fate: bool | None = None
    own: bool = False
    place: int = 0
    skip: int = 0
    text: str = ""
    repeating: Repeating | None = None
    waiting: list[tuple[RawEvent, dict[str, Any]]] = field(default_factory=list)


class ResponsesRounds(Pieces):
    """`own` is the name of the tool whose calls the client never sees. `stored` says whether the provider keeps what it
    replies: where it does not, reasoning can be sent again only in its encrypted form."""

    def __init__(
        self, own: str, holds: Holds = lambda said: bool(said.own) and not said.others, stored: bool = True
    ) -> None:
        self._own = own
        self._holds = holds
        self._stored = stored
        self._given: list[str] = []
        self._done: list[bytes] = []  # the items that the client has of the rounds before, as the last event has them
        self._round = 0
        self._number: int | None = None  # that of the next event, once it is not the provider's own any more
        self._next: int | None = None
        self._spare: list[bytes] = []
        self._numbers: tuple[int | None, int | None] = (None, None)  # as they were before the withheld end
        self._places = 0
        self._shown_as: str | None = None  # what a stream called itself when it began: clients hold it to that
        self._start()

    def _start(self) -> None:
        self._take()
        self._round += 1
        self._items: dict[int, _Item] = {}
        self._status: str | None = None
        self._error: bytes | None = None
        self._used: Usage | None = None
        self._identity: str | None = None
        self._dropped = self._round > 1
        self._before = list(self._done)
        self._said_before = self.text

    @property
    def text(self) -> str:
        return "".join(self._given)

    def begin(self) -> None:
        if self._events is None and self._whole is None:
            return
        if self._held and self._status == _COMPLETED:
            self._spare = self._held
            self._number, self._next = self._numbers  # what was withheld is not sent: the next event has its number
        self._done += [self._shown(item) for item in self._items.values() if item.fate and item.raw]
        self._start()

    def _said(self) -> Said:
        items = list(self._items.values())
        others = tuple(_call(item.value) for item in items if is_call(item.kind) and not item.own)
        text = "".join(item.text for item in items)
        own = tuple(_call(item.value) for item in items if item.own)
        finish = self._status
        if finish == _COMPLETED:
            finish = _CALLED if own or others else _ANSWERED
        shown_as = self._shown_as if self._events is not None else self._identity
        return Said(text, own, others, finish, self._again(items), self._error, self._used, self._identity, shown_as)

    def _again(self, items: list[_Item]) -> tuple[bytes, ...]:
        """The items as a further request carries them. Where the provider keeps nothing it takes no ids of its own, and
        reasoning only if it can be decrypted."""
        readable = all(item.value.get("encrypted_content") for item in items if item.kind == "reasoning")
        if self._stored or readable:
            return tuple(item.raw for item in items if item.raw)
        plain = [item for item in items if item.raw and item.kind != "reasoning"]
        return tuple(splice(item.raw, edits.without_member(item.raw, Span(0, len(item.raw)), "id")) for item in plain)

    def conclude(self) -> bytes:
        """The provider's own end of the round that said something: without our calls, it is that of an answer."""
        held = self._held if self._status == _COMPLETED else self._spare
        return b"".join(held)

    def failed(self, error: bytes) -> bytes:
        told = json.loads(error).get("error") or {}
        number = self._number if self._number is not None else (self._next or 0)
        value = {
            "type": "error",
            "code": told.get("code"),
            "message": told.get("message"),
            "param": told.get("param"),
            "sequence_number": number,
        }
        return b"event: error\ndata: " + json.dumps(value).encode() + b"\n\n"

    # Streams.

    def _event(self, event: RawEvent) -> bytes:
        data = event.data
        if data is None or not data.startswith(b"{"):
            return event.raw if data is None or not self._held else self._hold(event.raw)
        try:
            value = read_json(data)
            return self._told(event, value)
        except (ValueError, AttributeError, TypeError):
            return event.raw

    def _hold(self, raw: bytes) -> bytes:
        self._held.append(raw)
        return b""

    def _told(self, event: RawEvent, value: dict[str, Any]) -> bytes:
        kind = str(value.get("type"))
        if kind in _OPENS:
            self._identity = named((value.get("response") or {}).get("id"))
            self._shown_as = self._shown_as or self._identity
            return self._drop() if self._round > 1 else self._emit(event, value)
        if kind in _FAILURES:
            self._error = event.data
            return self._drop() if self._drops() else self._emit(event, value)
        if kind in _ENDS:
            return self._ended(event, value, _ENDS[kind])
        index = value.get("output_index")
        if not isinstance(index, int):
            return self._emit(event, value)
        out = self._added(index, value.get("item") or {}) if kind == "response.output_item.added" else b""
        item = self._items.get(index)
        if item is None:
            return self._emit(event, value)
        return out + self._of(item, event, value, kind)

    def _drops(self) -> bool:
        """Whether the client need not hear of an error, since there may be something else to give it."""
        return self._round > 1

    def _drop(self) -> bytes:
        self._dropped = True
        return b""

    def _added(self, index: int, value: dict[str, Any]) -> bytes:
        """Another item begins: now it shows whether the reasoning before it leads to something that stays."""
        item = _Item(str(value.get("type")), value)
        item.own = item.kind == "function_call" and value.get("name") == self._own
        if item.own:
            item.fate = False
        elif item.kind == "reasoning":
            item.fate = None
        elif item.kind == "message" and self._said_before.strip():
            item.repeating = Repeating(self._said_before)
        else:
            item.fate = True
        self._items[index] = item
        return self._let_go(item) if item.fate else b""

    def _let_go(self, item: _Item) -> bytes:
        """An item stays: what waits before it goes to the client first, in order."""
        out: list[bytes] = []
        for known in self._items.values():
            if known is item:
                break
            if known.fate is None and known.kind == "reasoning":
                known.fate = True
                self._take_place(known)
                out += [self._emit(event, value, place=known.place) for event, value in known.waiting]
                known.waiting = []
        self._take_place(item)
        return b"".join(out)

    def _take_place(self, item: _Item) -> None:
        item.place = self._places
        self._places += 1

    def _of(self, item: _Item, event: RawEvent, value: dict[str, Any], kind: str) -> bytes:
        if kind == "response.output_item.done" and event.data is not None:
            at = edits.place(event.data, "item")
            item.value = value.get("item") or item.value
            item.raw = event.data[at.start : at.end] if at is not None else b""
        new: str | None = None
        if kind == "response.output_text.delta" and isinstance(value.get("delta"), str):
            new = self._heard(item, value["delta"])
        if item.fate is False:
            return self._drop()
        if item.fate is None and item.repeating is not None:
            if item.repeating.holds:
                item.waiting.append((event, value))
                return self._repeated(item) if kind == "response.output_item.done" else b""
            return self._diverged(item, event, value, new or "")
        if item.fate is None:
            item.waiting.append((event, value))
            return b""
        return self._emit(event, value, self._cut(item, event, value, kind), item.place)

    def _heard(self, item: _Item, delta: str) -> str:
        item.text += delta
        if item.repeating is None:
            self._given.append(delta)
            return delta
        new = item.repeating.feed(delta)
        self._given.append(new)
        return new

    def _repeated(self, item: _Item) -> bytes:
        """An item that says nothing new is none."""
        item.fate = False
        item.waiting = []
        return self._drop()

    def _diverged(self, item: _Item, event: RawEvent, value: dict[str, Any], new: str) -> bytes:
        """An item says something new: it begins now, without what the client has already."""
        item.fate = True
        new = new[-len(item.text) :]  # an item stands apart by itself
        item.skip = len(item.text) - len(new)
        out = self._let_go(item)
        for waited, its in item.waiting:
            if its.get("type") != "response.output_text.delta":
                out += self._emit(waited, its, place=item.place)
            else:
                self._drop()
        item.waiting = []
        changes = edits.put(event.data or b"", json_text(new), "delta")
        return out + self._emit(event, value, changes, item.place)

    def _cut(self, item: _Item, event: RawEvent, value: dict[str, Any], kind: str) -> list[Splice]:
        """Where an event tells an item's text again: without what the client has already."""
        if not item.skip or event.data is None:
            return []
        path: tuple[str | int, ...] | None = {
            "response.output_text.done": ("text",),
            "response.content_part.done": ("part", "text"),
            "response.output_item.done": ("item", "content", 0, "text"),
        }.get(kind)
        return _shortened(event.data, path, item.skip) if path is not None else []

    def _shown(self, item: _Item) -> bytes:
        """An item as the client has it."""
        changes = _shortened(item.raw, ("content", 0, "text"), item.skip) if item.skip else []
        return splice(item.raw, changes)

    def _emit(
        self, event: RawEvent, value: dict[str, Any], changes: list[Splice] | None = None, place: int | None = None
    ) -> bytes:
        """An event as the client gets it: numbered on, and at its item's `place` in what the client has."""
        data = event.data or b""
        changes = list(changes or ())
        if place is not None and place != value.get("output_index"):
            changes += edits.put(data, str(place).encode(), "output_index")
        number = value.get("sequence_number")
        if isinstance(number, int):
            if self._dropped and self._number is None:
                self._number = self._next if self._next is not None else number
            if self._number is not None:
                if number != self._number:
                    changes += edits.put(data, str(self._number).encode(), "sequence_number")
                self._number += 1
            self._next = number + 1
        return event.saying(splice(data, changes)) if changes else event.raw

    def _only_own(self) -> bool:
        return any(item.own for item in self._items.values()) and not any(
            is_call(item.kind) and not item.own for item in self._items.values()
        )

    def _ended(self, event: RawEvent, value: dict[str, Any], status: str) -> bytes:
        self._status = status
        self._count(value.get("response") or {})
        self._from_the_end(event.data or b"", value.get("response") or {})
        out = b"".join(self._late(item) for item in list(self._items.values()))
        changes = self._whole_output(event.data or b"", ("response", "output"))
        if self._identity != self._shown_as and self._shown_as is not None:
            changes += edits.put(event.data or b"", json_text(self._shown_as), "response", "id")
        self._numbers = (self._number, self._next)
        told = self._emit(event, value, changes)
        if status == _COMPLETED and self._holds(self._said()):
            return out + self._hold(told)
        return out + told

    def _count(self, response: dict[str, Any]) -> None:
        self._identity = named(response.get("id")) or self._identity
        if isinstance(used := response.get("usage"), dict):
            self._used = usage(used, "input_tokens", "output_tokens")

    def _late(self, item: _Item) -> bytes:
        """Reasoning that nothing followed: it stays, unless a call of ours came after it."""
        if item.fate is not None:
            return b""
        if item.repeating is not None or self._only_own():
            item.fate = False
            self._dropped = self._dropped or bool(item.waiting)
            item.waiting = []
            return b""
        item.fate = True
        self._take_place(item)
        out = b"".join(self._emit(event, value, place=item.place) for event, value in item.waiting)
        item.waiting = []
        return out

    def _from_the_end(self, data: bytes, response: dict[str, Any]) -> None:
        """Items that only the last event told of, and the last word on those that came before."""
        output = response.get("output")
        for index, value in enumerate(output if isinstance(output, list) else ()):
            if not isinstance(value, dict) or (index in self._items and self._items[index].raw):
                continue
            at = edits.place(data, "response", "output", index)
            item = self._items.setdefault(index, _Item(str(value.get("type")), value))
            item.value, item.raw = value, data[at.start : at.end] if at is not None else b""
            item.own = item.kind == "function_call" and value.get("name") == self._own
            if item.own:
                item.fate = False
            elif item.fate is None and item.kind != "reasoning":
                self._read_text(item)

    def _read_text(self, item: _Item) -> None:
        """The fate of an item that was not streamed: what it says again is not said twice."""
        item.text = text = _text(item.value)
        item.fate = True
        if item.kind != "message" or not self._said_before.strip():
            self._given.append(text)
            return
        repeating = Repeating(self._said_before)
        new = repeating.feed(text)
        item.fate = not repeating.holds
        if item.fate:
            item.skip = max(len(text) - len(new), 0)
            self._given.append(new)

    def _whole_output(self, data: bytes, path: tuple[str | int, ...]) -> list[Splice]:
        """The last event's items: those of every round, without ours."""
        span = edits.place(data, *path)
        gone = {index for index, item in self._items.items() if not item.fate}
        skips = {index: item.skip for index, item in self._items.items() if item.fate and item.skip}
        if span is None or not (gone or self._before or skips) or not data.startswith(b"[", span.start):
            return []
        changes = edits.without_elements(data, span, gone, self._before)
        for index, skip in skips.items():
            changes += _shortened(data, (*path, index, "content", 0, "text"), skip)
        return changes

    # Whole responses.

    def _read_whole(self, data: bytes) -> None:
        self._held = [data]
        try:
            value = read_json(data)
            self._count(value)
            if value.get("error"):
                self._error = data
                return
            output = value["output"]
            for index, one in enumerate(output):
                at = edits.place(data, "output", index)
                item = _Item(str(one.get("type")), one, raw=data[at.start : at.end] if at is not None else b"")
                item.own = item.kind == "function_call" and one.get("name") == self._own
                item.fate = False if item.own else None
                self._items[index] = item
        except (ValueError, AttributeError, TypeError, LookupError):
            self._items = {}
            return
        self._status = value.get("status") if isinstance(value.get("status"), str) else _COMPLETED
        leads = False  # whether reasoning here leads to something that stays
        for item in reversed(list(self._items.values())):
            if item.kind == "reasoning":
                item.fate = leads or not self._only_own()
            elif not item.own:
                leads = True
        for item in self._items.values():
            if item.fate is None:
                self._read_text(item)
        changes = self._whole_output(data, ("output",))
        if self._round > 1 and "output_text" in value:
            changes += edits.put(data, json_text(self.text), "output_text")
        self._held = [splice(data, changes)]


def _text(value: dict[str, Any]) -> str:
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _call(value: dict[str, Any]) -> Call:
    written = value.get("arguments") if value.get("arguments") is not None else value.get("input")
    return Call(
        id=named(value.get("call_id")) or named(value.get("id")),
        name=named(value.get("name")) or str(value.get("type")),
        arguments=written if isinstance(written, str) else json.dumps(written if written is not None else {}),
    )


def _shortened(data: bytes, path: tuple[str | int, ...], skip: int) -> list[Splice]:
    at = edits.place(data, *path)
    if at is None or not data.startswith(b'"', at.start):
        return []
    text = json.loads(data[at.start : at.end])
    return [Splice(at.start, at.end, json_text(text[skip:]))]
