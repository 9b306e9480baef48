"""Server-sent events, read as they arrive. Source: the HTML standard, "Server-sent events", 9.2.6.

A side reader: what it reads was relayed already, so it never changes a byte, and it gives up rather than fail.
"""

from __future__ import annotations

from collections.abc import Iterator


class EventReader:
    """Feed it bytes in any cut; it gives the data of each event that became complete."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._held = 0
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Events' data, lines joined by a newline. Raises ValueError when one event grows past `most_bytes`."""
        if self._after_return and chunk:
            self._after_return = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        block = self._rest + chunk if self._rest else chunk
        # "\r\n", "\n" and "\r" each end a line; a "\r" at the very end may be half of "\r\n".
        if block.endswith(b"\r"):
            self._after_return = True
        lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) + self._held > self._most:
            raise ValueError(f"an event of the stream is larger than {self._most} bytes")
        for line in lines:
            if not line:
                if self._data:
                    data, self._data, self._held = b"\n".join(self._data), [], 0
                    yield data
            elif line.startswith(b"data:"):
                value = line[5:].removeprefix(b" ")
                self._data.append(value)
                self._held += len(value)
                if self._held > self._most:
                    raise ValueError(f"an event of the stream is larger than {self._most} bytes")

    def close(self) -> Iterator[bytes]:
        """The last event, where a provider ended the stream without the blank line that should close it."""
        if self._rest.startswith(b"data:"):
            self._data.append(self._rest[5:].removeprefix(b" "))
        self._rest = b""
        if self._data:
            data, self._data, self._held = b"\n".join(self._data), [], 0
            yield data
