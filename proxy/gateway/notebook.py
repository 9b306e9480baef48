"""Notes of what replies cited that no history of a client shows: in this process, and in the store for any other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from proxy.gateway.recent import Recent
from proxy.ledger import notes
from proxy.ledger.notes import Noted
from proxy.ledger.transcript import Transcript
from proxy.store import RecordStore, StoredRecord, StoreError, StoreSlow
from proxy.wire.messages import Call

_MOST = 20_000
_NO_REPLY = bytes(16)


class Notebook:
    """Keeps and finds notes. What this process noted it finds itself; only other replies are asked of the store."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self._own: Recent[bytes, bytes] = Recent(_MOST)

    def keep(
        self,
        tenant: bytes,
        conversation: bytes | None,
        shown: Transcript,
        noted: Sequence[Noted],
        calls: Sequence[Call],
    ) -> None:
        """Keep what the reply to a request cited, with the calls that the client was given. Where it was given none,
        the question is over, and its record says what was cited. `conversation` is under what it can be erased."""
        key = _keyed(tenant, notes.address(shown.key, calls))
        payload = notes.encode(noted)
        self._own.put(key, payload)
        if calls and noted:
            self._store.add(StoredRecord(key, tenant, _NO_REPLY, payload, conversation))

    def forget(self) -> None:
        """Know no notes any more but those of the store."""
        self._own.clear()

    async def find(self, tenant: bytes, shown: Transcript, from_reply: int) -> list[Noted]:
        """What the replies from this one on cited, as far as it is known: a note that cannot be had is none."""
        keys = {
            _keyed(tenant, notes.address_of(step)): from_reply + position
            for position, step in enumerate(shown.replies[from_reply:])
        }
        own = {key: payload for key in keys if (payload := self._own.get(key)) is not None}
        found: dict[bytes, Sequence[bytes]] = {key: [payload] for key, payload in own.items()}
        missing = [key for key in keys if key not in own]
        if missing:
            try:
                found |= await self._store.find(missing)
            except (StoreSlow, StoreError):
                found |= self._store.cached(missing)
        return [
            note
            for key, reply in keys.items()
            for payload in sorted(found.get(key, ()))
            for note in notes.decode(payload, reply)
        ]


def _keyed(tenant: bytes, address: bytes) -> bytes:
    return hashlib.sha256(b"note:" + tenant + address).digest()
