"""What of a message goes when its evidence is replaced: all of a return, or what is signed in it or a user message.

A return that a tool's name makes evidence is replaced whole. Of a tagged one goes what the signatures prove, wherever
it stands, and everything beside it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from proxy.evidence import tagged
from proxy.evidence.tables import Table, Tables
from proxy.ledger import reading
from proxy.ledger.records import Attachment
from proxy.ledger.transcript import Return, Transcript
from proxy.wire.messages import LabelledPicture, Message, Picture, Splice


def replace(
    transcript: Transcript, found: Return, table: Table | None, text: str, added: Sequence[LabelledPicture | str]
) -> Splice:
    """Put a text, and what is added after it, where the evidence of a return stands."""
    request = transcript.request
    if table is None or table.proof is None:
        return request.api.replace_content(request, found.message, text, added)
    written, beside = tagged.put(table.proof, found.message.parts, text)
    return request.api.replace_content(request, found.message, written, added, beside)


def parts_that_go(transcript: Transcript, attachment: Attachment, tables: Tables) -> set[int]:
    """The parts (by index) of a user message that are pictures of returns which go, and their labels."""
    message = transcript.users[attachment.user]
    going: set[int] = set()
    for ordinal in attachment.returns:
        found = transcript.returns[ordinal]
        table = reading.table(found, tables)
        if table is None:
            continue
        if table.proof is None:  # nothing else stands in such a message
            return set(range(len(message.parts)))
        ids = {chunk.id for chunk in tagged.read(table.proof, found.message.parts).chunks}
        for picture in tagged.attached(table.proof, message.parts):
            if picture.label.chunk_id in ids:
                going.update(picture.parts)
    return going


def pictures_that_go(found: Return, table: Table | None) -> int:
    """How many picture parts of a return go when it is replaced."""
    parts = found.message.parts
    pictures = {index for index, part in enumerate(parts) if isinstance(part, Picture)}
    if not pictures or table is None or table.proof is None:
        return len(pictures)
    _, beside = tagged.put(table.proof, parts, "")
    return len(pictures.difference(beside.before, beside.after))


def remove(transcript: Transcript, message: Message, going: set[int]) -> list[Splice]:
    """Take parts out of a user message, or the message itself where nothing would be left."""
    request = transcript.request
    if len(going) == len(message.parts):
        return [request.api.remove_message(request, message)]
    return request.api.remove_parts(request, message, going) if going else []


def picture_goes(message: Message, nth: int, going: set[int]) -> bool:
    """Whether the how-manieth picture of a user message is one of the parts that go."""
    pictures = [index for index, part in enumerate(message.parts) if isinstance(part, Picture)]
    return nth < len(pictures) and pictures[nth] in going


def not_ours(transcript: Transcript, ordinals: Iterable[int], tables: Tables) -> set[int]:
    """Of these returns those that are no evidence by these tables: a key was rotated out, a table renamed its tools."""
    return {
        ordinal
        for ordinal in ordinals
        if ordinal < len(transcript.returns) and reading.table(transcript.returns[ordinal], tables) is None
    }
