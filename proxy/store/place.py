"""Where a store lies: a local directory, an address that LanceDB understands, or nowhere (`memory://`).

Here live the only direct touches of the file system: looking for a store and making private room for one; and of the
environment: what a remote place needs beside its address. LanceDB is not known here. What blocks is called on the
store's own thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RECORDS = "records"
CONTENTS = "contents"
HELD = "held"
SCHEMA = "schema"
SECRET = "secret"
ERASURES = "erasures"

SHELVES = (RECORDS, CONTENTS, HELD)
"""The tables that hold rows of their callers; the others are the store's own."""

# One that does not answer must not keep a read for LanceDB's own three minutes; here others try again later.
_OBJECT_STORE = {
    "connect_timeout": "5s",
    "timeout": "30s",
    "client_max_retries": "2",
    "client_retry_timeout": "10",
}


@dataclass(frozen=True)
class Place:
    """Where one table of a store lies. `directory` is None unless the store is a local one."""

    uri: str
    directory: Path | None
    table: str = RECORDS

    @classmethod
    def of(cls, uri: str | None, data_dir: Path, table: str = RECORDS) -> Place:
        """The place that `uri` names: an address, a local path, or `data_dir` when it is None."""
        if uri is None:
            return cls(str(data_dir), data_dir, table)
        scheme, found, rest = uri.partition("://")
        if not found:
            directory = Path(uri).expanduser()
            return cls(str(directory), directory, table)
        if scheme == "file":
            return cls(rest, Path(rest), table)
        return cls(uri.rstrip("/") if uri != "memory://" else uri, None, table)

    @property
    def in_memory(self) -> bool:
        """Whether nothing is ever kept outside this process."""
        return self.uri == "memory://"

    @property
    def is_tended(self) -> bool:
        """Whether others merge its pieces and remove dead versions: LanceDB Cloud does, and refuses to be asked."""
        return self.uri.startswith("db://")

    @property
    def shown(self) -> str:
        """The place as messages name it: without user, password and query, should an address carry them."""
        if self.directory is not None:
            return str(self.directory)
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"

    def options(self, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What LanceDB is told beside the address. No credential comes from anywhere but the environment.

        Those of object stores LanceDB takes from there itself (AWS_*, GOOGLE_*, AZURE_*), or from the platform.
        ValueError, for the reader, where `db://` lacks its key.
        """
        environ = os.environ if environ is None else environ
        if self.directory is not None or self.in_memory:
            return {}
        if not self.uri.startswith("db://"):
            return {"storage_options": dict(_OBJECT_STORE)}
        key = environ.get("LANCEDB_API_KEY", "").strip()
        if not key:
            raise ValueError("db:// needs the environment variable LANCEDB_API_KEY, which is unset or empty")
        given = {"region": environ.get("LANCEDB_REGION"), "host_override": environ.get("LANCEDB_HOST_OVERRIDE")}
        return {"api_key": key} | {name: value for name, value in given.items() if value}

    def prepare(self) -> None:
        """Make the directory, for this user alone. One that exists keeps its mode. OSError when that cannot be."""
        if self.directory is not None:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def holds_store(self) -> bool:
        """Whether a store lies here already. Elsewhere than on a local disk only opening it can tell, so: True.

        OSError if that cannot be told, or if there is none and none could be begun.
        """
        if self.directory is None:
            return True
        rows = self.directory / f"{self.table}.lance"
        # An empty directory is what `make_room` leaves when the process dies before the table is there.
        held = any(rows.iterdir()) if rows.is_dir() else rows.exists()
        if not held and not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(f"this user may not write to {self.directory}")
        return held

    def holds_rows(self) -> bool:
        """Whether files of rows lie here, as far as a look can tell. Tables are made empty, so then there is one."""
        data = None if self.directory is None else self.directory / f"{self.table}.lance" / "data"
        return data is not None and data.is_dir() and any(data.iterdir())

    def holds_secret(self) -> bool:
        """Whether the store that lay here still does, as far as a look can tell."""
        return self.directory is None or (self.directory / f"{SECRET}.lance").exists()

    def make_room(self, table: str) -> None:
        """Make a table's directory before LanceDB does: it would be readable by all, even if only for a moment."""
        if self.directory is not None:
            (self.directory / f"{table}.lance").mkdir(mode=0o700, exist_ok=True)


def was_begun(directory: Path) -> bool:
    """Whether some process has begun a store in this directory."""
    return (directory / f"{SECRET}.lance").exists()
