"""Server-sent events, read as they arrive. Source: the HTML standard, "Server-sent events", 9.2.6.

A side reader: what it reads was relayed already, so it never changes a byte, and it gives up rather than fail.
"""

from __future__ import annotations

from collections.abc import Iterator


class EventReader:
    """Feed it bytes in any cut; it gives the data of each event that became complete."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._line: list[bytes] = []  # the pieces of a line that has not ended
        self._data: list[bytes] = []
        self._held = 0
        self._after_return = False
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Events' data, lines joined by a newline. Raises ValueError when one event grows past `most_bytes`."""
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        # "\r\n", "\n" and "\r" each end a line; a "\r" at the very end may be half of "\r\n".
        if chunk.endswith(b"\r"):
            self._after_return = True
        first, *lines = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._hold(len(first))
        self._line.append(first)
        for line in lines:
            yield from self._end(b"".join(self._line))
            self._hold(len(line))
            self._line = [line]

    def _end(self, line: bytes) -> Iterator[bytes]:
        """A line ended: what it says of its event, and the event if it is the blank line after it."""
        if not self._begun:
            self._begun = True
            line = line.removeprefix(b"\xef\xbb\xbf")  # the standard has one byte order mark dropped
        if not line:
            if self._data:
                data, self._data = b"\n".join(self._data), []
                self._held = 0
                yield data
            self._held = 0
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > self._most:
            raise ValueError(f"an event of the stream is larger than {self._most} bytes")

    def close(self) -> Iterator[bytes]:
        """The last event, where a provider ended the stream without the blank line that should close it."""
        yield from self._end(b"".join(self._line))
        self._line = []
        yield from self._end(b"")
