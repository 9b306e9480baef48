"""The capsule: what earlier questions cited, whole, from the request's own transcript or from what was kept aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from proxy.compaction import wording
from proxy.evidence.chunks import Chunk, Evidence, digest_text, source_with
from proxy.evidence.pictures import picture_digest
from proxy.evidence.tables import Tables
from proxy.ledger.aside import NOTHING, Aside, KeptChunk
from proxy.ledger.records import Cited, PicturePlace, Place
from proxy.ledger.settling import read_return
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Message

#: A picture's place with the id of the chunk whose it is.
OwnPicture = tuple[str, PicturePlace]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cited chunk with its content; several ids where one output was cited by each of them."""

    ids: tuple[str, ...]
    ret: int
    group: int
    table: str
    first: tuple[int, int]
    content: str
    source: str | None = None
    collection: str | None = None
    details: str | None = None
    pictures: tuple[OwnPicture, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class PictureAgain:
    """A cited picture that is sent again: where it stood, and its label."""

    place: PicturePlace
    label: str


@dataclass(frozen=True, slots=True)
class Capsule:
    """The capsule's text and pictures. `chunks` is how many chunks it holds, `entries` what they are, as written."""

    text: str
    pictures: tuple[PictureAgain, ...]
    chunks: int
    entries: tuple[Entry, ...] = ()


class Reading:
    """The returns of a transcript, each read at most once, and only when something that it holds is written.

    What does not stand there comes from `aside`.
    """

    def __init__(self, transcript: Transcript, tables: Tables, aside: Aside = NOTHING) -> None:
        self._transcript = transcript
        self._tables = tables
        self._aside = aside
        self._read: dict[int, Evidence | None] = {}

    def gather(self, cited: Iterable[Cited]) -> tuple[list[Entry], set[int]]:
        """The entries of what was cited, and the ordinals of returns whose cited content could not be read.

        Those returns must stay in place: what an answer rests on is never given up because we cannot find it. (What
        was kept aside and cannot be had stands for no return; its ordinal says only that something is missing.)
        """
        entries: list[Entry] = []
        missing: set[int] = set()
        for chunk in cited:
            for place in chunk.places:
                entry = self._set_aside(chunk, place) if place.ret < 0 else self._standing(chunk, place)
                if entry is None:
                    missing.add(place.ret)
                else:
                    entries.append(entry)
        return entries, missing

    def _evidence(self, ordinal: int) -> Evidence | None:
        if ordinal not in self._read:
            returns = self._transcript.returns
            opened = read_return(returns[ordinal], self._tables) if ordinal < len(returns) else None
            self._read[ordinal] = opened.evidence if opened is not None else None
        return self._read[ordinal]

    def _standing(self, cited: Cited, place: Place) -> Entry | None:
        evidence = self._evidence(place.ret)
        if evidence is None:
            return None
        if place.chunk < 0:
            fits = digest_text(evidence.text) == place.digest
            return _entry(cited, place, KeptChunk.of(evidence, None)) if fits else None
        chunk = _chunk(evidence, cited.id, place)
        return _entry(cited, place, KeptChunk.of(evidence, chunk)) if chunk is not None else None

    def _set_aside(self, cited: Cited, place: Place) -> Entry | None:
        kept = self._aside.chunk(cited, place)
        return _entry(cited, place, kept) if kept is not None else None


def _entry(cited: Cited, place: Place, shown: KeptChunk) -> Entry:
    whole = place.chunk < 0
    return Entry(
        ids=(cited.id,),
        ret=place.ret,
        group=cited.group,
        table=cited.table,
        first=cited.first,
        content=shown.content,
        source=source_with(shown.source, cited.title, cited.uri) if not whole else None,
        collection=cited.collection if whole else shown.collection,
        details=shown.details,
        pictures=owned(cited),
        whole=whole,
    )


def owned(cited: Cited) -> tuple[OwnPicture, ...]:
    """The pictures of a chunk, as its own."""
    return tuple((cited.id, place) for place in cited.pictures)


def _chunk(evidence: Evidence, chunk_id: str, place: Place) -> Chunk | None:
    if place.chunk < len(evidence.chunks):
        chunk = evidence.chunks[place.chunk]
        if chunk.id == chunk_id and chunk.digest == place.digest:
            return chunk
    return next((c for c in evidence.chunks if c.id == chunk_id and c.digest == place.digest), None)


def build(entries: list[Entry], tables: Tables, pictures: Pictures, room: Callable[[], int]) -> Capsule | None:
    """The capsule of these entries, newest group first; None without any.

    `room` says how many pictures the rewrite removes: no more come again.
    """
    if not entries:
        return None
    ordered = in_order(entries, tables)
    spans_collections = len({entry.collection for entry in ordered}) > 1
    pieces = [wording.HEADER]
    position, group = 0, None
    for entry in ordered:
        if entry.group != group:
            position, group = position + 1, entry.group
            pieces.append(wording.group(position))
        pieces.append(write(entry, spans_collections))
        pictures.add(entry.pictures, entry.collection if spans_collections else None)
    return Capsule("\n\n".join(pieces), tuple(pictures.take(room)), chunks=count(ordered), entries=tuple(ordered))


class Pictures:
    """The pictures that come again, each once even if several chunks cite it, and only if `comes_again` says so.

    Overlapping chunks own one figure; two figures of one chunk may look alike, and have two references.
    """

    def __init__(self, comes_again: Callable[[PicturePlace], bool]) -> None:
        self._comes_again = comes_again
        self._sent: set[tuple[bytes, str | None]] = set()
        self._added: list[PictureAgain] = []
        self._taken = 0
        self._brought = False

    def add(self, pictures: Iterable[OwnPicture], collection: str | None) -> None:
        """Take the pictures of an entry; `collection` is named where it is given."""
        for chunk_id, place in pictures:
            if (place.digest, place.reference) not in self._sent and self._comes_again(place):
                self._sent.add((place.digest, place.reference))
                self._added.append(PictureAgain(place, wording.label(chunk_id, place.reference, collection)))

    def take(self, room: Callable[[], int]) -> list[PictureAgain]:
        """Those that were added since the last time; none of them comes again.

        Of those that do not stand on the wire only so many come, the first ones, that all together are not more than
        `room`: a rewrite never adds pictures to a request.
        """
        added, self._added = self._added, []
        extra = [again for again in added if again.place.ordinal < 0]
        if extra or self._brought:
            left = room() - self._taken
            standing = [again for again in added if again.place.ordinal >= 0][: max(0, left)]
            extra = extra[: max(0, left - len(standing))]
            self._brought = self._brought or bool(extra)
            chosen = {id(again) for again in (*standing, *extra)}
            added = [again for again in added if id(again) in chosen]
        self._taken += len(added)
        return added


def write(entry: Entry, names_collection: bool) -> str:
    """An entry's text."""
    collection = entry.collection if names_collection else None
    return wording.entry(list(entry.ids), entry.source, collection, entry.content, entry.details)


def count(entries: Iterable[Entry]) -> int:
    """How many chunks these are: an output that is retained for several ids counts for each."""
    return sum(len(entry.ids) for entry in entries)


def in_order(entries: list[Entry], tables: Tables) -> list[Entry]:
    """Entries as they are written: newest group first, one for an output that several ids were cited out of."""
    return _merged(sorted(entries, key=lambda entry: _order(entry, tables)))


def _order(entry: Entry, tables: Tables) -> tuple[int, bool, str, tuple[int, int]]:
    """Newest group first; in a group by first appearance, or by id where the evidence is haiku.rag's, as its own is."""
    by_id = any(table.name == entry.table and table.format == "haiku" for table in tables)
    return -entry.group, not by_id, entry.ids[0] if by_id else "", entry.first


def _merged(entries: list[Entry]) -> list[Entry]:
    """One entry for an output that several ids of one group were cited out of: its content is kept once."""
    merged: list[Entry] = []
    for entry in entries:
        last = merged[-1] if merged else None
        if (
            last is not None
            and entry.whole
            and last.whole
            and (last.group, last.content) == (entry.group, entry.content)
        ):
            merged[-1] = replace(
                last,
                ids=tuple(dict.fromkeys((*last.ids, *entry.ids))),
                pictures=tuple(dict.fromkeys((*last.pictures, *entry.pictures))),
            )
        else:
            merged.append(entry)
    return merged


def picture_at(message: Message, place: PicturePlace) -> str | None:
    """The URL of the picture that stands at a place of this message; None where it is another one, or none."""
    pictures = message.pictures()
    if place.nth >= len(pictures) or picture_digest(pictures[place.nth].url) != place.digest:
        return None
    return pictures[place.nth].url
