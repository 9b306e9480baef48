"""From the ids that a question's calls and answers wrote to the chunks that they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from proxy.evidence import citing
from proxy.evidence.chunks import Chunk, Evidence, stands_in
from proxy.evidence.tables import Table
from proxy.ledger.transcript import Return, Transcript


class Read(msgspec.Struct, frozen=True):
    """An evidence return with what it holds. `brought` is whether it brought evidence, and did not only fail."""

    ret: Return
    table: Table
    evidence: Evidence
    brought: bool = True


class Found(msgspec.Struct, frozen=True):
    """A chunk that a citation means: `index` in its return, or -1 where all of the return's text is retained."""

    read: Read
    index: int

    @property
    def chunk(self) -> Chunk | None:
        return self.read.evidence.chunks[self.index] if self.index >= 0 else None

    @property
    def place(self) -> tuple[int, int]:
        return self.read.ret.ordinal, self.index


class Resolved(msgspec.Struct, frozen=True):
    """What an id means: chunks, or else the returns in which it only stands as text; neither: a chunk that an earlier
    question cited already.

    `beside` says that this may not be what was meant: it is retained beside what was cited under the id before, and
    does not take its place.
    """

    id: str
    found: tuple[Found, ...] = ()
    stands_in: tuple[Read, ...] = ()
    beside: bool = False


#: How a return may be named that shows no id: its tool, and the how-manieth of that tool's returns it is.
_NUMBERED = re.compile(r"(.*?[^\W\d])[\W_]*(?:result)?[\W_]*(\d{1,6})\W*", re.IGNORECASE | re.DOTALL)

_WORDS = re.compile(r"[^\W_]+")
_LONGEST_NAME = 200


def numbered(transcript: Transcript) -> dict[int, str]:
    """The names of a transcript's returns, by their ordinals: `search 2` is the second return of `search`."""
    names: dict[int, str] = {}
    counted: dict[str, int] = {}
    for found in transcript.returns:
        if found.tool is not None:
            counted[found.tool] = counted.get(found.tool, 0) + 1
            names[found.ordinal] = f"{found.tool} {counted[found.tool]}"
    return names


def _folded_name(written: str) -> str | None:
    """A return's name without what models spell in other ways: `Search #2`, `search_2`, `search result 2` are one."""
    match = _NUMBERED.fullmatch(written.strip()) if len(written) <= _LONGEST_NAME else None
    if match is None:
        return None
    tool = " ".join(_WORDS.findall(match[1]))
    return f"{tool.casefold()} {int(match[2])}"


class Index:
    """The chunks of some returns, by their ids.

    `names` are those of returns (by ordinal), where returns may be cited by name: one that shows no id is then a chunk
    of its own, retained whole, and the name of any other stands for all its chunks.
    """

    def __init__(self, reads: Iterable[Read], names: Mapping[int, str] | None = None) -> None:
        self.reads = list(reads)
        self._names = names or {}
        self._named: dict[str, tuple[str, ...]] = {}
        self._chunks: dict[str, list[Found]] = {}
        self._folded: dict[str, set[str]] = {}
        self._outputs = [read for read in self.reads if read.evidence.whole]
        for read in self.reads:
            for position, chunk in enumerate(read.evidence.chunks):
                self._chunks.setdefault(chunk.id, []).append(Found(read, position))
                self._folded.setdefault(chunk.id.casefold(), set()).add(chunk.id)
        for read in self.reads if self._names else ():
            self._name(read)

    def _name(self, read: Read) -> None:
        name = self._names.get(read.ret.ordinal)
        folded = _folded_name(name) if name is not None else None
        if name is None or folded is None:
            return
        if not read.evidence.chunks:
            self._chunks.setdefault(name, []).append(Found(read, -1))
        self._named[folded] = tuple(dict.fromkeys(chunk.id for chunk in read.evidence.chunks)) or (name,)

    def by_name(self, written: str) -> tuple[str, ...]:
        """The ids that the name of a return stands for; none where it names no return."""
        folded = _folded_name(written) if self._named else None
        return self._named.get(folded, ()) if folded is not None else ()

    @property
    def takes_names(self) -> bool:
        return bool(self._names)

    def nameless(self) -> list[str]:
        """The names of the returns that show no id, in order: all that they can be cited by."""
        return [
            name
            for read in self.reads
            if not read.evidence.chunks and (name := self._names.get(read.ret.ordinal)) is not None
        ]

    def ids(self) -> set[str]:
        return {*self._chunks, *(name for read in self._outputs for name in citing.random_ids(read.evidence.text))}

    def chunks(self, chunk_id: str) -> list[Found]:
        """Every chunk of this id, in order."""
        return self._chunks.get(chunk_id, [])

    def outputs(self, chunk_id: str) -> list[Found]:
        """Every output that is retained whole and shows this id."""
        return [Found(read, -1) for read in self._outputs if read.evidence.shows(chunk_id)]

    def cited_as(self, names: Iterable[str]) -> list[str]:
        """The ids of the chunks whose source goes by one of these names."""
        alike = {
            name
            for name in {name for read in self.reads for chunk in read.evidence.chunks for name in chunk.names}
            if any(citing.same_source(named, name) for named in names)
        }
        chunks = (chunk for read in self.reads for chunk in read.evidence.chunks) if alike else ()
        return list(dict.fromkeys(chunk.id for chunk in chunks if not alike.isdisjoint(chunk.names)))

    def spelled_like(self, chunk_id: str) -> str | None:
        """The one id that differs from this one in case only."""
        alike = self._folded.get(chunk_id.casefold(), set())
        return next(iter(alike)) if len(alike) == 1 else None

    def standing(self, chunk_id: str) -> tuple[Read, ...]:
        """The returns in which this id stands as text; a number must stand in brackets."""
        token = f"[{chunk_id}]" if chunk_id.isdecimal() else chunk_id
        return tuple(read for read in self.reads if stands_in(token, read.evidence.text))


class Resolver:
    """Resolves what was cited by one cite tool, or inline, in one stretch of a question.

    An id means this question's own chunks first: those that had been retrieved when it was cited, then the later ones;
    else what earlier questions cited; else what they retrieved (`earlier` reads those returns, and only then).
    `reply_of` maps a return's ordinal to the index of the reply that called for it.
    """

    def __init__(
        self,
        own: Index,
        question: Index,
        reply_of: dict[int, int],
        cited_before: set[str],
        earlier: Callable[[], Index],
    ) -> None:
        self._own = own
        self._question = question
        self._reply_of = reply_of
        self._cited_before = cited_before
        self._earlier = earlier

    def resolve(self, written: str, in_reply: int) -> list[Resolved]:
        """What `written` means, when the reply of this index cites it: usually one id, several for a written list."""
        options = citing.spellings(written)
        meant = self.exact(options, in_reply)
        if meant is not None:
            return [meant]
        for option in options:
            alike = self._own.spelled_like(option) or self._question.spelled_like(option)
            if alike is not None and (meant := self.exact([alike], in_reply)) is not None:
                return [meant]
        named = next((ids for option in options if (ids := self._question.by_name(option))), ())
        named = named or next((ids for option in options if (ids := self._earlier_by_name(option))), ())
        if named:
            return [one for name in named if (one := self.exact([name], in_reply)) is not None]
        several = [one for piece in citing.pieces(written) if (one := self.exact([piece], in_reply)) is not None]
        if several:
            return several
        near = citing.recovered(written, self._question.ids() | self._cited_before)
        if near is not None and (meant := self.exact([near], in_reply)) is not None:
            return [meant]
        standing = next((found for option in options if (found := self.standing(option)) is not None), None)
        return [standing] if standing is not None else []

    def exact(self, options: Sequence[str], in_reply: int) -> Resolved | None:
        """What exactly one of these spellings names: what had been seen when it was cited comes first, and in what
        was seen alike a chunk comes before an output that shows its id."""
        bare = options[-1] if options else ""

        def seen(found: list[Found]) -> list[Found]:
            return [one for one in found if self._reply_of[one.read.ret.ordinal] < in_reply]

        for option in options:
            if found := seen(self._own.chunks(option)):
                return Resolved(option, tuple(found))
        if found := seen(self._own.outputs(bare)):
            return Resolved(bare, tuple(found))
        for option in options:
            if found := self._own.chunks(option):
                return Resolved(option, tuple(found))
            if found := self._question.chunks(option):
                return Resolved(option, tuple(found), beside=True)
            if option in self._cited_before:
                # An output that was called for in the same reply may be what was meant, too.
                beside = tuple(self._own.outputs(bare))
                return Resolved(option, beside, beside=bool(beside))
        outputs = self._own.outputs(bare) or self._question.outputs(bare)
        if outputs and seen(outputs):
            return Resolved(bare, tuple(outputs))
        for option in options:
            if found := self._earlier().chunks(option):
                # Outputs that were called for in the same reply may be what was meant, too.
                return Resolved(option, (*found, *outputs))
        found = outputs or self._earlier().outputs(bare)
        return Resolved(bare, tuple(found)) if found else None

    def _earlier_by_name(self, written: str) -> tuple[str, ...]:
        return self._earlier().by_name(written) if self._question.takes_names else ()

    def annotated(self, names: tuple[str, ...], in_reply: int) -> list[Resolved]:
        """What an annotation of an answer means, that names its source in these ways: an id, or else a source."""
        ids: list[str] = [name for name in names if self.exact([name], in_reply) is not None]
        for index in (self._own, self._question):
            ids = ids or index.cited_as(names)
        ids = ids or self._earlier().cited_as(names)
        return [one for chunk_id in ids if (one := self.exact([chunk_id], in_reply)) is not None]

    def standing(self, chunk_id: str) -> Resolved | None:
        """The returns in which this id stands, but names no chunk: the question's own, else earlier ones."""
        found = self._question.standing(chunk_id) or self._earlier().standing(chunk_id)
        return Resolved(chunk_id, stands_in=found) if found else None
