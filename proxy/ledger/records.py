"""The record of a settled question: immutable, addressed by what the client sent; ids and digests, no content.

A record accounts for every evidence return up to its question, so that a rewrite needs no other one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

#: The version of this layout. A record of another version is not read: that costs compaction once, never evidence.
VERSION = 2

Declaration = Literal["grounded", "ungrounded", "missing"]


# A record of a long conversation holds thousands of these, in no cycles: the garbage collector need not look at them.

#: What makes a chunk one: its table, its collection, its id and, where ids are local, the digest of its content.
Identity = tuple[str, str | None, str, bytes]


#: The ordinal of what does not stand in the transcript: it was kept aside when its question settled.
ASIDE = -1


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a cited chunk's content stands: the return's ordinal (`ASIDE`: nowhere on the wire), the chunk's index in
    it (-1: all of its text), and the digest of the content, which must fit when it is read again."""

    ret: int
    chunk: int
    digest: bytes


class PicturePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a cited chunk's picture stands: the how-manieth of a return's, or of a user message's, pictures.

    One whose ordinal is `ASIDE` stands nowhere on the wire.
    """

    in_user: bool
    ordinal: int
    nth: int
    digest: bytes
    reference: str | None = None


class Cited(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk that was cited: `group` is the newest question that cited it, `first` where it first appeared.

    `title` and `uri` are its document's, where a database said them when the question settled.
    """

    table: str
    collection: str | None
    id: str
    group: int
    first: tuple[int, int]
    places: tuple[Place, ...]
    pictures: tuple[PicturePlace, ...] = ()
    local: bool = False
    title: str | None = None
    uri: str | None = None

    @property
    def identity(self) -> Identity:
        """Ids that are local to their content are one chunk only together with it."""
        return self.table, self.collection, self.id, self.places[0].digest if self.local else b""


class Attachment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A user message (by ordinal) of nothing but our pictures, and the returns (by ordinal) that they came with."""

    user: int
    returns: tuple[int, ...]


class Writing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What layout `append` writes for one settled question, fixed then, so that no later question changes its bytes.

    `replaced` are the returns (by ordinal) that the question itself replaced; `carrier` is the newest of them, or None:
    then what it cited goes to the newest carrier before it. `chunks` are cited here first with this content; `again`
    stand above with the content that was cited again, and bring only pictures that were not written yet.
    `collections` says whether entries and labels name theirs.
    """

    replaced: tuple[int, ...]
    carrier: int | None
    chunks: tuple[Cited, ...] = ()
    again: tuple[Cited, ...] = ()
    collections: bool = False


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the citation policy did for a question whose answer had to declare what grounds it.

    `asked` is whether the model was asked for it, `violation` why the answer stayed undeclared (None: it did not), and
    `extra_tokens` what asking took.
    """

    asked: bool = False
    violation: str | None = None
    extra_tokens: int = 0


class Source(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk that this question cited, for those who ask what an answer rested on: where it came from.

    `source` is the line that the model saw, `title` and `uri` what is known apart from it.
    """

    table: str
    collection: str | None
    id: str
    source: str | None = None
    title: str | None = None
    uri: str | None = None


class Stand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A return by which a question is found again in a history that was trimmed: digests of its call id and content."""

    call: bytes
    content: bytes
    ordinal: int


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a settled question left: its citations and those before it, and the fate of each return up to it.

    `replaced` and `kept` are ordinals of evidence returns: the first become receipts (the newest one the carrier), the
    second stay. `reply` and `shown` tell apart records under one key; `called` is whether the reply called an output
    tool. `before` is the digest of the record before it. `cited` is what layout `single` writes, `writings` (one for
    each question, oldest first) what `append` does: every record has both, so that a store serves either. `verdict` is
    the citation policy's, None where there was none or the answer owed nothing; `cites` is whether anything was cited
    up to here that no tool refused (None: by a version that did not say).

    `sources` are what this question cited. `stands` are the returns of the transcript (those from `own_from` on are
    this question's) where the host names its conversations, else empty. `names` are the contents (by the keys that the
    store keeps them under) which this record needs beside the wire.
    """

    version: int
    ordinal: int
    reply: bytes
    shown: bytes
    declaration: Declaration
    cited: tuple[Cited, ...]
    replaced: tuple[int, ...]
    kept: tuple[int, ...]
    attachments: tuple[Attachment, ...]
    inline: bool = False
    question_id: str | None = None
    before: bytes | None = None
    writings: tuple[Writing, ...] = ()
    called: bool = False
    verdict: Verdict | None = None
    sources: tuple[Source, ...] = ()
    stands: tuple[Stand, ...] = ()
    own_from: int = 0
    names: tuple[bytes, ...] = ()
    cites: bool | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """The record's bytes: equal records have equal bytes."""
    return _encoder.encode(record)


def decode(payload: bytes) -> Record | None:
    """The record, or None where the bytes are of another version or damaged."""
    try:
        record = _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
    return record if record.version == VERSION else None


def digest(record: Record) -> bytes:
    """16 bytes that stand for a record."""
    return hashlib.sha256(encode(record)).digest()[:16]


def fitting(
    records: Iterable[Record], reply: bytes, shown: bytes, said_something: bool, called: bool = False
) -> Record | None:
    """Of the records under one key, the one whose reply the transcript shows; where that cannot be told, all, united.

    `said_something` is whether the transcript shows the reply's text at all (some clients send a reference instead),
    `called` whether it shows a call of an output tool: the record of an answer does not fit that, nor the other way.
    A record whose citations were read out of another reply's text does not fit.
    """
    known = list(records)
    if len(known) > 1:
        known = [record for _, record in sorted({encode(record): record for record in known}.items())]
    candidates = [record for record in known if record.version == VERSION and record.called == called]
    same = [record for record in candidates if record.reply == reply]
    if not same:
        same = [record for record in candidates if not (record.inline and said_something)]
    nearest = [record for record in same if record.shown == shown]
    return united(nearest or same)


def keeping(record: Record, ordinals: set[int]) -> Record:
    """The record, but for these returns: they stay."""
    if not ordinals:
        return record
    return msgspec.structs.replace(
        record,
        replaced=tuple(ordinal for ordinal in record.replaced if ordinal not in ordinals),
        kept=tuple(sorted({*record.kept, *ordinals})),
        writings=tuple(
            msgspec.structs.replace(writing, replaced=tuple(o for o in writing.replaced if o not in ordinals))
            for writing in record.writings
        ),
    )


def united(records: list[Record]) -> Record | None:
    """One record that keeps what any of them keeps, and replaces only what all of them replace."""
    if not records:
        return None
    first, *others = records
    if not others:
        return first
    cited: dict[Identity, Cited] = {}
    for record in records:
        for entry in record.cited:
            known = cited.get(entry.identity)
            if known is None:
                cited[entry.identity] = entry
            elif known != entry:
                newer, older = sorted((known, entry), key=lambda e: (e.group, _encoder.encode(e)))[::-1]
                cited[entry.identity] = msgspec.structs.replace(
                    newer,
                    first=min(newer.first, older.first),
                    places=tuple(dict.fromkeys((*newer.places, *older.places))),
                    pictures=tuple(dict.fromkeys((*newer.pictures, *older.pictures))),
                )
    replaced = set(first.replaced).intersection(*(record.replaced for record in others))
    every = set().union(*(record.replaced + record.kept for record in records))
    return msgspec.structs.replace(
        first,
        cited=tuple(cited.values()),
        replaced=tuple(sorted(replaced)),
        kept=tuple(sorted(every - replaced)),
        attachments=tuple(a for a in first.attachments if all(a in record.attachments for record in others)),
        writings=_united_writings([record.writings for record in records]),
    )


def _united_writings(told: list[tuple[Writing, ...]]) -> tuple[Writing, ...]:
    """What all of them wrote alike, then one writing that replaces what all replace and holds what any holds."""
    alike = 0
    while all(len(writings) > alike and writings[alike] == told[0][alike] for writings in told):
        alike += 1
    apart = [writing for writings in told for writing in writings[alike:]]
    if not apart:
        return told[0]
    replaced = set.intersection(*({r for w in writings[alike:] for r in w.replaced} for writings in told))
    carriers = [writing.carrier for writing in apart if writing.carrier in replaced]
    return (
        *told[0][:alike],
        Writing(
            replaced=tuple(sorted(replaced)),
            carrier=max((c for c in carriers if c is not None), default=max(replaced, default=None)),
            chunks=_each_once(entry for writing in apart for entry in writing.chunks),
            again=_each_once(entry for writing in apart for entry in writing.again),
            collections=any(writing.collections for writing in apart),
        ),
    )


def _each_once(entries: Iterable[Cited]) -> tuple[Cited, ...]:
    """Entries in an order that does not depend on the one in which records were found."""
    return tuple(sorted(set(entries), key=_encoder.encode))
