"""Where a JSON value stands in the bytes: a walk over members and elements that keeps offsets, and builds nothing.

The bytes are read as Latin-1, so that one character is one byte and an offset in the text is an offset in the body;
JSON's own characters are ASCII, and bytes above 127 stand only inside strings, which are skipped, not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, cast

import msgspec

from proxy.wire.messages import NotJson, Span

_SPACE = re.compile(r"[ \t\n\r]*")
_BYTES_SPACE = re.compile(rb"[ \t\n\r]*")
_BLANK = frozenset(b" \t\n\r")
_COMMA, _CLOSING, _COLON = ord(","), ord("]"), ord(":")
_ESCAPED = b"\\u"
# Numbers are not read, only passed: Python refuses to read integers of thousands of digits.
_scan_once = cast(Any, json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, strict=True)).scan_once
_scan_string = cast(Any, json.decoder).scanstring


def _past_space(text: str, at: int) -> int:
    return cast("re.Match[str]", _SPACE.match(text, at)).end()


def _past_bytes(body: bytes, at: int) -> int:
    return cast("re.Match[bytes]", _BYTES_SPACE.match(body, at)).end()


def is_blank(text: str, at: int) -> bool:
    """Whether nothing but white space follows."""
    return _past_space(text, at) == len(text)


def value_end(text: str, at: int) -> int:
    """The offset after the JSON value that starts at `at`. Raises NotJson when none does."""
    try:
        return cast(int, _scan_once(text, at)[1])
    except (StopIteration, ValueError, RecursionError) as error:
        raise NotJson(f"expected a JSON value at byte {at}") from error


def members(text: str, at: int) -> Generator[tuple[str, int], int | None, int]:
    """Key and value offset of each member of the object at `at`; the caller sends back the value's end, or None.
    Returns the object's end.

    A generator, so that a caller who knows a value's end by other means (or who is done) saves the scan:
    `walk.send(end)` goes on from there.
    """
    at = _past_space(text, at)
    if text[at : at + 1] != "{":
        raise NotJson(f"expected a JSON object at byte {at}")
    at = _past_space(text, at + 1)
    if text[at : at + 1] == "}":
        return at + 1
    while True:
        if text[at : at + 1] != '"':
            raise NotJson(f"expected a key at byte {at}")
        try:
            key, at = _scan_string(text, at + 1, True)
        except ValueError as error:
            raise NotJson(f"expected a key at byte {at}") from error
        at = _past_space(text, at)
        if text[at : at + 1] != ":":
            raise NotJson(f"expected ':' at byte {at}")
        at = _past_space(text, at + 1)
        end = yield key, at
        at = _past_space(text, value_end(text, at) if end is None else end)
        if text[at : at + 1] == ",":
            at = _past_space(text, at + 1)
        elif text[at : at + 1] == "}":
            return at + 1
        else:
            raise NotJson(f"expected ',' or '}}' at byte {at}")


def elements(text: str, at: int) -> list[Span]:
    """The spans of the elements of the array at `at`. Raises NotJson when there is no array."""
    if text[at : at + 1] != "[":
        raise NotJson(f"expected a JSON array at byte {at}")
    spans: list[Span] = []
    at = _past_space(text, at + 1)
    if text[at : at + 1] == "]":
        return spans
    while True:
        end = value_end(text, at)
        spans.append(Span(at, end))
        at = _past_space(text, end)
        if text[at : at + 1] == "]":
            return spans
        if text[at : at + 1] != ",":
            raise NotJson(f"expected ',' or ']' at byte {at}")
        at = _past_space(text, at + 1)


def member_start(body: bytes, name: str) -> tuple[int, set[str]] | None:
    """Where the value of the first member called `name` starts, of the object that is this body, and the names of the
    members before it; None where there is none. Of a body of megabytes usually only the beginning is looked at."""
    reach = body.find(b'"' + name.encode() + b'"')
    if reach >= 0:
        try:
            found = _member_start(body[: reach + len(name) + 64].decode("latin-1"), name)
        except NotJson:
            found = None  # what was found is deeper inside, or the name is spelled with escapes
        if found is not None:
            return found
    return _member_start(body.decode("latin-1"), name)


def _member_start(text: str, name: str) -> tuple[int, set[str]] | None:
    names: set[str] = set()
    walk = members(text, 0)
    try:
        key, at = next(walk)
        while key != name:
            names.add(key)
            key, at = next(walk)
    except StopIteration:
        return None
    return at, names


def keys_behind(text: str) -> set[str]:
    """The names of the members that stand behind a value, up to the end of its object."""
    at = _past_space(text, 0)
    if text[at : at + 1] != ",":
        return set()
    keys: set[str] = set()
    walk = members("{" + text[at + 1 :], 0)
    try:
        while True:
            keys.add(next(walk)[0])
    except StopIteration:
        return keys


def known_elements(body: bytes, at: int, values: Sequence[msgspec.Raw]) -> tuple[list[Span], int] | None:
    """The spans of an array's elements whose bytes are known, and the array's end; None where it is another array."""
    if body[at : at + 1] != b"[":
        return None
    found: list[Span] = []
    size = len(body)
    at += 1
    for position, value in enumerate(values):
        if position:
            if at < size and body[at] != _COMMA:
                at = _past_bytes(body, at)
            if at >= size or body[at] != _COMMA:
                return None
            at += 1
        if at < size and body[at] in _BLANK:
            at = _past_bytes(body, at)
        if not body.startswith(value, at):
            return None
        end = at + len(memoryview(value))
        found.append(Span(at, end))
        at = end
    if at < size and body[at] != _CLOSING:
        at = _past_bytes(body, at)
    if body[at : at + 1] != b"]":
        return None
    return found, at + 1


def known_value(body: bytes, at: int, value: msgspec.Raw) -> tuple[list[Span], int] | None:
    """The end of a value whose bytes are known (and no elements); None where it is another one."""
    return ([], at + len(memoryview(value))) if body.startswith(value, at) else None


def member_span(body: bytes, span: Span, name: str) -> Span | None:
    """Where the value of the last member called `name` stands, of the object at `span`; None if it has none."""
    quick = _plain_value(body, span, name)
    if quick is not None:
        return quick[0]
    text = body[span.start : span.end].decode("latin-1")
    found: Span | None = None
    walk = members(text, 0)
    try:
        key, at = next(walk)
        while True:
            end = value_end(text, at)
            if key == name:
                found = Span(span.start + at, span.start + end)
            key, at = walk.send(end)
    except StopIteration:
        return found


def member_elements(body: bytes, span: Span, name: str) -> tuple[Span, list[Span]] | None:
    """The same, and the spans of the elements of a value that is an array."""
    quick = _plain_value(body, span, name, array=True)
    if quick is not None:
        return quick
    found = member_span(body, span, name)
    if found is None:
        return None
    return found, element_spans(body, found) if body.startswith(b"[", found.start) else []


@cache
def _only(name: str, array: bool) -> msgspec.json.Decoder[Any]:
    wanted: Any = list[msgspec.Raw] if array else msgspec.Raw
    return msgspec.json.Decoder(msgspec.defstruct("Only", [("value", wanted)], rename={"value": name}))


def _plain_value(body: bytes, span: Span, name: str, array: bool = False) -> tuple[Span, list[Span]] | None:
    """Where it stands, and the elements of an `array`, where its name stands in the object once beside the value, and
    as it is; None where it may not."""
    key = b'"' + name.encode() + b'"'
    at = body.find(key, span.start, span.end)
    if at < 0 or body.find(_ESCAPED, span.start, at) >= 0:
        return None
    try:
        value = _only(name, array).decode(memoryview(body)[span.start : span.end]).value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    start = at + len(key)
    start = start if body[start] == _COLON else _past_bytes(body, start)
    start = start + 1 if body[start] == _COLON else span.end
    if start < span.end and body[start] in _BLANK:
        start = _past_bytes(body, start)
    placed = known_elements(body, start, value) if array else known_value(body, start, value)
    if placed is None or placed[1] >= span.end:
        return None
    own, end = placed
    if body.find(key, end, span.end) >= 0 or body.find(_ESCAPED, end, span.end) >= 0:
        return None
    return Span(start, end), own


_raw_elements = msgspec.json.Decoder(list[msgspec.Raw])


def element_spans(body: bytes, span: Span) -> list[Span]:
    """The spans of the elements of the array that stands at `span`."""
    try:
        known = known_elements(body, span.start, _raw_elements.decode(memoryview(body)[span.start : span.end]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        known = None
    if known is not None and known[1] == span.end:
        return known[0]
    text = body[span.start : span.end].decode("latin-1")
    return [Span(span.start + found.start, span.start + found.end) for found in elements(text, 0)]
