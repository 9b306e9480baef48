"""An open store: all that LanceDB is asked, and the only file that knows its tables.

Everything here is awaited on the store's own thread, and LanceDB is imported when a store is opened, not before.
Whatever LanceDB raises leaves this file as a StoreError.

The tables: `secret` (see its file), `schema` (one row per schema version that the store has reached, the highest
counts), `erasures` (one row per erasure) and the shelves (see place.py), which look alike and whose rows are appended
and never changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from proxy.store.place import ERASURES, SCHEMA, SECRET, SHELVES, Place
from proxy.store.record import REPLY_BYTES, Entry, Found, Read, StoredRow, StoreError
from proxy.store.secret import SEAL_BYTES, StoreSecret, agreed_secret, is_absence, read_secret

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from lancedb import AsyncConnection
    from lancedb.table import AsyncTable

SCHEMA_VERSION = 2
"""1: no column `conversation`. 2: with it."""

# Who reads wants what another replica wrote just now; not every read needs a look of its own, though. LanceDB is
# not told to look by itself: it would list the versions once more at each query, a round trip to an object store.
_LOOKS_AGAIN_AFTER = 0.2
# What is read of the end of the table, however much others wrote meanwhile. What was missed is read by its key.
_MOST_OF_THE_END = 256
# Where others changed more than the end, the new rows are no longer surely the last ones: so many more are read.
_MARGIN = 128
# Where nobody looks they are never asked for; without them own rows are read again.
_MOST_OWN_VERSIONS = 4_096
# LanceDB's own limits are gigabytes. A key's index entry is about 40 bytes: of a million rows, half the pages are held.
_INDEX_CACHE_BYTES = 24 << 20
_METADATA_CACHE_BYTES = 8 << 20
# An IN list is planned as a chain of ORs; longer ones gain nothing.
_KEYS_PER_QUERY = 256
_MOST_UNDER_A_KEY = 64
_WINNER_IS_DONE_AFTER = 0.25
_MIGRATION_ATTEMPTS = 8
# A row id is the number of its piece, then its offset there.
_BITS_IN_A_PIECE = 32
_COLUMNS = ("key", "tenant", "reply", "created", "payload", "seal", "conversation")


class Tail(NamedTuple):
    """What other processes wrote since the last look."""

    rows: Sequence[StoredRow] = ()
    """The intact ones of them; some may have been seen before, and after much at once some may be missing."""
    damaged: int = 0
    pieces: int = 0
    """In how many pieces the table lies now."""
    only_grew: bool = True
    """Whether nothing but appending happened, by anybody: no erasure, no merging."""


class _Extent(NamedTuple):
    """A version of the table, and how large it is."""

    version: int
    rows: int
    pieces: int


class Lance:
    """One opened store. Its methods raise StoreError; after one it may be used again or opened anew."""

    def __init__(self, place: Place, db: AsyncConnection, rows: AsyncTable, secret: StoreSecret) -> None:
        self._place = place
        self._db = db
        self._rows = rows
        self._secret = secret
        self.opened_at = self._looked_at = time.monotonic()
        self.erasures_at_opening = 0
        self._seen: _Extent | None = None
        self._own_versions: set[int] = set()

    @property
    def secret(self) -> StoreSecret:
        return self._secret

    @classmethod
    async def open(cls, place: Place, secret: StoreSecret | None = None) -> Lance:
        """Open the store at `place`; what it lacks is created, an older schema is migrated, a newer one refused.

        A store that is created gets this `secret`, or one of its own.
        """
        with _told(place, "opened"):
            place.prepare()
            # It logs to stderr by itself; that two replicas tidied at once is no news.
            os.environ.setdefault("LANCEDB_LOG", "error")
            if place.directory is None:
                # Its 64 at once, when it cleans up, leave a small server no breath for anybody's reads.
                os.environ.setdefault("LANCE_IO_THREADS", "16")
            import lancedb

            db = await lancedb.connect_async(
                place.uri,
                session=lancedb.Session(_INDEX_CACHE_BYTES, _METADATA_CACHE_BYTES),
                **place.options(),
            )
            # Created last, so the rest is there if it is. A store that lost a part is refused: a new secret would
            # make its rows unfindable for good, perhaps while somebody is putting the old one back.
            shelves = {name: await _open_table(db, name) for name in SHELVES}
            left = next((name for name, table in shelves.items() if table is not None), None)
            if left is not None and await _lacks_a_part(db):
                raise StoreError(
                    f"The record store in {place.shown} could not be opened: of its tables {left!r}, {SCHEMA!r} and "
                    f"{SECRET!r} only the first is whole. Restore the others, move it away, or name another place."
                )
            if shelves[place.table] is None and place.holds_rows():
                raise StoreError(
                    f"The record store in {place.shown} could not be opened: of its table {place.table!r} there are "
                    "rows, but no version that names them. Restore it, move it away, or name another place."
                )
            await _reach_schema(db, place)
            secret, made_here = await agreed_secret(db, place, secret)
            rows = shelves[place.table]
            if rows is None:
                if not made_here:
                    # Whoever made the secret is creating the table; creating it as well could hide its first rows.
                    await asyncio.sleep(_WINNER_IS_DONE_AFTER)
                rows = await _create(db, place, place.table, _rows_schema().empty_table())
            else:
                await rows.checkout_latest()  # type: ignore[no-untyped-call]
            # A replica of the version before this one may have made it a moment ago, so not only when migrating.
            await _with_conversations(rows)
            if {*await rows.schema()} != {*_rows_schema()}:
                raise StoreError(
                    f"The record store in {place.shown} could not be opened: its table {place.table!r} has columns "
                    "that this program did not write. Move it away, or name another place."
                )
            lance = cls(place, db, rows, secret)
            lance.erasures_at_opening = await lance.erasures()
            if not place.is_tended:
                lance._seen = await lance._extent()
            return lance

    async def read(
        self, keys: Sequence[bytes], *, latest: bool, replies: Mapping[bytes, Sequence[bytes]] | None = None
    ) -> Read:
        """What stands under `keys`.

        `latest` sees what any process has written before this call; otherwise the last moment may be missing.
        Under a key that `replies` names there may be as many rows as conversations began alike: past a number of them
        only those of its replies are read, so that a popular opening costs no more than a rare one.
        """
        replies = replies or {}
        with _told(self._place, "read"):
            await self._look(even_if_just_done=latest)
            wanted = {self._secret.key(key): key for key in keys}
            stored = [key for key, plain in wanted.items() if plain not in replies]
            rows = [row for some in _batches(stored) for row in await self._under(_one_of("key", some))]
            crowded: set[bytes] = set()
            stored = [key for key, plain in wanted.items() if plain in replies]
            waiting = list(_batches(stored))
            while waiting:
                some = waiting.pop()
                limit = _MOST_UNDER_A_KEY + (4 * len(some) if len(some) > 1 else 1)
                together = await self._under(_one_of("key", some), limit)
                if len(together) < limit:
                    rows += together
                elif len(some) > 1:  # some of them are crowded: halves tell which in a few queries
                    waiting += (some[: len(some) // 2], some[len(some) // 2 :])
                else:
                    crowded.add(wanted[some[0]])
                    for those in _batches(replies[wanted[some[0]]]):
                        where = f"{_one_of('key', some)} AND {_one_of('reply', those)}"
                        rows += await self._under(where, _MOST_UNDER_A_KEY * len(those))
            found: Found = {}
            damaged = 0
            for row in rows:
                if row.key not in wanted or not row.intact:
                    damaged += 1
                    continue
                under = found.setdefault(wanted[row.key], {})
                one = row.reply + row.payload
                under[one] = max(row.created, under.get(one, row.created))
            for key in replies.keys() & found.keys():
                if len(found[key]) > _MOST_UNDER_A_KEY:
                    crowded.add(key)
                    found[key] = {one: found[key][one] for one in found[key] if one[:REPLY_BYTES] in replies[key]}
            return Read(found, frozenset(crowded), damaged)

    async def newest(self, conversation: bytes, most: int) -> tuple[dict[bytes, int], int]:
        """At most `most` rows of a conversation with their ages, the newest, and how many damaged were passed over."""
        with _told(self._place, "read"):
            await self._look()
            stored = self._secret.conversation(conversation)
            where = _one_of("conversation", [stored])
            light = await self._rows.query().where(where).select(["created"]).with_row_id().to_arrow()
            ages = zip(_micros(light.column("created")), light.column("_rowid").to_pylist(), strict=True)
            ids = [row_id for _, row_id in sorted(ages, reverse=True)[:most]]
            if not ids:
                return {}, 0
            taken = await self._rows.take_row_ids(ids).select(list(_COLUMNS)).to_arrow()
            found: dict[bytes, int] = {}
            damaged = 0
            for row in self._stored(taken):
                if row.conversation != stored or not row.intact:
                    damaged += 1
                    continue
                one = row.reply + row.payload
                found[one] = max(row.created, found.get(one, row.created))
            return found, damaged

    async def tail(self) -> Tail:
        """What others wrote since the last call (the first one: since the store was opened), in as few round trips as
        there can be: one where nobody wrote anything, else three, however many wrote. One call at a time.

        Not exact: the new rows are taken to be the last ones of the table, which they are unless somebody merged or
        deleted at the same time.
        """
        with _told(self._place, "read"):
            await self._look(even_if_just_done=True)
            before, now = self._seen, await self._extent()
            if before is None:
                self._seen = now
                return Tail()
            others = set(range(before.version + 1, now.version + 1)) - self._own_versions
            if not others:
                self._saw(now)
                return Tail(pieces=now.pieces)
            # Each commit that only appends adds one piece; no other adds as many as it makes versions.
            only_grew = now.rows >= before.rows and now.pieces - before.pieces == now.version - before.version
            start = before.rows if only_grew else min(before.rows, now.rows) - _MARGIN
            start = max(0, start, now.rows - _MOST_OF_THE_END)
            query = self._rows.query().select(list(_COLUMNS)).offset(start).limit(_MOST_OF_THE_END)
            rows = self._stored(await query.to_arrow()) if start < now.rows else []
            self._saw(now)
            intact = [row for row in rows if row.intact]
            return Tail(intact, len(rows) - len(intact), now.pieces, only_grew)

    def _saw(self, extent: _Extent) -> None:
        self._seen = extent
        self._own_versions = {version for version in self._own_versions if version > extent.version}

    async def _extent(self) -> _Extent:
        while True:
            version, rows = await self._rows.version(), await self._rows.count_rows()
            pieces = await self._count_pieces()
            if await self._rows.version() == version:  # the writer uses the same handle
                return _Extent(version, rows, pieces)

    async def _look(self, *, even_if_just_done: bool = False) -> None:
        """See what any process has written up to now, or nearly."""
        if even_if_just_done or time.monotonic() - self._looked_at > _LOOKS_AGAIN_AFTER:
            self._looked_at = time.monotonic()
            await self._rows.checkout_latest()  # type: ignore[no-untyped-call]

    async def append(self, entries: Sequence[Entry]) -> None:
        """Write these in one commit."""
        secret, rows = self._secret, []
        for entry in entries:
            reply, payload = entry.row[:REPLY_BYTES], entry.row[REPLY_BYTES:]
            key, tenant = secret.key(entry.key), secret.tenant(entry.tenant)
            of = None if entry.conversation is None else secret.conversation(entry.conversation)
            seal = secret.seal(key, tenant, reply, entry.created, payload, of)
            rows.append((key, tenant, reply, entry.created, payload, seal, of))
        await self._append(rows)

    async def append_stored(self, rows: Sequence[StoredRow]) -> None:
        """Write rows that came out of a store with this one's secret, as they are, in one commit."""
        await self._append([(r.key, r.tenant, r.reply, r.created, r.payload, r.seal, r.conversation) for r in rows])

    async def rows(self, *, at_once: int = 1_000) -> AsyncIterator[list[StoredRow]]:
        """All rows as they lie there now, in batches; nothing is held back, damaged ones say so."""
        with _told(self._place, "read"):
            await self._look(even_if_just_done=True)
            query = self._rows.query().select(list(_COLUMNS))
            async for batch in await query.to_batches(max_batch_length=at_once):
                yield self._stored(batch)

    async def count(self) -> int:
        """How many rows there are, equal ones included."""
        with _told(self._place, "counted"):
            await self._look()
            return await self._rows.count_rows()

    async def fragments(self) -> int:
        """In how many pieces the table lies; every read looks at each that is not yet indexed. 0 where it is tended."""
        if self._place.is_tended:
            return 0
        with _told(self._place, "examined"):
            await self._look()
            return await self._count_pieces()

    async def _count_pieces(self) -> int:
        # Typed as an object, but a dictionary comes.
        stats = dict(await self._rows.stats())  # type: ignore[call-overload]
        return int(stats["fragment_stats"]["num_fragments"])

    async def tidy(self, *, keep: timedelta, index_from_rows: int) -> bool:
        """Merge small pieces, index new rows, remove versions older than `keep`; says whether it replaced any piece.

        What it replaced stays on disk until a later tidying finds it older than `keep`. Another writer's change of the
        same pieces at the same time makes it fail.
        """
        from lancedb.index import BTree

        with _told(self._place, "tidied"):
            replaced = False
            await self._look(even_if_just_done=True)
            if not self._place.is_tended:
                done = await self._rows.optimize(cleanup_older_than=keep)
                replaced = done.compaction.fragments_removed > 0
            if await self._rows.count_rows() >= index_from_rows:
                indexed = {column for index in await self._rows.list_indices() for column in index.columns}
                for column in ("key", "conversation"):
                    if column not in indexed:
                        await self._rows.create_index(column, config=BTree(), replace=False)
                        replaced = True
            return replaced

    async def forget_before(self, created: int) -> int:
        """Delete the rows that are older than `created`; returns how many. No row is no version."""
        return await self._forget(_older_than(created))

    async def count_before(self, created: int) -> int:
        """How many rows are older than `created`."""
        with _told(self._place, "counted"):
            await self._look()
            return await self._rows.count_rows(_older_than(created))

    async def forget_keys(self, keys: Sequence[bytes]) -> int:
        """Delete what stands under these keys, given as `rows` shows them; returns how many rows that was."""
        return sum([await self._forget(_one_of("key", some)) for some in _batches(keys)])

    async def erase(self, tenant: bytes, conversation: bytes | None = None) -> int:
        """Delete a tenant's rows, or those of one of its conversations (both as plain digests); returns how many.

        Every replica is told to forget what it knows by heart (see `erasures`), even if nothing was found here. The
        bytes leave the disk with the versions that hold them (see `tidy`).
        """
        where = _one_of("tenant", [self._secret.tenant(tenant)])
        if conversation is not None:
            where += f" AND {_one_of('conversation', [self._secret.conversation(conversation)])}"
        return await self._erase(where)

    async def erase_rows(self, *, keys: Sequence[bytes] = (), conversations: Sequence[bytes] = ()) -> int:
        """The same for what stands under these keys and in these conversations, given as `rows` shows them."""
        wheres = [
            _one_of(c, some) for c, of in (("key", keys), ("conversation", conversations)) for some in _batches(of)
        ]
        return sum([await self._erase(where) for where in wheres])

    async def _erase(self, where: str) -> int:
        pieces = await self._pieces(where)
        count = await self._forget(where)
        await self._rewrite(pieces)
        with _told(self._place, "written"):
            first = _erasure(time.time_ns() // 1000)
            table = await _open_table(self._db, ERASURES)
            if table is None:
                table = await _create(self._db, self._place, ERASURES, first.schema.empty_table())
            await table.add(first)
        return count

    async def _pieces(self, where: str) -> set[int]:
        """The pieces of the table that rows lie in."""
        with _told(self._place, "read"):
            await self._look(even_if_just_done=True)
            light = await self._rows.query().where(where).select(["created"]).with_row_id().to_arrow()
            return {row_id >> _BITS_IN_A_PIECE for row_id in light.column("_rowid").to_pylist()}

    async def _rewrite(self, pieces: Iterable[int]) -> None:
        """Write what is left in these pieces anew: a deleted row's bytes stay in its piece until then, and tidying
        merges no large piece for a few of them."""
        with _told(self._place, "written"):
            for piece in sorted(pieces):
                start = piece << _BITS_IN_A_PIECE
                within = f"_rowid >= {start} AND _rowid < {start + (1 << _BITS_IN_A_PIECE)}"
                await self._rows.update(where=within, updates_sql={"reply": "reply"})

    async def erasures(self) -> int:
        """How many erasures there were; a replica that sees another number than before forgets what it cached.

        Reads that begin after this see none of what they erased.
        """
        with _told(self._place, "read"):
            table = await _open_table(self._db, ERASURES)
            count = 0 if table is None else await table.count_rows()
            await self._look(even_if_just_done=True)
            return count

    async def is_ours(self) -> bool:
        """Whether the store is still the one that was opened: somebody may have removed it and begun another."""
        with _told(self._place, "read"):
            return await read_secret(self._db) == self._secret

    async def close(self) -> None:
        """Let go of the files."""
        self._rows.close()  # type: ignore[no-untyped-call]
        self._db.close()  # type: ignore[no-untyped-call]

    async def _under(self, where: str, limit: int | None = None) -> list[StoredRow]:
        query = self._rows.query().where(where).select(list(_COLUMNS))
        return self._stored(await (query if limit is None else query.limit(limit)).to_arrow())

    def _stored(self, table: pa.Table | pa.RecordBatch) -> list[StoredRow]:
        columns = {name: table.column(name) for name in _COLUMNS}
        plain = {name: _micros(c) if name == "created" else c.to_pylist() for name, c in columns.items()}
        rows = []
        for values in zip(*(plain[name] for name in _COLUMNS), strict=True):
            key, tenant, reply, created, payload, seal, conversation = values
            intact = seal == self._secret.seal(key, tenant, reply, created, payload, conversation)
            rows.append(StoredRow(key, tenant, reply, created, payload, conversation, seal, intact))
        return rows

    async def _append(self, rows: Sequence[tuple[object, ...]]) -> None:
        import pyarrow as pa

        with _told(self._place, "written"):
            if not self._place.holds_secret():
                # LanceDB would make a table of this one commit, which could not be opened again.
                raise StoreError(f"The record store in {self._place.shown} could not be written: it was removed.")
            schema = _rows_schema()
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            done = await self._rows.add(pa.table(arrays, schema=schema))
            if len(self._own_versions) >= _MOST_OWN_VERSIONS:
                self._own_versions.clear()
            self._own_versions.add(done.version)

    async def _forget(self, where: str) -> int:
        with _told(self._place, "pruned"):
            await self._look(even_if_just_done=True)
            count = await self._rows.count_rows(where)
            if count:
                await self._rows.delete(where)
            return count


def _rows_schema() -> pa.Schema:
    import pyarrow as pa

    columns = [
        ("key", pa.binary(32)),  # fixed size: LanceDB indexes no other binary column
        ("tenant", pa.binary(32)),
        ("reply", pa.binary(REPLY_BYTES)),
        ("created", pa.timestamp("us")),
        ("payload", pa.binary()),
        ("seal", pa.binary(SEAL_BYTES)),
        ("conversation", pa.binary(32)),
    ]
    return pa.schema([pa.field(name, kind, nullable=name == "conversation") for name, kind in columns])


def _erasure(created: int) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([pa.field("created", pa.timestamp("us"), nullable=False)])
    return pa.table([pa.array([created], pa.timestamp("us"))], schema=schema)


def _micros(column: pa.ChunkedArray) -> list[int]:
    import pyarrow as pa

    return list(column.cast(pa.int64()).to_pylist())


def _one_of(column: str, values: Sequence[bytes]) -> str:
    literals = ",".join(f"X'{value.hex()}'" for value in values)
    return f"{column} IN ({literals})"


def _older_than(created: int) -> str:
    moment = datetime.fromtimestamp(created / 1e6, UTC).replace(tzinfo=None)
    return f"created < timestamp '{moment:%Y-%m-%d %H:%M:%S.%f}'"


def _batches(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (values[start : start + _KEYS_PER_QUERY] for start in range(0, len(values), _KEYS_PER_QUERY))


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


async def _with_conversations(table: AsyncTable) -> None:
    """Give a table of the first schema version its column `conversation`. A replica may do the same at this moment."""
    for attempt in range(_MIGRATION_ATTEMPTS):
        if "conversation" in (await table.schema()).names:
            return
        try:
            await table.add_columns([_rows_schema().field("conversation")])
        except Exception:
            if attempt == _MIGRATION_ATTEMPTS - 1:
                raise
            await asyncio.sleep(random.uniform(0.02, 0.1) * (attempt + 1))
            await table.checkout_latest()  # type: ignore[no-untyped-call]


async def _to_version_2(db: AsyncConnection) -> None:
    for name in SHELVES:
        table = await _open_table(db, name)
        if table is not None:
            await _with_conversations(table)


MIGRATIONS: dict[int, Callable[[AsyncConnection], Awaitable[None]]] = {1: _to_version_2}
"""What brings a store from version n to n + 1, by n. Each may run twice, or in two replicas at once."""


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
