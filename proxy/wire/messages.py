"""The neutral values that every API's shape is cut into. Nothing here knows JSON keys of one API."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from proxy.wire.rounds import Holds, Rounds


class Role(Enum):
    """Who speaks. `SYSTEM` is also `developer`; `OTHER` is a role or item that this version does not know."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    OTHER = "other"


class Span(msgspec.Struct, frozen=True, gc=False, order=True):
    """Byte offsets into a request body: `body[start:end]`."""

    start: int
    end: int


# Structs, not dataclasses: a long conversation makes thousands of these for each request, and a frozen dataclass costs
# ten times as much to make. They stand in no cycles: the garbage collector need not look at them.


class Text(msgspec.Struct, frozen=True, gc=False):
    """One text part; a string content is one of these."""

    text: str


class Picture(msgspec.Struct, frozen=True, dict=True):
    """One picture part. `url` is a data URL or an address, exactly as sent; `detail` how closely it is to be seen.

    Its `__dict__` is for what was found out of that alone, and is no part of its value.
    """

    url: str
    detail: str | None = None


class OtherPart(msgspec.Struct, frozen=True):
    """A part of any other kind (audio, file, unknown), as parsed JSON."""

    value: object


Part = Text | Picture | OtherPart


class Call(msgspec.Struct, frozen=True, gc=False):
    """A tool call of the assistant: `arguments` is the text that the model wrote, JSON or not."""

    id: str | None
    name: str
    arguments: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """Where a message's content stands in the body, where each of its parts does, and which of these (by index) say
    `cache_control`."""

    span: Span
    parts: tuple[Span, ...]
    hinted: frozenset[int]


class Found(msgspec.Struct, gc=False):
    """What was found out of a message's bytes: the same in all requests that begin alike, and no part of its value."""

    content: Content | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Found)

    def __hash__(self) -> int:
        return 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a transcript and where it stands in the body.

    `parts` are its contents in order; `plain` says that the content was one string (or nothing) rather than a list of
    parts. `calls` are the tool calls of an assistant message, `call_id` the call that a tool message answers. `cites`
    are the citations that annotate an assistant message's text, each with the names that its source may go by.
    `only_text` says that a tool message can hold nothing else, whatever is put in its place. `found` is there where the
    content is a list, which may be of megabytes: it is walked once.
    """

    index: int
    role: Role
    span: Span
    parts: tuple[Part, ...] = ()
    plain: bool = True
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    cites: tuple[tuple[str, ...], ...] = ()
    only_text: bool = False
    found: Found | None = None

    def text(self) -> str:
        """All its text parts, joined with nothing between (so a string and its split parts are equal)."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Text):
            return self.parts[0].text
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    def pictures(self) -> list[Picture]:
        return [part for part in self.parts if isinstance(part, Picture)]


class Usage(msgspec.Struct, frozen=True):
    """What a provider says that a reply used, in tokens; None where it says nothing. `cached` is a part of `input`."""

    input: int | None = None
    cached: int | None = None
    output: int | None = None


class Continuation(msgspec.Struct, frozen=True):
    """What is needed to cut a body that begins as this one does: where the last message ends, and the wanted members
    that stand before the conversation."""

    end: int
    before: dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """A request body, cut by `api`. `choices` is how many replies it asks for, `model` of whom.

    `known` is how many of its messages, from the first on, are those of the request that it was told to continue.
    `continuation` is None where no other body can be cut as a continuation of this one.
    """

    api: Api
    body: bytes
    messages: tuple[Message, ...]
    choices: int = 1
    history: str | None = None
    """The id under which the provider keeps the history (a response's or a conversation's), where it does."""
    in_conversation: bool = False
    stored: bool = False
    """Whether the provider keeps the reply, so that a later request may name it instead of carrying its history."""
    in_background: bool = False
    """Whether the reply is only a promise of one, to be fetched later."""
    known: int = 0
    continuation: Continuation | None = None
    model: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """What one choice of a reply said: its text, its tool calls, and how it finished (None: it did not).

    `cites` are the citations that annotate its text, as in `Message`. `ran` is what the provider did by itself before
    it said so, with its own tools and their returns, as messages that a later request may carry.
    """

    text: str
    calls: tuple[Call, ...] = ()
    finish: str | None = None
    cites: tuple[tuple[str, ...], ...] = ()
    ran: tuple[Message, ...] = ()


class ReplyReader(Protocol):
    """Reads a reply that is relayed. It never raises: what it cannot read, it says nothing about."""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the reply, decompressed, in any cut."""

    def close(self, complete: bool) -> None:
        """The reply ended; `complete` says whether it did so by itself."""

    def finished(self) -> bool:
        """Whether every choice that was asked for has ended."""

    def replies(self) -> list[Reply]:
        """The choices that ended."""

    def continued_by(self) -> tuple[str, ...]:
        """The ids under which the provider keeps this reply with its history, where a later request may name it."""

    def usage(self) -> Usage | None:
        """What the provider says that the reply used, as far as it was fed: a stream may say so after its finish."""

    def model(self) -> str | None:
        """Who says to have replied."""


class LiveReader(ReplyReader, Protocol):
    """Reads a reply that is held, and tells what has been said so far."""

    def begun(self) -> tuple[str, ...]:
        """The names of the tools that it has begun to call."""

    def news(self) -> str:
        """The text that was said since the last time that this was asked."""


class LabelledPicture(NamedTuple):
    """A picture part (the JSON bytes of the request that it came in) with the line that stands before it; `hinted` says
    that the part may hold a cache hint."""

    label: str
    part: bytes
    hinted: bool = False


class Beside(msgspec.Struct, frozen=True):
    """What stays beside what is put into a message: its parts as they are (by index), and texts, before and after."""

    before: tuple[int | str, ...] = ()
    after: tuple[int | str, ...] = ()


#: Nothing stays: what is put there is all.
ALONE = Beside()


class Api(Protocol):
    """One API's shape: what a module of this room does for it. The rooms below call these, and know no JSON key.

    `MEMBER` is the name of the member that holds the conversation, to tell a client where to look.
    """

    MEMBER: str

    def cut(self, body: bytes, known: Request | None = None, whole: bool = False) -> Request:
        """Cut a request body into its messages. Raises NotJson when it is not a body of this API.

        `known` is a request that begins as this one may: what both have in common is not read again. `whole` says that
        somebody compared already, and that this one begins with all of it, up to the end of its last message.
        """

    def glance(self, body: bytes) -> Request | None:
        """A request without its messages, of a body that surely holds no return of a tool, no call of one, nothing that
        the provider keeps, and a user message; None where only `cut` can say. What `cut` says of its other members is
        the same.
        """

    def reader(self, request: Request) -> ReplyReader:
        """A reader for the reply to this request."""

    def live_reader(self, request: Request) -> LiveReader:
        """The same, which also tells what has been said so far."""

    def picture_again(self, request: Request, message: Message, nth: int, label: str) -> LabelledPicture:
        """A picture part of a message, the `nth` from 0, under a label."""

    def picture_part(self, url: str) -> bytes:
        """A new picture part of this URL, for a picture that does not stand in the request."""

    def replace_content(
        self,
        request: Request,
        message: Message,
        text: str,
        added: Sequence[LabelledPicture | str],
        beside: Beside = ALONE,
    ) -> Splice:
        """Put a text, and pictures (with texts between them) after it, in place of what a return holds.

        What is `beside` them stays, and its other fields stay as they are.
        """

    def remove_parts(self, request: Request, message: Message, gone: Collection[int]) -> list[Splice]:
        """Take parts (by index) out of a message with other ones, which stay as they are."""

    def remove_message(self, request: Request, message: Message) -> Splice:
        """Take a message out of the request. It is never the first one."""

    def add_user_message(self, request: Request, after: Message, pictures: Sequence[LabelledPicture]) -> Splice:
        """A new user message of these pictures, after another message."""

    def offered(self, request: Request) -> tuple[str, ...]:
        """The names of the tools that the model may call."""

    def streams(self, request: Request) -> bool:
        """Whether the client wants a stream."""

    def plain(self, request: Request) -> list[Splice]:
        """Ask for one whole reply in no set form, in which any tool may be called."""

    def written(self, message: Message) -> list[bytes]:
        """A message of ours (a text, calls, or a return) as elements of a conversation."""

    def tool(self, name: str, description: str, parameters: dict[str, Any]) -> bytes:
        """A function that the model may call, as this API offers it."""

    def rounds(self, request: Request, own: str, holds: Holds) -> Rounds:
        """Reads replies to this request without the calls of the tool `own`; `holds` says which ends wait."""

    def appended(self, request: Request, messages: Sequence[Message]) -> Splice:
        """Put messages of ours (texts, calls and returns) at the end of the conversation, which must not be empty."""

    def written_reply(
        self, calls: Sequence[Call], like: bytes, streamed: bool, created: int, identity: str
    ) -> list[bytes]:
        """A reply of ours that calls tools: a whole body, or the events of a stream.

        `like` is a reply of the provider to the same request; what it says of itself (its model) is said again, under
        an `identity` of its own. Its usage is nothing: what was asked for it is counted where it was asked.
        """


class NotJson(ValueError):
    """The body is not JSON, or not of the API's shape: it goes upstream untouched."""


class Splice(msgspec.Struct, frozen=True, gc=False):
    """Replace `body[start:end]` by `data`."""

    start: int
    end: int
    data: bytes = b""


_PLACE = attrgetter("start", "end")


class Cuts(msgspec.Struct, frozen=True):
    """Splices in the order of their places: what is `kept` of a body, and what is `put` between. Made once for all
    requests that are spliced alike."""

    kept: tuple[slice, ...]
    put: tuple[bytes, ...]

    @classmethod
    def of(cls, splices: Sequence[Splice]) -> Cuts:
        """Insertions (empty spans) at a point come before a replacement that starts there, in the order given. Raises
        ValueError when two overlap, since that would lose bytes of one of them."""
        kept, at = [], 0
        placed = sorted(splices, key=_PLACE)
        for change in placed:
            if change.start < at or change.end < change.start:
                raise ValueError(f"splices overlap at byte {change.start}: the one before it ends at byte {at}")
            kept.append(slice(at, change.start))
            at = change.end
        return cls((*kept, slice(at, None)), tuple(change.data for change in placed))

    def applied(self, body: bytes) -> bytes:
        """The body with these splices: every byte outside of them is kept as it came."""
        view = memoryview(body)
        pieces: list[bytes | memoryview] = [b""] * (2 * len(self.put) + 1)
        pieces[::2] = [view[part] for part in self.kept]
        pieces[1::2] = self.put
        return b"".join(pieces)


def splice(body: bytes, splices: Sequence[Splice]) -> bytes:
    """Apply splices to a body; see `Cuts`."""
    return Cuts.of(splices).applied(body)
