"""A request's rewrite, layout `single`: one capsule on the carrier, a receipt for every other earlier return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.compaction import capsule, places, wording
from proxy.compaction.capsule import Capsule, PictureAgain
from proxy.evidence.tables import Table, Tables
from proxy.ledger.records import PicturePlace, Record
from proxy.ledger.transcript import Return, Transcript
from proxy.wire.messages import LabelledPicture, Splice


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a rewrite does: its splices, and the figures that the reply header reports."""

    splices: list[Splice] = field(default_factory=list)
    capsule: int = 0
    receipts: int = 0
    kept: int = 0
    missing: bool = False


def rewrite(transcript: Transcript, record: Record, tables: Tables, decodes: Callable[[str], bool]) -> Rewrite:
    """Replace what a record accounts for. Nothing after its question changes; what cannot be read stays.

    `decodes` says whether a picture (by its URL) can be sent again.
    """
    entries, missing = capsule.gather(transcript, record, tables)
    stays = missing | set(record.kept)
    tables_of: dict[int, Table] = {}
    for ordinal in record.replaced:
        if ordinal < len(transcript.returns) and ordinal not in stays:
            table = places.table_of_return(transcript.returns[ordinal], tables)
            if table is None:
                stays.add(ordinal)  # a key that was rotated out since: nothing proves any more what of it is ours
            else:
                tables_of[ordinal] = table
    replaced = [transcript.returns[ordinal] for ordinal in tables_of]
    kept = len(stays)
    if not replaced:
        return Rewrite(kept=kept, missing=bool(missing))
    gone = {found.ordinal for found in replaced}
    going = {
        a.user: places.parts_that_go(transcript, a, tables) for a in record.attachments if gone.issuperset(a.returns)
    }

    def was_removed(place: PicturePlace) -> bool:
        if place.in_user:
            message = transcript.users[place.ordinal] if _goes(transcript, place, going) else None
        else:
            message = transcript.returns[place.ordinal].message if place.ordinal in gone else None
        url = capsule.picture_at(message, place) if message is not None else None
        return url is not None and decodes(url)

    # A chunk that stands in a return which stays is shown there, once.
    built = capsule.build([entry for entry in entries if entry.ret not in stays], tables, was_removed)
    carrier = max(replaced, key=lambda found: found.message.index)
    splices = [
        places.replace(transcript, found, tables_of[found.ordinal], wording.RECEIPT, [])
        for found in replaced
        if built is None or found is not carrier
    ]
    for user, parts in sorted(going.items()):
        splices += places.remove(transcript, transcript.users[user], parts)
    if built is not None:
        splices += _carry(transcript, carrier, tables_of[carrier.ordinal], built)
    return Rewrite(
        splices=splices,
        capsule=built.chunks if built is not None else 0,
        receipts=len(replaced) - (built is not None),
        kept=kept,
        missing=bool(missing),
    )


def _goes(transcript: Transcript, place: PicturePlace, going: dict[int, set[int]]) -> bool:
    """Whether a picture in a user message goes."""
    parts = going.get(place.ordinal, set())
    message = transcript.users[place.ordinal]
    return bool(parts) and place.nth < len(message.pictures()) and places.picture_part(message, place.nth) in parts


def _carry(transcript: Transcript, carrier: Return, table: Table, built: Capsule) -> list[Splice]:
    """The capsule in the carrier's place, its pictures where this conversation's own pictures were."""
    request = transcript.request
    parts: dict[int, list[bytes]] = {}  # by message: each is walked once

    def labelled(again: PictureAgain) -> LabelledPicture:
        place = again.place
        message = transcript.users[place.ordinal] if place.in_user else transcript.returns[place.ordinal].message
        if message.index not in parts:
            parts[message.index] = request.api.picture_parts(request, message)
        return LabelledPicture(again.label, parts[message.index][place.nth])

    inside = [labelled(again) for again in built.pictures if not again.place.in_user]
    after = [labelled(again) for again in built.pictures if again.place.in_user]
    splices = [places.replace(transcript, carrier, table, built.text, inside)]
    if after:
        group = next(step for step in transcript.replies if any(found is carrier for found in step.returns))
        last = max((found.message for found in group.returns), key=lambda message: message.index)
        splices.append(request.api.add_user_message(request, last, after))
    return splices
