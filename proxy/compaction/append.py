"""A request's rewrite, layout `append`: each settled question's newest return carries what was cited there first.

What was written once is never rewritten, so that a provider's prompt cache holds from question to question: all that
this room decides, it decides from what the question's record fixed and from what stands above.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from proxy.compaction import capsule, places, wording
from proxy.compaction.capsule import Capsule, Entry, Pictures
from proxy.compaction.replacing import Replaced, Rewrite
from proxy.evidence.tables import Tables
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.records import ASIDE, Record, Writing
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Picture


def rewrite(
    transcript: Transcript, record: Record, tables: Tables, decodes: Callable[[Picture], bool], aside: Aside = NOTHING
) -> Rewrite:
    """Replace what a record accounts for. Nothing after its question changes; what cannot be read stays.

    `decodes` says whether a picture can be sent again. What was cited and is no longer on the wire comes
    from `aside`.
    """
    reading = capsule.Reading(transcript, tables, aside)
    gathered = [reading.gather(writing.chunks) for writing in record.writings]
    missing = {ordinal for _, unread in gathered for ordinal in unread}
    held = [
        _Held(writing, carrier, entries)
        for (writing, carrier), (entries, _) in zip(_carriers(record.writings), gathered, strict=True)
    ]
    missing |= places.not_ours(transcript, record.replaced, tables)
    accounted = {*record.replaced, *record.kept}
    written = {ordinal for one in held for ordinal in one.writing.replaced}
    stays = _staying(held, (missing - {ASIDE}) | (accounted - written))
    replaced = Replaced(transcript, record, accounted - stays, tables, decodes, aside)
    if not replaced.returns:
        return Rewrite(kept=len(stays), missing=bool(missing), stays=frozenset(stays))
    carried, chunks = _written(held, stays, tables, replaced)
    return Rewrite(
        splices=replaced.splices(carried),
        capsule=sum(chunks.values()),
        receipts=len(replaced.returns) - sum(number > 0 for number in chunks.values()),
        kept=len(stays),
        missing=bool(missing),
        replaced=replaced.ordinals,
        stays=frozenset(stays),
        carried=carried,
    )


class _Held:
    """One question's writing with its entries, and the return that carries them (None: nothing before it was
    replaced, so that all of it stands in place)."""

    def __init__(self, writing: Writing, carrier: int | None, entries: list[Entry]) -> None:
        self.writing = writing
        self.carrier = carrier
        self.entries = entries


def _carriers(writings: tuple[Writing, ...]) -> list[tuple[Writing, int | None]]:
    """Each writing with its own carrier or, where it has none, the newest one before it."""
    placed: list[tuple[Writing, int | None]] = []
    newest: int | None = None
    for writing in writings:
        newest = writing.carrier if writing.carrier is not None else newest
        placed.append((writing, newest))
    return placed


def _staying(held: list[_Held], stays: set[int]) -> set[int]:
    """The returns that stay: with a carrier that stays, also those whose content would have gone to it."""
    while True:
        uncarried = [one for one in held if one.carrier is None or one.carrier in stays]
        more = {ordinal for one in uncarried for ordinal in (*one.writing.replaced, *(e.ret for e in one.entries))}
        more.discard(ASIDE)
        if more <= stays:
            return stays
        stays = stays | more


def _written(
    held: list[_Held], stays: set[int], tables: Tables, replaced: Replaced
) -> tuple[dict[int, list[Capsule]], dict[int, int]]:
    """What each carrier holds, and how many chunks that is."""
    carried: dict[int, list[Capsule]] = {}
    chunks: dict[int, int] = {}
    pictures = Pictures(replaced.comes_again)
    uncarried: list[Entry] = []
    gone: set[int] = set()
    for one in held:
        carrier, writing = one.carrier, one.writing
        gone.update(writing.replaced)
        if carrier is None or carrier in stays:
            # What stands in a return stays there; what stands nowhere goes to the next one that carries anything.
            uncarried += [entry for entry in one.entries if entry.ret < 0]
            continue
        is_own = writing.carrier is not None
        # A chunk that stands in a return which stays is shown there, once.
        going = [entry for entry in (*uncarried, *one.entries) if entry.ret not in stays]
        entries = capsule.in_order(going, tables)
        uncarried = []
        for entry in entries:
            pictures.add(entry.pictures, entry.collection if writing.collections else None)
        # Two chunks may go by one id: where ids are local, or in two collections. Each first appears elsewhere.
        written = {(entry.table, entry.ids, entry.first) for entry in going}
        for chunk in (*writing.chunks, *writing.again):
            if (chunk.table, (chunk.id,), chunk.first) not in written:
                pictures.add(capsule.owned(chunk), chunk.collection if writing.collections else None)
        shown = {(entry.table, chunk_id) for entry in entries for chunk_id in entry.ids}
        named = [chunk.id for chunk in writing.again if not chunk.local and (chunk.table, chunk.id) not in shown]
        pieces = [capsule.write(entry, writing.collections) for entry in entries]
        empty = wording.RECEIPT if is_own else wording.ADDED_LATER
        pieces.insert(0, (wording.APPENDED if is_own else wording.ADDED_LATER) if pieces else empty)
        if is_own and (short := [chunk_id for chunk_id in dict.fromkeys(named) if _tokens(chunk_id) <= _MOST_TOKENS]):
            pieces.append(wording.still_above(short))
        taken = tuple(pictures.take(lambda: replaced.pictures_removed(gone)))
        if len(pieces) > 1 or taken:
            before = carried.setdefault(carrier, [] if is_own else [Capsule(wording.RECEIPT, (), 0)])
            before.append(Capsule("\n\n".join(pieces), taken, capsule.count(entries), tuple(entries)))
            chunks[carrier] = chunks.get(carrier, 0) + capsule.count(entries)
    return carried, chunks


#: A longer id is not named again: it costs more than the reminder is worth, and its beginning alone no cite tool knows.
_MOST_TOKENS = 7
_PIECE = re.compile(r"[A-Z]*[a-z]+|[A-Z]+|[0-9]{1,3}|.", re.DOTALL)


def _tokens(text: str) -> int:
    """No fewer tokens than o200k_base needs for an id, but for rare ones: one for each two letters or three digits.

    Of what looks like random letters and digits, each is one.
    """
    pieces = _PIECE.findall(text)
    if text.isalnum() and len(pieces) > 2:
        return len(text.encode())
    return sum(
        1 if piece.isdigit() else -(-len(piece) // 2) if piece.isascii() else len(piece.encode()) for piece in pieces
    )
