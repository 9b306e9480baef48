"""From the ids that a question's calls and answers wrote to the chunks that they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from proxy.evidence import citing
from proxy.evidence.chunks import Chunk, Evidence, stands_in
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


class Index:
    """The chunks of some returns, by their ids. `printed` are ids that stand in outputs which are retained whole."""

    def __init__(self, reads: Iterable[Read]) -> None:
        self.reads = list(reads)
        self._chunks: dict[str, list[Found]] = {}
        self._folded: dict[str, set[str]] = {}
        self._outputs = [read for read in self.reads if read.evidence.whole]
        for read in self.reads:
            for position, chunk in enumerate(read.evidence.chunks):
                self._chunks.setdefault(chunk.id, []).append(Found(read, position))
                self._folded.setdefault(chunk.id.casefold(), set()).add(chunk.id)

    def ids(self) -> set[str]:
        return {*self._chunks, *(name for read in self._outputs for name in citing.random_ids(read.evidence.text))}

    def named(self, chunk_id: str) -> list[Found]:
        """Every chunk of this id, in order; else every output that shows it."""
        found = self._chunks.get(chunk_id)
        if found is not None:
            return found
        return [Found(read, -1) for read in self._outputs if read.evidence.shows(chunk_id)]

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
        for option in options:
            exact = self.exact(option, in_reply)
            if exact is not None:
                return [exact]
        for option in options:
            alike = self._own.spelled_like(option) or self._question.spelled_like(option)
            if alike is not None and (exact := self.exact(alike, in_reply)) is not None:
                return [exact]
        several = [one for piece in citing.pieces(written) if (one := self.exact(piece, in_reply)) is not None]
        if several:
            return several
        near = citing.recovered(written, self._question.ids() | self._cited_before)
        if near is not None and (exact := self.exact(near, in_reply)) is not None:
            return [exact]
        standing = next((found for option in options if (found := self.standing(option)) is not None), None)
        return [standing] if standing is not None else []

    def exact(self, chunk_id: str, in_reply: int) -> Resolved | None:
        """The chunks of exactly this id."""
        own = self._own.named(chunk_id)
        seen = [found for found in own if self._reply_of[found.read.ret.ordinal] < in_reply]
        found = seen or own or self._question.named(chunk_id)
        if found:
            return Resolved(chunk_id, tuple(found))
        if chunk_id in self._cited_before:
            return Resolved(chunk_id)
        earlier = self._earlier().named(chunk_id)
        return Resolved(chunk_id, tuple(earlier)) if earlier else None

    def standing(self, chunk_id: str) -> Resolved | None:
        """The returns in which this id stands, but names no chunk: the question's own, else earlier ones."""
        found = self._question.standing(chunk_id) or self._earlier().standing(chunk_id)
        return Resolved(chunk_id, stands_in=found) if found else None
