"""Everything that watches one process, put together by its settings, and what of it the admin port shows.

Here is where a new watcher takes its place: it hears of every request, and registers what it wants to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from proxy.gateway.watched import Watcher
from proxy.store import Stats
from proxy.visibility.counting import Counted, Counting
from proxy.visibility.inspector.recorder import Inspector
from proxy.visibility.later import Later
from proxy.visibility.leisure import Leisure
from proxy.visibility.metrics import CONTENT_TYPE, Metrics
from proxy.visibility.prices import Price
from proxy.visibility.totals import Tally
from proxy.visibility.watching import Watchers

if TYPE_CHECKING:
    from aiohttp import web

    from proxy.gateway.admin import Admin
    from proxy.settings import Settings
    from proxy.visibility.traces import Traces


class HasStats(Protocol):
    """The store."""

    def stats(self) -> Mapping[str, Stats]: ...


class HasCounts(Protocol):
    """The conversations."""

    def counts(self) -> Mapping[str, int]: ...


class _Sources:
    def __init__(self, store: HasStats, conversations: HasCounts, counting: Counting, inspector: Inspector) -> None:
        self.stats = store.stats
        self.counts = conversations.counts
        self._counting = counting
        self._inspector = inspector

    def left_out(self) -> int:
        return self._counting.left_out

    def not_looked_at(self) -> int:
        return self._inspector.left_out


class Lookout:
    """One per process, made on its event loop. `watchers` is what the gateway tells of every request."""

    def __init__(self, settings: Settings, store: HasStats, conversations: HasCounts) -> None:
        self._leisure = Leisure()
        self.tally = Tally(prices_of(settings))
        self.inspector = Inspector(settings, self.tally, self._leisure)
        self.counting = Counting([self.tally.counted, self._counted, self.inspector.counted], self._leisure)
        about = {"mode": settings.compaction.mode, "layout": settings.compaction.layout, "policy": settings.policy.mode}
        self.metrics = Metrics(_Sources(store, conversations, self.counting, self.inspector), about)
        self._traces = _traces(settings)
        # To make a request's spans takes longer than all else that is done here, and nobody waits for them.
        self._later = Later(self._traces) if self._traces is not None else None
        first: list[Watcher] = [self._later] if self._later is not None else []
        self.watchers = Watchers([*first, self._leisure, self.metrics, self.tally, self.inspector, self.counting])

    def heed(self, on_the_way: Callable[[], int]) -> None:
        """`on_the_way` tells how many requests were not yet sent to the provider: other work lets them go first."""
        self._leisure.on_the_way = on_the_way

    def _counted(self, counted: Counted) -> None:
        self.metrics.counted(counted)

    def register(self, admin: Admin) -> None:
        """Take the routes of what is shown."""
        from proxy.visibility.inspector import routes

        admin.route("GET", "/metrics", self._show_metrics, public=True)
        routes.register(admin, self.inspector)

    def forget(self) -> None:
        """Something was erased: show nothing of what was said any more."""
        self.inspector.forget()

    async def idle(self) -> None:
        """Wait until everything that passed was looked at and counted: somebody wants to see it."""
        if self._later is not None:
            self._later.flush()
        self._leisure.hurry()
        await self.inspector.idle()
        await self.counting.idle()

    async def close(self) -> None:
        """Let go of threads."""
        if self._later is not None:
            self._later.close()
        await self.inspector.close()
        await self.counting.close()
        if self._traces is not None:
            await self._traces.close()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


def _traces(settings: Settings) -> Traces | None:
    if not settings.traces.enabled:
        return None
    from proxy.visibility.traces import Traces

    return Traces(settings.upstream.base_url)


def prices_of(settings: Settings) -> tuple[Price, ...]:
    """The price table of a configuration, as values."""
    return tuple(
        Price(
            model=row.model,
            input=row.input,
            cached=row.input if row.cached_input is None else row.cached_input,
            output=row.output,
        )
        for row in settings.prices
    )
