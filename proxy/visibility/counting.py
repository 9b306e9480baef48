"""Counting tokens where it delays nobody: after the reply, on a thread of its own, one request at a time.

It counts when there is time (`leisure`). What waits to be counted is bounded, in requests and in bytes; past that a
request goes uncounted, and `left_out` says so. The vocabulary is loaded there, too, when the first conversation
arrives: the process is busiest then anyway (the store opens), and a proxy that nobody uses stays small.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.gateway.watched import Arrived, Passed
from proxy.visibility import logs, vocabularies
from proxy.visibility.leisure import Leisure, Turn
from proxy.visibility.tokens import Counter, Tokens

_MOST_WAITING = 512
#: What waits to be counted stays in memory until then.
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Counted:
    """A request's tokens: as it came, and as it went up (under `observe`: as it would have gone)."""

    passed: Passed
    before: Tokens
    after: Tokens


Listener = Callable[[Counted], None]


class Counting:
    """A watcher that counts, and tells `listeners` on the event loop that it was made on.

    `left_out` is how many requests it had no room for.
    """

    def __init__(self, listeners: Sequence[Listener], leisure: Leisure | None = None) -> None:
        """`leisure` hears of the same requests; without it there is always time."""
        self.left_out = 0
        self._leisure = leisure or Leisure()
        self._listeners = tuple(listeners)
        self._counter = Counter()
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[float, Passed] | None] = queue.SimpleQueue()
        self._bytes = 0
        self._inside = 0
        self._broken = self._closed = False
        self._thread: threading.Thread | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        if self._thread is None and request.api is not None:
            self._thread = threading.Thread(target=self._work, name="evidence-tokens", daemon=True)
            self._thread.start()
        return ()

    def passed(self, request: Passed) -> None:
        told = request.conversed
        if told is None or not told.was_read or self._thread is None or self._broken:
            return
        if self._inside >= _MOST_WAITING or (self._inside and self._bytes + len(told.came) > _MOST_BYTES):
            self.left_out += 1
            return
        self._inside += 1
        self._bytes += len(told.came)
        self._empty.clear()
        self._waiting.put((time.monotonic(), request))

    async def idle(self) -> None:
        """Wait until everything that passed was counted."""
        await self._empty.wait()

    async def close(self) -> None:
        """Let the thread end. What still waits goes uncounted."""
        self._closed = True
        if self._thread is not None:
            self._leisure.hurry()
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join, 1.0)

    def _work(self) -> None:
        try:
            vocabularies.encoding(vocabularies.chosen(None).name)
        except Exception as fault:
            # Without a vocabulary there are no counts, and nothing else is missing.
            logs.fault("tokens-not-counted", fault)
            self._broken = True
            self._tell(self._give_up)
            return
        turn = self._leisure.turn()
        while self._one(turn):
            pass

    def _one(self, turn: Turn) -> bool:
        """Wait for a request and count it; False at the end. While it waits it holds no request: bodies are large."""
        waiting = self._waiting.get()
        if waiting is None:
            return False
        since, request = waiting
        with turn.since(since):
            if self._closed:
                return False
            counted, failed = None, False
            try:
                counted = self._count(request)
            except Exception as fault:
                failed = True
                logs.fault("tokens-not-counted", fault, id=request.arrived.id)
            self._tell(self._done, request, counted, failed)
        return True

    def _count(self, request: Passed) -> Counted | None:
        told = request.conversed
        transcript = told.transcript if told is not None else None
        if told is None or transcript is None:
            return None
        read = transcript.request
        before = self._counter.of(read, told.model)
        went = told.would if told.would is not None else told.went
        after = before if went is told.came else self._counter.of(read.api.cut(went), told.model)
        return Counted(request, before, after)

    def _tell(self, what: Callable[..., None], *about: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *about)

    def _give_up(self) -> None:
        self._inside = self._bytes = 0
        self._empty.set()

    def _done(self, request: Passed, counted: Counted | None, failed: bool) -> None:
        assert request.conversed is not None
        self._inside -= 1
        self._bytes -= len(request.conversed.came)
        if counted is not None:
            for listener in self._listeners:
                try:
                    listener(counted)
                except Exception as fault:
                    logs.fault("watcher-failed", fault)
        self.left_out += failed
        if not self._inside:
            self._empty.set()
