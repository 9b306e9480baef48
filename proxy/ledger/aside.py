"""What a record needs that does not stand on the wire: how it is named, written down, and read again. Pure.

A name is a digest of what is kept, and of nothing that tells whose it is: records hold names, and whoever reads a disk
must not be able to test guesses by them. The gateway puts tenant and conversation around a name to make a store's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from proxy.evidence.chunks import Chunk, digest_text
from proxy.evidence.pictures import data_url, media_type, picture_bytes, picture_digest
from proxy.ledger.records import Cited, PicturePlace, Place, Record

NAME_BYTES = 16


class _Chunk(msgspec.Struct, array_like=True, tag="chunk"):
    # As bytes: a wire's text may hold lone surrogates, which msgpack's strings cannot.
    texts: tuple[bytes | None, ...]


class _Picture(msgspec.Struct, array_like=True, tag="picture"):
    data: bytes
    media_type: str | None = None  # None: the data is an address


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Chunk | _Picture] = msgspec.msgpack.Decoder(_Chunk | _Picture)


def encode_chunk(shown: Chunk | str) -> bytes:
    """A cited chunk, or all text of a return that is retained whole, as the store keeps it."""
    texts = (shown,) if isinstance(shown, str) else (shown.content, shown.source, shown.collection, shown.details)
    return _encoder.encode(_Chunk(tuple(t.encode("utf-8", "surrogatepass") if t is not None else None for t in texts)))


def encode_picture(url: str) -> bytes:
    """A picture as the store keeps it: its file, or of one that the wire gave only an address for, that address."""
    data = picture_bytes(url)
    if data is None:
        return _encoder.encode(_Picture(url.encode("utf-8", "surrogatepass")))
    return _encoder.encode(_Picture(data, media_type(url)))


def chunk_name(table: str, collection: str | None, chunk_id: str, content: bytes) -> bytes:
    """The name of a cited chunk's content."""
    return _name(b"chunk", digest_text(table, collection or "", "1" if collection is None else "0", chunk_id) + content)


def picture_name(picture: bytes) -> bytes:
    """The name of a picture, by its digest."""
    return _name(b"picture", picture)


def registered_name(tag: str) -> bytes:
    """The name of a return that was registered when it was tagged."""
    return _name(b"registered", tag.encode())


def _name(kind: bytes, what: bytes) -> bytes:
    return hashlib.sha256(kind + b"\0" + what).digest()[:NAME_BYTES]


def needed(record: Record) -> list[bytes]:
    """The names of what a rewrite by this record takes from elsewhere than the wire, each once."""
    return list(dict.fromkeys(name for entry in every_entry(record) for name in _aside(entry)))


def every_entry(record: Record) -> Iterator[Cited]:
    """What either layout writes by this record; what both write comes twice."""
    yield from record.cited
    for writing in record.writings:
        yield from writing.chunks
        yield from writing.again


def _aside(entry: Cited) -> Iterator[bytes]:
    for place in entry.places:
        if place.ret < 0:
            yield chunk_name(entry.table, entry.collection, entry.id, place.digest)
    for picture in entry.pictures:
        if picture.ordinal < 0:
            yield picture_name(picture.digest)


@dataclass(frozen=True, slots=True)
class Aside:
    """What could be had of it, by name. What cannot be read, or is not what its name says, counts as absent."""

    contents: Mapping[bytes, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.contents)

    def chunk(self, cited: Cited, place: Place) -> Chunk | str | None:
        """What was cited at a place that is nowhere on the wire: a chunk, or a whole return's text."""
        found = self._read(chunk_name(cited.table, cited.collection, cited.id, place.digest))
        if not isinstance(found, _Chunk):
            return None
        texts = [text.decode("utf-8", "surrogatepass") if text is not None else None for text in found.texts]
        if len(texts) == 1 and place.chunk < 0:
            return texts[0] if digest_text(texts[0] or "") == place.digest else None
        if len(texts) != 4 or place.chunk < 0:
            return None
        chunk = Chunk(cited.id, texts[0] or "", texts[1], texts[2], texts[3])
        return chunk if chunk.digest == place.digest else None

    def picture(self, place: PicturePlace) -> str | None:
        """The URL of a picture that is nowhere on the wire."""
        found = self._read(picture_name(place.digest))
        if not isinstance(found, _Picture):
            return None
        as_text = found.data.decode("utf-8", "surrogatepass") if found.media_type is None else None
        url = as_text if as_text is not None else data_url(found.data, found.media_type or "")
        return url if picture_digest(url) == place.digest else None

    def _read(self, name: bytes) -> _Chunk | _Picture | None:
        payload = self.contents.get(name)
        if payload is None:
            return None
        try:
            return _decoder.decode(payload)
        except msgspec.MsgspecError:
            return None


NOTHING = Aside()
