"""Server-sent events with the bytes that they came in, so that those which stay can be passed on as they are.

Source: the HTML standard, "Server-sent events", 9.2.6. What is only read, and not passed on, is `events`' business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINES = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event with its blank line, as it came; `data` is what it says, None where it says nothing (a comment)."""

    raw: bytes
    data: bytes | None

    def saying(self, data: bytes) -> bytes:
        """The event's bytes with other data: everything beside it stays."""
        if self.data is not None and self.raw.count(self.data) == 1:
            return self.raw.replace(self.data, data)
        kept = [line for line in _LINES.split(self.raw) if line and not line.startswith(b"data")]
        return b"\n".join([*kept, *(b"data: " + line for line in _LINES.split(data))]) + b"\n\n"


class RawEvents:
    """Feed it bytes in any cut; it gives each event that became complete."""

    def __init__(self, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._most = most_bytes
        self._left = b""

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """The events that became complete. Raises ValueError when one grows past the bound; `rest` has its bytes."""
        searched = max(len(self._left) - 3, 0)
        buffer = self._left + chunk if self._left else chunk
        found: list[RawEvent] = []
        at = 0
        for end in _END.finditer(buffer, searched):
            if end.end() > at and end.start() >= at:
                found.append(_event(buffer[at : end.end()]))
                at = end.end()
        self._left = buffer[at:]
        if len(self._left) > self._most:
            raise ValueError(f"an event of the stream is larger than {self._most} bytes")
        return found

    def rest(self) -> bytes:
        """What came and is no event yet."""
        left, self._left = self._left, b""
        return left

    def close(self) -> list[RawEvent]:
        """The last event, where a provider ended the stream without the blank line that should close it."""
        left = self.rest()
        return [_event(left)] if left.strip() else ([RawEvent(left, None)] if left else [])


def _event(raw: bytes) -> RawEvent:
    body = raw.removeprefix(b"\xef\xbb\xbf")
    said = [line[5:].removeprefix(b" ") for line in _LINES.split(body) if line.startswith(b"data:")]
    return RawEvent(raw, b"\n".join(said) if said else None)
