"""The items of the Responses API, in requests and replies. Source: OpenAI's API reference, "Responses".

An item becomes a message of who speaks in it: calls and assistant messages are the assistant's, their outputs a
tool's. A file search that shows its results is both, a call and its return. What this version does not know, and what
belongs to the provider alone (reasoning, its other tools, compactions), is nobody's: it stays where it is, and
separates nothing.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy.wire import parts
from proxy.wire.messages import Call, Found, Message, Role, Span, Text

#: The name under which an evidence table may list the provider's own file search.
FILE_SEARCH = "file_search"

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
#: Calls that the provider runs itself. Any other call is the client's, known or not: doubt must not settle a question.
_HOSTED = frozenset({"web_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"})
_CALLED_OTHERWISE = frozenset({"mcp_approval_request"})
_ANSWERED_OTHERWISE = frozenset({"mcp_approval_response", "tool_search_output"})
#: What says where a citation's source is, by the kind of the annotation.
_CITED_BY = {
    "file_citation": ("file_id", "filename"),
    "container_file_citation": ("file_id", "filename"),
    "url_citation": ("url",),
}


class Fields(msgspec.Struct):
    """What is read of an item."""

    type: Any = None
    role: Any = None
    content: Any = None
    output: Any = None
    call_id: Any = None
    id: Any = None
    name: Any = None
    arguments: Any = None
    input: Any = None
    results: Any = None
    queries: Any = None


def read(index: int, span: Span, fields: Fields) -> list[Message]:
    """The messages of one item, the first of them with this index: one, or two for a file search."""
    kind = named(fields.type)
    if kind == "message" or (kind is None and isinstance(fields.role, str)):
        role = _ROLES.get(fields.role, Role.OTHER) if isinstance(fields.role, str) else Role.OTHER
        content, plain = parts.read(fields.content)
        cites = _cites(fields.content) if role is Role.ASSISTANT else ()
        found = None if plain else Found()
        return [Message(index=index, role=role, span=span, parts=content, plain=plain, cites=cites, found=found)]
    if kind == "item_reference" or (kind is None and named(fields.id) is not None):
        # What it stands for is on the provider's side; by its id, reasoning or something that the assistant said.
        reasoning = isinstance(fields.id, str) and fields.id.startswith("rs_")
        return [Message(index=index, role=Role.OTHER if reasoning else Role.ASSISTANT, span=span)]
    if kind == "file_search_call":
        return _file_search(index, span, fields)
    if kind is not None and is_call(kind):
        return [Message(index=index, role=Role.ASSISTANT, span=span, calls=(_call(kind, fields),))]
    if kind is not None and (kind.endswith("_call_output") or kind in _ANSWERED_OTHERWISE):
        content, plain = parts.read(fields.output)
        call_id, found = named(fields.call_id), None if plain else Found()
        return [
            Message(index=index, role=Role.TOOL, span=span, parts=content, plain=plain, call_id=call_id, found=found)
        ]
    return [Message(index=index, role=Role.OTHER, span=span)]


def named(value: object) -> str | None:
    """A text that names something, or None: explicit null means absent."""
    return value if isinstance(value, str) and value else None


def is_call(kind: str) -> bool:
    """Whether an item of this kind is a call that the client answers."""
    return kind in _CALLED_OTHERWISE or (kind.endswith("_call") and kind not in _HOSTED)


def _call(kind: str, fields: Fields) -> Call:
    written = fields.arguments if fields.arguments is not None else fields.input
    called = named(fields.name) if kind not in _CALLED_OTHERWISE else None  # an approval names the tool, and is none
    return Call(
        id=named(fields.call_id) or named(fields.id),
        name=called or kind,
        arguments=written if isinstance(written, str) else json.dumps(written if written is not None else {}),
    )


def _file_search(index: int, span: Span, fields: Fields) -> list[Message]:
    """A call and its return, where the item shows what was found; else it says nothing.

    Clients may drop its id, and write its scores in another way: neither counts.
    """
    if not isinstance(fields.results, list) or not fields.results:
        return [Message(index=index, role=Role.OTHER, span=span)]
    queries = fields.queries if isinstance(fields.queries, list) else []
    shown = [
        {name: value for name, value in result.items() if name != "score" and value not in (None, {})}
        if isinstance(result, dict)
        else result
        for result in fields.results
    ]
    call = Call(id=FILE_SEARCH, name=FILE_SEARCH, arguments=json.dumps({"queries": queries}))
    found = Text(json.dumps(shown, ensure_ascii=False, sort_keys=True))
    return [
        Message(index=index, role=Role.ASSISTANT, span=span, calls=(call,)),
        Message(index=index + 1, role=Role.TOOL, span=span, parts=(found,), call_id=FILE_SEARCH, only_text=True),
    ]


def _cites(content: object) -> tuple[tuple[str, ...], ...]:
    """What the annotations of a message's texts cite: for each, the names of its source."""
    found: list[tuple[str, ...]] = []
    for part in content if isinstance(content, list) else ():
        annotations = part.get("annotations") if isinstance(part, dict) else None
        for annotation in annotations if isinstance(annotations, list) else ():
            if isinstance(annotation, dict):
                names = (named(annotation.get(key)) for key in _CITED_BY.get(str(annotation.get("type")), ()))
                found.append(tuple(name for name in names if name is not None))
    return tuple(dict.fromkeys(names for names in found if names))
