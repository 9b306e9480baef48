"""What comes after each round of a reply in which the model may call the proxy's cite tool. A table, and no I/O.

    the round                                      what comes next
    -----------------------------------------------------------------------------------------------------
    called only our tool, rounds and room left     AGAIN: the same conversation, its calls, and our answers
    called only our tool, one round left           PLAIN: the client's own request, without our tool
    called only our tool, nothing left             CONCLUDE: what was said is the answer
    called the client's tools (ours beside, too)   OVER: the client sees its own calls
    answered, as far as anything was ever said     OVER
    answered nothing, and nothing was said before  PLAIN, once
    broke off, the first                           BROKE: as the provider's reply did
    broke off later, after it gave something       BROKE
    broke off later, something was said before     CONCLUDE
    broke off later, nothing was ever said         PLAIN, once; then FAILED

Whatever happens, the client ends with a reply of the provider, or with the provider's own error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proxy.wire.chat_reply import finished_normally
from proxy.wire.rounds import Said

#: About how many bytes a token has, where nobody counts: only a bound rests on it.
_BYTES_OF_A_TOKEN = 4


class Next(Enum):
    """What comes after a round."""

    AGAIN = "again"
    PLAIN = "plain"
    OVER = "over"
    CONCLUDE = "conclude"
    BROKE = "broke"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many requests beside the client's own one reply may cost, and how many tokens they may add to it."""

    rounds: int = 3
    added_tokens: int = 8000


@dataclass(frozen=True, slots=True)
class Round:
    """One round at its end. `number` counts from 1, `plain` is whether it was asked without our tool; `complete`
    whether the provider's reply ended by itself. `gave` is whether the client was given something of it, `spoken`
    whether it has any text by now. `added` are the bytes that another round would carry more than the first."""

    number: int
    said: Said
    complete: bool
    plain: bool = False
    gave: bool = False
    spoken: bool = False
    added: int = 0


def after(done: Round, bounds: Bounds) -> Next:
    """What comes after a round."""
    said = done.said
    left = bounds.rounds - (done.number - 1)
    can_be_plain = left > 0 and not done.plain
    fell = not done.complete or said.error is not None or (said.finish is None and done.number > 1)
    if fell and done.number == 1:
        return Next.OVER if done.complete else Next.BROKE
    if fell and done.gave:
        return Next.BROKE
    if fell:
        return Next.CONCLUDE if done.spoken else (Next.PLAIN if can_be_plain else Next.FAILED)
    if is_only_ours(said):
        if left > 1 and not done.plain and done.added <= bounds.added_tokens * _BYTES_OF_A_TOKEN:
            return Next.AGAIN
        return Next.PLAIN if can_be_plain else Next.CONCLUDE
    if done.number > 1 and not done.spoken and not said.others and can_be_plain:
        return Next.PLAIN
    return Next.OVER


def is_only_ours(said: Said) -> bool:
    """Whether a reply finished with nothing but calls of our tool: then it goes on."""
    return bool(said.own) and not said.others and finished_normally(said.finish)
