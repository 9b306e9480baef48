"""A request's rewrite, layout `single`: one capsule on the carrier, a receipt for every other earlier return."""

from __future__ import annotations

from collections.abc import Callable

from proxy.compaction import capsule, places
from proxy.compaction.capsule import Pictures
from proxy.compaction.replacing import Replaced, Rewrite
from proxy.evidence.tables import Tables
from proxy.ledger.aside import NOTHING, Aside
from proxy.ledger.records import ASIDE, Record
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Picture


def rewrite(
    transcript: Transcript, record: Record, tables: Tables, decodes: Callable[[Picture], bool], aside: Aside = NOTHING
) -> Rewrite:
    """Replace what a record accounts for. Nothing after its question changes; what cannot be read stays.

    `decodes` says whether a picture can be sent again. What was cited and is no longer on the wire comes
    from `aside`.
    """
    entries, missing = capsule.Reading(transcript, tables, aside).gather(record.cited)
    stays = (missing - {ASIDE}) | set(record.kept) | places.not_ours(transcript, record.replaced, tables)
    replaced = Replaced(transcript, record, set(record.replaced) - stays, tables, decodes, aside)
    if not replaced.returns:
        return Rewrite(kept=len(stays), missing=bool(missing), stays=frozenset(stays))
    # A chunk that stands in a return which stays is shown there, once.
    shown = [entry for entry in entries if entry.ret not in stays]
    built = capsule.build(shown, tables, Pictures(replaced.comes_again), replaced.pictures_removed)
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
