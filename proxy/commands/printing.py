"""What may be printed: text of strangers, made harmless for a terminal, and figures as people read them."""

from __future__ import annotations

import re
import sys
from typing import IO

from rich.console import Console

#: What moves a cursor, rings a bell or changes colours (C0, C1 and DEL but for line feed and tab), and what changes
#: the direction of a line, or hides in it (Unicode TR 36): a document must not decide how a terminal looks.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BARS = "▁▂▃▄▅▆▇█"


def plain(text: str) -> str:
    """The text with everything that a terminal would obey written out (`\\x1b`, `\\u202e`)."""
    return _SURROGATE.sub(_written, _UNSAFE.sub(_written, text.replace("\r\n", "\n")))


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def short(text: str, most: int) -> str:
    """One line of it, cut where it is longer than `most`."""
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def less(before: int, after: int) -> str:
    """By how much something shrank, or grew."""
    if not before:
        return "0%"
    share = 100 * (before - after) / before
    digits = 0 if abs(share) >= 10 else 1
    return f"{share:.{digits}f}% less" if share >= 0 else f"{-share:.{digits}f}% more"


def bars(values: list[int], top: int) -> str:
    """A line of bars, each against `top`."""
    return "".join(_BARS[min(len(_BARS) - 1, value * len(_BARS) // top)] if top else _BARS[0] for value in values)


def console(out: IO[str] | None = None) -> Console:
    """A console on standard output (or another stream). Without a terminal it is wide, since nobody wraps a file."""
    stream = out or sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160, soft_wrap=False)
