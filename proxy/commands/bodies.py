"""Requests in files: one body, a log with one on each line, or a directory of either.

A body stays the bytes that stand in the file. Which API it is of is told by a path that stands beside it, else by
what it holds.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.wire.messages import NotJson, Span
from proxy.wire.spans import members, value_end

#: Under which names a log line holds the body, and the path that it was sent to.
_BODY = ("body", "request", "request_body")
_PATH = ("path", "url", "endpoint", "target")


class NoFile(Exception):
    """What was named cannot be read. `str()` is for the person who named it."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body, where it came from, and its API; None where it is no request of any."""

    name: str
    raw: bytes
    api: str | None


def one(name: str) -> Body:
    """The body in a file, or on standard input where the name is `-`. Raises NoFile."""
    if name == "-":
        return of("-", sys.stdin.buffer.read())
    return of(name, _read(Path(name)))


def every(path: Path) -> list[tuple[str, Path, Span | None]]:
    """Where all bodies of a log stand, in order: name, file, and the bytes of the line (None: the whole file).

    A directory's `.json` and `.jsonl` files are taken in natural order, `-2` before `-10`. Raises NoFile.
    """
    if path.is_dir():
        files = sorted((f for f in path.rglob("*.json*") if f.suffix in (".json", ".jsonl")), key=_natural)
        if not files:
            raise NoFile(f"{path}: no .json or .jsonl file stands in this directory or below it")
    elif path.exists():
        files = [path]
    else:
        raise NoFile(f"{path}: no such file or directory")
    return [place for file in files for place in _places(file)]


def load(place: tuple[str, Path, Span | None]) -> Body:
    """The body at a place that `every` told. Raises NoFile."""
    name, file, line = place
    if line is None:
        return of(name, _read(file))
    with file.open("rb") as log:
        log.seek(line.start)
        return of(name, log.read(line.end - line.start))


def of(name: str, raw: bytes) -> Body:
    """A body, or the one that a log line holds beside other things, with its API."""
    raw = raw.strip()
    found = _members(raw)
    if "messages" in found or "input" in found:
        return Body(name, raw, _api(found, _text(raw, found, _PATH)))
    for key in _BODY:
        if key in found:
            inner = raw[found[key].start : found[key].end]
            if inner.startswith(b'"'):
                try:
                    inner = json.loads(inner).encode("utf-8", "surrogatepass")
                except ValueError:
                    break
            return Body(name, inner, _api(_members(inner), _text(raw, found, _PATH)))
    return Body(name, raw, None)


def _places(file: Path) -> Iterator[tuple[str, Path, Span | None]]:
    if file.suffix != ".jsonl":
        yield str(file), file, None
        return
    at = 0
    try:
        with file.open("rb") as log:
            for number, line in enumerate(log, 1):
                if line.strip():
                    yield f"{file}:{number}", file, Span(at, at + len(line))
                at += len(line)
    except OSError as failed:
        raise NoFile(f"{file}: cannot be read ({failed.strerror or type(failed).__name__})") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except IsADirectoryError:
        raise NoFile(f"{file} is a directory; expected a file with one request body (`replay` takes many)") from None
    except OSError as failed:
        raise NoFile(f"{file}: cannot be read ({failed.strerror or type(failed).__name__})") from None


def _members(raw: bytes) -> dict[str, Span]:
    """Where the members of a JSON object stand; none where it is no such thing."""
    text = raw.decode("latin-1")
    found: dict[str, Span] = {}
    walk = members(text, 0)
    try:
        key, at = next(walk)
        while True:
            end = value_end(text, at)
            found[key] = Span(at, end)
            key, at = walk.send(end)
    except StopIteration:
        return found
    except NotJson:
        return {}


def _text(raw: bytes, found: dict[str, Span], names: tuple[str, ...]) -> str:
    for name in names:
        if name in found:
            value: Any = json.loads(raw[found[name].start : found[name].end].decode("utf-8", "replace"))
            if isinstance(value, str):
                return value
    return ""


def _api(found: dict[str, Span], path: str) -> str | None:
    plain = path.partition("?")[0].rstrip("/")
    if plain.endswith("/chat/completions"):
        return "chat"
    if plain.endswith("/responses"):
        return "responses"
    return "chat" if "messages" in found else "responses" if "input" in found else None


def _natural(path: Path) -> list[tuple[int, int | str]]:
    return [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in re.split(r"(\d+)", str(path)) if piece]
