"""Where what a question cited came from: its sources, and what others than the wire say of it when it settles.

Pure: a record and what was found out go in, a record comes out that holds it for good, so that nothing that changes
later changes a capsule.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from proxy.evidence import tagged, tags
from proxy.evidence.chunks import Chunk, Evidence
from proxy.evidence.documents import Documents
from proxy.evidence.pictures import data_url, digest_of, picture_bytes, picture_digest, read_attachment, sniffed_type
from proxy.evidence.tables import Table, Tables
from proxy.ledger import reading
from proxy.ledger.aside import chunk_name, encode_chunk, encode_picture, every_entry, picture_name
from proxy.ledger.records import ASIDE, Cited, PicturePlace, Record, Source
from proxy.ledger.transcript import Transcript


@dataclass(frozen=True, slots=True)
class RegisteredPicture:
    """A picture that a tool registered with its return: the label that was signed for it, and a data URL."""

    label: str
    url: str


#: A citation by its table, collection and id.
_Cited = tuple[str, str | None, str]


def _named(entry: Cited | Source) -> _Cited:
    return entry.table, entry.collection, entry.id


@dataclass(slots=True)
class Additions:
    """What is to be written to this question's citations, by table, collection and id; `files` are pictures for the
    store, by name.

    A picture comes as its place: one that stands on the wire, or one that is kept aside.
    """

    documents: dict[_Cited, tuple[str | None, str | None]] = field(default_factory=dict)
    pictures: dict[_Cited, list[PicturePlace]] = field(default_factory=dict)
    files: dict[bytes, bytes] = field(default_factory=dict)

    def add_file(self, cited: _Cited, url: str, reference: str | None, in_user: bool) -> None:
        """A picture that is nowhere on the wire."""
        digest = picture_digest(url)
        self.files.setdefault(picture_name(digest), encode_picture(url))
        self.pictures.setdefault(cited, []).append(PicturePlace(in_user, ASIDE, 0, digest, reference))


def cited_here(record: Record, table: Table) -> list[Cited]:
    """What the record's question cited of a table."""
    return [entry for entry in record.cited if entry.group == record.ordinal and entry.table == table.name]


# What a database says.


def shown_pictures(transcript: Transcript, table: Table) -> list[tuple[str, str, PicturePlace]]:
    """The pictures of an untagged table that stand on the wire: the id and reference of each label, and its place."""
    found: list[tuple[str, str, PicturePlace]] = []
    for ordinal, message in enumerate(transcript.users):
        for one in read_attachment(message) or ():
            digest = digest_of(message.pictures()[one.nth])
            place = PicturePlace(True, ordinal, one.nth, digest, one.label.reference)
            found.append((one.label.chunk_id, one.label.reference, place))
    for ret in transcript.returns:
        if ret.tool not in table.tools or not (inside := ret.message.pictures()):
            continue
        read = reading.read(ret, (table,))
        for owned in read.evidence.pictures if read is not None else ():
            if owned.chunk_id is not None and owned.reference is not None:
                digest = digest_of(inside[owned.nth])
                place = PicturePlace(False, ret.ordinal, owned.nth, digest, owned.reference)
                found.append((owned.chunk_id, owned.reference, place))
    return found


def described(
    record: Record, table: Table, shown: Iterable[tuple[str, str, PicturePlace]], documents: Documents, collection: str
) -> tuple[Additions, dict[tuple[str, str], list[Cited]]]:
    """What a database adds to this question's citations, and the pictures to fetch from it: by document and reference,
    with the citations that show them.

    A label names one of the chunks that show its picture; which others do, only the database knows. An id that was
    cited in two collections is looked up for the one that is called as the database is.
    """
    additions = Additions()
    fetch: dict[tuple[str, str], list[Cited]] = {}
    standing: dict[tuple[str, str], PicturePlace] = {}
    for chunk_id, reference, place in shown:
        document = documents.of.get(chunk_id)
        if document is not None:
            standing.setdefault((document.id, reference), place)
    entries = cited_here(record, table)
    collections: dict[str, set[str | None]] = {}
    for entry in entries:
        collections.setdefault(entry.id, set()).add(entry.collection)
    for entry in entries:
        document = documents.of.get(entry.id)
        if document is None or (len(collections[entry.id]) > 1 and entry.collection != collection):
            continue
        additions.documents[_named(entry)] = (document.title, document.uri)
        known = {place.reference for place in entry.pictures if place.ordinal >= 0}
        for reference in document.pictures:
            if reference in known:
                continue
            stands = standing.get((document.id, reference))
            if stands is not None:
                additions.pictures.setdefault(_named(entry), []).append(stands)
            else:
                fetch.setdefault((document.id, reference), []).append(entry)
    return additions, fetch


def fetched(
    additions: Additions,
    fetch: Mapping[tuple[str, str], list[Cited]],
    files: Mapping[tuple[str, str], bytes],
) -> None:
    """Add the files that a database gave for the pictures that were wanted of it."""
    for (document, reference), entries in fetch.items():
        data = files.get((document, reference))
        if data:
            for entry in entries:
                additions.add_file(_named(entry), data_url(data, sniffed_type(data)), reference, in_user=True)


# What was registered.


def cited_tags(record: Record, transcript: Transcript, table: Table) -> list[str]:
    """The tags of the returns that this question cited out of: pictures of theirs may be registered."""
    ordinals = {place.ret for entry in cited_here(record, table) for place in entry.places if place.ret >= 0}
    return tags_of(transcript, table, sorted(ordinals))


def tags_of(transcript: Transcript, table: Table, ordinals: Iterable[int]) -> list[str]:
    """The tags of these returns: under each, the whole return may be registered."""
    if table.proof is None:
        return []
    messages = (transcript.returns[ordinal].message for ordinal in ordinals)
    return list(dict.fromkeys(tag for message in messages for tag in tagged.tags_of(table.proof, message.parts)))


def registered(
    record: Record, transcript: Transcript, table: Table, pictures: Iterable[RegisteredPicture]
) -> Additions:
    """What registered pictures add to this question's citations: those that do not stand on the wire.

    A label counts only with its signature, as on the wire. They are put where this conversation's pictures are.
    """
    additions = Additions()
    entries = cited_here(record, table)
    in_user = not any(not place.in_user for entry in record.cited for place in entry.pictures)
    chunks = _chunks_cited_from(entries, transcript, table)
    for picture in pictures:
        label = tags.read_label(picture.label)
        data = picture_bytes(picture.url)
        if table.proof is None or label is None or data is None or not tags.label_fits(label, data, table.proof.keys):
            continue
        shown_by = set(tagged.owners(label, chunks))
        digest = picture_digest(picture.url)
        for entry in entries:
            standing = any(place.digest == digest and place.ordinal >= 0 for place in entry.pictures)
            if entry.id in shown_by and entry.collection == label.collection and not standing:
                additions.add_file(_named(entry), picture.url, label.reference, in_user)
    return additions


def _chunks_cited_from(entries: Iterable[Cited], transcript: Transcript, table: Table) -> list[Chunk]:
    ordinals = sorted({place.ret for entry in entries for place in entry.places if place.ret >= 0})
    reads = (reading.read(transcript.returns[ordinal], (table,)) for ordinal in ordinals)
    return [chunk for read in reads if read is not None for chunk in read.evidence.chunks]


# Into the record.


def with_additions(record: Record, additions: Additions) -> Record:
    """The record with what was found out of its question's citations, in both layouts' terms."""
    if not additions.documents and not additions.pictures:
        return record
    cited = tuple(_described(entry, additions) if entry.group == record.ordinal else entry for entry in record.cited)
    *before, own = record.writings
    drawn = {(p.digest, p.reference) for w in before for e in (*w.chunks, *w.again) for p in e.pictures}
    own = msgspec.structs.replace(
        own,
        chunks=tuple(_described(entry, additions, drawn) for entry in own.chunks),
        again=tuple(_described(entry, additions, drawn) for entry in own.again),
    )
    sources = tuple(
        msgspec.structs.replace(source, title=title or source.title, uri=uri or source.uri)
        for source in record.sources
        for title, uri in [additions.documents.get(_named(source), (None, None))]
    )
    return msgspec.structs.replace(record, cited=cited, writings=(*before, own), sources=sources)


def _described(entry: Cited, additions: Additions, drawn: Container[tuple[bytes, str | None]] = frozenset()) -> Cited:
    title, uri = additions.documents.get(_named(entry), (entry.title, entry.uri))
    added = [
        place for place in additions.pictures.get(_named(entry), ()) if (place.digest, place.reference) not in drawn
    ]
    anew = {place.reference for place in added if place.reference is not None}
    # What was kept aside of an older reading gives way to what was read now.
    stays = [place for place in entry.pictures if place.ordinal >= 0 or place.reference not in anew]
    return msgspec.structs.replace(entry, title=title, uri=uri, pictures=tuple(dict.fromkeys((*stays, *added))))


# For a conversation whose host may take what was cited off the wire.


def all_that_was_cited(record: Record, transcript: Transcript, tables: Tables) -> dict[bytes, bytes]:
    """Everything that this record cites and that stands on the wire, as the store keeps it, by name; what the records
    before it had kept is left out."""
    known = set(record.names)
    reads: dict[int, Evidence | None] = {}
    kept: dict[bytes, bytes] = {}
    for entry in every_entry(record):
        for place in entry.places:
            name = chunk_name(entry.table, entry.collection, entry.id, place.digest)
            if place.ret < 0 or name in known or name in kept:
                continue
            if place.ret not in reads:
                reads[place.ret] = reading.evidence(transcript.returns[place.ret], tables)
            shown = reading.at(reads[place.ret], entry.id, place)
            if shown is not None:
                kept[name] = encode_chunk(entry, shown)
        for picture in entry.pictures:
            name = picture_name(picture.digest)
            if picture.ordinal >= 0 and name not in known and name not in kept:
                message = (
                    transcript.users[picture.ordinal]
                    if picture.in_user
                    else transcript.returns[picture.ordinal].message
                )
                pictures = message.pictures()
                if picture.nth < len(pictures):
                    kept[name] = encode_picture(pictures[picture.nth].url)
    return kept
