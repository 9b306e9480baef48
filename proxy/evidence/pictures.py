"""Pictures: what their bytes are, whether they decode, and which of a user message are provably ours."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import struct
import zlib
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
    if _is_sound_png(raw):
        return True
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


#: Bits of a pixel, by colour type and bit depth. Source: the PNG specification, 11.2.1.
_PNG_BITS: Final = {
    (colour, depth): samples * depth
    for colour, samples, depths in (
        (0, 1, (1, 2, 4, 8, 16)),
        (2, 3, (8, 16)),
        (3, 1, (1, 2, 4, 8)),
        (4, 2, (8, 16)),
        (6, 4, (8, 16)),
    )
    for depth in depths
}
#: Chunks beside the pixels that say nothing which could keep a reader from them, by their size.
_PNG_BESIDE: Final = {b"pHYs": 9, b"gAMA": 4, b"sRGB": 1}
#: What the first chunk is, and the last one.
_PNG_ENDS: Final = {(True, False): b"IHDR", (False, True): b"IEND"}
_CHUNK: Final = struct.Struct(">I4s")
_HEADER: Final = struct.Struct(">IIBBBBB")


def _is_sound_png(raw: bytes) -> bool:
    """Whether this is a PNG of the plainest kind that is whole: every checksum fits, and there are exactly the bytes of
    its pixels. Of any other file it says nothing.

    A tenth of the time that making an image takes, and a cited picture is looked at while a request waits.
    """
    if not raw.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") or not raw.endswith(b"\0\0\0\0IEND\xaeB`\x82"):
        return False
    try:
        width, height, depth, colour, *methods = _HEADER.unpack_from(raw, 16)
        bits = _PNG_BITS.get((colour, depth))
        if bits is None or any(methods) or not 0 < width * height <= MOST_PIXELS:
            return False
        packed = _png_pixels(raw, colour == 3)
        if packed is None:
            return False
        line = 1 + (width * bits + 7) // 8
        unpacker = zlib.decompressobj()
        pixels = unpacker.decompress(packed, height * line + 1)
    except (struct.error, zlib.error):
        return False
    # Each line begins with the filter that it went through; there are five.
    return unpacker.eof and len(pixels) == height * line and max(pixels[::line]) <= 4


def _png_pixels(raw: bytes, palette: bool) -> bytes | None:
    """The packed pixels of a PNG whose chunks are all of a kind that is known here; None of any other."""
    view, at, pixels, over = memoryview(raw), 8, [], False
    while at < len(raw):
        size, kind = _CHUNK.unpack_from(raw, at)
        end = at + 8 + size
        if zlib.crc32(view[at + 4 : end]).to_bytes(4, "big") != raw[end : end + 4]:
            return None
        if kind == b"IDAT" and not over:
            pixels.append(view[at + 8 : end])
        elif kind == b"PLTE" and palette and not pixels and 0 < size <= 768 and size % 3 == 0:
            palette = False
        elif kind != _PNG_ENDS.get((at == 8, end + 4 == len(raw))) and _PNG_BESIDE.get(kind) != size:
            return None
        over = over or (kind != b"IDAT" and bool(pixels))
        at = end + 4
    return None if palette or not pixels else b"".join(pixels)


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
