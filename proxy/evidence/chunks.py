"""What a return holds: chunks and pictures, as values with an identity."""

from __future__ import annotations

import hashlib

import msgspec

from proxy.wire.messages import Part, Text


def digest_text(*texts: str) -> bytes:
    """16 bytes that stand for these texts, each framed by its length."""
    state = hashlib.sha256()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.digest()[:16]


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One citable piece of an evidence return.

    `source` is the source line as the model saw it, without its heading word; `content` exactly what it was shown.
    `details` are further fields that stood beside the content (JSON text), part of what an answer may rest on.
    `part` is the index of the part it was read from. `names` are the title and the address of its source, each alone:
    what a citation may name instead of the id. `document` is the id of the document that it is of, `pictures` the
    references of that document's pictures which it shows.
    """

    id: str
    content: str
    source: str | None = None
    collection: str | None = None
    details: str | None = None
    part: int = 0
    names: tuple[str, ...] = ()
    document: str | None = None
    pictures: tuple[str, ...] = ()

    @property
    def digest(self) -> bytes:
        return digest_text(self.content, self.details or "")


class OwnedPicture(msgspec.Struct, frozen=True):
    """A picture inside a return: the how-manieth of its message, whose it is, and the reference its label named."""

    nth: int
    chunk_id: str | None
    reference: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """An evidence return, read. `whole` is set where citing an id out of it retains all of its text; `readable` is
    not where it looks like a format that it does not hold to, or holds what is neither text nor picture: it stays."""

    chunks: tuple[Chunk, ...]
    text: str
    pictures: tuple[OwnedPicture, ...] = ()
    whole: bool = False
    readable: bool = True

    def shows(self, chunk_id: str) -> bool:
        """Whether the id stands literally in the text (as a token of its own, not inside a longer one)."""
        return stands_in(chunk_id, self.text)

    def shows_ids(self) -> bool:
        """Whether the model could cite anything of it."""
        return bool(self.chunks) or self.whole


def _inside_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def stands_in(token: str, text: str) -> bool:
    """Whether `token` stands in `text` on its own: not as a part of a longer word or number."""
    if not token:
        return False
    at = text.find(token)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(token) : at + len(token) + 1]
        if not (before and _inside_word(before) and _inside_word(token[0])) and not (
            after and _inside_word(after) and _inside_word(token[-1])
        ):
            return True
        at = text.find(token, at + 1)
    return False


def text_of(parts: tuple[Part, ...]) -> str:
    """All text of a return, its parts on lines of their own."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))
