"""Cut a request body at the array that holds its conversation: a quick way, and a careful one where that refuses.

Both give the same: the spans of the array's elements, each element's known fields, and the wanted members beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from proxy.wire import spans
from proxy.wire.messages import NotJson, Span

Item = TypeVar("Item", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class CutBody(Generic[Item]):
    """`items` is None where the member is a string (`text`) or not there; `beside` has the other wanted members."""

    items: list[tuple[Span, Item]] | None
    text: Span | None
    beside: dict[str, Any]


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

    def cut(self, body: bytes) -> CutBody[Item]:
        """Raises NotJson when the body is not a JSON object with that array."""
        try:
            return self._quickly(body) or self._carefully(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # msgspec refuses what JSON permits or what lenient servers read (lone surrogates, NaN): walk it instead.
            return self._carefully(body)
        except RecursionError as error:
            raise NotJson("the body nests deeper than this proxy reads") from error

    def _quickly(self, body: bytes) -> CutBody[Item] | None:
        top: Any = self._top.decode(body)
        array = getattr(top, self._name)
        beside = {name: getattr(top, name) for name in self._beside}
        lengths = None if isinstance(array, str) else [len(memoryview(raw)) for raw in array]
        placed = self._place(body.decode("latin-1"), lengths)
        if placed is None:
            return None
        if isinstance(placed, Span):
            return CutBody(None, placed, beside)
        items = [(span, self._item.decode(raw)) for span, raw in zip(placed, array, strict=True)]
        return CutBody(items, None, beside)

    def _place(self, text: str, lengths: list[int] | None) -> list[Span] | Span | None:
        """Where elements of these lengths stand; None where the member stands twice, or not as expected."""
        walk = spans.members(text, 0)
        placed: list[Span] | Span | None = None
        try:
            key, at = next(walk)
            while True:
                end = None
                if key == self._name:
                    if placed is not None:
                        return None
                    if lengths is None:
                        end = spans.value_end(text, at)
                        placed = Span(at, end)
                    else:
                        known = spans.known_elements(text, at, lengths)
                        if known is None:
                            return None
                        placed, end = known
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
