"""What a reply that settles a question leaves behind: the record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from proxy.evidence import citing, haiku, returns, tagged
from proxy.evidence.chunks import digest_text, is_readable, text_of
from proxy.evidence.pictures import picture_digest, read_attachment
from proxy.evidence.tables import Table, Tables, table_of
from proxy.ledger import records
from proxy.ledger.citations import Found, Read, Resolved, Resolver
from proxy.ledger.questions import Habits, Stretch, opening_after, stretches
from proxy.ledger.records import Attachment, Cited, Declaration, PicturePlace, Place, Record
from proxy.ledger.transcript import ReplyStep, Return, Transcript, reply_digest
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
) -> Record:
    """The record of the question that `reply` settled.

    `transcript` is the request that it answers; `from_reply` is the index of the first reply of the current question
    (0 where nothing was recorded before), `previous` the record that the boundary rests on.
    """
    question = _Question(transcript, previous, from_reply, tables, habits)
    question.read_stretches(reply)
    kept = {*(previous.kept if previous else ()), *question.kept}
    replaced = {*(previous.replaced if previous else ()), *question.replaced} - kept
    return Record(
        version=records.VERSION,
        ordinal=question.ordinal,
        reply=reply_digest(reply.text, reply.calls),
        shown=transcript.shown,
        declaration=question.declaration,
        cited=question.citations(),
        replaced=tuple(sorted(replaced)),
        kept=tuple(sorted(kept)),
        attachments=(*(previous.attachments if previous else ()), *question.attachments()),
        inline=any(table.cites_inline for table in tables),
        question_id=question_id,
        before=records.digest(previous) if previous else None,
    )


@dataclass(slots=True)
class _Cite:
    """A cite call that counts, or an answer's inline citations; `declares` is False for a call without a return."""

    reply: int
    written: list[str]
    declares: bool = True


@dataclass
class _Question:
    transcript: Transcript
    previous: Record | None
    from_reply: int
    tables: Tables
    habits: Habits
    replaced: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    reads: list[Read] = field(default_factory=list)
    declaration: Declaration = "missing"
    ordinal: int = 1
    _cited: list[tuple[Table, Resolved]] = field(default_factory=list)
    _reply_of: dict[int, int] = field(default_factory=dict)
    _earlier: dict[str, list[Read]] = field(default_factory=dict)

    def read_stretches(self, reply: Reply) -> None:
        """Read the question's evidence and citations, one stretch after another; the last one ends in `reply`."""
        parts = stretches(self.transcript, self.from_reply, self.habits)
        for index, step in enumerate(self.transcript.replies):
            for found in step.returns:
                self._reply_of[found.ordinal] = index
        held = [self._read(part) for part in parts]
        self.reads = [read for reads in held for read in reads]
        # What was answered without evidence before the first search was seen, and is a question of its own.
        idle = next((position for position, reads in enumerate(held) if reads), len(held) - 1)
        self.ordinal = (self.previous.ordinal if self.previous else 0) + idle + 1
        for part, reads in zip(parts, held, strict=True):
            final = None if part.answered else reply
            for table in self.tables:
                own = [read for read in reads if read.table is table]
                self._declare(table, part, own, final)

    def _read(self, part: Stretch) -> list[Read]:
        return [
            read
            for step in part.replies(self.transcript)
            for found in step.returns
            if (read := read_return(found, self.tables)) is not None
        ]

    def _declare(self, table: Table, part: Stretch, own: list[Read], final: Reply | None) -> None:
        """One table's citations and declaration in one stretch, and so the fate of its returns there."""
        if table.cite is None:
            return
        cites = self._cites(table, part, own, final)
        resolver = Resolver(
            own=own,
            whole_question=[read for read in self.reads if read.table is table],
            reply_of=self._reply_of,
            cited_before={e.id for e in self.previous.cited if e.table == table.name} if self.previous else set(),
            earlier=lambda: self._earlier_reads(table),
        )
        newest = max((self._reply_of[read.ret.ordinal] for read in own), default=-1)
        declaration: Declaration = "missing"
        for cite in cites:
            resolved = [meaning for written in cite.written for meaning in resolver.resolve(written, cite.reply)]
            self._cited += [(table, meaning) for meaning in resolved]
            self.kept |= {read.ret.ordinal for meaning in resolved if not meaning.found for read in meaning.stands_in}
            # A citation counts for the declaration only if it came after the newest evidence; what is cited again
            # merges, and one whose ids resolve to nothing declares nothing.
            if cite.declares and cite.reply > newest:
                if resolved:
                    declaration = "grounded"
                elif not cite.written and declaration == "missing":
                    declaration = "ungrounded"
        if final is not None:
            self.declaration = max(self.declaration, declaration, key=("missing", "ungrounded", "grounded").index)
        # An answered stretch without a record: nothing is known of it but what the transcript shows.
        undeclared = "keep" if part.answered else table.undeclared
        for read in own:
            shows_no_id = table.format == "auto" and not read.evidence.shows_ids()
            is_open = declaration == "missing" and undeclared == "keep"
            # Of a tagged return only what is signed is replaced, whatever stands beside it.
            if shows_no_id or is_open or not (table.proof is not None or is_readable(read.ret.message.parts)):
                self.kept.add(read.ret.ordinal)
            else:
                self.replaced.add(read.ret.ordinal)

    def _cites(self, table: Table, part: Stretch, own: list[Read], final: Reply | None) -> list[_Cite]:
        found: list[_Cite] = []
        known = {chunk.id for read in own for chunk in read.evidence.chunks}
        if self.previous is not None:
            known |= {entry.id for entry in self.previous.cited if entry.table == table.name}
        for index in range(part.first_reply, part.end_reply):
            step = self.transcript.replies[index]
            if table.cite_tool is not None:
                found += [cite for call in step.calls if call.name == table.cite_tool
                          for cite in self._cite_call(table, index, step, call)]  # fmt: skip
            # An answered stretch without a record may have cited in any assistant text, whatever the table says.
            if (table.cites_inline or part.answered) and step.text and (ids := citing.inline_ids(step.text, known)):
                found.append(_Cite(index, ids))
        if final is not None:
            if table.cites_inline and (ids := citing.inline_ids(final.text, known)):
                found.append(_Cite(part.end_reply, ids))
            for call in final.calls:  # beside an output tool's call; its return is still to come
                if call.name == table.cite_tool and (written := citing.cited_ids(call.arguments)):
                    found.append(_Cite(part.end_reply, written))
        return found

    def _cite_call(self, table: Table, index: int, step: ReplyStep, call: Call) -> list[_Cite]:
        written = citing.cited_ids(call.arguments)
        if written is None:
            return []
        answer = next((found for found in step.returns if found.call is call), None)
        if answer is None:
            return [_Cite(index, written, declares=False)]
        parts = answer.message.parts
        if returns.says_failed(parts) or (table.format == "haiku" and not haiku.says_registered(text_of(parts))):
            return []
        return [_Cite(index, written)]

    def _earlier_reads(self, table: Table) -> list[Read]:
        if table.name not in self._earlier:
            self._earlier[table.name] = [
                read
                for step in self.transcript.replies[: self.from_reply]
                for found in step.returns
                if (read := read_return(found, self.tables)) is not None and read.table is table
            ]
        return self._earlier[table.name]

    # What was cited, merged with what had been cited before.

    def citations(self) -> tuple[Cited, ...]:
        merged = {entry.identity: entry for entry in self.previous.cited} if self.previous else {}
        fresh: dict[tuple[str, str | None, str, bytes], list[tuple[Table, Found]]] = {}
        for table, meaning in self._cited:
            if not meaning.found:
                # Named again without being retrieved again: it moves to this question's group, its content stays.
                for identity, entry in list(merged.items()):
                    if entry.table == table.name and entry.id == meaning.id:
                        merged[identity] = msgspec.structs.replace(entry, group=self.ordinal)
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
        for identity, found_here in fresh.items():
            entry = self._entry(identity, found_here)
            known = merged.get(identity)
            if known is not None:
                entry = msgspec.structs.replace(
                    entry,
                    first=min(known.first, entry.first),
                    pictures=tuple(dict.fromkeys((*entry.pictures, *known.pictures))),
                )
            merged[identity] = entry
        return tuple(merged.values())

    def _entry(self, identity: tuple[str, str | None, str, bytes], found: list[tuple[Table, Found]]) -> Cited:
        table = found[0][0]
        ordered = sorted((item for _, item in found), key=lambda item: item.place)
        if not table.is_local(identity[2]) and all(self._reply_of[f.place[0]] < self.from_reply for f in ordered):
            # Cited without being retrieved again: the content is that of the newest question that retrieved it.
            ordered = [item for item in ordered if item.place[0] == ordered[-1].place[0]]
        return Cited(
            table=identity[0],
            collection=identity[1],
            id=identity[2],
            group=self.ordinal,
            first=ordered[0].place,
            places=tuple(Place(*item.place, content_digest(item)) for item in _distinct(ordered)),
            pictures=tuple(dict.fromkeys(place for item in ordered for place in self._pictures(item, identity[2]))),
            local=table.is_local(identity[2]),
        )

    def _pictures(self, found: Found, chunk_id: str) -> list[PicturePlace]:
        ret = found.read.ret
        inside = ret.message.pictures()
        places = [
            PicturePlace(False, ret.ordinal, owned.nth, picture_digest(inside[owned.nth].url), owned.reference)
            for owned in found.read.evidence.pictures
            if owned.chunk_id == chunk_id or found.index < 0
        ]
        step = self.transcript.replies[self._reply_of[ret.ordinal]]
        for user, message in step.users:
            for nth, reference, shown_by in self._attached(found.read, message):
                if chunk_id in shown_by:
                    url = message.pictures()[nth].url
                    places.append(PicturePlace(True, user, nth, picture_digest(url), reference))
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
            for user, message in step.users:
                owners = _owners(message, [r for r in reads if r.table.proof is None]) or _signed_owners(message, reads)
                if owners:
                    found.append(Attachment(user, owners))
        return found


def read_return(found: Return, tables: Tables) -> Read | None:
    """An evidence return, read; None where it is no evidence, or where nothing of it could be replaced."""
    parts = found.message.parts
    if found.tool is None or not parts or returns.is_retry_prompt(parts):
        return None
    table = table_of(tables, found.tool, parts)
    return Read(found, table, returns.read(table, found.tool, parts)) if table is not None else None


def content_digest(found: Found) -> bytes:
    """The digest that a place must show when it is read again."""
    chunk = found.chunk
    return chunk.digest if chunk is not None else digest_text(found.read.evidence.text)


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
