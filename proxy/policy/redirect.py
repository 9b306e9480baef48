"""The one request in which the model is asked what grounded the answer that it already gave.

Only the provider sees it: it is the conversation that went up, the answer, and our words. Nothing here is ever read
back out of a conversation, so whoever quotes these words says nothing by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.evidence import citing
from proxy.ledger.transcript import without_thinking
from proxy.wire.messages import Api, Call, Message, Reply, Role, Span, Text, splice

#: Says whose words these are, to whoever reads a provider's log.
TAG = "[evidence-proxy/citation-request]"

_BY_TOOL = (
    "Your answer above stands, and has not been sent yet. One thing is missing: which of the retrieved passages it "
    "rests on. Call the tool `{tool}` now, with the ids of exactly those passages, copied as they were shown to you. "
    "If none of them supports the answer, call it with an empty list. Do not write the answer again."
)
_INLINE = (
    "Your answer above stands, and has not been sent yet. One thing is missing: which of the retrieved passages it "
    "rests on. Reply with nothing but the ids of exactly those passages, each in square brackets as in [id], copied as "
    "they were shown to you. If none of them supports the answer, reply with []."
)
_RECEIVED = "Received; not sent yet."


def asking(api: Api, body: bytes, answer: Reply, tool: str | None) -> bytes:
    """The body that asks for citations: `body` as it went to the provider, then its `answer`, then the question.

    `tool` is the cite tool, None for ids in brackets. It asks for one whole reply in no set form. Where the answer is
    a call, every call gets a return, since providers refuse open ones. Raises NotJson where the body cannot be cut.
    """
    request = api.cut(body)
    said = [_message(Role.ASSISTANT, answer.text, calls=_named(answer.calls))]
    said += [_message(Role.TOOL, _RECEIVED, call_id=call.id) for call in said[0].calls]
    wording = _INLINE if tool is None else _BY_TOOL.format(tool=tool)
    said.append(_message(Role.USER, f"{wording} {TAG}"))
    return splice(body, [*api.plain(request), api.appended(request, said)])


def _message(role: Role, text: str, calls: tuple[Call, ...] = (), call_id: str | None = None) -> Message:
    parts = (Text(text),) if text or not calls else ()
    return Message(index=0, role=role, span=Span(0, 0), parts=parts, calls=calls, call_id=call_id)


def _named(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Calls that each have an id: some servers give none."""
    return tuple(
        call if call.id else Call(f"call_{number}", call.name, call.arguments) for number, call in enumerate(calls)
    )


def cite_calls(replies: Sequence[Reply], tool: str) -> tuple[Call, ...]:
    """The cite calls in what the model said to that, as far as they can be read; nothing else of it is used."""
    if not replies:
        return ()
    return tuple(call for call in replies[0].calls if call.name == tool and citing.written(call.arguments).clear)


def named_ids(replies: Sequence[Reply]) -> tuple[tuple[str, ...], bool]:
    """The ids that stand in brackets in what the model said to that, and whether it said that there are none."""
    text = without_thinking(replies[0].text) if replies else ""
    brackets, _ = citing.bracketed(text)
    ids = tuple(dict.fromkeys(piece for inner in brackets for piece in citing.pieces(inner)))
    return ids, not ids and "[]" in "".join(text.split())
