"""Cut a request body at the array that holds its conversation: a quick way, and a careful one where that refuses.

Both give the same: the spans of the array's elements, each element's known fields, and the wanted members beside it.
A body that begins as one does that was cut before is cut from there on only.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from proxy.wire import spans
from proxy.wire.messages import Continuation, NotJson, Request, Span

Item = TypeVar("Item", bound=msgspec.Struct)

_SPACE = re.compile(rb"[ \t\n\r]*")
_COMMA, _CLOSING = ord(","), ord("]")
#: A name may be spelled with escapes.
_ESCAPED = b"\\u"

# Each element of a body costs much more than its bytes. No conversation has so many of so few bytes; what is made of
# nothing else is not read at all.
_ELEMENTS = 250_000
_BYTES_PER_ELEMENT = 8
_LOOKS, _LOOK_BYTES = 128, 256


def refuse_dust(body: bytes, known: int = 0) -> None:
    """Raises NotJson for a body of hundreds of thousands of elements of a few bytes each. Commas in texts count, too:
    texts have one in every thirty bytes or so. `known` is how many of its bytes, in front, were looked at before."""
    size = len(body) - known
    most = _ELEMENTS + size // _BYTES_PER_ELEMENT
    if size > _ELEMENTS and _may_be_dust(body, known) and body.count(b",", known) > most:
        raise NotJson(f"expected no more than {most} elements in {len(body)} bytes")


def _may_be_dust(body: bytes, known: int) -> bool:
    """Whether it is worth counting, which takes as long as half a parse: by a look at places that nobody can foresee.

    What is refused has more than one comma in eight bytes on the average, so that hardly any choice of places has less
    than half of that.
    """
    step = (len(body) - known) // _LOOKS
    beside = struct.unpack(f"{_LOOKS}I", os.urandom(4 * _LOOKS))
    seen = 0
    for look, chance in enumerate(beside):
        start = known + look * step + chance % step
        seen += body.count(b",", start, start + _LOOK_BYTES)
    return seen * 2 * _BYTES_PER_ELEMENT > _LOOKS * _LOOK_BYTES


class CutBody(msgspec.Struct, Generic[Item], frozen=True):
    """`items` is None where the member is a string (`text`) or not there; `beside` has the other wanted members,
    `before` those of them that stand before the array (None: nobody knows which)."""

    items: list[tuple[Span, Item]] | None
    text: Span | None
    beside: dict[str, Any]
    before: dict[str, Any] | None = None

    def continuation(self, end: int) -> Continuation | None:
        """What it takes to go on where the last element ends, given the last end that was known before."""
        if self.items is None or self.before is None:
            return None
        return Continuation(self.items[-1][0].end if self.items else end, self.before)


class Cutter(Generic[Item]):
    """Cuts bodies whose conversation is the array `name`; `top` is a struct of it and what is wanted beside it.

    The array's field in `top` must be `list[msgspec.Raw]`, or that or a string; every other one `Any`. `instead` are
    members of which one must be there where the array is not; without any, it must be there.
    """

    def __init__(
        self, name: str, top: type[msgspec.Struct], item: type[Item], instead: frozenset[str] = frozenset()
    ) -> None:
        self._name = name
        self._instead = instead
        self._top = msgspec.json.Decoder(top)
        self._item = msgspec.json.Decoder(item)
        self._item_type = item
        self._beside = [field for field in top.__struct_fields__ if field != name]
        self._opening = b"{" + json.dumps(name).encode() + b":["
        self._quoted = {one: json.dumps(one).encode() for one in (name, *self._beside)}
        self._wanted = (*self._quoted.values(), _ESCAPED)

    def cut(self, body: bytes) -> CutBody[Item]:
        """Raises NotJson when the body is not a JSON object with that array."""
        try:
            return self._quickly(body) or self._carefully(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # msgspec refuses what JSON permits or what lenient servers read (lone surrogates, NaN): walk it instead.
            return self._carefully(body)
        except RecursionError as error:
            raise NotJson("the body nests deeper than this proxy reads") from error

    def continued(self, body: bytes, known: Request | None, whole: bool) -> tuple[int, CutBody[Item]]:
        """How many of the messages of `known` stand in this body, byte for byte and in front, and a cut of what comes
        after them. Together they are what `cut` gives, which raises NotJson."""
        found = self._go_on(body, known, whole) if known is not None else None
        return found if found is not None else (0, self.cut(body))

    def _go_on(self, body: bytes, known: Request, whole: bool) -> tuple[int, CutBody[Item]] | None:
        """None where nothing is shared, or all of it must be cut to know what it says."""
        continued = known.continuation
        shared = 0
        if continued is not None:
            shared = len(known.messages) if whole else _shared(body, known)
        if continued is None or not shared:
            return None
        end = known.messages[shared - 1].span.end
        at = _past_space(body, end)
        mark = body[at] if at < len(body) else 0
        if mark not in (_COMMA, _CLOSING):
            return None
        start = at + 1 if mark == _COMMA else at
        try:
            found = self._quickly(self._opening + body[start:], continued.before, len(self._opening) - 1)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        # Without `before` a member that stood in front may stand behind, too, and the last one counts.
        if found is None or found.items is None or found.before is None or (mark == _COMMA and not found.items):
            return None
        by = start - len(self._opening)
        items = [(Span(span.start + by, span.end + by), fields) for span, fields in found.items]
        return shared, CutBody(items, None, found.beside | continued.before, continued.before)

    def _quickly(
        self, body: bytes, before: dict[str, Any] | None = None, at: int | None = None
    ) -> CutBody[Item] | None:
        """None where it is not plain what stands where. `before` are wanted members in front that were cut off; then
        the array stands first, `at` this byte."""
        top: Any = self._top.decode(body)
        array = getattr(top, self._name)
        beside = {name: getattr(top, name) for name in self._beside}
        if isinstance(array, str):
            text = self._place_text(body.decode("latin-1"))
            return CutBody(None, text, beside) if text is not None else None
        names: set[str] = set()
        if at is None:
            start = spans.member_start(body, self._name)
            if start is None:
                return None
            at, names = start
        placed = spans.known_elements(body, at, array)
        if placed is None:
            return None
        elements, end = placed
        behind = body[end:]
        stands = [one for one in self._wanted if one in behind]
        if self._may_be(stands, (self._name,)) and self._name in spans.keys_behind(behind.decode("latin-1")):
            return None  # the last one counts
        decode = self._item.decode
        items = [(span, decode(raw)) for span, raw in zip(elements, array, strict=True)]
        ahead = {name: beside[name] for name in self._beside if name in names}
        return CutBody(items, None, beside, None if self._may_be(stands, (*ahead, *(before or ()))) else ahead)

    def _may_be(self, stands: list[bytes], names: Sequence[str]) -> bool:
        """Whether a member of one of these names may be in what stands behind the array, by what is found there."""
        return (
            bool(stands) and bool(names) and (_ESCAPED in stands or any(self._quoted[one] in stands for one in names))
        )

    def _place_text(self, text: str) -> Span | None:
        """Where the member stands that is a string; None where it stands twice."""
        walk = spans.members(text, 0)
        placed: Span | None = None
        try:
            key, at = next(walk)
            while True:
                end = None
                if key == self._name:
                    if placed is not None:
                        return None
                    end = spans.value_end(text, at)
                    placed = Span(at, end)
                key, at = walk.send(end)
        except StopIteration:
            return placed

    def _carefully(self, body: bytes) -> CutBody[Item]:
        text = body.decode("latin-1")
        at: int | None = None
        beside: dict[str, Any] = dict.fromkeys(self._beside)
        walk = spans.members(text, 0)
        try:
            key, start = next(walk)
            while True:
                end = spans.value_end(text, start)
                if key == self._name:
                    at = start
                elif key in beside:
                    beside[key] = _loads(body[start:end])
                key, start = walk.send(end)
        except StopIteration as done:
            if not spans.is_blank(text, done.value):
                raise NotJson("expected nothing after the JSON object") from None
        if at is None or text.startswith("null", at):
            if all(beside.get(name) is None for name in self._instead):
                raise NotJson(f'expected a JSON object with "{self._name}"')
            return CutBody(None, None, beside)
        if text.startswith('"', at):
            return CutBody(None, Span(at, spans.value_end(text, at)), beside)
        items = []
        for index, span in enumerate(spans.elements(text, at)):
            value = _loads(body[span.start : span.end])
            if not isinstance(value, dict):
                raise NotJson(f"expected {self._name}[{index}] to be an object")
            known = {name: value[name] for name in self._item_type.__struct_fields__ if name in value}
            items.append((span, self._item_type(**known)))
        return CutBody(items, None, beside)


def _shared(body: bytes, known: Request) -> int:
    """How many messages of a known request stand in front of this body, byte for byte.

    `startswith` compares as memory does; nearly always all of them are there.
    """
    assert known.continuation is not None
    view = memoryview(known.body)
    if body.startswith(view[: known.continuation.end]):
        return len(known.messages)
    low, high = 0, len(known.messages) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if body.startswith(view[: known.messages[middle - 1].span.end]):
            low = middle
        else:
            high = middle - 1
    # Two messages may share a span: both or none.
    while low and known.messages[low].span == known.messages[low - 1].span:
        low -= 1
    return low


def _past_space(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at)
    assert found is not None
    return found.end()


def _loads(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise NotJson("expected JSON in UTF-8") from error


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 4000 else digits  # Python refuses to read longer ones


def json_text(text: str) -> bytes:
    """`text` as a JSON string in UTF-8; lone surrogates, which UTF-8 cannot carry, as escapes."""
    try:
        return msgspec.json.encode(text)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        return json.dumps(text).encode()
