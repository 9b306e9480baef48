"""What every reader of a relayed reply shares: a whole JSON body or a stream, in any cut, and never an error.

The first character tells the one from the other, whatever the request asked for.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import orjson

from proxy.wire.events import EventReader
from proxy.wire.messages import Reply, Usage


def read_json(data: bytes) -> Any:
    """JSON as providers send it, lone surrogates and a byte order mark included. Raises ValueError."""
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data.decode("utf-8-sig"))


UsageReader = Callable[[dict[str, Any]], Usage]


def usage(told: dict[str, Any], read: str, wrote: str) -> Usage:
    """The members that name what was read, what of it came from the provider's cache, and what was written.

    Some servers name what the cache gave at the top, as `prompt_cache_hit_tokens`.
    """
    details = told.get(f"{read}_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else told.get("prompt_cache_hit_tokens")
    return Usage(_count(told.get(read)), _count(cached), _count(told.get(wrote)))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


class SideReader(ABC):
    """Feed it a reply's (decompressed) bytes. It keeps up to `most_bytes`, and is silent on what it cannot read."""

    def __init__(self, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._most = most_bytes
        self._held = 0
        self._events: EventReader | None = None
        self._whole: list[bytes] | None = None
        self._broken = False
        self._over = False
        self._used: Usage | None = None
        self._model: str | None = None

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the reply."""
        if self._broken or not chunk:
            return
        try:
            if self._events is None and self._whole is None:
                start = chunk.removeprefix(b"\xef\xbb\xbf").lstrip()
                if not start:
                    return
                if start.startswith(b"{"):
                    self._whole = []
                else:
                    self._events = EventReader(self._most)
            if self._whole is not None:
                self._hold(len(chunk))
                self._whole.append(chunk)
            elif self._events is not None:
                for data in self._events.feed(chunk):
                    self._event(data)
        except Exception:  # whatever a provider may send: the relayed reply must not suffer from our reading it
            self._broken = True

    def close(self, complete: bool) -> None:
        """The reply ended; `complete` says whether it did so by itself."""
        if self._broken:
            return
        self._over = complete
        try:
            if not complete:
                # What a stream finished before it broke was relayed, and stands; a broken JSON body says nothing.
                self._broken = self._whole is not None
            elif self._whole is not None:
                self._body(read_json(b"".join(self._whole)))
                self._whole = []
            elif self._events is not None:
                for data in self._events.close():
                    self._event(data)
        except Exception:
            self._broken = True

    def finished(self) -> bool:
        """Whether every choice that was asked for has ended; or the reply has, with fewer choices."""
        return not self._broken and self._ended(self._over)

    def replies(self) -> list[Reply]:
        """The choices that ended; none where the reply could not be read or reported an error."""
        return [] if self._broken else self._said()

    def continued_by(self) -> tuple[str, ...]:
        """The ids under which the provider keeps this reply with its history; none where it does not."""
        return ()

    def usage(self) -> Usage | None:
        """What the provider says that this reply used, as far as it was read."""
        return self._used

    def model(self) -> str | None:
        """Who says to have replied."""
        return self._model

    def _told_beside(self, value: Any, read: UsageReader) -> None:
        """What an object of the API says of itself beside what it says."""
        usage, model = value.get("usage"), value.get("model")
        if isinstance(usage, dict):
            self._used = read(usage)
        if isinstance(model, str) and model:
            self._model = model

    def _hold(self, size: int) -> None:
        """Count what is kept of a reply. Raises ValueError past the bound."""
        self._held += size
        if self._held > self._most:
            raise ValueError(f"the reply is larger than the {self._most} bytes that are read of one")

    @abstractmethod
    def _body(self, value: Any) -> None:
        """A whole reply, parsed."""

    @abstractmethod
    def _event(self, data: bytes) -> None:
        """The data of one event of a stream."""

    @abstractmethod
    def _ended(self, over: bool) -> bool:
        """Whether what was asked for has ended; `over` says that no more will come."""

    @abstractmethod
    def _said(self) -> list[Reply]: ...
