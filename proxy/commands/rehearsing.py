"""What the proxy would do with a request, found by letting its own rooms do it: without a server, without a provider.

Earlier questions of a request were answered: their replies stand in it. Each is taken for one that went by here and was
recorded, oldest first, as the proxy records them. Where a real store is asked instead, nothing is assumed, and nothing
is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy.compaction.account import Account, Asking, account, asking
from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.gateway.keeping import Keeping, Registered
from proxy.gateway.watched import Conversed
from proxy.ledger import records, transcript
from proxy.ledger.questions import Habits, openings
from proxy.ledger.records import Record
from proxy.ledger.transcript import ReplyStep
from proxy.store import StoredRecord
from proxy.wire import chat, responses
from proxy.wire.messages import Api, Message, NotJson, Request, Text

if TYPE_CHECKING:
    from proxy.evidence.tags import Keys
    from proxy.settings import Settings
    from proxy.store import RecordStore

_APIS: dict[str, Api] = {"chat": chat, "responses": responses}
_SOMEBODY = "somebody"


class Assumed:
    """The records of what is assumed to have gone by, in memory."""

    def __init__(self) -> None:
        self._kept: dict[bytes, set[bytes]] = {}

    async def find(self, keys: Sequence[bytes], **beside: Any) -> dict[bytes, tuple[bytes, ...]]:
        return self.cached(keys)

    def cached(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        return {key: tuple(sorted(self._kept[key])) for key in keys if key in self._kept}

    def add(self, record: StoredRecord) -> None:
        self._kept.setdefault(record.key, set()).add(record.payload)


class ReadOnly:
    """A real store that nothing is added to."""

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    async def find(self, keys: Sequence[bytes], **beside: Any) -> dict[bytes, tuple[bytes, ...]]:
        return await self._store.find(keys, **beside)

    def cached(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, ...]]:
        return self._store.cached(keys)

    def add(self, record: StoredRecord) -> None:
        pass

    async def flush(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What would become of a request: what the rooms made of it, message by message, and its questions.

    `account` is None where the body could not be read, or compaction is off.
    """

    conversed: Conversed
    account: Account | None
    questions: tuple[Asking, ...] = ()


class Rehearsal:
    """Requests, one after another, as one process of the proxy would see them."""

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        store: RecordStore | None = None,
        credentials: Sequence[str] = (),
        registered: Registered | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        """Without a `store`, every answered question is assumed to have been recorded. With one, `credentials` are
        those that the requests may have come with: the first under which a record fits counts. `contents`
        has what records need beside the wire."""
        self.keys = keys
        self._assumes = store is None
        kept: Any = Assumed() if store is None else ReadOnly(store)  # as much of a store as is asked for
        self._conversations = Conversations(settings, kept, keys, registered, keeping=keeping)
        self._credentials = [_SOMEBODY] if store is None else list(credentials)
        self._habits = Habits(
            output_tools=frozenset(settings.policy.output_tools),
            continuation_prefixes=tuple(settings.policy.continuation_prefixes),
        )
        self._settled: dict[bytes, Record] = {}
        self._gone_by: set[bytes] = set()

    async def decide(self, body: bytes, api: str) -> Rehearsed:
        """What would become of a request with this body."""
        if self._assumes:
            await self._settle_earlier(body, api)
        for credential in self._credentials:
            told: Conversed = (await self._ask(body, api, credential)).told()
            if told.boundary.record is not None:
                break
        read = told.transcript
        if read is None:
            return Rehearsed(told, None)
        chain = self._chain(told.boundary.record)
        went = told.would if told.would is not None else told.went
        undeclared = [record.ordinal for record in chain if record.declaration == "missing"]
        return Rehearsed(
            told,
            account(
                read,
                told.evidence,
                self._habits,
                told.boundary,
                told.outcome,
                undeclared,
                went=len(went),
            ),
            asking(read, told.evidence, self._habits, told.boundary, chain),
        )

    async def _ask(self, body: bytes, api: str, credential: str) -> Exchange:
        return await self._conversations.ask(Asked(body=body, credential=credential, api=api))

    def _chain(self, newest: Record | None) -> list[Record]:
        """The records of a conversation's questions that are known here, newest first."""
        chain: list[Record] = []
        while newest is not None:
            chain.append(newest)
            newest = self._settled.get(newest.before) if newest.before is not None else None
        return chain

    async def _settle_earlier(self, body: bytes, api: str) -> None:
        """Let each answered question of a body go by, oldest first: its last request, and the reply that ended it."""
        try:
            request = _APIS[api].cut(body)
        except NotJson:
            return
        if request.history is not None or request.in_background:
            return
        read = transcript.read(request)
        for opening in sorted(openings(read, self._habits), key=lambda found: found.reply):
            step = read.replies[opening.reply]
            is_first = step.messages[0].index == 0
            if opening.continues or is_first or step.shown + step.digest in self._gone_by:
                continue
            self._gone_by.add(step.shown + step.digest)
            exchange = await self._ask(_until(request, step.messages[0]), api, _SOMEBODY)
            exchange.feed(_reply(step, api, request))
            await exchange.ended(True)
            for payload in exchange.told().settled:
                record = records.decode(payload)
                if record is not None:
                    self._settled[records.digest(record)] = record


def _until(request: Request, message: Message) -> bytes:
    """The body as its client sent it before it knew this message and what follows."""
    last = request.messages[-1].span.end
    return request.body[: request.messages[message.index - 1].span.end] + request.body[last:]


def _reply(step: ReplyStep, api: str, request: Request) -> bytes:
    """A reply as a provider sends it, that says what this one said."""
    if api == "chat":
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in step.calls
        ]
        said = {"role": "assistant", "content": step.text, **({"tool_calls": calls} if calls else {})}
        finish = "tool_calls" if calls else "stop"
        return _json({"choices": [{"index": 0, "message": said, "finish_reason": finish}]})
    items: list[dict[str, Any]] = []
    for message in step.messages:
        items += [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in message.calls
        ]
        texts = [part.text for part in message.parts if isinstance(part, Text)]
        notes = [_annotation(names) for names in message.cites]
        if texts or notes or not message.calls:  # some clients send a reference to what was said, and no word of it
            content = {"type": "output_text", "text": "".join(texts), "annotations": notes}
            items.append({"type": "message", "role": "assistant", "content": [content]})
    return _json({"object": "response", "status": "completed", "output": items})


def _annotation(names: tuple[str, ...]) -> dict[str, str]:
    if len(names) == 1:
        return {"type": "url_citation", "url": names[0]}
    return {"type": "file_citation", "file_id": names[0], "filename": names[1]}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
