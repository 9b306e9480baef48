"""Pictures: what their bytes are, whether they decode, and which of a user message are provably ours."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from dataclasses import dataclass
from typing import Final

import pybase64

from proxy.evidence import haiku
from proxy.wire.messages import Message, Picture, Text

#: The largest picture that is re-attached. 50 MB is what OpenAI takes for all pictures of a request together.
MOST_BYTES: Final = 50 * 1024 * 1024
#: Above any picture that a model looks at in full, and far below what would exhaust memory when decoded.
MOST_PIXELS: Final = 64_000_000

#: What models take, and Pillow reads by itself (its other readers start programs, or read what nobody sends).
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")

_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?P<parameters>(?:;[^;,]*)*?)(?P<base64>;base64)?,", re.IGNORECASE)


def picture_bytes(url: str) -> bytes | None:
    """The bytes of a base64 data URL; None for any other URL or where it is not base64. Source: RFC 2397."""
    head = _DATA_URL.match(url)
    if head is None or head["base64"] is None:
        return None
    try:
        # As the standard library decodes, forty times as fast; what it refuses may have blanks in it.
        return pybase64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        pass
    try:
        return base64.b64decode("".join(url[head.end() :].split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def media_type(url: str) -> str:
    """The media type that a data URL names, without parameters; "" where it names none."""
    head = _DATA_URL.match(url)
    return head["type"].strip() if head is not None else ""


def data_url(data: bytes, media_type: str) -> str:
    """A base64 data URL of a file."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


_BEGINS: Final = ((b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp"))


def sniffed_type(data: bytes) -> str:
    """The media type of a picture's file by how it begins; PNG for anything that is not one of the others."""
    return next((kind for begins, kind in _BEGINS if data.startswith(begins)), "image/png")


def picture_digest(url: str) -> bytes:
    """16 bytes that stand for a picture: of its decoded bytes, or of its address where it carries none."""
    raw = picture_bytes(url)
    state = hashlib.sha256(b"bytes" if raw is not None else b"address")
    state.update(raw if raw is not None else url.encode("utf-8", "surrogatepass"))
    return state.digest()[:16]


def digest_of(picture: Picture) -> bytes:
    """The digest of a picture part, made once: a picture goes up again with every request of its conversation."""
    known: bytes | None = picture.__dict__.get("digest")
    if known is None:
        known = picture.__dict__["digest"] = picture_digest(picture.url)
    return known


def decodes(url: str) -> bool:
    """Whether a picture can be sent again: its bytes decode to an image within the bounds.

    An address that is no data URL is not fetched: the provider reads it, as it did before.
    """
    if url[:5].lower() != "data:":
        return True
    raw = picture_bytes(url)
    if raw is None or len(raw) > MOST_BYTES:
        return False
    from PIL import Image  # only when a cited picture is at stake

    try:
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                return False
            image.load()
    except (
        Exception
    ):  # Pillow raises many kinds for damaged files, and none of them matters beyond "it does not decode"
        return False
    return True


@dataclass(frozen=True, slots=True)
class Attached:
    """A retrieved picture in a user message: whose it is, by its label."""

    nth: int
    label: haiku.Label


def read_attachment(message: Message) -> list[Attached] | None:
    """The pictures of a user message that holds nothing but label and picture pairs; None for any other message."""
    parts = message.parts
    if message.plain or not parts or len(parts) % 2:
        return None
    found: list[Attached] = []
    for line, picture in zip(parts[::2], parts[1::2], strict=True):
        if not isinstance(line, Text) or not isinstance(picture, Picture):
            return None
        label = haiku.read_label(line.text)
        if label is None:
            return None
        found.append(Attached(nth=len(found), label=label))
    return found
