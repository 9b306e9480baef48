"""Small changes inside a JSON value, as splices: every byte that is not meant stays as it came."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from proxy.wire import added, spans
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
    cuts = added.without(body[span.start : span.end], (name,))
    return [Splice(span.start + cut.start, span.start + cut.end) for cut in cuts]
