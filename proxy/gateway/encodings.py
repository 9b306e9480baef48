"""Content codings: what a compressed body says, read piece by piece and within a bound.

Nothing here sees HTTP or settings. A decoder never holds more than one bounded piece of output at a time, whatever
the input claims, so a small body that would unfold to gigabytes costs its limit and no more.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import brotli  # type: ignore[import-untyped]

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["Broken", "Decoder", "TooLarge", "decode", "named", "zstd"]

_PIECE = 1 << 16
_ZSTD_WINDOW_LOG = 23  # RFC 9659: content coding zstd needs no window over 8 MB, and a wider one is memory for free


class Broken(Exception):
    """The body is not what its Content-Encoding says: an unknown coding, damaged data, or an end that is missing."""


class TooLarge(Exception):
    """What the body unfolds to is larger than the limit."""


class _Stage(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` yields, each of a bounded size. Raises `Broken`."""

    def complete(self) -> bool:
        """Whether the coded stream has come to its own end."""


class _Zlib:
    """gzip, and deflate in both of its spellings: RFC 1950 as the standard says, and raw as many clients send it."""

    def __init__(self, gzip: bool) -> None:
        self._gzip = gzip
        self._inflate = zlib.decompressobj(31) if gzip else None
        self._head = b""
        self._members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._inflate is None:
                if self._gzip:
                    self._inflate = self._next_member(data)
                    if self._inflate is None:
                        return
                else:
                    self._head += data
                    if len(self._head) < 2:
                        return
                    data, self._head = self._head, b""
                    self._inflate = zlib.decompressobj(15 if _zlib_header(data) else -15)
            inflate = self._inflate
            if inflate.eof:
                raise Broken("data after the end of the stream")
            try:
                piece = inflate.decompress(data, _PIECE)
            except zlib.error as wrong:
                raise Broken(str(wrong)) from None
            if piece:
                yield piece
            if inflate.eof:
                self._members += 1
                data = inflate.unused_data
                if self._gzip:
                    self._inflate = None
            else:
                data = inflate.unconsumed_tail
                if not data and len(piece) == _PIECE:
                    # The output limit can be met with the input used up and more still inside.
                    yield from self._rest(inflate)

    def _rest(self, inflate: zlib._Decompress) -> Iterator[bytes]:
        while True:
            try:
                piece = inflate.decompress(b"", _PIECE)
            except zlib.error as wrong:
                raise Broken(str(wrong)) from None
            if piece:
                yield piece
            if len(piece) < _PIECE:
                break
        if inflate.eof:
            self._members += 1
            if self._gzip:
                self._inflate = None

    def _next_member(self, data: bytes) -> zlib._Decompress | None:
        if not data.strip(b"\0"):
            return None  # zero padding after the last member is allowed
        return zlib.decompressobj(31)

    def complete(self) -> bool:
        if self._gzip:
            return self._members > 0 and self._inflate is None
        return self._inflate is not None and self._inflate.eof


def _zlib_header(data: bytes) -> bool:
    return data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0


class _Zstd:
    def __init__(self) -> None:
        self._frame = self._new()
        self._begun = False
        self._frames = 0

    @staticmethod
    def _new() -> zstd.ZstdDecompressor:
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data or not self._frame.needs_input:
            self._begun = True
            try:
                piece = self._frame.decompress(data, _PIECE)
            except (zstd.ZstdError, EOFError) as wrong:
                raise Broken(str(wrong)) from None
            data = b""
            if piece:
                yield piece
            if self._frame.eof:
                self._frames += 1
                data = self._frame.unused_data
                self._frame, self._begun = self._new(), False

    def complete(self) -> bool:
        return self._frames > 0 and not self._begun


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        if data and self._stream.is_finished():
            raise Broken("data after the end of the stream")
        while True:
            try:
                piece = self._stream.process(data, output_buffer_limit=_PIECE)
            except brotli.error as wrong:
                raise Broken(str(wrong)) from None
            data = b""
            if piece:
                yield piece
            # It says that it can take more while it still holds output: only an empty piece is the end of it.
            if self._stream.is_finished() or (not piece and self._stream.can_accept_more_data()):
                return

    def complete(self) -> bool:
        return bool(self._stream.is_finished())


_STAGES: dict[str, Callable[[], _Stage]] = {
    "gzip": lambda: _Zlib(gzip=True),
    "x-gzip": lambda: _Zlib(gzip=True),
    "deflate": lambda: _Zlib(gzip=False),
    "zstd": _Zstd,
    "br": _Brotli,
}


def named(values: Iterable[str]) -> tuple[str, ...]:
    """The codings that Content-Encoding lines name, in the order applied; `identity` is none."""
    codings = [coding.strip().lower() for value in values for coding in value.split(",")]
    return tuple(coding for coding in codings if coding and coding != "identity")


class Decoder:
    """One body, decoded as it comes. `codings` in the order applied, `limit` in bytes after every step of decoding."""

    def __init__(self, codings: Sequence[str], limit: int) -> None:
        """Raises `Broken` for a coding that is not known here."""
        for coding in codings:
            if coding not in _STAGES:
                raise Broken(f"unknown coding {coding!r}")
        self._stages = [_STAGES[coding]() for coding in reversed(codings)]
        self._left = [limit] * len(self._stages)
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """What `data` decodes to, in pieces. Raises `Broken` or `TooLarge`; the decoder is of no use after that."""
        pieces: Iterable[bytes] = (data,)
        for position, stage in enumerate(self._stages):
            pieces = self._through(position, stage, pieces)
        return list(pieces)

    def _through(self, position: int, stage: _Stage, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            for out in stage.feed(piece):
                self._left[position] -= len(out)
                if self._left[position] < 0:
                    raise TooLarge(f"more than {self._limit} bytes")
                yield out

    def close(self) -> None:
        """Say that the body has ended. Raises `Broken` if a stream inside it had not."""
        if not all(stage.complete() for stage in self._stages):
            raise Broken("the data ends early")


def decode(body: bytes, codings: Sequence[str], limit: int) -> bytes:
    """All of `body` decoded. Raises `Broken` or `TooLarge`."""
    decoder = Decoder(codings, limit)
    view = memoryview(body)
    pieces: list[bytes] = []
    for start in range(0, len(body), _PIECE):
        pieces += decoder.feed(bytes(view[start : start + _PIECE]))
    decoder.close()
    return b"".join(pieces)
