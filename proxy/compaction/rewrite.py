"""A request's rewrite, layout `single`: one capsule on the carrier, a receipt for every other earlier return."""

from __future__ import annotations

from collections.abc import Callable

from proxy.compaction import capsule, places
from proxy.compaction.replacing import Replaced, Rewrite
from proxy.evidence.tables import Tables
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Picture


def rewrite(transcript: Transcript, record: Record, tables: Tables, decodes: Callable[[Picture], bool]) -> Rewrite:
    """Replace what a record accounts for. Nothing after its question changes; what cannot be read stays.

    `decodes` says whether a picture can be sent again.
    """
    entries, missing = capsule.Reading(transcript, tables).gather(record.cited)
    stays = missing | set(record.kept) | places.not_ours(transcript, record.replaced, tables)
    replaced = Replaced(transcript, record, set(record.replaced) - stays, tables, decodes)
    if not replaced.returns:
        return Rewrite(kept=len(stays), missing=bool(missing), stays=frozenset(stays))
    # A chunk that stands in a return which stays is shown there, once.
    built = capsule.build([entry for entry in entries if entry.ret not in stays], tables, replaced.was_removed)
    carrier = max(replaced.returns, key=lambda found: found.message.index)
    carried = {carrier.ordinal: [built]} if built is not None else {}
    return Rewrite(
        splices=replaced.splices(carried),
        capsule=built.chunks if built is not None else 0,
        receipts=len(replaced.returns) - (built is not None),
        kept=len(stays),
        missing=bool(missing),
        replaced=replaced.ordinals,
        stays=frozenset(stays),
        carried=carried,
    )
