"""Several watchers as one: none of them can disturb another, or the request that they watch.

What is watched is told by the gateway, as the values of `proxy.gateway.watched`.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.gateway.watched import Arrived, Passed, Watcher
from proxy.visibility import logs


class Watchers:
    """Tells each of them, in order; a fault of one is logged."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = tuple(watchers)

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        lines: list[tuple[bytes, bytes]] = []
        for watcher in self._watchers:
            try:
                lines += watcher.arrived(request)
            except Exception as fault:
                logs.fault("watcher-failed", fault)
        return lines

    def passed(self, request: Passed) -> None:
        for watcher in self._watchers:
            try:
                watcher.passed(request)
            except Exception as fault:
                logs.fault("watcher-failed", fault)
