"""Where a store lies: a local directory, an address that LanceDB understands, or nowhere (`memory://`).

Here live the only direct touches of the file system: looking for a store and making private room for one.
LanceDB is not known here. What blocks is called on the store's own thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

RECORDS = "records"
SCHEMA = "schema"
SECRET = "secret"


@dataclass(frozen=True)
class Place:
    """Where a store lies. `directory` is None unless it is a local one."""

    uri: str
    directory: Path | None

    @classmethod
    def of(cls, uri: str | None, data_dir: Path) -> Place:
        """The place that `uri` names: an address, a local path, or `data_dir` when it is None."""
        if uri is None:
            return cls(str(data_dir), data_dir)
        scheme, found, rest = uri.partition("://")
        if not found:
            directory = Path(uri).expanduser()
            return cls(str(directory), directory)
        if scheme == "file":
            return cls(rest, Path(rest))
        return cls(uri, None)

    @property
    def in_memory(self) -> bool:
        """Whether nothing is ever kept outside this process."""
        return self.uri == "memory://"

    @property
    def shown(self) -> str:
        """The place as messages name it: without user, password and query, should an address carry them."""
        if self.directory is not None:
            return str(self.directory)
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"

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
        records = self.directory / f"{RECORDS}.lance"
        # An empty directory is what `make_room` leaves when the process dies before the table is there.
        held = any(records.iterdir()) if records.is_dir() else records.exists()
        if not held and not os.access(self.directory, os.W_OK | os.X_OK):
            raise PermissionError(f"this user may not write to {self.directory}")
        return held

    def holds_secret(self) -> bool:
        """Whether the store that lay here still does, as far as a look can tell."""
        return self.directory is None or (self.directory / f"{SECRET}.lance").exists()

    def make_room(self, table: str) -> None:
        """Make a table's directory before LanceDB does: it would be readable by all, even if only for a moment."""
        if self.directory is not None:
            (self.directory / f"{table}.lance").mkdir(mode=0o700, exist_ok=True)
