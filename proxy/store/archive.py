"""A store in one file: written by `export`, read by `import`, into another place or over the same one.

What lies in a store is keyed with the store's secret, so the secret is in the archive: it is as private as the store. A
store that is begun by an import takes that secret; one that has another could never find what it is given, and is
refused. The file is gzip around MessagePack: a head, the rows as they lie in the store, and an end that counts and
seals them, so that a file that was cut short or damaged is noticed before anything is written.
"""

from __future__ import annotations

import gzip
import hmac
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proxy.store.lance import SCHEMA_VERSION, Lance
from proxy.store.record import StoredRow, StoreError
from proxy.store.secret import StoreSecret

_MAGIC = "evidence-proxy store archive"
_LENGTH = 4
_MOST = 1 << 30


class ArchiveError(Exception):
    """The file is no archive that can be read here; `str()` says why, and what to do."""


class _Head(msgspec.Struct, array_like=True, tag="head"):
    magic: str
    schema: int
    secret: bytes


class _Row(msgspec.Struct, array_like=True, tag="row"):
    table: str
    key: bytes
    tenant: bytes
    reply: bytes
    created: int
    payload: bytes
    conversation: bytes | None
    seal: bytes


class _End(msgspec.Struct, array_like=True, tag="end"):
    rows: int
    seal: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Head | _Row | _End).decode


@dataclass(frozen=True, slots=True)
class Archived:
    """A row of an archive, and the table that it belongs to."""

    table: str
    row: StoredRow


class Writing:
    """An archive that is being written. Nothing stands under its name before it is whole."""

    def __init__(self, file: Path, secret: StoreSecret) -> None:
        """Raises OSError."""
        self._file = file
        self._draft = file.with_name(f".{file.name}.{os.getpid()}")
        handle = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._raw = os.fdopen(handle, "wb")
        self._out = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", mtime=0)
        self._state = hmac.new(secret.value, b"archive\0", "sha256")
        self.rows = 0
        self._put(_encode(_Head(_MAGIC, SCHEMA_VERSION, secret.value)))

    def add(self, table: str, row: StoredRow) -> None:
        """Raises OSError."""
        self._put(
            _encode(_Row(table, row.key, row.tenant, row.reply, row.created, row.payload, row.conversation, row.seal))
        )
        self.rows += 1

    def end(self) -> None:
        """The archive is whole. Raises OSError."""
        self._put(_encode(_End(self.rows, self._state.digest())))
        self._out.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        self._draft.replace(self._file)

    def give_up(self) -> None:
        """It was not finished: nothing stays."""
        self._raw.close()
        self._draft.unlink(missing_ok=True)

    def _put(self, piece: bytes) -> None:
        self._state.update(piece)
        self._out.write(len(piece).to_bytes(_LENGTH, "big") + piece)


class Reading:
    """An archive that was opened and found whole: its rows' count, and its secret."""

    def __init__(self, file: Path) -> None:
        """Reads it once from end to end. Raises ArchiveError and OSError."""
        self._file = file
        self.rows = 0
        self.secret = self._check()

    def __iter__(self) -> Iterator[Archived]:
        """The rows, in the order in which they were written."""
        for piece in _pieces(self._file):
            if isinstance(one := _decode(piece), _Row):
                intact = self.secret.seal(one.key, one.tenant, one.reply, one.created, one.payload, one.conversation)
                fits = hmac.compare_digest(intact, one.seal)
                row = StoredRow(
                    one.key, one.tenant, one.reply, one.created, one.payload, one.conversation, one.seal, fits
                )
                yield Archived(one.table, row)

    def _check(self) -> StoreSecret:
        secret: StoreSecret | None = None
        state: hmac.HMAC | None = None
        try:
            for piece in _pieces(self._file):
                one = _decode(piece)
                if isinstance(one, _Head) and secret is None:
                    secret = self._opened(one)
                    state = hmac.new(secret.value, b"archive\0", "sha256")
                elif secret is None or state is None:
                    break
                if isinstance(one, _End):
                    if one.rows == self.rows and hmac.compare_digest(one.seal, state.digest()):
                        return secret
                    break
                self.rows += isinstance(one, _Row)
                state.update(piece)
        except (msgspec.MsgspecError, EOFError, gzip.BadGzipFile, ValueError, OverflowError) as fault:
            raise self._unfit("it is damaged, or no archive of a store at all") from fault
        raise self._unfit("it was cut short, or its rows are not those that were written")

    def _opened(self, head: _Head) -> StoreSecret:
        if head.magic != _MAGIC or len(head.secret) != 32:
            raise self._unfit("it is no archive of a store")
        if head.schema > SCHEMA_VERSION:
            raise self._unfit(
                f"a newer evidence-proxy wrote it (layout {head.schema}, this one reads {SCHEMA_VERSION})"
            )
        return StoreSecret(head.secret)

    def _unfit(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self._file} cannot be imported: {why}")


def _pieces(file: Path) -> Iterator[bytes]:
    with gzip.open(file, "rb") as raw:
        while head := raw.read(_LENGTH):
            length = int.from_bytes(head, "big")
            if len(head) < _LENGTH or length > _MOST:
                raise EOFError
            piece = _exactly(raw, length)
            yield piece


def _exactly(raw: gzip.GzipFile, length: int) -> bytes:
    piece = raw.read(length)
    if len(piece) < length:
        raise EOFError
    return piece


async def take_out(lance: Lance, table: str, archive: Writing, advanced: Callable[[int], None]) -> int:
    """Write a table's rows to an archive; damaged ones are left out, and counted. Raises StoreError and OSError."""
    damaged = 0
    async for rows in lance.rows(at_once=100):
        for row in rows:
            if row.intact:
                archive.add(table, row)
            else:
                damaged += 1
        advanced(len(rows))
    return damaged


async def put_in(
    lance: Lance, rows: Iterator[StoredRow], advanced: Callable[[int], None], at_once: int = 500, most: int = 8 << 20
) -> tuple[int, int]:
    """Write rows of an archive that are not there yet; how many were written, and how many were there.

    Raises StoreError.
    """
    there: set[tuple[bytes, bytes]] = set()
    async for known in lance.rows(at_once=100):
        there.update((row.key, row.seal) for row in known if row.intact)
    written = known_already = size = 0
    batch: list[StoredRow] = []

    async def flush() -> None:
        nonlocal written, batch, size
        if batch:
            await lance.append_stored(batch)
            written += len(batch)
        batch, size = [], 0

    for row in rows:
        if not row.intact:
            raise StoreError(
                "A row of the archive is damaged though the archive is whole; nothing after it was written."
            )
        if (row.key, row.seal) in there:
            known_already += 1
        else:
            batch.append(row)
            size += len(row.payload)
        if len(batch) >= at_once or size >= most:
            await flush()
        advanced(1)
    await flush()
    return written, known_already
