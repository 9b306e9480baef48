"""What the store counts, and what of it fails at the moment. No I/O, no clock."""

from __future__ import annotations

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What happened since the start of this process. Records unless the name says otherwise."""

    added: int = 0
    duplicates: int = 0
    """Added again while waiting or written less than a day ago: not written twice."""
    written: int = 0
    shed: int = 0
    """Lost to other replicas and to a restart: the queue was full, or closing took too long."""
    refused: int = 0
    """Not stored at all: a digest had the wrong length."""
    failed: int = 0
    """Calls of the store (open, read, write, tidy) that failed."""
    slow: int = 0
    """Finds that a request did not wait for to the end."""
    cache_hits: int = 0
    """Keys that were answered without asking the store."""
    cache_misses: int = 0
    reads: int = 0
    """Queries of the store."""
    commits: int = 0
    damaged: int = 0
    """Rows passed over because their seal did not fit."""
    tidied: int = 0
    """Times that the tables were merged, indexed and cleaned."""
    pruned: int = 0
    """Rows deleted because they were older than the retention."""


class Health:
    """What failed last and has not worked since, by part: `open`, `read`, `write`. Logs when that changes."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}

    def failed(self, part: str, why: BaseException) -> None:
        """Note a failure. Only the first in a row is logged: a failing store fails at every request."""
        if part not in self._faults:
            log.warning("%s", why)
        self._faults[part] = str(why)

    def worked(self, part: str) -> None:
        """Note a success."""
        if self._faults.pop(part, None) is not None:
            log.info("The record store works again (%s).", part)

    @property
    def fault(self) -> str | None:
        """Why the store is not well, None when it is."""
        return next(iter(self._faults.values()), None)

    def fails(self, *parts: str) -> bool:
        """Whether one of `parts` failed and has not worked since."""
        return any(part in self._faults for part in parts)
