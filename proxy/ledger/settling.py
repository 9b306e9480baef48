"""What a reply that settles a question leaves behind: the record."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.evidence import citing, haiku, returns, tagged
from proxy.evidence.chunks import Chunk, digest_text, text_of
from proxy.evidence.pictures import digest_of, read_attachment
from proxy.evidence.sources import title_and_uri
from proxy.evidence.tables import INLINE, MANAGED, Table, Tables
from proxy.ledger import citations, reading, records
from proxy.ledger.citations import Found, Index, Read, Resolved, Resolver
from proxy.ledger.notes import Noted
from proxy.ledger.questions import Habits, Stretch, opening_after, question_ends, stretches
from proxy.ledger.records import (
    Attachment,
    Cited,
    Declaration,
    Identity,
    PicturePlace,
    Place,
    Record,
    Source,
    Verdict,
    Writing,
)
from proxy.ledger.transcript import ReplyStep, Transcript, reply_digest, without_thinking
from proxy.wire.chat_reply import ANSWERED, finished_normally
from proxy.wire.messages import Call, Message, Reply


def settles(reply: Reply, habits: Habits) -> bool:
    """Whether a reply ends its question: an answer without a tool call, or a call of an output tool."""
    if not finished_normally(reply.finish):
        return False
    if reply.calls:
        return any(call.name in habits.output_tools for call in reply.calls)
    return (reply.finish or "").lower() in ANSWERED


def settle(
    transcript: Transcript,
    reply: Reply,
    *,
    previous: Record | None,
    from_reply: int,
    tables: Tables,
    habits: Habits,
    question_id: str | None = None,
    noted: Sequence[Noted] = (),
    verdict: Verdict | None = None,
) -> Record:
    """The record of the question that `reply` settled.

    `transcript` is the request that it answers; `from_reply` is the index of the first reply of the current question
    (0 where nothing was recorded before), `previous` the record that the boundary rests on. `noted` is what was cited
    on requests that the client never saw; of the reply itself, its index is one past the transcript's last.
    `verdict` is what the citation policy did and why the answer may be undeclared; None where there is no policy.
    """
    question = _Question(transcript, previous, from_reply, tables, habits, noted)
    question.read_stretches(reply)
    kept = {*(previous.kept if previous else ()), *question.kept}
    replaced = {*(previous.replaced if previous else ()), *question.replaced} - kept
    fresh = question.cited_here()
    cited = question.citations(fresh)
    return Record(
        version=records.VERSION,
        ordinal=question.ordinal,
        reply=reply_digest(reply.text, reply.calls),
        shown=transcript.shown,
        declaration=question.declaration,
        cited=cited,
        replaced=tuple(sorted(replaced)),
        kept=tuple(sorted(kept)),
        attachments=(*(previous.attachments if previous else ()), *question.attachments()),
        inline=any(table.cites_inline for table in tables),
        called=bool(reply.calls),
        question_id=question_id,
        before=records.digest(previous) if previous else None,
        writings=(*(previous.writings if previous else ()), question.writing(fresh)),
        verdict=_final(verdict, question.standing()),
        sources=question.sources(cited),
        names=previous.names if previous else (),
        cites=question.has_cited(),
    )


def _final(verdict: Verdict | None, standing: Standing) -> Verdict | None:
    """A verdict with what came of it: a declared answer violates nothing, and one that owed nothing has none."""
    if verdict is None or not standing.owes:
        return None
    return verdict if standing.declaration == "missing" else msgspec.structs.replace(verdict, violation=None)


def attachments_up_to(transcript: Transcript, last: int, tables: Tables, habits: Habits) -> tuple[Attachment, ...]:
    """The user messages of nothing but our pictures that came with returns up to an ordinal, told anew."""
    whole = _Question(transcript, None, 0, tables, habits)
    whole.read_stretches(None)
    return tuple(found for found in whole.attachments() if all(ordinal <= last for ordinal in found.returns))


def cited_without_record(
    transcript: Transcript, record: Record, from_reply: int, tables: Tables, habits: Habits
) -> set[int]:
    """The returns, among those that a record replaced, out of which later answers cited that have no record.

    They went up untouched to a model that saw all of it, so what they cited may be what the record gave up.
    """
    later = _Question(transcript, record, from_reply, tables, habits)
    later.read_stretches(None)
    return later.cited_ordinals() & set(record.replaced)


class Standing(msgspec.Struct, frozen=True):
    """How a question stands with a reply: what it declared, whether it retrieved evidence, and whether anything was
    cited in the conversation. `ways` are those by which its answer may be cited, the newest evidence's first."""

    declaration: Declaration
    retrieved: bool
    cited: bool
    ways: tuple[str, ...] = ()

    @property
    def owes(self) -> bool:
        """Whether an answer must declare what grounds it: one to a question that retrieved evidence, and every one
        once anything was cited."""
        return self.retrieved or self.cited


def standing(
    transcript: Transcript,
    reply: Reply,
    *,
    previous: Record | None,
    from_reply: int,
    tables: Tables,
    habits: Habits,
    noted: Sequence[Noted] = (),
) -> Standing:
    """How the current question would stand if `reply` ended it (the arguments are those of `settle`)."""
    question = _Question(transcript, previous, from_reply, tables, habits, noted)
    question.read_stretches(reply)
    return question.standing()


def surely_declared(
    transcript: Transcript, previous: Record | None, from_reply: int, tables: Tables, habits: Habits
) -> bool:
    """Whether the current question has declared already, where that shows at once: `standing` would say so, too.

    It reads no return: where one was not read for an earlier request, nothing is sure.
    """
    return _Question(transcript, previous, from_reply, tables, habits).surely_declared()


@dataclass(frozen=True, slots=True)
class Citable:
    """What can be cited in answer to a request, by one way of citing. `nameless` are the names of the question's
    returns that show no id; `resolve` says what a written id means."""

    resolver: Resolver
    nameless: tuple[str, ...]
    reply: int

    def resolve(self, written: str) -> list[Resolved]:
        return self.resolver.resolve(written, self.reply)


def citable(
    transcript: Transcript, previous: Record | None, from_reply: int, tables: Tables, habits: Habits, way: str = MANAGED
) -> Citable:
    """What the reply to a request may cite (the arguments are those of `settle`)."""
    question = _Question(transcript, previous, from_reply, tables, habits)
    return question.citable(way)


@dataclass(slots=True)
class _Cite:
    """What one reply cited. `written` stands where ids are expected; `perhaps` counts only where it is exactly one;
    `sources` are what annotations name, each in several ways.

    `declares` is whether it says what grounds the answer, `nothing` that it says "nothing"; `clear` is False where
    nobody can tell what was cited.
    """

    reply: int
    written: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()
    inline: bool = False
    declares: bool = True
    nothing: bool = False
    clear: bool = True


@dataclass
class _Question:
    transcript: Transcript
    previous: Record | None
    from_reply: int
    tables: Tables
    habits: Habits
    noted: Sequence[Noted] = ()
    replaced: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    reads: list[Read] = field(default_factory=list)
    declaration: Declaration = "missing"
    ordinal: int = 1
    cites: bool = False  # whether it cited anything, and was not refused
    _seen: set[str] = field(default_factory=set)  # the names of the tables of its returns
    _own: list[Read] = field(default_factory=list)  # those that brought evidence to the last stretch
    _cited: list[tuple[Table, Resolved]] = field(default_factory=list)
    _named: set[str] = field(default_factory=set)  # the ids of what was cited and not refused
    _reply_of: dict[int, int] = field(default_factory=dict)
    _earlier: dict[str, Index] = field(default_factory=dict)

    def read_stretches(self, reply: Reply | None) -> None:
        """Read the question's evidence and citations, one stretch after another; the last one ends in `reply`.

        Without a reply, only what was answered already is read.
        """
        parts = stretches(self.transcript, self.from_reply, self.habits)
        if reply is None:
            parts = [part for part in parts if part.answered]
        held = self._hold(parts)
        if reply is not None:
            self._own = [read for read in held[-1] if read.table.cite is not None and read.brought]
        # What was answered without evidence before the first search was seen, and is a question of its own.
        cited = [any(read.table.cite is not None for read in reads) for reads in held]
        idle = cited.index(True) if True in cited else len(held) - 1
        self.ordinal = (self.previous.ordinal if self.previous else 0) + idle + 1
        # Tables that are cited in one way share what is cited: a call declares for all of them.
        ways: dict[str, list[Table]] = {}
        for table in self.tables:
            if table.cite is not None:
                ways.setdefault(table.cite, []).append(table)
        for way, tables in ways.items():
            question = self._index(way, (read for read in self.reads if read.table in tables))
            for part, reads in zip(parts, held, strict=True):
                final = None if part.answered else reply
                own = self._index(way, (read for read in reads if read.table in tables))
                self._declare(way, tables, part, own, question, final)

    def _hold(self, parts: list[Stretch]) -> list[list[Read]]:
        """The evidence of each stretch."""
        for index, step in enumerate(self.transcript.replies):
            for found in step.returns:
                self._reply_of[found.ordinal] = index
        held = [self._read(part) for part in parts]
        self.reads = [read for reads in held for read in reads]
        self._seen = {read.table.name for read in self.reads}
        return held

    def surely_declared(self) -> bool:
        """Whether a cite call after the newest evidence says "nothing", or names an id just as it was shown."""
        part = stretches(self.transcript, self.from_reply, self.habits)[-1]
        steps = list(enumerate(part.replies(self.transcript), part.first_reply))
        if not any(table.cite == call.name for _, step in steps for call in step.calls for table in self.tables):
            return False
        newest = -1
        shown: dict[str, dict[str, int]] = {}
        for index, step in steps:
            for found in step.returns:
                table = reading.evidence_table(found, self.tables) if found.message.parts else None
                if table is None or table.cite is None:
                    continue
                known = reading.outline(found, self.tables)
                if known is None:
                    return False
                self._seen.add(table.name)
                newest = index if known.brought else newest
                places = shown.setdefault(table.cite, {})
                places.update((one, index) for one in known.ids if one not in places)
        for index, step in steps:
            for call in step.calls if index > newest else ():
                tables = [table for table in self.tables if table.cite == call.name]
                cite = self._cite_call(tables, index, step, call) if tables else None
                first = shown.get(call.name, {})
                named = cite is not None and any(first.get(one, index) < index for one in cite.written)
                if cite is not None and cite.declares and (cite.nothing or named):
                    return True
        return False

    def citable(self, way: str) -> Citable:
        """What can be cited by one way, after everything that the transcript shows."""
        held = self._hold(stretches(self.transcript, self.from_reply, self.habits))
        tables = [table for table in self.tables if table.cite == way]
        question = self._index(way, (read for read in self.reads if read.table in tables))
        own = self._index(way, (read for read in held[-1] if read.table in tables))
        resolver = self._resolver(way, tables, own, question)
        return Citable(resolver, tuple(own.nameless()), len(self.transcript.replies))

    def _read(self, part: Stretch) -> list[Read]:
        return [
            read
            for step in part.replies(self.transcript)
            for found in step.returns
            if (read := reading.read(found, self.tables)) is not None
        ]

    def _index(self, way: str, reads: Iterable[Read]) -> Index:
        """What may be cited of these returns. The proxy's own tool also takes a return that shows no id by its name."""
        return Index(reads, citations.numbered(self.transcript) if way == MANAGED else {})

    def _resolver(self, way: str, tables: list[Table], own: Index, question: Index) -> Resolver:
        before = {e.id for e in self._cited_before(tables)}
        return Resolver(own, question, self._reply_of, before, lambda: self._earlier_index(way, tables))

    def _cited_before(self, tables: list[Table]) -> list[Cited]:
        return [e for e in self.previous.cited if any(e.table == t.name for t in tables)] if self.previous else []

    def _declare(
        self, way: str, tables: list[Table], part: Stretch, own: Index, question: Index, final: Reply | None
    ) -> None:
        """The citations and the declaration of one stretch, and so the fate of its returns."""
        before = self._cited_before(tables)
        resolver = self._resolver(way, tables, own, question)
        newest = self._newest(own.reads)
        newest_of_all = self._newest(self._own)
        declaration: Declaration = "missing"
        of_all: Declaration = "missing"
        clear = True
        for cite in self._cites(way, tables, part, final):
            resolved = self._resolved(cite, resolver)
            counts = cite.declares or cite.inline
            for meaning in resolved:
                self._note(meaning, tables, before, beside=meaning.beside or not counts)
            if counts:
                self._named.update(meaning.id for meaning in resolved)
                self.cites = self.cites or bool(resolved)
            clear = clear and cite.clear
            # A citation counts for the declaration only if it came after the newest evidence; what is cited again
            # merges, and one whose ids resolve to nothing declares nothing.
            if cite.declares and cite.reply > newest:
                said: Declaration = "grounded" if resolved else "ungrounded" if cite.nothing else "missing"
                declaration = _more(declaration, said)
                # Several sources, one decision: newer evidence of another source is not declared by this.
                of_all = _more(of_all, said) if cite.reply > newest_of_all else of_all
        if not part.answered:
            self.declaration = _more(self.declaration, of_all)
        for read in own.reads:
            # An answered stretch without a record: nothing is known of it but what the transcript shows.
            undeclared = "keep" if part.answered else read.table.undeclared
            shows_no_id = way != MANAGED and read.table.format == "auto" and not read.evidence.shows_ids()
            is_open = declaration == "missing" and undeclared == "keep"
            if shows_no_id or is_open or not clear or not read.evidence.readable:
                self.kept.add(read.ret.ordinal)
            else:
                self.replaced.add(read.ret.ordinal)

    def _newest(self, reads: Iterable[Read]) -> int:
        """The newest reply of which evidence came back."""
        return max((self._reply_of[read.ret.ordinal] for read in reads if read.brought), default=-1)

    def has_cited(self) -> bool:
        """Whether anything was cited in the conversation up to here; what a tool refused is only kept in case."""
        before = self.previous.cites if self.previous else False
        return self.cites or (bool(self.previous and self.previous.cited) if before is None else before)

    def standing(self) -> Standing:
        """How the question stands; once its stretches have been read."""
        before = self.previous.cited if self.previous else ()
        seen = [
            read.table.cite for read in sorted(self._own, key=lambda r: self._reply_of[r.ret.ordinal], reverse=True)
        ]
        named = {table.name: table.cite for table in self.tables}
        seen += [named.get(entry.table) for entry in sorted(before, key=lambda entry: entry.group, reverse=True)]
        seen += [table.cite for table, _ in reversed(self._cited)]
        ways = tuple(dict.fromkeys(way for way in seen if way is not None))
        return Standing(self.declaration, bool(self._own), self.has_cited(), ways)

    def _note(self, meaning: Resolved, tables: list[Table], before: list[Cited], beside: bool) -> None:
        """Write down one resolved id, for each table that it belongs to."""
        self.kept |= {read.ret.ordinal for read in meaning.stands_in}
        for table in tables:
            found = tuple(found for found in meaning.found if found.read.table is table)
            standing = tuple(read for read in meaning.stands_in if read.table is table)
            again = not meaning.found and not meaning.stands_in
            if found or standing or (again and any(e.table == table.name and e.id == meaning.id for e in before)):
                self._cited.append((table, Resolved(meaning.id, found, standing, beside)))

    def _resolved(self, cite: _Cite, resolver: Resolver) -> list[Resolved]:
        if not cite.inline:
            exact = [one for text in cite.perhaps if (one := resolver.exact([text.strip()], cite.reply)) is not None]
            return [one for text in cite.written for one in resolver.resolve(text, cite.reply)] + exact
        found: list[Resolved] = []
        for inner in (*cite.written, *cite.perhaps):
            named = [
                one for option in citing.ids_in(inner) if (one := resolver.exact([option], cite.reply)) is not None
            ]
            if not named and inner in cite.written and not any(map(str.isspace, inner)):
                standing = resolver.standing(inner)
                named = [standing] if standing is not None else []
            found += named
        return found + [one for names in cite.sources for one in resolver.annotated(names, cite.reply)]

    def _cites(self, way: str, tables: list[Table], part: Stretch, final: Reply | None) -> list[_Cite]:
        """What the stretch cited, in order: calls of the cite tool, or brackets in what the assistant said."""
        if way == MANAGED:
            # What an answered stretch without a record cited stands nowhere: its evidence stays.
            return [] if part.answered else self._noted_cites(part, final)
        found: list[_Cite] = []
        inline = way == INLINE
        for index in range(part.first_reply, part.end_reply):
            step = self.transcript.replies[index]
            if not inline:
                calls = [call for call in step.calls if call.name == way]
                found += [cite for call in calls if (cite := self._cite_call(tables, index, step, call)) is not None]
            # An answered stretch without a record may have cited in any assistant text, whatever its tables say.
            if inline or part.answered:
                cites = tuple(names for message in step.messages for names in message.cites)
                found += self._inline_cites(index, step.text, cites, declares=not step.calls)
        if inline:
            found += self._noted_cites(part, final)
        if final is not None:
            if inline:
                found += self._inline_cites(part.end_reply, final.text, final.cites, declares=True)
            for call in final.calls:  # beside an output tool's call; its return is still to come
                if call.name == way and (said := citing.written(call.arguments)).ids:
                    found.append(_Cite(part.end_reply, said.ids, said.perhaps))
        return found

    def _noted_cites(self, part: Stretch, final: Reply | None) -> list[_Cite]:
        """What was cited in a stretch and no history shows. What was sent back counts if nothing came in its stead."""
        end = part.end_reply + (final is not None)
        noted = [note for note in self.noted if part.first_reply <= note.reply < end]
        found = [_Cite(note.reply, note.ids, nothing=note.nothing) for note in noted if note.ids or note.nothing]
        if not any(note.ids for note in noted):
            found += [_Cite(note.reply, note.refused, declares=False) for note in noted if note.refused]
        return found

    def _inline_cites(self, index: int, text: str, sources: tuple[tuple[str, ...], ...], declares: bool) -> list[_Cite]:
        """What stands in brackets in a text, or is annotated. Words beside a tool call are no answer yet, and declare
        nothing."""
        brackets, links = citing.bracketed(without_thinking(text))
        said = bool(brackets or links or sources)
        return [_Cite(index, tuple(brackets), tuple(links), sources, inline=True, declares=declares)] if said else []

    def _cite_call(self, tables: list[Table], index: int, step: ReplyStep, call: Call) -> _Cite | None:
        said = citing.written(call.arguments)
        answer = next((found for found in step.returns if found.call is call), None)
        parts = answer.message.parts if answer is not None else ()
        failed = answer is not None and returns.says_failed(parts)
        counts = answer is not None and not failed
        if all(table.format == "haiku" for table in self._told_apart(tables)):
            # Its tool says so when it took a citation; anything else is not one.
            if answer is not None and not (counts and haiku.says_registered(text_of(parts))):
                return None
        elif returns.is_retry_prompt(parts):
            return None
        return _Cite(index, said.ids, said.perhaps, declares=counts, nothing=said.nothing, clear=said.clear or failed)

    def _told_apart(self, tables: list[Table]) -> list[Table]:
        """These tables without that of tagged evidence, which is always there, where nothing here is tagged."""
        named = [table for table in tables if table.proof is None]
        cited = {entry.table for entry in self.previous.cited} if self.previous else set()
        seen = cited | self._seen
        return named if named and not any(table.name in seen for table in tables if table.proof is not None) else tables

    def _earlier_index(self, way: str, tables: list[Table]) -> Index:
        if way not in self._earlier:
            self._earlier[way] = self._index(
                way,
                (
                    read
                    for step in self.transcript.replies[: self.from_reply]
                    for found in step.returns
                    if (read := reading.read(found, self.tables)) is not None and read.table in tables
                ),
            )
        return self._earlier[way]

    def cited_ordinals(self) -> set[int]:
        """The returns out of which something was cited, or in which a cited id stands."""
        found = {found.read.ret.ordinal for _, meaning in self._cited for found in meaning.found}
        return found | {read.ret.ordinal for _, meaning in self._cited for read in meaning.stands_in}

    # What was cited, merged with what had been cited before.

    def cited_here(self) -> dict[Identity, Cited]:
        """What this question cited and its returns, or earlier ones, show."""
        fresh: dict[Identity, list[tuple[Table, Found]]] = {}
        for table, meaning in self._cited:
            for found in meaning.found:
                chunk = found.chunk
                local = table.is_local(meaning.id)
                identity = (
                    table.name,
                    chunk.collection if chunk else None,
                    meaning.id,
                    content_digest(found) if local else b"",
                )
                places = fresh.setdefault(identity, [])
                if all(known.place != found.place for _, known in places):
                    places.append((table, found))
        return {identity: self._entry(identity, found_here) for identity, found_here in fresh.items()}

    def citations(self, fresh: dict[Identity, Cited]) -> tuple[Cited, ...]:
        """Everything cited so far, each chunk with its newest content and in its newest group."""
        merged = {entry.identity: entry for entry in self.previous.cited} if self.previous else {}
        for table, meaning in self._cited:
            if not meaning.found:
                # Named again without being retrieved again: it moves to this question's group, its content stays.
                for identity, entry in list(merged.items()):
                    if entry.table == table.name and entry.id == meaning.id:
                        merged[identity] = msgspec.structs.replace(entry, group=self.ordinal)
        kept = {*self.kept, *(self.previous.kept if self.previous else ())}
        surely = {(table.name, meaning.id) for table, meaning in self._cited if not meaning.beside}
        for identity, entry in fresh.items():
            known = merged.get(identity)
            if known is not None:
                stays = (entry.table, entry.id) not in surely
                entry = msgspec.structs.replace(
                    entry,
                    group=known.group if stays and entry.id not in self._named else entry.group,
                    places=_each_content((*known.places, *entry.places), kept) if stays else entry.places,
                    first=min(known.first, entry.first),
                    pictures=tuple(dict.fromkeys((*entry.pictures, *known.pictures))),
                )
            merged[identity] = entry
        return tuple(merged.values())

    def sources(self, cited: Iterable[Cited]) -> tuple[Source, ...]:
        """Where what this question cited came from, as its returns said it."""
        return tuple(self._source(entry) for entry in cited if entry.group == self.ordinal)

    def _source(self, entry: Cited) -> Source:
        chunk = next(filter(None, (self._chunk_at(place, entry.id) for place in entry.places)), None)
        title, uri = title_and_uri(chunk.source, chunk.names) if chunk is not None else (None, None)
        return Source(
            entry.table,
            entry.collection,
            entry.id,
            chunk.source if chunk is not None else None,
            entry.title or title,
            entry.uri or uri,
        )

    def _chunk_at(self, place: Place, chunk_id: str) -> Chunk | None:
        if place.ret < 0 or place.chunk < 0:
            return None
        read = next((read for read in self.reads if read.ret.ordinal == place.ret), None)
        read = read or reading.read(self.transcript.returns[place.ret], self.tables)
        chunks = read.evidence.chunks if read is not None else ()
        chunk = chunks[place.chunk] if place.chunk < len(chunks) else None
        return chunk if chunk is not None and chunk.id == chunk_id else None

    def writing(self, fresh: dict[Identity, Cited]) -> Writing:
        """What layout `append` writes for this question: content that was not written before, and what stands above."""
        before = self.previous.writings if self.previous else ()
        replaced = self.replaced - self.kept
        own = [read.ret for read in self.reads if read.ret.ordinal in replaced]
        standing = {content for writing in before for entry in writing.chunks for content in _contents(entry)}
        drawn = {_drawing(p) for writing in before for e in (*writing.chunks, *writing.again) for p in e.pictures}
        cited = {**self._named_only(), **fresh, **self._gone_outputs({r for w in before for r in w.replaced})}
        chunks: list[Cited] = []
        again: list[Cited] = []
        for entry in cited.values():
            places = [p for p, content in zip(entry.places, _contents(entry), strict=True) if content not in standing]
            entry = msgspec.structs.replace(
                entry,
                places=tuple(places),
                pictures=tuple(place for place in entry.pictures if _drawing(place) not in drawn),
            )
            # Nothing is written where there is nothing new to say, and no place of this question's own to say it.
            if places:
                chunks.append(entry)
            elif own or entry.pictures:
                again.append(entry)
        collections = {e.collection for writing in before for e in writing.chunks} | {e.collection for e in chunks}
        return Writing(
            replaced=tuple(sorted(replaced)),
            carrier=max(own, key=lambda found: found.message.index).ordinal if own else None,
            chunks=tuple(chunks),
            again=tuple(again),
            collections=len(collections) > 1,
        )

    def _named_only(self) -> dict[Identity, Cited]:
        """What this question cited without retrieving it again: as it was cited, without places or pictures."""
        named = {(table.name, meaning.id) for table, meaning in self._cited if not (meaning.found or meaning.stands_in)}
        return {
            entry.identity: msgspec.structs.replace(entry, group=self.ordinal, places=(), pictures=())
            for entry in (self.previous.cited if self.previous else ())
            if (entry.table, entry.id) in named
        }

    def _gone_outputs(self, gone: set[int]) -> dict[Identity, Cited]:
        """Returns that were replaced already, and in which a cited id stands as text only: retained whole.

        Layout `single` puts such a return back into its place; what `append` wrote must keep its bytes.
        """
        outputs: dict[Identity, Cited] = {}
        for table, meaning in self._cited:
            for read in meaning.stands_in:
                if read.ret.ordinal in gone:
                    output = Found(read, -1)
                    identity = (table.name, None, meaning.id, content_digest(output))
                    outputs[identity] = self._entry(identity, [(table, output)])
        return outputs

    def _entry(self, identity: Identity, found: list[tuple[Table, Found]]) -> Cited:
        table = found[0][0]
        ordered = sorted((item for _, item in found), key=lambda item: item.place)
        if not table.is_local(identity[2]) and all(self._reply_of[f.place[0]] < self.from_reply for f in ordered):
            # Cited without being retrieved again: the content is that of the newest question that retrieved it.
            begins = self._question_of(self._reply_of[ordered[-1].place[0]])
            ordered = [item for item in ordered if self._reply_of[item.place[0]] >= begins]
        return Cited(
            table=identity[0],
            collection=identity[1],
            id=identity[2],
            group=self.ordinal,
            first=ordered[0].place,
            places=tuple(self._place(item, identity[2]) for item in _distinct(ordered)),
            pictures=tuple(dict.fromkeys(place for item in ordered for place in self._pictures(item, identity[2]))),
            local=table.is_local(identity[2]),
        )

    def _place(self, item: Found, chunk_id: str) -> Place:
        """Where a cited chunk stands. What stands there is remembered: the next question's capsule wants it."""
        place = Place(*item.place, content_digest(item))
        chunk = item.chunk
        if chunk is None or chunk.id == chunk_id:
            reading.remember(
                item.read.ret, self.tables, chunk_id, place, chunk if chunk is not None else item.read.evidence.text
            )
        return place

    def _question_of(self, reply: int) -> int:
        """The first reply of the question that a reply belongs to, as the transcript shows it."""
        return next((end + 1 for end in question_ends(self.transcript, self.habits) if end < reply), 0)

    def _pictures(self, found: Found, chunk_id: str) -> list[PicturePlace]:
        ret = found.read.ret
        inside = ret.message.pictures()
        places = [
            PicturePlace(False, ret.ordinal, owned.nth, digest_of(inside[owned.nth]), owned.reference)
            for owned in found.read.evidence.pictures
            if owned.chunk_id == chunk_id or found.index < 0
        ]
        step = self.transcript.replies[self._reply_of[ret.ordinal]]
        for user, message in step.users:
            for nth, reference, shown_by in self._attached(found.read, message):
                if chunk_id in shown_by:
                    digest = digest_of(message.pictures()[nth])
                    places.append(PicturePlace(True, user, nth, digest, reference))
        return places

    def _attached(self, read: Read, message: Message) -> Iterator[tuple[int, str | None, list[str]]]:
        """The pictures of a user message by their labels: which one, its reference, and the chunks that show it."""
        proof = read.table.proof
        if proof is None:
            for one in read_attachment(message) or ():
                yield one.nth, one.label.reference, [one.label.chunk_id]
            return
        for picture in tagged.attached(proof, message.parts):
            # The label may name a chunk of another return of this question, which overlaps with this one's.
            every = [chunk for other in self.reads if other.table is read.table for chunk in other.evidence.chunks]
            every += read.evidence.chunks
            yield picture.nth, picture.label.reference, tagged.owners(picture.label, every)

    def attachments(self) -> list[Attachment]:
        """User messages of nothing but our pictures, whose chunks stand in the same group of returns."""
        found: list[Attachment] = []
        last = len(self.transcript.replies) - 1
        for index in range(self.from_reply, last + 1):
            step = self.transcript.replies[index]
            reads = [r for r in self.reads if r.table.format != "auto" and self._reply_of[r.ret.ordinal] == index]
            if not reads or opening_after(self.transcript, index, self.habits) is not None:
                continue  # what opens a question is the user's own, whatever it quotes
            spoken = False
            for user, message in step.users:
                # Without a signature only what directly follows the returns is theirs: once somebody spoke, no more.
                owners = () if spoken else _owners(message, [r for r in reads if r.table.proof is None])
                owners = owners or _signed_owners(message, reads)
                spoken = spoken or not owners
                if owners:
                    found.append(Attachment(user, owners))
        return found


def _more(one: Declaration, other: Declaration) -> Declaration:
    """Both declarations as one: an empty second thought does not narrow, and what comes later adds."""
    return max(one, other, key=("missing", "ungrounded", "grounded").index)


def content_digest(found: Found) -> bytes:
    """The digest that a place must show when it is read again."""
    chunk = found.chunk
    return chunk.digest if chunk is not None else digest_text(found.read.evidence.text)


def _each_content(places: Iterable[Place], kept: Container[int]) -> tuple[Place, ...]:
    """One place of each content: the first, or one in a return that stays, where it is shown already."""
    one: dict[bytes, Place] = {}
    for place in places:
        known = one.setdefault(place.digest, place)
        if place.ret in kept and known.ret not in kept:
            one[place.digest] = place
    return tuple(one.values())


def _contents(entry: Cited) -> list[tuple[str, str | None, str, bytes]]:
    """What each place of an entry holds, and as whose. A retained output is one content, whoever is cited out of it."""
    return [
        (entry.table, entry.collection, entry.id, place.digest)
        if place.chunk >= 0
        else (entry.table, None, "", place.digest)
        for place in entry.places
    ]


def _drawing(place: PicturePlace) -> tuple[bytes, str | None]:
    return place.digest, place.reference


def _distinct(found: list[Found]) -> list[Found]:
    """Of one chunk's contents in one question, those that no other one contains."""
    kept: list[Found] = []
    texts: list[tuple[str, str | None]] = []
    for item in found:
        chunk = item.chunk
        text = (chunk.content, chunk.details) if chunk is not None else (item.read.evidence.text, None)
        if any(text[0] in known and text[1] in (None, details) for known, details in texts):
            continue
        for position in range(len(texts) - 1, -1, -1):
            if texts[position][0] in text[0] and texts[position][1] in (None, text[1]):
                del texts[position], kept[position]
        kept.append(item)
        texts.append(text)
    return kept


def _owners(message: Message, reads: list[Read]) -> tuple[int, ...]:
    """The returns whose pictures a user message holds, if it holds nothing else and each is one of these returns'."""
    owners: set[int] = set()
    for picture in read_attachment(message) or ():
        holding = [
            read.ret.ordinal
            for read in reads
            if any(chunk.id == picture.label.chunk_id for chunk in read.evidence.chunks)
            or (read.evidence.whole and read.evidence.shows(picture.label.chunk_id))
        ]
        if not holding:
            return ()
        owners.update(holding)
    return tuple(sorted(owners))


def _signed_owners(message: Message, reads: list[Read]) -> tuple[int, ...]:
    """The returns whose signed labels stand before pictures of a user message, whatever else it holds."""
    proof = next((read.table.proof for read in reads if read.table.proof is not None), None)
    if proof is None:
        return ()
    named = {attached.label.chunk_id for attached in tagged.attached(proof, message.parts)}
    return tuple(
        sorted(
            {r.ret.ordinal for r in reads if r.table.proof is proof and any(c.id in named for c in r.evidence.chunks)}
        )
    )
