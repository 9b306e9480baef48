"""A watcher that keeps all that it hears."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from proxy.gateway.watched import Arrived, Passed


@dataclass
class Listening:
    """`lines` are the header lines that it wants to go upstream; with `fails` it raises, whatever it is told."""

    lines: list[tuple[bytes, bytes]] = field(default_factory=list)
    fails: bool = False
    arrivals: list[Arrived] = field(default_factory=list)
    heard: list[Passed] = field(default_factory=list)
    _spoke: asyncio.Condition = field(default_factory=asyncio.Condition)
    _saying: asyncio.Future[None] | None = None

    def arrived(self, request: Arrived) -> list[tuple[bytes, bytes]]:
        self.arrivals.append(request)
        if self.fails:
            raise RuntimeError("hunter2")
        return self.lines

    def passed(self, request: Passed) -> None:
        self.heard.append(request)
        self._saying = asyncio.ensure_future(self._say())
        if self.fails:
            raise RuntimeError("hunter2")

    async def told(self, count: int = 1) -> list[Passed]:
        """Wait until that many requests have passed: a client has its reply a moment earlier."""
        async with self._spoke:
            await self._spoke.wait_for(lambda: len(self.heard) >= count)
        return self.heard

    async def _say(self) -> None:
        async with self._spoke:
            self._spoke.notify_all()
