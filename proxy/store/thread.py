"""The store's own thread. It runs an event loop of its own, on which everything that LanceDB does is awaited.

The proxy's loop must not even import LanceDB (about two seconds), so the import happens here as well. One thread with
a loop serves many reads and a write at once, because LanceDB does its work on threads of its own. It is a daemon: a
store that hangs must not keep the process from ending, which the joined threads of an executor would.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StoreThread:
    """Runs coroutines away from the loop that asks for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(False)  # to hold it up is what it is for
        self._thread = threading.Thread(target=self._live, name="evidence-store", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the store's thread; a cancelled caller cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """End the thread after what it is doing at this moment. Does not wait."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
