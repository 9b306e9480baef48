"""The way to the open store: opened when something needs it, once at a time, and again after a failure.

Runs on the proxy's loop. Nothing is opened, and LanceDB not imported, while no store lies on disk and nothing is to be
written.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from proxy.store.health import Health
from proxy.store.lance import Lance
from proxy.store.place import Place
from proxy.store.record import StoreError
from proxy.store.thread import StoreThread

T = TypeVar("T")

# An empty place is looked at again this often: another process may begin a store there.
_LOOK_AGAIN = 0.5
# A handle that fails younger than this fails for its own reasons; opening it again would only add work.
_FRESH = 1.0


class Door:
    """Gives the open store to those who ask."""

    def __init__(self, place: Place, thread: StoreThread, health: Health) -> None:
        self._place = place
        self._thread = thread
        self._health = health
        self._lance: Lance | None = None
        self._entering: asyncio.Task[Lance | None] | None = None
        self._opening: asyncio.Task[Lance] | None = None
        self._failures = 0
        self._closed_until = 0.0
        self._empty_until = 0.0
        self.held: bool | None = None
        """Whether a store lay there at the last look; None before the first."""
        self.since = 0.0
        """When the entering or opening that is going on began, on the monotonic clock."""

    @property
    def lance(self) -> Lance | None:
        """The open store, None while there is none."""
        return self._lance

    def enter(self, *, look_again: bool = False) -> asyncio.Task[Lance | None]:
        """A task that gives the store to a reader: None if none lies there. It raises StoreError; await it shielded.

        That none lies there is believed for half a second, unless `look_again`.
        """
        if look_again:
            self._empty_until = 0.0
        if self._entering is None or self._entering.done():
            self.since = time.monotonic()
            self._entering = _quietly(self._enter())
        return self._entering

    async def open(self) -> Lance:
        """The store for a writer, made if there is none. StoreError, at once while a recent failure is not over."""
        if self._lance is not None:
            return self._lance
        if self._opening is None:
            if time.monotonic() < self._closed_until:
                raise StoreError(self._health.fault or "The record store could not be opened.")
            self.since = time.monotonic()
            self._opening = _quietly(self._open())
        return await asyncio.shield(self._opening)

    def forget(self, lance: Lance, *, even_if_fresh: bool = False) -> bool:
        """`lance` failed: the next one who asks opens it anew. False if it is so fresh that this would not help."""
        if self._lance is not lance:
            return True
        if not even_if_fresh and time.monotonic() - lance.opened_at < _FRESH:
            return False
        self._lance = None
        return True

    async def look(self) -> bool:
        """Whether a store lies there; makes the directory on the way. StoreError if that cannot be told or done."""
        try:
            held = await self._thread.run(self._look())
        except OSError as fault:
            error = StoreError(f"The record store in {self._place.shown} cannot be kept there: {fault}")
            self._health.failed("open", error)
            raise error from fault
        self.held = held
        if not held:
            self._health.worked("open")
            self._empty_until = time.monotonic() + _LOOK_AGAIN
        return held

    async def close(self) -> None:
        """Let go of the store; an opening that is going on is abandoned."""
        for task in (self._entering, self._opening):
            if task is not None:
                task.cancel()
        if self._lance is not None:
            lance, self._lance = self._lance, None
            await self._thread.run(lance.close())

    async def _enter(self) -> Lance | None:
        if self._lance is None and self._opening is None:
            if time.monotonic() < self._empty_until or not await self.look():
                return None
        elif self._lance is None and self.held is False:
            # A first record makes it be opened, which takes as long as an import. Nothing lies there to wait for.
            return None
        return await self.open()

    async def _look(self) -> bool:
        self._place.prepare()
        return self._place.holds_store()

    async def _open(self) -> Lance:
        try:
            lance = await self._thread.run(Lance.open(self._place))
        except StoreError as fault:
            self._failures += 1
            self._closed_until = time.monotonic() + backoff(self._failures)
            self._health.failed("open", fault)
            raise
        else:
            self._failures = 0
            self._lance = lance
            self._health.worked("open")
            return lance
        finally:
            self._opening = None


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: from a quarter of a second to about five, never in step."""
    return min(5.0, 0.25 * 2.0 ** min(failures - 1, 10)) * random.uniform(0.75, 1.25)


def _quietly(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.create_task(work)
    # Whoever waited may be gone when it fails; the failure is in the health by then.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task
