"""What a record needs that does not stand on the wire: how it is named, written down, and read again. Pure.

A name is a digest of what is kept, and of nothing that tells whose it is: records hold names, and whoever reads a disk
must not be able to test guesses by them. The gateway puts tenant and conversation around a name to make a store's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.evidence.chunks import Chunk, digest_text
from proxy.evidence.pictures import data_url, media_type, picture_bytes, picture_digest
from proxy.ledger import notes, records
from proxy.ledger.records import Cited, PicturePlace, Place, Record

NAME_BYTES = 16


class _Chunk(msgspec.Struct, array_like=True, tag="chunk"):
    # As bytes: a wire's text may hold lone surrogates, which msgpack's strings cannot.
    of: tuple[bytes, bytes | None, bytes]
    texts: tuple[bytes | None, ...]

    def text(self, index: int) -> str | None:
        raw = self.texts[index]
        return raw.decode("utf-8", "surrogatepass") if raw is not None else None

    @property
    def content(self) -> bytes:
        """The digest by which records tell this content."""
        details = () if len(self.texts) == 1 else (self.text(3) or "",)
        return digest_text(self.text(0) or "", *details)

    @property
    def name(self) -> bytes:
        table, collection, chunk_id = (t.decode("utf-8", "surrogatepass") if t is not None else None for t in self.of)
        return chunk_name(table or "", collection, chunk_id or "", self.content)


class _Picture(msgspec.Struct, array_like=True, tag="picture"):
    data: bytes
    media_type: str | None = None  # None: the data is an address

    @property
    def url(self) -> str:
        if self.media_type is None:
            return self.data.decode("utf-8", "surrogatepass")
        return data_url(self.data, self.media_type)

    @property
    def name(self) -> bytes:
        return picture_name(picture_digest(self.url))


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Chunk | _Picture] = msgspec.msgpack.Decoder(_Chunk | _Picture)


def encode_chunk(cited: Cited, shown: Chunk | str) -> bytes:
    """What was cited, a chunk or all text of a return that is retained whole, as the store keeps it."""
    texts = (shown,) if isinstance(shown, str) else (shown.content, shown.source, shown.collection, shown.details)
    of = (_raw(cited.table), _raw(cited.collection) if cited.collection is not None else None, _raw(cited.id))
    return _encoder.encode(_Chunk(of, tuple(_raw(text) if text is not None else None for text in texts)))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def encode_picture(url: str) -> bytes:
    """A picture as the store keeps it: its file, or of one that the wire gave only an address for, that address."""
    data = picture_bytes(url)
    if data is None:
        return _encoder.encode(_Picture(_raw(url)))
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


def names_in(payload: bytes) -> Sequence[bytes] | None:
    """What a row of the store's records names; None where that cannot be told."""
    if notes.is_note(payload):
        return ()
    record = records.decode(payload)
    return record.names if record is not None else None


def needed(record: Record) -> list[bytes]:
    """The names of what a rewrite by this record takes from elsewhere than the wire, each once."""
    names: dict[bytes, None] = {}
    for entry in every_entry(record):
        for place in entry.places:
            if place.ret < 0:
                names[chunk_name(entry.table, entry.collection, entry.id, place.digest)] = None
        for picture in entry.pictures:
            if picture.ordinal < 0:
                names[picture_name(picture.digest)] = None
    return list(names)


def every_entry(record: Record) -> Iterator[Cited]:
    """What either layout writes by this record; what both write comes twice."""
    yield from record.cited
    for writing in record.writings:
        yield from writing.chunks
        yield from writing.again


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
        whole = place.chunk < 0
        if len(found.texts) != (1 if whole else 4) or found.content != place.digest:
            return None
        content = found.text(0) or ""
        return content if whole else Chunk(cited.id, content, found.text(1), found.text(2), found.text(3))

    def picture(self, place: PicturePlace) -> str | None:
        """The URL of a picture that is nowhere on the wire."""
        found = self._read(picture_name(place.digest))
        if not isinstance(found, _Picture):
            return None
        return found.url if picture_digest(found.url) == place.digest else None

    def _read(self, name: bytes) -> _Chunk | _Picture | None:
        payload = self.contents.get(name)
        return _decoded(payload) if payload is not None else None


def is_as_named(name: bytes, payload: bytes) -> bool | None:
    """Whether a content, hashed again, is what its name says; None where it is none of these."""
    found = _decoded(payload)
    return found.name == name if found is not None else None


def _decoded(payload: bytes) -> _Chunk | _Picture | None:
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None


NOTHING = Aside()
