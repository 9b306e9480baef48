"""Conversations that a test scripts: what was asked is kept, what goes up is chosen, what comes back is noted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from proxy.gateway.conversation import Asked, Refusal
from proxy.gateway.steering import Steering


@dataclass
class Told:
    """One exchange, as the gateway told it."""

    asked: Asked
    body: bytes
    header: str
    refusal: Refusal | None = None
    steering: Steering | None = None
    deciding: Callable[[], Awaitable[Steering | None]] | None = None
    #: What happened, in order: ("fed", bytes), ("settled", b""), ("ended", b"whole" | b"broken").
    story: list[tuple[str, bytes]] = field(default_factory=list)
    finish: bytes | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    #: If set, `settle` waits for it: what a large conversation in a thread looks like.
    hold: asyncio.Event | None = None
    settling: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fed(self) -> bytes:
        return b"".join(data for what, data in self.story if what == "fed")

    @property
    def steps(self) -> list[str]:
        return [what for what, _ in self.story]

    def feed(self, chunk: bytes) -> None:
        self.story.append(("fed", chunk))

    def finished(self) -> bool:
        return self.finish is not None and self.finish in self.fed

    async def settle(self) -> None:
        self.settling.set()
        if self.hold is not None:
            await self.hold.wait()
        self.story.append(("settled", b""))

    def told(self) -> None:
        return None

    def close(self, complete: bool) -> bool:
        self.story.append(("ended", b"whole" if complete else b"broken"))
        self.over.set()
        return False


@dataclass
class Conversation:
    """Every request is passed to `rewrite`, which may return another body; then it counts as compacted."""

    rewrite: Callable[[bytes], bytes] = lambda body: body
    finish: bytes | None = None
    hold: asyncio.Event | None = None
    refusal: Refusal | None = None
    header: str | None = None
    steering: Steering | None = None
    #: Decided while the request is on its way.
    deciding: Callable[[], Awaitable[Steering | None]] | None = None
    told: list[Told] = field(default_factory=list)
    fails: Exception | None = None

    async def ask(self, asked: Asked) -> Told:
        if self.fails is not None:
            raise self.fails
        body = self.rewrite(asked.body)
        plain = "untouched; reason=no-evidence" if asked.body.lstrip()[:1] == b"{" else "untouched; reason=not-json"
        header = self.header or (plain if body is asked.body else "compacted; question=2")
        told = Told(asked, body, header, self.refusal, self.steering, self.deciding, finish=self.finish, hold=self.hold)
        self.told.append(told)
        return told

    @property
    def last(self) -> Told:
        return self.told[-1]
