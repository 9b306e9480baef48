"""Whether a request can hold anything that is ours, by one pass over its bytes that builds hardly anything.

Most requests of most users hold no return of a tool: nothing of them is evidence, whatever the tables say. A typed
pass that wants only who speaks finds that out at several gigabytes a second, and gives up at the first call; it also
proves that the body is JSON. In doubt it says nothing, and the body is cut as ever.
"""

from __future__ import annotations

import codecs
from typing import Generic, TypeVar

import msgspec

from proxy.wire.bodies import refuse_dust
from proxy.wire.messages import NotJson

Top = TypeVar("Top", bound=msgspec.Struct)

_PIECE = 1 << 18


class Glancer(Generic[Top]):
    """Looks at bodies by a struct that names what no request may hold, beside what is wanted of one that does not."""

    def __init__(self, top: type[Top]) -> None:
        self._top = msgspec.json.Decoder(top)

    def look(self, body: bytes) -> Top | None:
        """What is wanted of a body; None where it must be cut to know more, or where it may be no JSON."""
        try:
            refuse_dust(body)
            found = self._top.decode(body)
            _refuse_other_text(body)
        except (NotJson, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return found


def _refuse_other_text(body: bytes) -> None:
    """Raises UnicodeDecodeError where a body is not UTF-8: the pass does not look into texts that nobody wants."""
    if body.isascii():
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(body)
    for at in range(0, len(body), _PIECE):
        decoder.decode(view[at : at + _PIECE], at + _PIECE >= len(body))
