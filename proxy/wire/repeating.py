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
        self._held: list[str] = []
        self._bare_held = ""
        self._at = 0  # where in what was said all that is held stands
        self._over = not self._bare

    def feed(self, text: str) -> str:
        """What of this piece, and of those that were held, the client does not have yet."""
        if self._over:
            return text
        self._held.append(text)
        fresh = _SPACE.sub("", text)
        if self._bare.startswith(fresh, self._at + len(self._bare_held)):
            self._bare_held += fresh
            return ""
        self._bare_held += fresh
        self._at = self._bare.find(self._bare_held, self._at)
        if self._at >= 0:
            return ""
        self._over = True
        held = "".join(self._held)
        known = self._continued(self._bare_held)
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
        size = _overlap(self._bare, bare)
        return size if size >= _LONG_ENOUGH else 0


def _overlap(before: str, after: str) -> int:
    """The length of the longest end of one text that another begins with.

    By the borders of its beginnings (Knuth, Morris, Pratt), since a model may say a long answer again.
    """
    borders = [0] * len(after)
    matched = 0
    for at in range(1, len(after)):
        while matched and after[at] != after[matched]:
            matched = borders[matched - 1]
        matched += after[at] == after[matched]
        borders[at] = matched
    matched = 0
    for character in before[-len(after) :]:
        while matched and (matched == len(after) or character != after[matched]):
            matched = borders[matched - 1]
        matched += character == after[matched]
    return matched


def _after(text: str, count: int) -> str:
    """The text after so many characters that are no white space."""
    for at, character in enumerate(text):
        if count == 0:
            return text[at:]
        if not character.isspace():
            count -= 1
    return ""
