"""Tag what a tool retrieved, so that the proxy can prove later what is evidence, and whose each picture is.

For the authors of tools: results in, tool content out, as a string or as parts of either API. Pure: it opens no file
and no connection, and importing it imports nothing of the server.

    keys = Keys.parse(os.environ["EVIDENCE_TAG_KEYS"])
    return tag([Result("c1", "The pump runs at 3 bar.", title="Pump manual")], keys).text
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, TypedDict

from proxy.evidence import tags
from proxy.evidence.sources import source_line
from proxy.evidence.tags import Keys

__all__ = ["Keys", "LabelledPicture", "Picture", "Result", "Tagged", "tag"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a result shows.

    `data` is the file's bytes, its base64, or a base64 data URL (which says its own media type). `reference` names it
    in its document; results of one document that give the same reference show the same picture, which is sent once.
    """

    data: bytes | str
    reference: str | None = None
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Result:
    """One retrieved chunk. `id` is what an answer cites; `content` what the model reads.

    `pictures` may hold, instead of a picture, the reference of one that another result of the same document brings.
    """

    id: str
    content: str
    document_id: str | None = None
    title: str | None = None
    uri: str | None = None
    collection: str | None = None
    headings: Sequence[str] = ()
    pages: Sequence[int | str] = ()
    kind: str | None = None
    pictures: Sequence[Picture | str] = ()


@dataclass(frozen=True, slots=True)
class LabelledPicture:
    """A picture as it is to be sent: directly after its label, as these very bytes."""

    label: str
    data: bytes
    media_type: str
    chunk_id: str
    reference: str | None

    @property
    def url(self) -> str:
        """A data URL."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


class _Address(TypedDict):
    url: str


class ChatText(TypedDict):
    type: Literal["text"]
    text: str


class ChatPicture(TypedDict):
    type: Literal["image_url"]
    image_url: _Address


class ResponsesText(TypedDict):
    type: Literal["input_text"]
    text: str


class ResponsesPicture(TypedDict):
    type: Literal["input_image"]
    image_url: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged return. `text` is all of it but for the pictures: what a tool returns where it returns a string."""

    text: str
    pictures: tuple[LabelledPicture, ...] = ()

    def chat(self) -> list[ChatText | ChatPicture]:
        """Content parts of chat completions: the text, then each picture after its label."""
        parts: list[ChatText | ChatPicture] = [{"type": "text", "text": self.text}]
        for picture in self.pictures:
            parts += [
                {"type": "text", "text": picture.label},
                {"type": "image_url", "image_url": {"url": picture.url}},
            ]
        return parts

    def responses(self) -> list[ResponsesText | ResponsesPicture]:
        """Content parts of the Responses API, for a `function_call_output`."""
        parts: list[ResponsesText | ResponsesPicture] = [{"type": "input_text", "text": self.text}]
        for picture in self.pictures:
            parts += [
                {"type": "input_text", "text": picture.label},
                {"type": "input_image", "image_url": picture.url},
            ]
        return parts


def tag(results: Iterable[Result], keys: Keys) -> Tagged:
    """The tagged return of these results, in their order.

    Contents are kept to the character, white space at their ends and lone surrogates aside. Raises ValueError where an
    id cannot be cited as it stands, or a picture's data is not base64; no message repeats a key.
    """
    heads: list[str] = []
    contents: list[str] = []
    shown: list[tuple[Result, str | None, Picture, bytes]] = []
    seen: set[tuple[str | None, str | None, str, bytes]] = set()
    for result in results:
        content = result.content
        contents.append(content.rstrip(tags.BLANK) if content[-1:] in tags.BLANK else content)
        if not result.pictures:
            heads.append(_head(result, ""))
            continue
        references: list[str] = []
        for picture in result.pictures:
            if isinstance(picture, str):
                references.append(tags.reference(picture))
                continue
            data = _bytes(picture)
            reference = tags.reference(picture.reference) if picture.reference else None
            if reference:
                references.append(reference)
            # Only of a named document is it certain that two references name one picture.
            whose = reference if reference and result.document_id else f"[{result.id}]"
            same = (result.collection, result.document_id, whose, sha256(data).digest())
            if same not in seen:
                seen.add(same)
                shown.append((result, reference, picture, data))
        heads.append(_head(result, ",".join(dict.fromkeys(references))))
    try:
        text = tags.seal(heads, contents, keys)
    except UnicodeEncodeError:
        text = tags.seal(heads, [_whole(content) for content in contents], keys)
    return Tagged(
        text,
        tuple(
            LabelledPicture(
                label=tags.write_label(
                    result.id, position, len(shown), reference, _field(result.collection), data, keys
                ),
                data=data,
                media_type=_media_type(picture),
                chunk_id=result.id,
                reference=reference,
            )
            for position, (result, reference, picture, data) in enumerate(shown, 1)
        ),
    )


def _head(result: Result, references: str) -> str:
    chunk, title, uri = result.id, result.title, result.uri
    collection, document, kind = result.collection, result.document_id, result.kind
    said = " ".join([one for one in (chunk, title, uri, collection, document, kind) if one])
    if not chunk or "] " in chunk or len(chunk) > 500 or not tags.is_plain(said):
        chunk, title, uri = tags.chunk_id(chunk), _field(title), _field(uri)
        collection, document, kind = _field(collection), _field(document), _field(kind)
    headings = _field(" > ".join(result.headings)) if result.headings else None
    pages = _field(", ".join(map(str, result.pages))) if result.pages else None
    source = source_line(title, uri, headings, pages)
    head = f"[{chunk}] {source}" if source else f"[{chunk}]"
    if collection:
        head += f"{tags.JOINT}Collection: {collection}"
    if document:
        head += f"{tags.JOINT}Document: {document}"
    if kind:
        head += f"{tags.JOINT}Type: {kind}"
    return f"{head}{tags.JOINT}Pictures: {references}" if references else head


def _field(text: str | None) -> str | None:
    return tags.field(text) if text else None


def _whole(text: str) -> str:
    """A text as UTF-8 can carry it: surrogate pairs joined, lone ones replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _bytes(picture: Picture) -> bytes:
    if isinstance(picture.data, bytes):
        return picture.data
    text = picture.data
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("expected a picture's data URL to be base64: data:image/png;base64,...")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            "expected a picture's data as bytes, base64 or a base64 data URL; an address is not fetched"
        ) from None


def _media_type(picture: Picture) -> str:
    if isinstance(picture.data, str) and picture.data[:5].lower() == "data:":
        return picture.data[5:].partition(",")[0].partition(";")[0].strip() or "text/plain"
    return picture.media_type
