"""An open store: all that LanceDB is asked, and the only file that knows its tables.

Everything here is awaited on the store's own thread, and LanceDB is imported when a store is opened, not before.
Whatever LanceDB raises leaves this file as a StoreError.

The tables: `secret` (see its file), `schema` (one row per schema version that the store has reached, the highest
counts) and `records`, whose rows are appended and never changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from proxy.store.place import RECORDS, SCHEMA, SECRET, Place
from proxy.store.record import Entry, Found, StoreError
from proxy.store.secret import SEAL_BYTES, StoreSecret, agreed_secret, is_absence, read_secret

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from lancedb import AsyncConnection
    from lancedb.table import AsyncTable

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, Callable[[AsyncConnection], Awaitable[None]]] = {}
"""What brings a store from version n to n + 1, by n."""

_SEES_OTHERS_AFTER = timedelta(seconds=0.5)
# LanceDB's own limits are gigabytes. A key's index entry is about 38 bytes, so these hold all pages of a million.
_INDEX_CACHE_BYTES = 64 << 20
_METADATA_CACHE_BYTES = 32 << 20
# An IN list is planned as a chain of ORs; longer ones gain nothing.
_KEYS_PER_QUERY = 256
_WINNER_IS_DONE_AFTER = 0.25


class Lance:
    """One opened store. Its methods raise StoreError; after one it may be used again or opened anew."""

    def __init__(self, place: Place, db: AsyncConnection, records: AsyncTable, secret: StoreSecret) -> None:
        self._place = place
        self._db = db
        self._records = records
        self._secret = secret
        self.opened_at = time.monotonic()

    @classmethod
    async def open(cls, place: Place) -> Lance:
        """Open the store at `place`; what it lacks is created, an older schema is migrated, a newer one refused."""
        with _told(place, "opened"):
            place.prepare()
            # It logs to stderr by itself; that two replicas tidied at once is no news.
            os.environ.setdefault("LANCEDB_LOG", "error")
            import lancedb

            db = await lancedb.connect_async(
                place.uri,
                read_consistency_interval=_SEES_OTHERS_AFTER,
                session=lancedb.Session(_INDEX_CACHE_BYTES, _METADATA_CACHE_BYTES),
            )
            # Created last, so the rest is there if it is. A store that lost a part is refused: a new secret would
            # make its rows unfindable for good, perhaps while somebody is putting the old one back.
            records = await _open_table(db, RECORDS)
            if records is not None and await _lacks_a_part(db):
                raise StoreError(
                    f"The record store in {place.shown} could not be opened: of its tables {RECORDS!r}, {SCHEMA!r} and "
                    f"{SECRET!r} only the first is whole. Restore the others, move it away, or name another place."
                )
            await _reach_schema(db, place)
            secret, made_here = await agreed_secret(db, place)
            if records is None:
                if not made_here:
                    # Whoever made the secret is creating the table; creating it as well could hide its first rows.
                    await asyncio.sleep(_WINNER_IS_DONE_AFTER)
                records = await _create(db, place, RECORDS, _records_schema().empty_table())
            if not (await records.schema()).equals(_records_schema()):
                raise StoreError(
                    f"The record store in {place.shown} could not be opened: its table {RECORDS!r} has columns that "
                    "this program did not write. Move it away, or name another place."
                )
            return cls(place, db, records, secret)

    async def read(self, keys: Sequence[bytes], *, latest: bool) -> tuple[Found, int]:
        """What stands under `keys`, and how many damaged rows were passed over.

        `latest` sees what any process has written before this call; otherwise the last half second may be missing.
        """
        import pyarrow as pa

        with _told(self._place, "read"):
            if latest:
                await self._records.checkout_latest()  # type: ignore[no-untyped-call]
            wanted = {self._secret.key(key): key for key in keys}
            stored = list(wanted)
            found: Found = {}
            damaged = 0
            for start in range(0, len(stored), _KEYS_PER_QUERY):
                some = ",".join(f"X'{key.hex()}'" for key in stored[start : start + _KEYS_PER_QUERY])
                rows = await self._records.query().where(f"key IN ({some})").to_arrow()
                columns = [rows.column(name) for name in ("key", "tenant", "reply", "created", "payload", "seal")]
                columns[3] = columns[3].cast(pa.int64())
                for key, tenant, reply, created, payload, seal in zip(*(c.to_pylist() for c in columns), strict=True):
                    if key not in wanted or seal != self._secret.seal(key, tenant, reply, created, payload):
                        damaged += 1
                        continue
                    payloads = found.setdefault(wanted[key], {})
                    payloads[payload] = max(created, payloads.get(payload, created))
            return found, damaged

    async def append(self, entries: Sequence[Entry]) -> None:
        """Write these in one commit."""
        import pyarrow as pa

        with _told(self._place, "written"):
            if not self._place.holds_secret():
                # LanceDB would make a table of this one commit, which could not be opened again.
                raise StoreError(f"The record store in {self._place.shown} could not be written: it was removed.")
            rows = []
            for (key, tenant, reply, payload), created in entries:
                key, tenant = self._secret.key(key), self._secret.tenant(tenant)
                seal = self._secret.seal(key, tenant, reply, created, payload)
                rows.append((key, tenant, reply, created, payload, seal))
            schema = _records_schema()
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            await self._records.add(pa.table(arrays, schema=schema))

    async def fragments(self) -> int:
        """In how many pieces the table lies; every read looks at each that is not yet indexed."""
        with _told(self._place, "examined"):
            # Typed as an object, but a dictionary comes.
            stats = dict(await self._records.stats())  # type: ignore[call-overload]
            return int(stats["fragment_stats"]["num_fragments"])

    async def tidy(self, *, keep: timedelta, index_from_rows: int) -> bool:
        """Merge small pieces, index new rows, remove versions older than `keep`; says whether it replaced any piece.

        What it replaced stays on disk until a later tidying finds it older than `keep`. Another writer's change of the
        same pieces at the same time makes it fail.
        """
        from lancedb.index import BTree

        with _told(self._place, "tidied"):
            done = await self._records.optimize(cleanup_older_than=keep)
            if await self._records.count_rows() >= index_from_rows and not await self._records.list_indices():
                await self._records.create_index("key", config=BTree(), replace=False)
                return True
            return done.compaction.fragments_removed > 0

    async def forget_before(self, created: int) -> int:
        """Delete the rows that are older than `created`; returns how many. No row is no version."""
        with _told(self._place, "pruned"):
            moment = datetime.fromtimestamp(created / 1e6, UTC).replace(tzinfo=None)
            older = f"created < timestamp '{moment:%Y-%m-%d %H:%M:%S.%f}'"
            count = await self._records.count_rows(older)
            if count:
                await self._records.delete(older)
            return count

    async def is_ours(self) -> bool:
        """Whether the store is still the one that was opened: somebody may have removed it and begun another."""
        with _told(self._place, "read"):
            return await read_secret(self._db) == self._secret

    async def close(self) -> None:
        """Let go of the files."""
        self._records.close()  # type: ignore[no-untyped-call]
        self._db.close()  # type: ignore[no-untyped-call]


def _records_schema() -> pa.Schema:
    import pyarrow as pa

    columns = [
        ("key", pa.binary(32)),  # fixed size: LanceDB indexes no other binary column
        ("tenant", pa.binary(32)),
        ("reply", pa.binary(16)),
        ("created", pa.timestamp("us")),
        ("payload", pa.binary()),
        ("seal", pa.binary(SEAL_BYTES)),
    ]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])


async def _open_table(db: AsyncConnection, name: str) -> AsyncTable | None:
    try:
        return await db.open_table(name)
    except ValueError as fault:
        if is_absence(fault):
            return None
        raise


async def _create(db: AsyncConnection, place: Place, name: str, first: pa.Table) -> AsyncTable:
    """Open a table, created with its `first` rows if need be; another process may do the same at this moment."""
    table = await _open_table(db, name)
    if table is not None:
        return table
    place.make_room(name)
    try:
        return await db.create_table(name, data=first)
    except Exception:
        table = await _open_table(db, name)
        if table is None:
            raise
        return table


async def _lacks_a_part(db: AsyncConnection) -> bool:
    return await _open_table(db, SCHEMA) is None or await read_secret(db) is None


async def _reach_schema(db: AsyncConnection, place: Place) -> None:
    """Bring the store to this program's schema version. StoreError if it is beyond that."""
    import pyarrow as pa

    shape = pa.schema([pa.field("version", pa.int32(), nullable=False)])
    table = await _create(db, place, SCHEMA, pa.table([[SCHEMA_VERSION]], schema=shape))
    version = max((await table.query().to_arrow()).column("version").to_pylist())
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The record store in {place.shown} was written by a newer evidence-proxy: its schema version is "
            f"{version}, this one reads up to {SCHEMA_VERSION}. Upgrade this proxy, or name another place."
        )
    for step in range(version, SCHEMA_VERSION):
        await MIGRATIONS[step](db)
        await table.add(pa.table([[step + 1]], schema=shape))


@contextlib.contextmanager
def _told(place: Place, done: str) -> Iterator[None]:
    """Turn whatever happens into a StoreError for the reader. A panic in LanceDB is no Exception, so all is caught."""
    try:
        yield
    except (StoreError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as fault:
        raise StoreError(f"The record store in {place.shown} could not be {done}: {_brief(fault)}") from fault


def _brief(fault: BaseException) -> str:
    """The first line of what went wrong, without the source positions that LanceDB appends."""
    line = (str(fault).strip() or type(fault).__name__).splitlines()[0]
    return re.sub(r",? (?:at )?(?:/\S+|[A-Z]:\\\S+)\.rs:\d+(:\d+)?", "", line)[:300]
