"""How many tokens the demo's requests have: counted as the running proxy counts them."""

from __future__ import annotations

from proxy.visibility.tokens import Counter
from proxy.visibility.vocabularies import chosen
from proxy.wire import chat


class TokenCount:
    """Counts a request's tokens. `label` says by which vocabulary."""

    def __init__(self) -> None:
        self.label = chosen(None).name
        self._counter = Counter()

    def of(self, body: bytes) -> int:
        """The tokens of a request body: its messages' text and calls, and its pictures."""
        return self._counter.of(chat.cut(body)).total
