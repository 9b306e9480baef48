"""The store's own thread. It runs an event loop of its own, on which everything that LanceDB does is awaited.

The proxy's loop must not even import LanceDB (about two seconds), so the import happens here as well. One thread with
a loop serves many reads and a write at once, because LanceDB does its work on threads of its own. It is a daemon: a
store that hangs must not keep the process from ending, which the joined threads of an executor would.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from proxy.store.record import StoreError

T = TypeVar("T")

_ENDS_WITHIN = 10.0
_LAST_ANSWERS = 0.5


class StoreThread:
    """Runs coroutines away from the loop that asks for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(False)  # to hold it up is what it is for
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        # The interpreter aborts if it ends in the middle of the import.
        atexit.register(self._leave)
        self._thread = threading.Thread(target=self._live, name="evidence-store", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T], *, within: float = 60.0) -> T:
        """Await `work` on the store's thread. It is cancelled, with a StoreError, if it takes longer than `within`."""
        try:
            async with asyncio.timeout(within):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except TimeoutError:
            raise StoreError(f"The record store did not answer within {within:.0f} s.") from None

    async def stop(self) -> None:
        """End the thread; what it is in the middle of is waited for, within reason."""
        self._end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDS_WITHIN):
                await asyncio.wrap_future(self._ended)
        atexit.unregister(self._leave)

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _leave(self) -> None:
        self._end()
        self._thread.join(_ENDS_WITHIN)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._let_go())
        self._loop.close()
        if self._ended.set_running_or_notify_cancel():
            self._ended.set_result(None)

    async def _let_go(self) -> None:
        """LanceDB's threads complain when an answer of theirs finds no interpreter, so the last ones may still come."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            _, hanging = await asyncio.wait(rest, timeout=_LAST_ANSWERS)
            for task in hanging:
                task.cancel()
            await asyncio.sleep(0)
