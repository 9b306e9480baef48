"""Answers that were held back and wait for the client to come for them: kept durably, read by name, gone in an hour."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

from proxy.store.record import REPLY_BYTES, StoredRecord, StoreSlow
from proxy.store.records import RecordStore

KEPT_FOR = timedelta(hours=1)


class HeldAnswers:
    """Payloads by name. A name is 32 bytes that tell the tenant and the held answer: nobody else can make it.

    `write_within` has room for a store that is opened for the first time, which takes seconds.
    """

    def __init__(self, shelf: RecordStore, *, write_within: float = 15.0) -> None:
        self._shelf = shelf
        self._write_within = write_within

    async def put(self, name: bytes, tenant: bytes, payload: bytes) -> None:
        """Return when any replica can read it. Raises StoreError or StoreSlow if that cannot be promised.

        Then it may become readable all the same: it stays in line to be written.
        """
        self._shelf.add(StoredRecord(name, tenant, hashlib.sha256(payload).digest()[:REPLY_BYTES], payload))
        try:
            async with asyncio.timeout(self._write_within):
                await self._shelf.flush()
        except TimeoutError:
            raise StoreSlow(f"The record store did not write within {self._write_within:.0f} s.") from None

    async def get(self, name: bytes) -> bytes | None:
        """What was put under a name within the last hour, by any replica; None if nothing was. Raises as `find` does.

        The store is asked for its very latest, since the answer may have been put a moment ago elsewhere.
        """
        found = self._shelf.cached([name]) or await self._shelf.find([name], fresh=True)
        return found[name][0] if found else None
