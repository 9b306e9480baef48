"""The store's secret: how two processes that create it at once come to use one, and what is derived from it.

Digests that a caller could compute from a credential and a conversation must not lie on a disk: whoever reads the disk
could test guesses. So keys and tenants are stored under HMAC-SHA-256, and each row carries a seal over all that it
holds, which tells a row that a disk has damaged, or that was moved under another key, from a whole one.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from typing import TYPE_CHECKING

from proxy.store.place import SECRET, Place

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from lancedb import AsyncConnection

SEAL_BYTES = 16


class StoreSecret:
    """Derives what is stored from what the caller knows. Its value never appears in a message."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    @property
    def value(self) -> bytes:
        """For an archive, which is as secret as the store."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreSecret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def key(self, digest: bytes) -> bytes:
        """What stands on disk for the key `digest`."""
        return hmac.digest(self._value, b"key\0" + digest, "sha256")

    def tenant(self, digest: bytes) -> bytes:
        """What stands on disk for the tenant `digest`."""
        return hmac.digest(self._value, b"tenant\0" + digest, "sha256")

    def conversation(self, digest: bytes) -> bytes:
        """What stands on disk for the conversation `digest`."""
        return hmac.digest(self._value, b"conversation\0" + digest, "sha256")

    def seal(
        self, key: bytes, tenant: bytes, reply: bytes, created: int, payload: bytes, conversation: bytes | None
    ) -> bytes:
        """The seal of a row with these stored values; all but the last have a fixed length, so none can be shifted.

        A row without a conversation is sealed as the first schema version did, which knew none.
        """
        kind = b"row\0" if conversation is None else b"row of\0" + conversation
        message = kind + key + tenant + reply + created.to_bytes(8, "big", signed=True) + payload
        return hmac.digest(self._value, message, "sha256")[:SEAL_BYTES]


async def agreed_secret(
    db: AsyncConnection, place: Place, given: StoreSecret | None = None
) -> tuple[StoreSecret, bool]:
    """The secret of this store, made if it has none (or as `given`), and whether this call made it. Raises what LanceDB
    raises.

    The *first version* of the table says it, whatever later versions say. Two processes that create a table at once
    can both be told that they did: the second becomes version 2 and hides the first one's rows. A version number is
    given only once, so version 1 is the same for all, for ever; nothing prunes the versions of this table.
    """
    secret = await read_secret(db)
    if secret is not None:
        return secret, False
    made = given.value if given is not None else secrets.token_bytes(32)
    place.make_room(SECRET)
    # Another process may be quicker. If none was, and ours failed for a reason of its own, reading says why.
    with contextlib.suppress(Exception):
        await db.create_table(SECRET, data=_one_row(made))
    secret = await read_secret(db)
    if secret is None:
        raise RuntimeError(f"the table {SECRET!r} could not be created")
    return secret, secret == StoreSecret(made)


async def read_secret(db: AsyncConnection) -> StoreSecret | None:
    """The secret that lies in the store, None if there is none yet. Raises what LanceDB raises."""
    try:
        table = await db.open_table(SECRET, version=1)
    except ValueError as fault:
        if is_absence(fault):
            return None
        raise
    values = (await table.query().to_arrow()).column("value").to_pylist()
    if len(values) != 1 or not isinstance(values[0], bytes) or len(values[0]) != 32:
        raise RuntimeError(f"the first version of the table {SECRET!r} does not hold one value of 32 bytes")
    return StoreSecret(values[0])


def is_absence(fault: BaseException) -> bool:
    """Whether LanceDB means that a table is not there; it raises ValueError for much else, damaged files among it."""
    return isinstance(fault, ValueError) and "was not found" in str(fault)


def _one_row(value: bytes) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([pa.field("value", pa.binary(32), nullable=False)])
    return pa.table([pa.array([value], pa.binary(32))], schema=schema)
