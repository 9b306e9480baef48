"""What keeps the store small, quick and honest in the background: tidying, retention, recovering, noticing a new store.

Runs on the proxy's loop, one step at a time, and never in a request's way: it takes at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from proxy.store.door import Door
from proxy.store.health import Counts, Health
from proxy.store.heap import give_back
from proxy.store.lance import Lance, Tail
from proxy.store.place import RECORDS, Place
from proxy.store.record import StoreError
from proxy.store.thread import StoreThread
from proxy.store.writer import Writer

log = logging.getLogger(__name__)


_TIDYING_TAKES_AT_MOST = 900.0


@dataclass(frozen=True)
class Pace:
    """How often what is done. Seconds, except where a name says otherwise."""

    tidy_after_commits: int = 64
    tidy_after: float = 120.0
    """However few commits there were."""
    tidy_share: float = 0.1
    """Its part of the time: it merges *all* pieces below a million rows, so that its cost grows with the table."""
    tidy_from_pieces: int = 16
    """With fewer there is nothing to gain; another replica may have been here."""
    keep_versions: float = 60.0
    """Readers look for a newer version every half second, so none is on one this old; its files go."""
    index_from_rows: int = 5_000
    check: float = 30.0
    """Between looks whether the store is still the one that was opened."""
    prune: float = 3_600.0
    tick: float = 1.0
    linger: float = 0.05
    """How long a record waits for others to be committed with."""
    group_from_pieces: int = 64
    """With so many, commits are made seldomer."""
    follow: float | None = None
    """While requests come, between looks at what others wrote; None where reading one key takes milliseconds."""

    @classmethod
    def of(cls, place: Place) -> Pace:
        """The pace for a place: where each request goes over a network, there should be few."""
        if place.directory is not None:
            return cls()
        if place.is_tended:
            return cls(linger=0.2)
        # Contents may be pictures of megabytes, which another replica seldom needs; held answers are asked for once.
        return cls(linger=0.2, follow=0.5 if place.table == RECORDS else None)


class Upkeep:
    """`run` is its life; `committed` tells it of each commit."""

    def __init__(
        self,
        place: Place,
        door: Door,
        thread: StoreThread,
        forget: Callable[[], None],
        counts: Counts,
        health: Health,
        pace: Pace,
        retention_us: int | None,
    ) -> None:
        self._place = place
        self._door = door
        self._thread = thread
        self._forget = forget
        self._counts = counts
        self._health = health
        self._pace = pace
        self._retention_us = retention_us
        self._due = asyncio.Event()
        self._checked = self._tidied = time.monotonic()
        self._not_before = 0.0
        self._pruned = float("-inf")
        self._dead_versions = False
        self._erasures: int | None = None
        self._erased_lately = False
        self._counted = False
        self._left = 0
        self._tidy_from = self._drawn()
        self.writer: Writer | None = None

    def committed(self) -> None:
        """The writer made a commit."""
        if self.writer is not None and self.writer.pieces >= self._tidy_from:
            self._due.set()

    def saw(self, tail: Tail) -> None:
        """Others wrote: their pieces count as ours do. If they did more than that, it may have been an erasure."""
        if self.writer is not None and self._counted:
            self._left = min(self._left, tail.pieces)
            self.writer.pieces = tail.pieces - self._left
        if not tail.only_grew:
            self._checked = float("-inf")
            self._due.set()

    def _drawn(self) -> int:
        """After how many commits to tidy: so that two replicas, which see the same pieces, seldom do both at once."""
        return int(self._pace.tidy_after_commits * random.uniform(1.0, 1.5))

    async def run(self) -> None:
        """Keep the store until cancelled. A step that fails is counted and comes again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.tick * random.uniform(0.75, 1.25)):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._round()
            except StoreError as fault:
                self._counts.failed += 1
                log.debug("Upkeep of the record store: %s", fault)
            except Exception:
                self._counts.failed += 1
                log.exception("Upkeep of the record store failed in a way that it should not.")

    async def _round(self) -> None:
        if self._health.fails("open", "read"):
            await self._recover()
        lance = self._door.lance
        if lance is None or self.writer is None:
            return
        if not self._counted:
            # What processes before this one left: one that is restarted often would never come to tidying.
            self._counted = True
            self.writer.pieces += await self._thread.run(lance.fragments())
        now = time.monotonic()
        if now - self._checked >= self._pace.check:
            self._checked = now
            if not await self._is_ours(lance):
                self._door.forget(lance, even_if_fresh=True)
                return
            await self._notice_erasures(lance)
        if self._retention_us is not None and now - self._pruned >= self._pace.prune:
            self._pruned = now
            pruned = await self._thread.run(lance.forget_before(time.time_ns() // 1000 - self._retention_us))
            self._counts.pruned += pruned
            self._dead_versions |= pruned > 0
        if self._tidying_is_due(now):
            await self._tidy(lance)

    async def _recover(self) -> None:
        """Ask the store something, so that it is known to be well again even if no request asks."""
        lance = await asyncio.shield(self._door.enter())
        if lance is not None:
            await self._thread.run(lance.read([random.randbytes(32)], latest=True))
        self._health.worked("read")

    async def _notice_erasures(self, lance: Lance) -> None:
        """Somebody may have had a conversation erased, through another replica or at the command line."""
        seen = await self._thread.run(lance.erasures())
        changed = seen != (lance.erasures_at_opening if self._erasures is None else self._erasures)
        if changed or self._erased_lately:
            # Twice, since a read that had begun before brings back what it saw.
            self._forget()
        self._erased_lately = changed
        self._erasures = seen

    async def _is_ours(self, lance: Lance) -> bool:
        try:
            return await self._thread.run(lance.is_ours())
        except StoreError:
            return False

    def _tidying_is_due(self, now: float) -> bool:
        assert self.writer is not None
        pieces, since = self.writer.pieces, now - self._tidied
        if now < self._not_before:
            return False
        if pieces >= self._tidy_from or (pieces and since >= self._pace.tidy_after):
            return True
        # What a tidying replaced becomes old enough to be removed only later, perhaps when nothing is written any more.
        return self._dead_versions and since >= self._pace.keep_versions * 1.25

    async def _tidy(self, lance: Lance) -> None:
        assert self.writer is not None
        began, pieces = time.monotonic(), self.writer.pieces
        keep = timedelta(seconds=self._pace.keep_versions)
        for attempt in range(4):
            self._left = await self._thread.run(lance.fragments())
            few = self._left < self._pace.tidy_from_pieces
            if few and not self._dead_versions and not self._place.is_tended:
                # So it was from the start, or another replica was quicker.
                self.writer.pieces, self._tidied, self._tidy_from = 0, time.monotonic(), self._drawn()
                return
            try:
                tidying = lance.tidy(keep=keep, index_from_rows=self._pace.index_from_rows)
                replaced = await self._thread.run(tidying, within=_TIDYING_TAKES_AT_MOST)
                break
            except StoreError:
                # Another replica tidies as well, or deletes: the later commit of the two is refused. Not both again.
                if attempt == 3:
                    raise
                self._counts.failed += 1
                await asyncio.sleep(random.uniform(0.1, 1.0) * (attempt + 1))
            finally:
                self._tidied = time.monotonic()
                self._not_before = self._tidied + (self._tidied - began) / self._pace.tidy_share
        await asyncio.to_thread(give_back)
        self.writer.pieces -= pieces
        self._left = await self._thread.run(lance.fragments()) - self.writer.pieces
        self._tidy_from = self._drawn()
        self._dead_versions = replaced
        self._counts.tidied += 1
