"""What the store counts, and what of it fails at the moment. No I/O, no clock."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets that durations are counted in."""


class Durations:
    """How long something took, counted in buckets of `SECONDS` and one for what took longer."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._total = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._total += seconds

    def so_far(self) -> Histogram:
        """What was counted up to now."""
        return Histogram(SECONDS, tuple(self._counts), self._total)


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` took at most `bounds[i]` seconds and longer than the bound before; the last one took longer still."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Seconds, of all together."""


@dataclass(frozen=True)
class Stats:
    """What one table of the store counted since the start of this process, and what it holds now."""

    counts: Mapping[str, int]
    """See `RecordStore.counts`."""
    find_seconds: Histogram
    """What requests waited for, answers from memory included."""
    read_seconds: Histogram
    """Queries of the store itself."""
    write_seconds: Histogram
    """Commits."""


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
    followed: int = 0
    """Rows that were read as they came, before anybody asked for them."""
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
