"""Content parts, which both APIs spell alike but for a prefix: read, and written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from proxy.wire import spans
from proxy.wire.bodies import json_text
from proxy.wire.messages import (
    ALONE,
    Beside,
    Content,
    Found,
    LabelledPicture,
    Message,
    OtherPart,
    Part,
    Picture,
    Request,
    Span,
    Splice,
    Text,
)

_TEXTS = frozenset({"text", "input_text", "output_text"})
_PICTURES = frozenset({"image_url", "input_image"})
_HINT = b'"cache_control"'


def read(content: object) -> tuple[tuple[Part, ...], bool]:
    """The parts of a content, and whether it was a plain string (or nothing)."""
    if content is None:
        return (), True
    if isinstance(content, str):
        return (Text(content),), True
    if isinstance(content, list):
        return tuple(_part(value) for value in content), False
    return (OtherPart(content),), False


def _part(value: object) -> Part:
    if isinstance(value, dict):
        text, picture = value.get("text"), value.get("image_url")
        if value.get("type") in _TEXTS and isinstance(text, str):
            return Text(text)
        if value.get("type") in _PICTURES:
            within = picture if isinstance(picture, dict) else {"url": picture, "detail": value.get("detail")}
            url, detail = within.get("url"), within.get("detail")
            if isinstance(url, str):
                return Picture(url, detail if isinstance(detail, str) else None)
    elif isinstance(value, str):
        return Text(value)
    return OtherPart(value)


def picture_again(request: Request, message: Message, member: str, nth: int, label: str) -> LabelledPicture:
    """The how-manieth picture part in the content that stands under `member`, which must be there, under a label."""
    content = _content(request, message, member)
    assert content is not None
    index = [index for index, part in enumerate(message.parts) if isinstance(part, Picture)][nth]
    span = content.parts[index]
    return LabelledPicture(label, request.body[span.start : span.end], index in content.hinted)


def _content(request: Request, message: Message, member: str) -> Content | None:
    """Where the content stands that is under `member`, and its parts; None where there is none."""
    found = message.found or Found()
    if found.content is None:
        body = request.body
        span, own = spans.member_elements(body, message.span, member) or (None, [])
        if span is None:
            return None
        hint = body.find(_HINT, span.start, span.end)
        hinted = (index for index, part in enumerate(own) if hint >= 0 and body.find(_HINT, part.start, part.end) >= 0)
        found.content = Content(span, tuple(own), frozenset(hinted))
    return found.content


def replace(
    request: Request,
    message: Message,
    member: str,
    text: str,
    added: Sequence[LabelledPicture | str],
    kind: str,
    beside: Beside = ALONE,
) -> Splice:
    """Put a text, and pictures (with texts between them) after it, in place of what stands under `member`.

    `kind` is a text part's type. A cache hint stays with the message that carried it: a picture brings none along.
    The content stays a string where it was one, unless pictures go with it. Raises ValueError where there is none.
    """
    content = None if message.plain else _content(request, message, member)
    span = content.span if content is not None else spans.member_span(request.body, message.span, member)
    if span is None:
        raise ValueError(f'message {message.index} has no "{member}" to replace')
    if message.plain and not added:
        return Splice(span.start, span.end, json_text(text))
    # Providers refuse more than a few hints: what the picture's own message keeps must not stand here, too.
    bare = [_without_hint(one) if isinstance(one, LabelledPicture) and one.hinted else one for one in added]
    before, after = (list(_standing(request, content, side, kind)) for side in (beside.before, beside.after))
    # A part that stays keeps its own.
    kept = any(_HINT in part for part in (*before, *after))
    hint = None if kept or content is None else _cache_hint(request, content)
    parts = [*before, _text(text, kind, hint), *labelled(bare, kind), *after]
    return Splice(span.start, span.end, b"[" + b",".join(parts) + b"]")


def _standing(request: Request, content: Content | None, stays: Sequence[int | str], kind: str) -> Iterator[bytes]:
    own = content.parts if content is not None else ()
    for one in stays:
        yield _text(one, kind) if isinstance(one, str) else request.body[own[one].start : own[one].end]


def remove_some(request: Request, message: Message, member: str, gone: Collection[int]) -> list[Splice]:
    """Take parts out of the list under `member`, with a comma beside each. At least one part must stay."""
    content = _content(request, message, member)
    own = content.parts if content is not None else ()
    left = [index for index in range(len(own)) if index not in gone]
    if not left:
        raise ValueError(f"no part of message {message.index} would be left")
    cuts = [Splice(own[0].start, own[left[0]].start)] if left[0] else []
    for index, following in zip(left, [*left[1:], len(own)], strict=True):
        if following > index + 1:
            cuts.append(Splice(own[index].end, own[following - 1].end))
    return cuts


def remove(request: Request, message: Message) -> Splice:
    """Take a message out, with the comma before it. It must not be the first one."""
    return Splice(request.messages[message.index - 1].span.end, message.span.end)


def user_message(after: Message, added: Sequence[LabelledPicture], kind: str) -> Splice:
    """A new user message of these pictures, after another message."""
    at = after.span.end
    return Splice(at, at, b',{"role":"user","content":[' + b",".join(labelled(added, kind)) + b"]}")


def labelled(added: Sequence[LabelledPicture | str], kind: str) -> list[bytes]:
    """Each picture's part after the text part of its label; texts as parts of their own."""
    return [
        part
        for one in added
        for part in ([_text(one, kind)] if isinstance(one, str) else [_text(one.label, kind), one.part])
    ]


def _text(text: str, kind: str, cache_hint: bytes | None = None) -> bytes:
    hint = b',"cache_control":' + cache_hint if cache_hint is not None else b""
    return b'{"type":"' + kind.encode() + b'","text":' + json_text(text) + hint + b"}"


def _without_hint(picture: LabelledPicture) -> LabelledPicture:
    """A picture whose part has no `cache_control`."""
    part = picture.part
    hint = spans.member_span(part, Span(0, len(part)), "cache_control")
    key = part.rfind(_HINT, 0, hint.start) if hint is not None else -1
    if hint is None or key < 0:
        return picture
    before, after = part[:key].rstrip(), part[hint.end :].lstrip()
    bare = before[:-1] + after if before.endswith(b",") else before + after.removeprefix(b",").lstrip()
    return LabelledPicture(picture.label, bare)


def _cache_hint(request: Request, content: Content) -> bytes | None:
    """The last `cache_control` of a message's parts (JSON bytes), which gateways to other providers read."""
    if not content.hinted:
        return None
    hint: bytes | None = None
    for part in content.parts:
        if request.body.startswith(b"{", part.start):
            found = spans.member_span(request.body, part, "cache_control")
            hint = request.body[found.start : found.end] if found is not None else hint
    return hint
