"""How many tokens a request has: its texts as tiktoken counts them, its pictures as OpenAI's rules estimate them.

Counted is what its messages hold: every text, the names and arguments of calls, and any other part as JSON. What the
proxy never changes besides (tool definitions, the marks between messages) is not. Pure, but for what it remembers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from proxy.gateway.recent import Recent
from proxy.visibility import pictures, vocabularies
from proxy.wire.messages import Message, OtherPart, Picture, Request, Text

_MOST_TEXTS = 50_000
_MOST_PICTURES = 10_000
#: Shorter texts are counted sooner than they are recognised.
_SHORT = 48


@dataclass(frozen=True, slots=True)
class Tokens:
    """`text` is counted; `pictures` is an estimate. `known` says whether the text was counted by the model's own
    vocabulary; where it was not, it is an estimate, too."""

    text: int
    pictures: int = 0
    known: bool = True

    @property
    def total(self) -> int:
        return self.text + self.pictures


class Counter:
    """Counts requests, and remembers what it counted by digests of the content. Safe to use from threads."""

    def __init__(self) -> None:
        self._texts: Recent[bytes, int] = Recent(_MOST_TEXTS)
        self._sizes: Recent[bytes, tuple[pictures.Size | None]] = Recent(_MOST_PICTURES)

    def of(self, request: Request, model: str | None = None) -> Tokens:
        """The tokens of a request's messages, for its own model or the one named. Raises BrokenVocabulary."""
        model = request.model or model
        name, known = vocabularies.chosen(model)
        return Tokens(
            text=sum(self.of_text(text, name) for text in texts(request)),
            pictures=sum(self.of_picture(picture, model) for picture in _pictures(request)),
            known=known,
        )

    def of_text(self, text: str, encoding: str) -> int:
        """The tokens of one text. What looks like a special token in it is text. Raises BrokenVocabulary."""
        encode = vocabularies.encoding(encoding).encode_ordinary
        if len(text) < _SHORT:
            return len(encode(text))
        key = _digest(encoding, text)
        count = self._texts.get(key)
        if count is None:
            count = len(encode(text))
            self._texts.put(key, count)
        return count

    def of_picture(self, picture: Picture, model: str | None) -> int:
        """About how many tokens a picture counts for."""
        key = _digest("picture", picture.url)
        known = self._sizes.get(key)
        if known is None:
            known = (pictures.size_of(picture.url),)
            self._sizes.put(key, known)
        return pictures.tokens(known[0], model, picture.detail)


def texts(request: Request) -> Iterator[str]:
    """Every text of a request's messages, in order."""
    for message in request.messages:
        yield from _texts(message)


def _texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Text):
            yield part.text
        elif isinstance(part, OtherPart):
            yield json.dumps(part.value, ensure_ascii=False)
    for call in message.calls:
        yield call.name
        yield call.arguments


def _pictures(request: Request) -> Iterator[Picture]:
    for message in request.messages:
        yield from message.pictures()


def _digest(kind: str, text: str) -> bytes:
    # Processors know SHA-256: of a large text it takes half as long as BLAKE2 does.
    state = hashlib.sha256(kind.encode() + b"\0")
    state.update(text.encode("utf-8", "surrogatepass"))
    return state.digest()[:16]
