"""The one writer: takes what waits and commits it in groups, off every request's path.

Runs on the proxy's loop. A record waits for others, a quarter of a second at most; under load a commit holds up to
`_ROWS`. What cannot be written waits on, within the queue's bound, and is tried again for as long as the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from proxy.store.cache import RecordCache
from proxy.store.door import Door, backoff
from proxy.store.health import Counts, Durations, Health
from proxy.store.record import StoreError
from proxy.store.thread import StoreThread
from proxy.store.unwritten import Unwritten

_ROWS = 500
_BYTES = 8 << 20
# Every commit adds a piece that reads look at until the next tidying; with many of them, group more.
_LONG_LINGER = 0.25
# A commit costs the same for one record as for hundreds. Where the machine is busy it takes long, and the next one
# waits for so many times as long, up to the long linger.
_REST = 4.0


class Writer:
    """Writes what waits in `unwritten`; `run` is its life, everything else may be called at any time."""

    def __init__(
        self,
        door: Door,
        thread: StoreThread,
        unwritten: Unwritten,
        cache: RecordCache,
        counts: Counts,
        health: Health,
        writing: Durations,
        committed: Callable[[], None],
        linger: float,
        many_pieces: int,
    ) -> None:
        self._door = door
        self._thread = thread
        self._unwritten = unwritten
        self._cache = cache
        self._counts = counts
        self._health = health
        self._writing = writing
        self._committed = committed
        self._linger = linger
        self._many_pieces = many_pieces
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._took = 0.0
        self._flushing: list[asyncio.Future[StoreError | None]] = []
        self.pieces = 0
        """Commits since the last tidying."""
        self.writing_since: float | None = None
        """When the commit that is going on began, on the monotonic clock."""

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    async def flush(self) -> None:
        """Return when everything that waits now is written or shed. StoreError if an attempt to write it fails."""
        goal = self._unwritten.accepted
        while self._unwritten.gone < goal:
            attempt: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
            self._flushing.append(attempt)
            self._urgent.set()
            self._wake.set()
            fault = await attempt
            if fault is not None:
                raise fault

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unwritten:
                if failures:
                    await self._unless_urgent(backoff(failures))
                elif len(self._unwritten) < _ROWS:
                    await self._unless_urgent(self._wait())
                fault = await self._write()
                failures = failures + 1 if fault else 0
                self._attempted(fault)
            self._attempted(None)

    def _wait(self) -> float:
        """For how many seconds a commit gathers what comes."""
        many = self.pieces >= self._many_pieces
        return max(self._linger, _LONG_LINGER if many else min(_REST * self._took, _LONG_LINGER))

    async def _unless_urgent(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._urgent.wait()

    def _attempted(self, fault: StoreError | None) -> None:
        self._urgent.clear()
        waiting, self._flushing = self._flushing, []
        for attempt in waiting:
            if not attempt.done():
                attempt.set_result(fault)

    async def _write(self) -> StoreError | None:
        """Write one batch; returns what went wrong."""
        lance = None
        try:
            lance = await self._door.open()
            batch = self._unwritten.take(_ROWS, _BYTES)
            began = self.writing_since = time.monotonic()
            await self._thread.run(lance.append(batch))
            self._took = time.monotonic() - began
            self._writing.note(self._took)
        except Exception as error:
            self._unwritten.put_back()
            if lance is not None:
                self._door.forget(lance)
            fault = error if isinstance(error, StoreError) else StoreError(f"Records could not be written: {error!r}")
            self._counts.failed += 1
            self._health.failed("write", fault)
            return fault
        finally:
            self.writing_since = None
        self._unwritten.remove(batch)
        self._cache.mark_written(batch)
        self._counts.written += len(batch)
        self._counts.commits += 1
        self._health.worked("write")
        self.pieces += 1
        self._committed()
        return None
