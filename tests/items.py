"""The conversations of `conversations`, held in the Responses API: the same client, provider and judge.

The player writes chat messages, and the judge reads them. In between, each request is put into items before the proxy
sees it, and what goes up is put back: byte for byte where it is what came, by its meaning where the proxy wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from proxy.gateway.conversation import Asked, Conversations, Exchange
from tests import promises
from tests.conversations import Player
from tests.house.responding import response, response_events

_KINDS = {"text": "input_text", "image_url": "input_image"}


@lru_cache(maxsize=50_000)
def items_of(raw: str) -> tuple[str, ...]:
    """A chat message as items. Whatever else stands in it stays where it is, as it is written."""
    value = json.loads(raw)
    if value["role"] == "tool":
        renamed = {"role": '"type"', "tool_call_id": '"call_id"', "content": '"output"'}
        pairs = [(renamed.get(json.loads(key), key), _converted(key, value)) for key, value in promises.members(raw)]
        return (_object([(key, '"function_call_output"' if key == '"type"' else text) for key, text in pairs]),)
    calls = value.get("tool_calls") or []
    said = [] if calls and not value.get("content") else [_object(_said(raw))]
    made = [
        json.dumps({"type": "function_call", "call_id": call["id"], **call["function"], "id": f"fc_{len(raw)}_{place}"})
        for place, call in enumerate(calls)
    ]
    if value["role"] != "assistant":
        return tuple(said)
    # Providers put a reply's words before its calls or after them, and what it thought before both.
    kind = len(raw) % 3
    thought = [json.dumps({"type": "reasoning", "id": f"rs_{len(raw)}", "encrypted_content": "gAAA"})]
    return (*(thought if kind else []), *([*said, *made] if kind == 1 else [*made, *said]))


def _said(raw: str) -> list[tuple[str, str]]:
    return [(key, _converted(key, value)) for key, value in promises.members(raw) if json.loads(key) != "tool_calls"]


def _object(pairs: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"


def _converted(key: str, text: str) -> str:
    """A content's parts under the names that they have here; a string as it is written."""
    if json.loads(key) != "content" or not text.startswith("["):
        return text
    return json.dumps([_to_item_part(part) for part in json.loads(text)])


def _to_item_part(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") not in _KINDS:
        return part
    changed = {**part, "type": _KINDS[part["type"]]}
    if isinstance(part.get("image_url"), dict):
        changed["image_url"] = part["image_url"]["url"]
    return changed


def _from_item_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "input_text":
        return {**part, "type": "text"}
    if isinstance(part, dict) and part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return part


@dataclass(frozen=True)
class Rendered:
    """A chat body in items, and which of them are of which message."""

    chat: promises.Cut
    body: bytes
    items: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, body: bytes) -> Rendered:
        chat = promises.cut(body)
        items = tuple(items_of(raw) for raw in chat.messages)
        text = "".join(
            ("" if not index else chat.between[index - 1]) + ", ".join(group) for index, group in enumerate(items)
        )
        head = (
            chat.head[: chat.head.rindex('"messages"')] + '"input"' + chat.head[chat.head.rindex('"messages"') + 10 :]
        )
        return cls(chat, (head + text + chat.tail).encode(), items)

    def back(self, forwarded: bytes) -> bytes:
        """What went up, as chat messages. Raises AssertionError where anything but evidence changed."""
        came, went = promises.cut(self.body, "input"), promises.cut(forwarded, "input")
        assert (came.head, came.tail) == (went.head, went.tail), "the rest of the body changed"
        later = set(self.items)
        pieces: list[str] = []
        at = index = 0
        while index < len(self.items) or at < len(went.messages):
            group = self.items[index] if index < len(self.items) else ()
            gap = self.chat.between[index - 1] if index and group else ", "
            if group and went.messages[at : at + len(group)] == group:
                pieces.append((gap if pieces else "") + self.chat.messages[index])
                at, index = at + len(group), index + 1
                continue
            there = json.loads(went.messages[at]) if at < len(went.messages) else {}
            ours = json.loads(group[0]) if group else {}
            if "call_id" in ours and there.get("type") == ours.get("type") == "function_call_output":
                pieces.append(gap + self.replaced(index, went.messages[at]))
                at, index = at + 1, index + 1
            elif there.get("role") == "user" and (went.messages[at],) not in later:
                content = [_from_item_part(part) for part in there["content"]]
                pieces.append(", " + json.dumps({"role": "user", "content": content}))
                at += 1
            else:
                assert ours.get("role") == "user", f"item {at} went up changed: {went.messages[at : at + 1]}"
                index += 1
        return (self.chat.head + "".join(pieces) + self.chat.tail).encode("utf-8", "surrogatepass")

    def replaced(self, index: int, there: str) -> str:
        """A chat return with the content that an item's output has now; nothing else of the item may differ."""
        before, after = promises.members(self.items[index][0]), promises.members(there)
        last = max(n for n, (key, _) in enumerate(before) if json.loads(key) == "output")
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            assert old == new or (place == last and old[0] == new[0]), f"an output changed beside: {old} => {new}"
        now = json.loads(after[last][1])
        text = after[last][1] if isinstance(now, str) else json.dumps([_from_item_part(part) for part in now])
        chat = promises.members(self.chat.messages[index])
        where = max(n for n, (key, _) in enumerate(chat) if json.loads(key) == "content")
        return _object([(key, text if n == where else value) for n, (key, value) in enumerate(chat)])


class ItemExchange:
    """An exchange of the proxy's, as the player and the judge know it."""

    def __init__(self, exchange: Exchange, asked: bytes, rendered: Rendered) -> None:
        self._exchange = exchange
        self.body = asked
        self.header = exchange.header
        if exchange.body is not rendered.body:
            self.body = rendered.back(exchange.body)
            sizes = f"before={len(rendered.body)}; after={len(exchange.body)}"
            assert sizes in self.header, f"{sizes} is right: {self.header}"
            self.header = self.header.replace(sizes, f"before={len(asked)}; after={len(self.body)}")

    def feed(self, chunk: bytes) -> None:
        self._exchange.feed(chunk)

    def finished(self) -> bool:
        return self._exchange.finished()

    async def settle(self) -> None:
        await self._exchange.settle()

    async def ended(self, complete: bool) -> None:
        await self._exchange.ended(complete)


class InItems:
    """What `Conversations` is to the player, with items in between."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    async def ask(self, asked: Asked) -> ItemExchange:
        rendered = Rendered.of(asked.body)
        exchange = await self._conversations.ask(
            Asked(
                rendered.body,
                asked.credential,
                asked.question_id,
                conversation_id=asked.conversation_id,
                api="responses",
            )
        )
        return ItemExchange(exchange, asked.body, rendered)


class ItemPlayer(Player):
    """The same client and provider, in the Responses API."""

    most_choices = 1

    def new_process(self, store: Any = None) -> Any:
        return InItems(super().new_process(store))

    async def reply(self, exchange: Any, choices: Sequence[dict[str, Any]], broken: str | None = None) -> None:
        """The provider's reply: streamed or whole; `broken`: before or after its end, or by an error."""
        streamed = self.dice.below(2) == 1 or broken == "after"  # a broken JSON body says nothing
        message, finish = choices[0]["message"], choices[0]["finish_reason"]
        calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
        status = "incomplete" if finish in ("length", "content_filter") else "completed"
        whole = response(message.get("content"), calls, f"resp_{self.serial()}", status)
        pieces = response_events(whole) if streamed else [json.dumps(whole).encode()]
        if broken == "before":
            pieces[-1] = pieces[-1][: len(pieces[-1]) // 2]
        elif broken == "error":
            failed = {"type": "error", "code": "server_error", "message": "no", "param": None, "sequence_number": 9}
            pieces = [*response_events(whole)[:-1], b"event: error\ndata: " + json.dumps(failed).encode() + b"\n\n"]
        raw = b"".join(pieces)
        size = (len(raw), 7, 1 + len(raw) // 2)[self.dice.below(3)]
        for at in range(0, len(raw), size):
            exchange.feed(raw[at : at + size])
            if exchange.finished():
                await exchange.settle()
        await exchange.ended(broken is None)
        said = re.sub(r"\s+", " ", str(message.get("content")))
        self.tell(f"<- {'streamed' if streamed else 'whole'} {broken or ''}: {said} {calls} [{finish}]")
