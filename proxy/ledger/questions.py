"""Where questions begin: openings, and what continues a question."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from proxy.ledger.transcript import ReplyStep, Transcript
from proxy.wire.messages import Message

#: How frameworks begin when they ask for a correction: pydantic-ai's wordings, and haiku.rag's redirect by its tag.
CONTINUATION_PREFIXES = (
    "Validation feedback:",
    "{n} validation error",
    "Your previous response failed the application's validation",
    "[haiku.rag/citation-redirect]",
)


@dataclass(frozen=True, slots=True)
class Habits:
    """How a host's framework shows that a reply ended a question, or that a user message continues one."""

    output_tools: frozenset[str] = frozenset({"final_result"})
    continuation_prefixes: tuple[str, ...] = CONTINUATION_PREFIXES

    def continues(self, message: Message) -> bool:
        """Whether a user message, directly after an answer, asks for a correction instead of something new."""
        beginning, tags = _continuing(self.continuation_prefixes)
        text = message.text()
        return beginning.match(text) is not None or any(tag in text for tag in tags)


@lru_cache(maxsize=64)
def _continuing(prefixes: tuple[str, ...]) -> tuple[re.Pattern[str], list[str]]:
    """What matches a text that begins in one of these ways, and the tags among them, which may stand anywhere: most
    frameworks put them at the end."""
    tags = [prefix for prefix in prefixes if prefix.startswith("[") and prefix.endswith("]")]
    ways = [r"\d+".join(map(re.escape, prefix.split("{n}"))) for prefix in prefixes if prefix not in tags]
    return re.compile(rf"\s*(?:{'|'.join(ways)})" if ways else r"(?!)"), tags


class Opening(msgspec.Struct, frozen=True, gc=False):
    """A user message that stands where a question may begin: after a reply that ended one.

    `reply` is the index of that reply; `user` the message; `continues` says that it asks for a correction.
    """

    reply: int
    user: Message
    continues: bool


def opening_after(transcript: Transcript, index: int, habits: Habits) -> Opening | None:
    """The opening that follows a reply, or None: the reply must be without calls, or call an output tool and have its
    returns, and a user message must come next."""
    step = transcript.replies[index]
    told = step.told.get("opening")
    if told is None or told[0] is not habits or told[1] != index:
        told = step.told["opening"] = (habits, index, _opening_after(step, index, habits))
    found: Opening | None = told[2]
    return found


def _opening_after(reply: ReplyStep, index: int, habits: Habits) -> Opening | None:
    if reply.calls and not any(call.name in habits.output_tools for call in reply.calls):
        return None
    if (reply.calls and not reply.returns) or not reply.users or (reply.returns and not reply.calls):
        return None
    user = reply.users[0][1]
    if reply.returns and user.index < max(found.message.index for found in reply.returns):
        return None
    return Opening(index, user, habits.continues(user))


def openings(transcript: Transcript, habits: Habits, down_to: int = 0) -> Iterator[Opening]:
    """All openings, newest first, of the replies from `down_to` on."""
    for index in range(len(transcript.replies) - 1, down_to - 1, -1):
        found = opening_after(transcript, index, habits)
        if found is not None:
            yield found


def question_ends(transcript: Transcript, habits: Habits, down_to: int = 0) -> Iterator[int]:
    """The replies that a question ended with, as the transcript shows it, newest first, from `down_to` on."""
    return (found.reply for found in openings(transcript, habits, down_to) if not found.continues)


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """The replies from one opening to the next: what looks like one question; `answered` if its end is shown."""

    first_reply: int
    end_reply: int
    answered: bool

    def replies(self, transcript: Transcript) -> list[ReplyStep]:
        return transcript.replies[self.first_reply : self.end_reply]


def stretches(transcript: Transcript, from_reply: int, habits: Habits) -> list[Stretch]:
    """Cut the replies from `from_reply` on where an opening that does not continue stands. The last is not answered."""
    cuts = [reply + 1 for reply in question_ends(transcript, habits, from_reply)][::-1]
    starts = [from_reply, *cuts]
    ends = [*cuts, len(transcript.replies)]
    return [
        Stretch(start, end, answered=position < len(cuts))
        for position, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def follows_answer(transcript: Transcript, habits: Habits, same_question: Container[int] = ()) -> range:
    """The ordinals of returns that stand before an answered user message: evidence that should have a record.

    `same_question` are replies after which the host says that the question goes on.
    """
    after = len(transcript.returns)
    for index in range(len(transcript.replies) - 1, -1, -1):
        opening = opening_after(transcript, index, habits)
        if opening is not None and not opening.continues and index not in same_question:
            return range(after)
        if own := transcript.replies[index].returns:
            after = own[0].ordinal
    return range(0)
