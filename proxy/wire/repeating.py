"""What a further reply repeats of text that the client has already: found as it streams, so that it is not sent twice.

White space does not count, since models break lines anew when they say a thing again.
"""

from __future__ import annotations

import re

_SPACE = re.compile(r"\s+")
#: A repetition may begin inside what was said (after "Let me look."), if so many characters of it come again.
_LONG_ENOUGH = 16
#: What stands between two texts that a reader would otherwise see run together.
_APART = "\n\n"


class Repeating:
    """Feed it a further reply's text piece by piece; it gives what is new. `said` is what the client has.

    While everything so far stands in what was said it is held, since it may be a repetition. What goes on from the
    end of what was said is given without it; anything else is given whole, and apart from it.
    """

    def __init__(self, said: str) -> None:
        self._said = said
        self._bare = _SPACE.sub("", said)
        self._held = ""
        self._over = not self._bare

    def feed(self, text: str) -> str:
        """What of this piece, and of those that were held, the client does not have yet."""
        if self._over:
            return text
        self._held += text
        bare = _SPACE.sub("", self._held)
        if bare in self._bare:
            return ""
        self._over = True
        held, self._held = self._held, ""
        known = self._continued(bare)
        if known:
            return _after(held, known)
        apart = "" if self._said[-1:].isspace() or held[:1].isspace() else _APART
        return apart + held

    @property
    def holds(self) -> bool:
        """Whether all that was said is a repetition so far."""
        return not self._over

    def _continued(self, bare: str) -> int:
        """How many characters at the beginning of a text are what was said to its end; 0 where it says another."""
        if bare.startswith(self._bare):
            return len(self._bare)
        for size in range(min(len(self._bare), len(bare)) - 1, _LONG_ENOUGH - 1, -1):
            if self._bare.endswith(bare[:size]):
                return size
        return 0


def _after(text: str, count: int) -> str:
    """The text after so many characters that are no white space."""
    for at, character in enumerate(text):
        if count == 0:
            return text[at:]
        if not character.isspace():
            count -= 1
    return ""
