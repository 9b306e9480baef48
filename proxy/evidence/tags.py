"""The grammar of machine tags, version 1: written, and read back. Specified in docs/tags.md.

Here live keys, signatures, the frame of a tagged return, the head of its entries, and picture labels. Text in, values
out; only the standard library, so that `proxy.tagging` stays light enough for any tool.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

#: Where a tagged return and a picture's tag begin: cheap to look for before anything else is.
RETURN_OPENS: Final = "[evidence "
PICTURE_OPENS: Final = "[picture "

#: So many of them are looked at before all of a text is searched.
_BRACKETS: Final = 64

#: 128 bits as decimal digits: in o200k_base 13 tokens, where base64 takes 15 to 20.
DIGITS: Final = 39
SHORTEST_KEY: Final = 16

JOINT: Final = " | "
#: What is trimmed where an entry ends: everything that a client may trim, in Python or in JavaScript.
BLANK: Final = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

_HEADER = re.compile(r"\[evidence 1 ([0-9]{39}) (none|[1-9][0-9]{0,8}(?: [1-9][0-9]{0,8})*)\](\n|\Z)?")
_LABEL = re.compile(r"(?P<words>\[[^\n]*) \[picture 1 (?P<tag>[0-9]{39})\]", re.ASCII)
_POSITION = re.compile(r"Picture ([1-9][0-9]{0,5}) of ([1-9][0-9]{0,5}), found by a tool")
_LONE_JOINT = re.compile(r"(?<!\S)\|(?!\S)")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def holds(text: str, opens: str) -> bool:
    """Whether one of these stands in a text. Brackets are few, and found much faster than words are."""
    at = text.find("[")
    for _ in range(_BRACKETS):
        if at < 0 or text.startswith(opens, at):
            return at >= 0
        at = text.find("[", at + 1)
    return at >= 0 and text.find(opens, at) >= 0


Fault = Literal["truncated", "signature", "malformed", "version"]


class Keys:
    """The keys that tags are signed with: the first one signs, all of them verify. Their values are never shown."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[str | bytes]) -> None:
        """Keys of at least 16 bytes each; text counts as UTF-8. Raises ValueError, which does not repeat them."""
        given = [key.strip().encode() if isinstance(key, str) else key for key in keys]
        if not given:
            raise ValueError("expected at least one tag key")
        if any(len(key) < SHORTEST_KEY for key in given):
            raise ValueError(f"expected tag keys of at least {SHORTEST_KEY} bytes each, but one is shorter")
        self._keys = tuple(dict.fromkeys(given))

    @classmethod
    def parse(cls, text: str) -> Keys:
        """Keys out of a list with commas or line breaks between them. Raises ValueError as the constructor does."""
        return cls(key for key in re.split(r"[,\r\n]", text) if key.strip())

    @classmethod
    def made(cls) -> Keys:
        """A new key that nobody else has."""
        return cls([secrets.token_hex(32)])

    def sign(self, message: tuple[bytes, bytes]) -> str:
        """The tag of a message (of two pieces), by the first key."""
        return _tag(self._keys[0], message)

    def fits(self, tag: str, message: tuple[bytes, bytes]) -> bool:
        """Whether any of the keys signed this message with this tag (39 decimal digits)."""
        return any(hmac.compare_digest(_tag(key, message).encode(), tag.encode()) for key in self._keys)

    def __repr__(self) -> str:
        return f"Keys({len(self._keys)}, not shown)"

    def __reduce__(self) -> str:
        raise TypeError("tag keys are not copied out of the process")


def _tag(key: bytes, message: tuple[bytes, bytes]) -> str:
    # Two updates instead of one copy: a return may be megabytes.
    state = hmac.new(key, message[0], "sha256")
    state.update(message[1])
    return f"{int.from_bytes(state.digest()[:16]):0{DIGITS}d}"


def return_message(lengths: str, text: str) -> tuple[bytes, bytes]:
    """What a return's tag signs, in two pieces. Raises UnicodeEncodeError where the text holds lone surrogates."""
    return f"evidence 1\n{lengths}\n".encode(), text.encode()


def picture_message(words: str, picture: bytes) -> tuple[bytes, bytes]:
    """What a label's tag signs: the digest of the picture's decoded bytes, and the label's words."""
    return b"picture 1\n" + hashlib.sha256(picture).digest(), words.encode("utf-8", "surrogatepass")


# Fields and heads.


def is_plain(text: str) -> bool:
    """Whether a text may stand in a head as it is. Quick, and nearly always true; the rest is looked at closely."""
    return (
        text.isprintable()  # of all white space and surrogates only the space is
        and "|" not in text
        and "  " not in text
        and text[:1] != " "
        and text[-1:] != " "
    )


def field(text: str) -> str:
    """A text as it may stand in a head: on one line, white space single, no joint in it."""
    if is_plain(text):
        return text
    flat = " ".join(_SURROGATE.sub("\ufffd", text).translate(_SEPARATORS).split())
    return _LONE_JOINT.sub("/", flat)


_SEPARATORS = {ord(blank): " " for blank in BLANK}


def chunk_id(text: str) -> str:
    """An id as it may stand in a head. Raises ValueError where it could not be read back as it is."""
    if 0 < len(text) <= 500 and "] " not in text and "|" not in text and field(text) == text:
        return text
    said = text if len(text) <= 80 else text[:77] + "..."
    raise ValueError(
        f"{said!r} cannot be a chunk's id: expected 1 to 500 characters on one line, without white space at its ends "
        'or twice in a row, and without "|" or "] "'
    )


def reference(text: str) -> str:
    """A picture's reference as it may stand in a list of them, with commas between."""
    return field(text).replace(",", ";")


@dataclass(frozen=True, slots=True)
class Head:
    """What an entry's first line, or a label, says."""

    id: str
    source: str | None = None
    named: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> str | None:
        return next((value for known, value in self.named if known == name), None)


def write_head(chunk_id: str, source: str | None, named: Iterable[tuple[str, str | None]]) -> str:
    """`[id] source | Name: value | ...`, of an id and fields that are normalised already."""
    line = f"[{chunk_id}] {source}" if source else f"[{chunk_id}]"
    for name, value in named:
        if value:
            line += f"{JOINT}{name}: {value}"
    return line


def read_head(line: str) -> Head | None:
    """What a head says; None where it is none."""
    if line[:1] != "[":
        return None
    end = line.find("] ")
    if end < 0:
        return Head(line[1:-1]) if line.endswith("]") and len(line) > 2 else None
    rest = line[end + 2 :]
    if "| " not in rest:
        return Head(line[1:end], rest or None)
    source, *fields = f" {rest}".split(JOINT)
    named = [found for one in fields if (found := one.partition(": "))[1]]
    return Head(line[1:end], source[1:] or None, tuple((name, value) for name, _, value in named))


# Returns.


def seal(heads: Sequence[str], contents: Sequence[str], keys: Keys) -> str:
    """The tagged return of entries by their heads and contents, which hold no lone surrogates and end in no blank."""
    if not heads:
        return f"[evidence 1 {keys.sign(return_message('none', ''))} none]"
    lengths: list[str] = []
    pieces: list[str] = []
    for head, content in zip(heads, contents, strict=True):
        if content:
            lengths.append(str(len(head) + 1 + len(content)))
            pieces += (head, "\n", content, "\n\n")
        else:
            lengths.append(str(len(head)))
            pieces += (head, "\n\n")
    pieces.pop()
    cut, text = " ".join(lengths), "".join(pieces)
    return f"[evidence 1 {keys.sign(return_message(cut, text))} {cut}]\n{text}"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A return whose signature fits: its tag, what is signed with the lengths that cut it, and where it ends."""

    tag: str
    text: str
    lengths: tuple[int, ...]
    end: int

    def entries(self) -> list[str]:
        """Heads with contents."""
        found: list[str] = []
        at = 0
        for length in self.lengths:
            found.append(self.text[at : at + length])
            at += length + 2
        return found


@dataclass(frozen=True, slots=True)
class Broken:
    """What begins like a tagged return and is none."""

    fault: Fault


def unseal(text: str, at: int, keys: Keys) -> Sealed | Broken:
    """Read the tagged return that begins at an offset of a text."""
    header = _HEADER.match(text, at)
    if header is None:
        known = text.startswith("1 ", at + len(RETURN_OPENS))
        return Broken("malformed" if known else "version")
    tag, lengths = header[1], header[2]
    if lengths == "none":
        fits = keys.fits(tag, return_message(lengths, ""))
        return Sealed(tag, "", (), header.end()) if fits else Broken("signature")
    if header[3] != "\n":
        return Broken("truncated" if header.end() == len(text) else "malformed")
    sizes = tuple(map(int, lengths.split(" ")))
    start = header.end()
    end = start + sum(sizes) + 2 * (len(sizes) - 1)
    if end > len(text):
        return Broken("truncated")
    for size in sizes:
        if text[start] != "[":
            return Broken("malformed")
        start += size + 2
    signed = text[header.end() : end]
    try:
        message = return_message(lengths, signed)
    except UnicodeEncodeError:
        return Broken("signature")
    return Sealed(tag, signed, sizes, end) if keys.fits(tag, message) else Broken("signature")


# Labels.


@dataclass(frozen=True, slots=True)
class Label:
    """What the line before a retrieved picture says. Whether it is ours, only the picture's bytes can tell."""

    words: str
    tag: str
    chunk_id: str
    reference: str | None = None
    collection: str | None = None
    start: int = 0
    end: int = 0


def write_label(
    chunk_id: str, position: int, total: int, reference: str | None, collection: str | None, picture: bytes, keys: Keys
) -> str:
    """The label of a picture (its decoded bytes), of an id and fields that are normalised already."""
    named = (("Reference", reference), ("Collection", collection))
    words = write_head(chunk_id, f"Picture {position} of {total}, found by a tool", named)
    return f"{words} [picture 1 {keys.sign(picture_message(words, picture))}]"


def read_label(text: str) -> Label | None:
    """The label that a text is, white space around it aside; None where it is anything else or more."""
    if PICTURE_OPENS not in text:
        return None
    start = len(text) - len(text.lstrip(BLANK))
    found = label_at(text, start)
    return found if found is not None and not text[found.end :].strip(BLANK) else None


def label_at(text: str, at: int) -> Label | None:
    """The label that begins at an offset of a text, up to its first tag."""
    end = text.find(PICTURE_OPENS, at)
    found = _LABEL.match(text, at, end + len(PICTURE_OPENS) + DIGITS + 3) if end >= 0 else None
    head = read_head(found["words"]) if found is not None else None
    if found is None or head is None or not _POSITION.fullmatch(head.source or ""):
        return None
    names = [name for name, _ in head.named]
    if names != [name for name in ("Reference", "Collection") if name in names]:
        return None
    return Label(
        words=found["words"],
        tag=found["tag"],
        chunk_id=head.id,
        reference=head.get("Reference"),
        collection=head.get("Collection"),
        start=at,
        end=found.end(),
    )


def label_fits(label: Label, picture: bytes, keys: Keys) -> bool:
    """Whether a label was signed for exactly these bytes of a picture."""
    return keys.fits(label.tag, picture_message(label.words, picture))
