"""How much one process takes on at once, and how long it waits for another. Counters and clocks, no sockets.

What is beyond a limit is refused at once and said so, rather than queued where nobody sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# A side that keeps moving gets more time, as long as it is not slower than this: a trickle of single bytes, each in
# time, must not hold a request for hours.
SLOWEST_BYTES_PER_SECOND = 500


class Full(Exception):
    """No more can be taken on now. `what` says of what, for the reader."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class TooSlow(Exception):
    """The other side kept us waiting for longer than it may."""


class Capacity:
    """What all requests of a process hold together."""

    def __init__(self, most_requests: int, most_bytes: int) -> None:
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self.requests = 0
        self.bytes = 0
        self.passed = 0
        """Bytes that were held since the start."""

    def share(self) -> Share:
        """The part of one request, empty at first."""
        return Share(self)

    def room_for(self, size: int = 0) -> None:
        """Raises `Full` where a request with a body of `size` bytes would be refused now."""
        if self.requests >= self._most_requests:
            raise Full(f"{self._most_requests} requests are at the provider (server.max_requests)")
        self.room_for_bytes(size)

    def room_for_bytes(self, size: int) -> None:
        """Raises `Full` where so many bytes more would be refused."""
        if self.bytes + size > self._most_bytes:
            raise Full(f"{self._most_bytes} bytes of requests are held (server.max_bytes_in_flight)")


class Share:
    """What one request holds. `release` gives all of it back, once or more often."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._enters = False
        self._bytes = 0

    def enter(self) -> None:
        """Count as a request at the provider. Raises `Full`."""
        if not self._enters:
            self._capacity.room_for()
            self._capacity.requests += 1
            self._enters = True

    def hold(self, size: int) -> None:
        """Hold `size` bytes more. Raises `Full`."""
        self._capacity.room_for_bytes(size)
        self.held_besides(size)

    def held_besides(self, size: int) -> None:
        """Count `size` bytes more that are there already, and that nobody is refused for who got so far."""
        self._capacity.bytes += size
        self._capacity.passed += size
        self._bytes += size

    def release(self) -> None:
        """The request is over."""
        self._capacity.requests -= self._enters
        self._capacity.bytes -= self._bytes
        self._enters, self._bytes = False, 0


class Patience:
    """With one side of one request: `seconds` for each wait, and no more in all than its bytes are worth.

    Only what is really waited for counts: bytes that are there already cost no timer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waited = 0.0
        self._moved = 0

    def moved(self, size: int) -> None:
        """So many bytes came, or were taken."""
        self._moved += size

    def left(self) -> float | None:
        """How long the next wait may last; None for ever."""
        if not self._seconds:
            return None
        return max(0.0, min(self._seconds, self._seconds + self._moved / SLOWEST_BYTES_PER_SECOND - self._waited))

    def waited(self, seconds: float) -> None:
        """A wait has ended after so long."""
        self._waited += seconds


class Bell:
    """What one task waits for until somebody rings. Nobody is told of what rang before: who waits looks first, and
    looks again after."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        """Whether a task waits."""
        return self._waiter is not None

    async def wait(self) -> None:
        """Wait until it rings."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def ring(self) -> None:
        """Let the task that waits go on, if one does."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Alarm:
    """Calls `rings` when a wait takes too long. One timer for all the waits of a connection, one after the other: it is
    wound up only when it runs down, so that thousands of short waits set a handful of timers."""

    __slots__ = ("_at", "_loop", "_rings", "_timer", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop, rings: Callable[[], None]) -> None:
        self._loop = loop
        self._rings = rings
        self._until: float | None = None
        self._at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def on(self) -> bool:
        """Whether a wait is under way."""
        return self._until is not None

    def set(self, seconds: float) -> None:
        """A wait begins, in place of the one before, and may take so long; 0: for ever."""
        if not seconds:
            self._until = None
            return
        until = self._until = self._loop.time() + seconds
        if self._timer is None or until < self._at:
            if self._timer is not None:
                self._timer.cancel()
            self._at = until
            self._timer = self._loop.call_later(seconds, self._look)

    def off(self) -> None:
        """The wait is over."""
        self._until = None

    def end(self) -> None:
        """No more waits, ever. Whoever would have been called is let go."""
        self._until = None
        self._rings = _nobody
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._until is None:
            return
        left = self._until - self._loop.time()
        if left > 0:
            self._at = self._until
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._until = None
            self._rings()


def _nobody() -> None: ...
