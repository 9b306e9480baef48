"""Tagged evidence on the wire: found by its signature, in whatever clients made of it, and read.

A return may come as it was written, as one of several text parts, inside a JSON string or a Python `repr` (wrapped in
`{"result": ...}`, in a list of parts, in a string inside a string), or with other text joined to it. Nothing is taken
for ours but what a key signed: what cannot be verified is plain text.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from proxy.evidence import tags
from proxy.evidence.chunks import Chunk, Evidence, OwnedPicture, text_of
from proxy.evidence.pictures import picture_bytes
from proxy.evidence.tags import Broken, Keys, Label, Sealed
from proxy.wire.messages import Beside, Part, Picture, Text

Failure = Literal["truncated", "signature", "malformed", "version", "picture"]

_DEEPEST: Final = 4
_JSON_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_PYTHON_TEXT = re.compile(
    r"""(?<!\w)([rbuRBU]{0,2})('[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*")""", re.DOTALL
)
_WRAPPED = re.compile(r"[\[{(\"']|[A-Za-z_][\w.]*\(")
_COLON = re.compile(r"\s*:")
_KEY_BEFORE = re.compile(r"""(?:["']?([A-Za-z_]\w*)["']?\s*[:=]\s*)\Z""")
#: What a wrapper may say beside what it wraps without saying anything: kinds of parts and of files.
_SAYS_NOTHING = frozenset(
    {"type", "kind", "role", "format", "mimetype", "mime_type", "mediatype", "media_type", "detail", "block_type"}
)
_EMPTY_FIELD = re.compile(r"""["']?is_?error["']?\s*[:=]\s*false|\b(?:null|None)\b""", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][\w.]*\s*[(=:]|[\[\]{}(),:\s]+")


def _ignore(_: Failure) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Proof:
    """What tells our tags from others: keys. `failed` hears of tags that do not fit, and why.

    `registered` has whole returns by their tag, so that one which a host cut short can be told by what is left of it.
    """

    keys: Keys
    failed: Callable[[Failure], None] = _ignore
    registered: Mapping[str, str] = field(default_factory=dict)


def is_ours(proof: Proof, parts: tuple[Part, ...]) -> bool:
    """Whether a return holds a tagged one that a key of ours signed."""
    return any(
        leaf.sealed is not None
        for part in parts
        if isinstance(part, Text) and tags.holds(part.text, tags.RETURN_OPENS)
        for leaf in _Opened(proof, part.text, proof.failed).leaves()
    )


def read(proof: Proof, parts: tuple[Part, ...]) -> Evidence:
    """The chunks of a return's tagged text, and the pictures that its labels prove to be theirs."""
    return _Return(proof, parts).evidence()


def broken_tags(proof: Proof, parts: tuple[Part, ...]) -> Iterator[str]:
    """The tags of what begins like a tagged return but does not fit: a whole return may be registered under each."""
    for part in parts:
        if isinstance(part, Text) and tags.holds(part.text, tags.RETURN_OPENS):
            for leaf in _Opened(proof, part.text, _ignore).leaves():
                if leaf.sealed is None and (tag := leaf.tag_claimed()) is not None:
                    yield tag


def tags_of(proof: Proof, parts: tuple[Part, ...]) -> list[str]:
    """The tags of what is signed in a return."""
    return [
        leaf.sealed.tag
        for part in parts
        if isinstance(part, Text) and tags.holds(part.text, tags.RETURN_OPENS)
        for leaf in _Opened(proof, part.text, _ignore).leaves()
        if leaf.sealed is not None
    ]


def put(proof: Proof, parts: tuple[Part, ...], text: str) -> tuple[str, Beside]:
    """A text to stand in place of what is tagged in a return, and what stays beside it."""
    return _Return(proof, parts).put(text)


@dataclass(frozen=True, slots=True)
class Attached:
    """A picture of ours in a user message: which one of its pictures, its label, and the indexes of both parts."""

    nth: int
    label: Label
    parts: tuple[int, int]


def attached(proof: Proof, parts: tuple[Part, ...]) -> list[Attached]:
    """The pictures of a user message that are ours: a label stands directly before, and is signed for these bytes."""
    found: list[Attached] = []
    nth = -1
    for index, part in enumerate(parts):
        if not isinstance(part, Picture):
            continue
        nth += 1
        before = parts[index - 1] if index else None
        label = tags.read_label(before.text) if isinstance(before, Text) else None
        if label is not None and _fits(proof, label, picture_bytes(part.url)):
            found.append(Attached(nth, label, (index - 1, index)))
    return found


def owners(label: Label, chunks: list[Chunk] | tuple[Chunk, ...]) -> list[str]:
    """The ids of the chunks that show a picture: the one that its label names, and others of the same document."""
    of = {chunk.document for chunk in chunks if chunk.id == label.chunk_id and chunk.collection == label.collection}
    return list(
        dict.fromkeys(
            [label.chunk_id]
            + [
                chunk.id
                for chunk in chunks
                if label.reference in chunk.pictures
                and chunk.document is not None
                and chunk.document in of
                and chunk.collection == label.collection
            ]
        )
    )


def _fits(proof: Proof, label: Label, picture: bytes | None) -> bool:
    if picture is not None and tags.label_fits(label, picture, proof.keys):
        return True
    proof.failed("picture")
    return False


# A text, opened.


@dataclass(slots=True)
class _Leaf:
    """A text that stands for itself: a whole part, or a string in a wrapper. `stays` is what is left of it once what
    is ours is gone; None where nothing of it is ours."""

    value: str
    start: int = 0
    end: int = 0
    key: str | None = None
    inner: _Opened | None = None
    sealed: Sealed | None = None
    stays: str | None = None

    def tag_claimed(self) -> str | None:
        found = re.match(r"\s*\[evidence 1 ([0-9]{39}) ", self.value)
        return found[1] if found else None


class _Opened:
    """A text with its leaves: itself, or the strings of the JSON or `repr` that it is."""

    def __init__(self, proof: Proof, text: str, failed: Callable[[Failure], None], depth: int = 0) -> None:
        self.text = text
        self.kind: Literal["plain", "json", "python"] = "plain"
        self._proof = proof
        self._failed = failed
        self._own: list[_Leaf] = []
        start = len(text) - len(text.lstrip(tags.BLANK))
        if text.startswith(tags.RETURN_OPENS, start):
            self._own = [self._unsealed(_Leaf(text, 0, len(text)), start)]
        elif depth < _DEEPEST and _WRAPPED.match(text, start) and not _is_label(text, start):
            self._own = list(self._strings(depth))
        if not self._own:
            self.kind = "plain"
            self._own = [_Leaf(text, 0, len(text))]

    def leaves(self) -> Iterator[_Leaf]:
        """Every leaf, those of strings inside strings too, in order."""
        for leaf in self._own:
            if leaf.inner is not None:
                yield from leaf.inner.leaves()
            else:
                yield leaf

    def _unsealed(self, leaf: _Leaf, at: int) -> _Leaf:
        found = tags.unseal(leaf.value, at, self._proof.keys)
        if isinstance(found, Broken):
            whole = self._registered(leaf.value, at)
            if whole is None:
                self._failed(found.fault)
                return leaf
            found = whole
        leaf.sealed = found
        leaf.stays = leaf.value[found.end :]
        return leaf

    def _registered(self, text: str, at: int) -> Sealed | None:
        """The whole return of one that was cut short: its tag is registered, and what is shown begins like it."""
        tag = text[at + len("[evidence 1 ") :][: tags.DIGITS]
        whole = self._proof.registered.get(tag)
        header = text.find("]\n", at)
        if whole is None or header < 0 or not whole.startswith(text[at : header + 2]):
            return None
        found = tags.unseal(whole, 0, self._proof.keys)
        if isinstance(found, Broken) or found.tag != tag:
            return None
        return Sealed(found.tag, found.text, found.lengths, at + _common(text[at:], whole))

    def _strings(self, depth: int) -> Iterator[_Leaf]:
        text = self.text
        try:
            json.loads(text)
            self.kind = "json"
        except (ValueError, RecursionError):
            self.kind = "python"
        for found in (_JSON_TEXT if self.kind == "json" else _PYTHON_TEXT).finditer(text):
            start, end = found.span() if self.kind == "json" else found.span(2)
            if _COLON.match(text, end):
                continue  # a key
            key = _KEY_BEFORE.search(text, max(0, start - 80), start)
            leaf = _Leaf(self._value(found[0]), found.start(), end, key[1] if key else None)
            at = len(leaf.value) - len(leaf.value.lstrip(tags.BLANK))
            if leaf.value.startswith(tags.RETURN_OPENS, at):
                self._unsealed(leaf, at)
            elif tags.RETURN_OPENS in leaf.value:
                inner = _Opened(self._proof, leaf.value, self._failed, depth + 1)
                leaf.inner = inner if inner.kind != "plain" else None
            yield leaf

    def _value(self, token: str) -> str:
        try:
            value = json.loads(token) if self.kind == "json" else ast.literal_eval(token)
        except (ValueError, SyntaxError):
            return token
        if isinstance(value, bytes):
            return value.decode("latin-1")
        return value if isinstance(value, str) else token

    def without(self, ours: str, at: _Leaf | None) -> str:
        """The text once what is ours is gone, `ours` standing where the leaf `at` did. Where a wrapper has nothing else
        to say, it goes as well."""
        pieces = [
            leaf.stays if leaf is not at else _joined(ours, leaf.stays or "")
            for leaf in self.leaves()
            if leaf.stays is not None
        ]
        if all(leaf.stays is not None or _says_nothing(leaf) for leaf in self.leaves()) and self._only_wraps():
            return "\n\n".join(piece for piece in pieces if piece.strip(tags.BLANK))
        written: list[str] = []
        done = 0
        for leaf in self._own:
            if leaf.inner is not None:
                new = leaf.inner.without(ours, at)
            elif leaf.stays is not None:
                new = _joined(ours, leaf.stays) if leaf is at else leaf.stays
            else:
                continue
            written += [self.text[done : leaf.start], self._written(new)]
            done = leaf.end
        return "".join([*written, self.text[done:]])

    def _written(self, text: str) -> str:
        if self.kind == "plain":
            return text
        return json.dumps(text, ensure_ascii=False) if self.kind == "json" else repr(text)

    def _only_wraps(self) -> bool:
        """Whether beside its strings this text has nothing but punctuation, names of fields, and empty ones."""
        if self.kind == "plain":
            return True
        if not all(leaf.inner is None or leaf.inner._only_wraps() for leaf in self._own):
            return False
        pattern = _JSON_TEXT if self.kind == "json" else _PYTHON_TEXT
        spans = [0, *(edge for leaf in self._own for edge in (leaf.start, leaf.end)), len(self.text)]
        bare = " ".join(self.text[start:end] for start, end in zip(spans[::2], spans[1::2], strict=True))
        return not _NAME.sub("", pattern.sub("", _EMPTY_FIELD.sub("", bare)))


def _is_label(text: str, at: int) -> bool:
    """Whether a text that could be a wrapper begins with a label. One that closes behind the label only holds it."""
    found = tags.label_at(text, at)
    return found is not None and text[found.end :].rstrip(tags.BLANK)[-1:] not in tuple("])}")


def _says_nothing(leaf: _Leaf) -> bool:
    return not leaf.value.strip() or (leaf.key or "").lower() in _SAYS_NOTHING


def _joined(ours: str, rest: str) -> str:
    """Our text, and what stood unsigned behind it, exactly as it was; set apart where nothing else does."""
    if not rest.strip(tags.BLANK):
        return ours
    return ours + rest if not ours or rest[0] in tags.BLANK else f"{ours}\n\n{rest}"


def _common(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


# A return, opened.


@dataclass(slots=True)
class _Item:
    """A leaf or a picture part of a message, in the order in which a reader meets them."""

    part: int
    leaf: _Leaf | None = None
    picture: Picture | None = None


class _Return:
    """A tool's message: its tagged text, its labels, its pictures, and what stays of it."""

    def __init__(self, proof: Proof, parts: tuple[Part, ...]) -> None:
        self._proof = proof
        self._parts = parts
        self._opened = {
            index: _Opened(proof, part.text, _ignore)
            for index, part in enumerate(parts)
            if isinstance(part, Text) and (tags.RETURN_OPENS in part.text or tags.PICTURE_OPENS in part.text)
        }
        self._items: list[_Item] = []
        for index, part in enumerate(parts):
            if isinstance(part, Picture):
                self._items.append(_Item(index, picture=part))
            elif index in self._opened:
                self._items += [_Item(index, leaf) for leaf in self._opened[index].leaves()]
            else:
                self._items.append(_Item(index))
        self.chunks = [chunk for item in self._items for chunk in _chunks(item)]
        self.pictures: list[OwnedPicture] = []
        self._gone: set[int] = set()  # the indexes of picture parts that are ours
        self._read_labels()

    def evidence(self) -> Evidence:
        return Evidence(chunks=tuple(self.chunks), text=text_of(self._parts), pictures=tuple(self.pictures))

    def _read_labels(self) -> None:
        nth = {index: n for n, index in enumerate(i for i, part in enumerate(self._parts) if isinstance(part, Picture))}
        for position, item in enumerate(self._items):
            leaf = item.leaf
            if leaf is None:
                continue
            labels = list(_labels(leaf))
            if not labels:
                continue
            text = leaf.stays if leaf.stays is not None else leaf.value
            last = labels[-1]
            following = self._following(position)
            raw = _raw(following) if following is not None else None
            ours = [label for label in labels[:-1] if self._names_ours(label)]
            if following is not None and raw is not None:
                # Directly before: with other words between them, neither goes.
                if not text[last.end :].strip(tags.BLANK) and _fits(self._proof, last, raw):
                    ours.append(last)
                    if following.leaf is not None:
                        following.leaf.stays = ""
                    else:
                        self._gone.add(following.part)
                        self.pictures += [
                            OwnedPicture(nth[following.part], owner, last.reference)
                            for owner in owners(last, self.chunks)
                        ]
            elif (following is None or following.picture is None) and self._names_ours(last):
                ours.append(last)  # its picture was dropped on the way
            if ours:
                leaf.stays = _cut(text, ours)

    def _names_ours(self, label: Label) -> bool:
        """Whether a label without its picture repeats what a signed entry of this return says."""
        return any(
            chunk.id == label.chunk_id
            and chunk.collection == label.collection
            and (label.reference is None or label.reference in chunk.pictures)
            for chunk in self.chunks
        )

    def _following(self, position: int) -> _Item | None:
        """What comes next, kinds of parts and files aside."""
        for item in self._items[position + 1 :]:
            if item.leaf is None or not (item.leaf.stays is None and _says_nothing(item.leaf)):
                return item
        return None

    def put(self, text: str) -> tuple[str, Beside]:
        first = next(item for item in self._items if item.leaf is not None and item.leaf.sealed is not None)
        before: list[int | str] = []
        after: list[int | str] = []
        ours = text
        for index in range(len(self._parts)):
            opened = self._opened.get(index)
            side = before if index < first.part else after
            if opened is None:
                if index not in self._gone:
                    side.append(index)
            elif index == first.part:
                ours = opened.without(text, first.leaf)
            elif all(leaf.stays is None for leaf in opened.leaves()):
                side.append(index)
            elif (rest := opened.without("", None)).strip(tags.BLANK):
                side.append(rest)
        return ours, Beside(tuple(before), tuple(after))


def _chunks(item: _Item) -> Iterator[Chunk]:
    if item.leaf is None or item.leaf.sealed is None:
        return
    for entry in item.leaf.sealed.entries():
        line, _, content = entry.partition("\n")
        head = tags.read_head(line)
        if head is None:
            continue
        if not head.named:
            yield Chunk(head.id, content, head.source, part=item.part)
            continue
        document, source = head.get("Document"), head.source
        if document is not None:
            source = f"{source}{tags.JOINT}Document: {document}" if source else f"Document: {document}"
        references = head.get("Pictures")
        yield Chunk(
            id=head.id,
            content=content,
            source=source,
            collection=head.get("Collection"),
            part=item.part,
            document=document,
            pictures=tuple(references.split(",")) if references else (),
        )


def _labels(leaf: _Leaf) -> Iterator[Label]:
    """The labels of a leaf: at its start (or right behind what is signed), behind one another, at starts of lines."""
    text = leaf.stays if leaf.stays is not None else leaf.value
    at = len(text) - len(text.lstrip(tags.BLANK))
    while tags.PICTURE_OPENS in text[at:]:
        found = tags.label_at(text, at)
        if found is not None:
            yield found
            at = found.end
            at += len(text) - at - len(text[at:].lstrip(tags.BLANK))
        else:
            line = text.find("\n[", at)
            if line < 0:
                return
            at = line + 1


def _cut(text: str, labels: list[Label]) -> str:
    """A text without these labels, nor the blanks that would be left at its start."""
    pieces: list[str] = []
    at = 0
    for label in labels:
        pieces.append(text[at : label.start])
        at = label.end
    left = "".join([*pieces, text[at:]])
    return left if left.strip(tags.BLANK) else ""


def _raw(item: _Item) -> bytes | None:
    """The bytes of a picture: of a part, or of base64 in a string. None where it is none, or only an address."""
    if item.picture is not None:
        return picture_bytes(item.picture.url)
    if item.leaf is None or item.leaf.stays is not None:
        return None
    text = item.leaf.value
    if text[:5].lower() == "data:":
        return picture_bytes(text)
    try:
        return base64.b64decode("".join(text.split()), validate=True) or None
    except (binascii.Error, ValueError):
        return None
