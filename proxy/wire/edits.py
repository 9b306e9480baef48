"""Small changes inside a JSON value, as splices: every byte that is not meant stays as it came."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from proxy.wire import spans
from proxy.wire.messages import Span, Splice


def place(body: bytes, *path: str | int) -> Span | None:
    """Where the value stands that this path of keys and indices leads to; None where it leads nowhere."""
    span = Span(0, len(body))
    for step in path:
        found: Span | None
        if isinstance(step, str):
            found = spans.member_span(body, span, step) if body.startswith(b"{", _start(body, span)) else None
        else:
            at = _start(body, span)
            inside = spans.element_spans(body, Span(at, span.end)) if body.startswith(b"[", at) else []
            found = inside[step] if step < len(inside) else None
        if found is None:
            return None
        span = found
    return span


def _start(body: bytes, span: Span) -> int:
    at = span.start
    while at < span.end and body[at] in b" \t\r\n":
        at += 1
    return at


def put(body: bytes, value: bytes, *path: str | int) -> list[Splice]:
    """Put a value in the place of the one that stands there; nothing where there is none."""
    span = place(body, *path)
    return [Splice(span.start, span.end, value)] if span is not None else []


def without_elements(body: bytes, array: Span, gone: Collection[int], first: Sequence[bytes] = ()) -> list[Splice]:
    """Take elements out of an array, each with a comma, and put others at its start."""
    own = spans.element_spans(body, array)
    left = [index for index in range(len(own)) if index not in gone]
    if not left:
        return [Splice(array.start, array.end, b"[" + b",".join(first) + b"]")]
    before = b"".join(element + b"," for element in first)
    cuts = [Splice(own[0].start, own[left[0]].start, before)] if left[0] or before else []
    for index, following in zip(left, [*left[1:], len(own)], strict=True):
        if following > index + 1:
            cuts.append(Splice(own[index].end, own[following - 1].end))
    return cuts


def without_member(body: bytes, span: Span, name: str) -> list[Splice]:
    """Take the members of this name out of the object that stands there."""
    text = body[span.start : span.end].decode("latin-1")
    cuts: list[tuple[int, int]] = []
    places: list[tuple[str, int, int]] = []  # each member's name, where its key begins, and where its value ends
    walk = spans.members(text, 0)
    begins = text.index("{") + 1
    try:
        key, at = next(walk)
        while True:
            end = spans.value_end(text, at)
            places.append((key, begins, end))
            begins = end
            key, at = walk.send(end)
    except StopIteration:
        pass
    for index, (key, start, end) in enumerate(places):
        if key != name:
            continue
        is_first = all(other == name for other, _, _ in places[:index])
        if is_first and index + 1 < len(places):
            end = text.index(",", end) + 1
        cuts.append((start, end))
    merged: list[Splice] = []
    for start, end in cuts:
        start = max(start, merged[-1].end - span.start) if merged else start
        merged.append(Splice(span.start + start, span.start + end))
    return merged
