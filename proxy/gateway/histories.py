"""Histories that the provider keeps, as this process saw them go by.

A request that names one is never rewritten, since nothing earlier is on its wire; but what it asks is written down, so
that a later request that carries the same history finds its records. Losing one costs only that.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from proxy.ledger import transcript
from proxy.ledger.transcript import Transcript
from proxy.wire.messages import Message, OtherPart, Picture, Reply, Request, Role, Span, Text

#: All histories together, and one alone: texts are shared between the histories of one conversation, and each is
#: counted in full, so this is the most that they can take.
_MOST_BYTES = 64 * 1024 * 1024
_MOST_BYTES_OF_ONE = 4 * 1024 * 1024
#: What a message takes beside its texts.
_MESSAGE_BYTES = 400


@dataclass(frozen=True, slots=True)
class _History:
    """Everything up to a reply and with it; `keys` are the digests of what a request that carries it shows before that
    reply: without and with what the provider ran itself."""

    messages: tuple[Message, ...]
    keys: frozenset[bytes]
    size: int


class Histories:
    """The histories used most recently, up to a number of bytes. Safe to use from threads."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_bytes_of_one: int = _MOST_BYTES_OF_ONE) -> None:
        self._most = most_bytes
        self._most_of_one = most_bytes_of_one
        self._kept: OrderedDict[tuple[bytes, str], _History] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0

    def before(self, tenant: bytes | None, request: Request) -> tuple[Request, bool]:
        """A request that names a history, with that history before it, and whether that is all that the model sees.

        Some clients name a history and carry it all the same: then theirs is taken. A conversation that nobody here
        saw yet is taken to begin with this request: if it does not, no request will ever show it so.
        """
        seen = self._named(tenant, request.history) if tenant is not None and request.history is not None else None
        if seen is None:
            carried = any(message.role is Role.ASSISTANT for message in request.messages)
            return request, carried or request.in_conversation
        if any(step.key in seen.keys for step in transcript.read(request).replies):
            return request, True
        return msgspec.structs.replace(request, messages=_numbered((*seen.messages, *request.messages))), True

    def keep(self, tenant: bytes, names: Iterable[str], read: Transcript, reply: Reply) -> None:
        """Keep what led to a reply, under each name that a later request may use for it."""
        request = read.request
        said = Message(index=0, role=Role.ASSISTANT, span=Span(0, 0), parts=(Text(reply.text),), calls=reply.calls)
        messages = (*request.messages, *reply.ran, said)
        size = sum(map(_size, messages))
        if size > self._most_of_one:
            return
        keys = {read.key}
        if reply.ran:
            keys.add(transcript.read(extended(request, reply.ran)).key)
        history = _History(messages, frozenset(keys), size)
        with self._lock:
            for name in names:
                self._forget((tenant, name))
                self._kept[tenant, name] = history
                self.size += size
            while self.size > self._most:
                self._forget(next(iter(self._kept)))

    def clear(self) -> None:
        """Know nothing any more."""
        with self._lock:
            self._kept.clear()
            self.size = 0

    def _named(self, tenant: bytes, name: str) -> _History | None:
        with self._lock:
            history = self._kept.get((tenant, name))
            if history is not None:
                self._kept.move_to_end((tenant, name))
            return history

    def _forget(self, name: tuple[bytes, str]) -> None:
        history = self._kept.pop(name, None)
        if history is not None:
            self.size -= history.size


def extended(request: Request, ran: tuple[Message, ...]) -> Request:
    """A request with what the provider ran for its reply, as the next request may carry it."""
    return msgspec.structs.replace(request, messages=_numbered((*request.messages, *ran)))


def _numbered(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(
        message if message.index == index else msgspec.structs.replace(message, index=index)
        for index, message in enumerate(messages)
    )


def _size(message: Message) -> int:
    """About how many bytes a message takes in memory."""
    size = _MESSAGE_BYTES
    for part in message.parts:
        if isinstance(part, Text):
            size += sys.getsizeof(part.text)
        elif isinstance(part, Picture):
            size += sys.getsizeof(part.url)
        elif isinstance(part, OtherPart):
            size += 2 * len(repr(part.value))
    return size + sum(sys.getsizeof(call.arguments) for call in message.calls)
