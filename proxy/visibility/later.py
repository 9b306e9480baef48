"""A watcher whose work takes the event loop long hears of what passed in a quiet moment.

What passed waits until nothing came or went for a moment; under a steady load, where no moment is quiet, until it has
waited for a second. What waits is bounded, and nothing is left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from proxy.gateway.watched import Arrived, Passed, Watcher
from proxy.visibility import leisure

_QUIET = leisure.QUIET
_LONGEST = leisure.LONGEST
_MOST = 512
_MOST_BYTES = 64 * 1024 * 1024
#: How many are told in one turn of the event loop.
_AT_ONCE = 4


class Later:
    """A watcher that tells another one of arrivals at once, and of what passed later. Made on its event loop."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, Passed]] = deque()
        self._bytes = 0
        self._last = 0.0
        self._timer: asyncio.Handle | None = None

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        self._last = self._loop.time()
        return self._watcher.arrived(request)

    def passed(self, request: Passed) -> None:
        self._last = self._loop.time()
        self._waiting.append((self._last, request))
        self._bytes += _size(request)
        while len(self._waiting) > _MOST or self._bytes > _MOST_BYTES:
            self._tell()
        if self._timer is None:
            self._timer = self._loop.call_later(_QUIET, self._look)

    def flush(self) -> None:
        """Tell all that waits, now: somebody wants to see it."""
        while self._waiting:
            self._tell()

    def close(self) -> None:
        """Tell all that waits, and wait for nothing more."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for _ in range(_AT_ONCE):
            if not self._waiting:
                return
            since, _request = self._waiting[0]
            if now - self._last < _QUIET and now - since < _LONGEST:
                soonest = min(self._last + _QUIET, since + _LONGEST)
                self._timer = self._loop.call_at(soonest, self._look)
                return
            self._tell()
        self._timer = self._loop.call_soon(self._look)

    def _tell(self) -> None:
        _, request = self._waiting.popleft()
        self._bytes -= _size(request)
        self._watcher.passed(request)


def _size(request: Passed) -> int:
    return len(request.conversed.came) if request.conversed is not None else 0
