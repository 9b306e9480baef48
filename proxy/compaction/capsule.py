"""The capsule: what earlier questions cited, whole, from the request's own transcript or from what was kept aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from proxy.compaction import wording
from proxy.evidence.chunks import Chunk, Evidence
from proxy.evidence.pictures import digest_of
from proxy.evidence.sources import source_with
from proxy.evidence.tables import Tables
from proxy.ledger import reading
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.records import Cited, PicturePlace, Place
from proxy.ledger.transcript import Return, Transcript
from proxy.wire.messages import Message, Picture

#: A picture's place with the id of the chunk whose it is.
OwnPicture = tuple[str, PicturePlace]


class Entry(msgspec.Struct, frozen=True, gc=False):
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


class PictureAgain(msgspec.Struct, frozen=True):
    """A cited picture that is sent again: where it stood, and its label."""

    place: PicturePlace
    label: str


class Capsule(msgspec.Struct, frozen=True):
    """The capsule's text and pictures. `chunks` is how many chunks it holds, `entries` what they are, as written."""

    text: str
    pictures: tuple[PictureAgain, ...]
    chunks: int
    entries: tuple[Entry, ...] = ()


class Reading:
    """The returns of a transcript, each read at most once, and only when something that it holds is written.

    What was cited out of a return is remembered with it: the next request of the conversation does not read it again.

    What does not stand there comes from `aside`.
    """

    def __init__(self, transcript: Transcript, tables: Tables, aside: Aside = NOTHING) -> None:
        self._transcript = transcript
        self._tables = tables
        self._aside = aside
        self._read: dict[int, Evidence | None] = {}
        self._cited: Sequence[Cited] = ()  # what is being gathered
        self._ids: dict[int, set[str]] = {}  # what of it each return holds, once that is asked for
        self._named: dict[int, list[Chunk]] = {}  # and those chunks, as soon as the first is

    def gather(self, cited: Sequence[Cited]) -> tuple[list[Entry], set[int]]:
        """The entries of what was cited, and the ordinals of returns whose cited content could not be read.

        Those returns must stay in place: what an answer rests on is never given up because we cannot find it. (What
        was kept aside and cannot be had stands for no return; its ordinal says only that something is missing.)
        """
        entries: list[Entry] = []
        missing: set[int] = set()
        self._cited, self._ids = cited, {}
        for chunk in cited:
            for place in chunk.places:
                shown = self._aside.chunk(chunk, place) if place.ret < 0 else self._shown(chunk.id, place)
                if shown is None:
                    missing.add(place.ret)
                else:
                    entries.append(_entry(chunk, place, shown))
        return entries, missing

    def _shown(self, chunk_id: str, place: Place) -> Chunk | str | None:
        """The chunk that stands at a place, or all text of its return; None where it does not, or not any more."""
        returns = self._transcript.returns
        if place.ret >= len(returns):
            return None
        found = returns[place.ret]
        return reading.standing(found, self._tables, chunk_id, place, self._stands)

    def _stands(self, found: Return, chunk_id: str, place: Place) -> Chunk | str | None:
        """The same, read now: of most returns only what is cited, and all of one where that does not make it plain."""
        fits: list[Chunk] = []
        if place.chunk >= 0:
            if found.ordinal not in self._named:
                self._named[found.ordinal] = reading.named(found, self._tables, self._wanted(found.ordinal))
            fits = [c for c in self._named[found.ordinal] if c.id == chunk_id and c.digest == place.digest]
        return fits[0] if len(fits) == 1 else reading.at(self._evidence(found), chunk_id, place)

    def _wanted(self, ordinal: int) -> set[str]:
        """The ids that are gathered out of a return."""
        if not self._ids:
            for chunk in self._cited:
                for place in chunk.places:
                    self._ids.setdefault(place.ret, set()).add(chunk.id)
        return self._ids[ordinal]

    def _evidence(self, found: Return) -> Evidence | None:
        if found.ordinal not in self._read:
            self._read[found.ordinal] = reading.evidence(found, self._tables)
        return self._read[found.ordinal]


def _entry(cited: Cited, place: Place, shown: Chunk | str) -> Entry:
    whole = isinstance(shown, str)
    content, source, collection, details = (
        (shown, None, cited.collection, None)
        if isinstance(shown, str)
        else (shown.content, source_with(shown.source, cited.title, cited.uri), shown.collection, shown.details)
    )
    return Entry(
        ids=(cited.id,),
        ret=place.ret,
        group=cited.group,
        table=cited.table,
        first=cited.first,
        content=content,
        source=source,
        collection=collection,
        details=details,
        pictures=owned(cited),
        whole=whole,
    )


def owned(cited: Cited) -> tuple[OwnPicture, ...]:
    """The pictures of a chunk, as its own."""
    return tuple([(cited.id, place) for place in cited.pictures]) if cited.pictures else ()


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
    return wording.entry(entry.ids, entry.source, collection, entry.content, entry.details)


def count(entries: Iterable[Entry]) -> int:
    """How many chunks these are: an output that is retained for several ids counts for each."""
    return sum(len(entry.ids) for entry in entries)


def in_order(entries: list[Entry], tables: Tables) -> list[Entry]:
    """Entries as they are written: newest group first, one for an output that several ids were cited out of."""
    by_id = {table.name for table in tables if table.format == "haiku"}
    return _merged(sorted(entries, key=lambda entry: _order(entry, entry.table in by_id)))


def _order(entry: Entry, by_id: bool) -> tuple[int, bool, str, tuple[int, int]]:
    """Newest group first; in a group by first appearance, or by id where the evidence is haiku.rag's, as its own is."""
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
            merged[-1] = msgspec.structs.replace(
                last,
                ids=tuple(dict.fromkeys((*last.ids, *entry.ids))),
                pictures=tuple(dict.fromkeys((*last.pictures, *entry.pictures))),
            )
        else:
            merged.append(entry)
    return merged


def picture_at(message: Message, place: PicturePlace) -> Picture | None:
    """The picture that stands at a place of this message; None where it is another one, or none."""
    pictures = message.pictures()
    if place.nth >= len(pictures) or digest_of(pictures[place.nth]) != place.digest:
        return None
    return pictures[place.nth]
