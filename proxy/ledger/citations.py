"""From the ids that a question's calls and answers wrote to the chunks that they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from proxy.evidence import citing
from proxy.evidence.chunks import Chunk, Evidence
from proxy.evidence.tables import Table
from proxy.ledger.transcript import Return


@dataclass(frozen=True, slots=True)
class Read:
    """An evidence return with what it holds."""

    ret: Return
    table: Table
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk that a citation means: `index` in its return, or -1 where all of the return's text is retained."""

    read: Read
    index: int

    @property
    def chunk(self) -> Chunk | None:
        return self.read.evidence.chunks[self.index] if self.index >= 0 else None

    @property
    def place(self) -> tuple[int, int]:
        return self.read.ret.ordinal, self.index


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an id means: chunks, or else the returns in which it only stands as text; neither: a chunk that an earlier
    question cited already."""

    id: str
    found: tuple[Found, ...] = ()
    stands_in: tuple[Read, ...] = ()


def chunks_named(reads: Iterable[Read], chunk_id: str) -> list[Found]:
    """Every chunk of this id in these returns, in order."""
    return [
        Found(read, index) for read in reads for index, chunk in enumerate(read.evidence.chunks) if chunk.id == chunk_id
    ]


def outputs_showing(reads: Iterable[Read], chunk_id: str) -> list[Found]:
    """Returns that are retained whole, and show this id."""
    return [Found(read, -1) for read in reads if read.evidence.whole and read.evidence.shows(chunk_id)]


class Resolver:
    """Resolves ids for one table's citations of one question.

    An id means this question's own chunks first: those that had been retrieved when it was cited, then the later ones;
    else what earlier questions cited; else what they retrieved (`earlier` reads those returns, and only then).
    `reply_of` maps a return's ordinal to the index of the reply that called for it.
    """

    def __init__(
        self,
        own: list[Read],
        whole_question: list[Read],
        reply_of: dict[int, int],
        cited_before: set[str],
        earlier: Callable[[], list[Read]],
    ) -> None:
        self._own = own
        self._reply_of = reply_of
        self._question = whole_question
        self._cited_before = cited_before
        self._earlier = earlier

    def resolve(self, written: str, in_reply: int) -> list[Resolved]:
        """What `written` means, when the reply of this index cites it: usually one id, several for a written list."""
        for option in citing.spellings(written):
            resolved = self._exact(option, in_reply)
            if resolved is not None:
                return [resolved]
        several = [
            resolved for piece in citing.pieces(written) if (resolved := self._exact(piece, in_reply)) is not None
        ]
        if several:
            return several
        near = citing.recovered(written, self._known_ids())
        resolved = self._exact(near, in_reply) if near is not None else None
        return [resolved] if resolved is not None else []

    def _known_ids(self) -> set[str]:
        own = {chunk.id for read in self._question for chunk in read.evidence.chunks}
        printed = {
            name for read in self._question if read.evidence.whole for name in citing.random_ids(read.evidence.text)
        }
        return own | printed | self._cited_before

    def _exact(self, chunk_id: str, in_reply: int) -> Resolved | None:
        seen = [read for read in self._own if self._reply_of[read.ret.ordinal] < in_reply]
        for scope in (seen, self._own, self._question):
            found = chunks_named(scope, chunk_id) or outputs_showing(scope, chunk_id)
            if found:
                return Resolved(chunk_id, tuple(found))
        if chunk_id in self._cited_before:
            return Resolved(chunk_id)
        standing = tuple(read for read in self._question if read.evidence.shows(chunk_id))
        if standing:
            return Resolved(chunk_id, stands_in=standing)
        earlier = self._earlier()
        found = chunks_named(earlier, chunk_id) or outputs_showing(earlier, chunk_id)
        if found:
            return Resolved(chunk_id, tuple(found))
        standing = tuple(read for read in earlier if read.evidence.shows(chunk_id))
        return Resolved(chunk_id, stands_in=standing) if standing else None
