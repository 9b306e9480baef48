"""When the threads beside the event loop may work, so that no request waits for what is noted of another one.

Python runs one thread at a time, so work on another thread still holds the event loop up: what comes right after a
reply meets the next request of the same client. So a piece of work waits until nothing came or went for a moment, and
no request is on its way to the provider. Under a steady load, where no moment is quiet, it waits for a second, and from
then on its thread works a fifth of the time; less the busier the loop is itself, down to a hundredth, and not while a
request is on its way, unless one always is. Only one of the threads works at a time: Python's lock may be held by one
that does not run because another one does, and the loop would wait for both. What finds no time is left out, and
counted by whoever leaves it out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from proxy.gateway.watched import Arrived, Passed

QUIET = 0.025
LONGEST = 1.0
#: What is due lets requests that are on their way go first for so long.
YIELDS = 0.1
_LOOKS_AGAIN = 0.005
#: After a piece of work its thread rests so many times as long as that took: at least, and where the loop is busy.
_REST, _REST_WHEN_BUSY, _LONGEST_REST = 4.0, 99.0, 20.0
#: With up to this share of its time taken the event loop has time for others; from the second on it is busy.
_EASY, _BUSY = 0.3, 0.6
_LOOKED_AT = 0.1


class Leisure:
    """A watcher that knows when something last came or went. Made on the event loop's thread."""

    def __init__(self) -> None:
        self._last = float("-inf")
        self._hurried = float("-inf")
        self.on_the_way: Callable[[], int] = lambda: 0
        """How many requests were not yet sent to the provider: somebody waits for this process now."""
        self.seconds_wanted = _clock_of_this_thread()
        self._changed = threading.Condition()
        self.floor = threading.Lock()
        """Whoever holds it works; the others wait."""

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        self._last = time.monotonic()
        return ()

    def passed(self, request: Passed) -> None:
        self._last = time.monotonic()

    def hurry(self) -> None:
        """Somebody wants to see it: what waits by now waits no longer."""
        self._hurried = time.monotonic()
        with self._changed:
            self._changed.notify_all()

    def turn(self) -> Turn:
        """For one thread: it asks this before each piece of work."""
        return Turn(self)

    def quiet_since(self) -> float:
        """From when on it counts as quiet, if nothing more comes."""
        return self._last + QUIET

    def is_hurried(self, since: float) -> bool:
        """Whether what waits since then is wanted now."""
        return since <= self._hurried

    def wait(self, seconds: float, since: float) -> None:
        """Wait so long, or until what waits since then is wanted."""
        with self._changed:
            if not self.is_hurried(since):
                self._changed.wait(seconds)


class Turn:
    """When one thread may go on: `with turn.since(moment)` is one piece of work. Used on that thread only."""

    def __init__(self, leisure: Leisure) -> None:
        self._leisure = leisure
        self._since = 0.0
        self._has_floor = False
        self._rested = 0.0
        self._began = 0.0
        self._looked, self._wanted = time.monotonic(), leisure.seconds_wanted()
        self._rest = _REST

    def since(self, moment: float) -> Turn:
        """For a piece of work that came at this moment, in seconds of `time.monotonic`."""
        self._since = moment
        return self

    def __enter__(self) -> None:
        """Wait until it may begin."""
        while not self._leisure.is_hurried(self._since):
            now, quiet = time.monotonic(), self._leisure.quiet_since()
            anyway = max(self._since + LONGEST, self._rested)
            if self._leisure.on_the_way():
                quiet, anyway = now + QUIET, anyway + YIELDS
            due = min(quiet, anyway)
            if now < due:
                self._leisure.wait(due - now, self._since)
            elif self._leisure.floor.acquire(blocking=False):
                self._has_floor = True
                break
            else:
                self._leisure.wait(_LOOKS_AGAIN, self._since)
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        """It is done."""
        if self._has_floor:
            self._has_floor = False
            self._leisure.floor.release()
        took, now = time.thread_time() - self._began, time.monotonic()
        if now - self._looked >= _LOOKED_AT:
            before, self._wanted = self._wanted, self._leisure.seconds_wanted()
            share = (self._wanted - before) / (now - self._looked)
            busy = min(1.0, max(0.0, (share - _EASY) / (_BUSY - _EASY)))
            self._rest = _REST * (_REST_WHEN_BUSY / _REST) ** busy
            self._looked = now
        self._rested = now + min(_LONGEST_REST, self._rest * took)


def _clock_of_this_thread() -> Callable[[], float]:
    """For any thread to read: how many seconds the thread that calls this has run or, where the system says so, could
    have run had another one not had its core."""
    scheduled = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")

    def seconds() -> float:
        ran, waited, _ = scheduled.read_text().split()
        return (int(ran) + int(waited)) / 1e9

    try:
        seconds()
        return seconds
    except (OSError, ValueError):
        pass
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
    except (AttributeError, OSError):
        return time.process_time
    return lambda: time.clock_gettime(clock)
