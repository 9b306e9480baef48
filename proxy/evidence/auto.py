"""What tools of any framework return: JSON, Python's `repr` of it, or text in which `[id]` opens a chunk.

Reading is safe (no code is run), bounded, and splits too little rather than too much: a chunk that took its
neighbour's text along loses nothing, one that was cut would.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Container
from typing import Any

import msgspec

from proxy.evidence.chunks import Chunk
from proxy.evidence.citing import RANDOM as _RANDOM
from proxy.evidence.sources import source_line
from proxy.evidence.tables import FieldNames

_DEEPEST = 16
#: How LlamaIndex's nodes call their id.
_OTHER_IDS = ("id_",)
_CALL = re.compile(r"[A-Za-z_][\w.]*\(\w+=")
#: The `repr` of an object, or of several in a list.
_OBJECTS = re.compile(r"[\[(]?\s*[A-Za-z_][\w.]*\(\w+=")
_LITERAL = re.compile(r"""'[^'\\\n]*(?:\\.[^'\\\n]*)*'|"[^"\\\n]*(?:\\.[^"\\\n]*)*\"""", re.DOTALL)
_ENUM_OPENS = re.compile(r"<[\w.]+: \Z")
_ENUM_ENDS = re.compile(r"\A>")
_LARGEST_REPR = 200_000
#: Whoever cuts digests short to make ids of them leaves so many digits at least; shorter ones are counted, or words.
_SHORTEST_DIGEST = 8
_DIGEST = re.compile(rf"[0-9a-f]{{{_SHORTEST_DIGEST},}}|[0-9A-F]{{{_SHORTEST_DIGEST},}}")
_OPENER = re.compile(r"^\[([^\[\]\s][^\[\]\n]{0,199})\](?![(:])", re.MULTILINE)
#: How a list, a tuple or an object of some language begins: text like this is no chunk with an id in brackets.
_STRUCTURE = re.compile(r"""\[\s*(?:[\[{('"]|[A-Za-z_][\w.]*\(|None\b|True\b|False\b)|[{(]""")
_ENCODED = re.compile(r"[A-Za-z0-9+/=_-]{1000,}")
# Python warns of odd escapes in a literal, on standard error and by quoting it: what tools return is not our code.
warnings.filterwarnings("ignore", module="<unknown>")
#: Fields that say how well something matched, not what it says.
_NOISE = frozenset(
    {"score", "scores", "distance", "_distance", "similarity", "relevance", "relevance_score", "_score",
     "_relevance_score", "rank", "embedding", "vector", "type", "object"}
)  # fmt: skip


def read(text: str, fields: FieldNames, part: int = 0) -> list[Chunk]:
    """The chunks of one text part, in order."""
    try:
        return _read_text(text, fields, part, 0)
    except RecursionError:
        return []


def find(text: str, fields: FieldNames, part: int, ids: Container[str]) -> list[Chunk]:
    """Those chunks of a text part that have these ids, as `read` gives them. Of a plain list it reads little else."""
    try:
        value = parse(text)
        if isinstance(value, list):
            value = [element for element in value if not _is_another(element, fields, ids)]
        return [chunk for chunk in _read_parsed(text, value, fields, part, 0) if chunk.id in ids]
    except RecursionError:
        return []


def _is_another(element: object, fields: FieldNames, ids: Container[str]) -> bool:
    """Whether an element of a list is surely one chunk, and of another id."""
    if not isinstance(element, dict):
        return False
    for inner in element.values():
        if isinstance(inner, (list, dict)):
            return False
    found = _first(element, fields.id, (str, int))[1]
    return found is not None and str(found) not in ids and _first(element, fields.content, (str,))[1] is not None


def _read_text(text: str, fields: FieldNames, part: int, depth: int) -> list[Chunk]:
    return _read_parsed(text, parse(text), fields, part, depth)


def _read_parsed(text: str, value: Any, fields: FieldNames, part: int, depth: int) -> list[Chunk]:
    """The same, once it is known what the text encodes."""
    if value is not None and depth < _DEEPEST:
        return _read_value(value, fields, part, depth + 1)
    if _STRUCTURE.match(text.lstrip()):
        return []
    return _read_openers(text, part)


def parse(text: str) -> Any:
    """The list, the object or the text that this text encodes, as JSON or as Python's `repr`; None where it is none."""
    stripped = text.strip()
    if len(stripped) < 2 or stripped[-1] not in "]})\"'":
        return None
    if stripped[0] not in "[{(\"'" and not (stripped[-1] == ")" and _CALL.match(stripped)):
        return None
    value: Any = None
    try:
        value = _loads(stripped)
    except (ValueError, RecursionError):
        if len(stripped) <= _LARGEST_REPR and (_STRUCTURE.match(stripped) or _OBJECTS.match(stripped)):
            try:
                value = ast.literal_eval(stripped)  # literals only: nothing of it is executed
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                return _objects(stripped)
    return value if isinstance(value, list | dict | tuple | str) else None


def _loads(text: str) -> Any:
    """JSON as the standard library reads it, which also reads what the quick decoder refuses (NaN, lone surrogates)."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return json.loads(text)


def _objects(text: str) -> Any:
    """Objects as `repr` writes them (`[Document(page_content='...', metadata={...})]`), each as its fields."""
    pieces: list[str] = []
    at = 0
    for literal in _LITERAL.finditer(text):  # enumerations are no Python: <Relation.SOURCE: '1'> is read as '1'
        pieces += [_ENUM_ENDS.sub("", _ENUM_OPENS.sub("", text[at : literal.start()])), literal[0]]
        at = literal.end()
    pieces.append(_ENUM_ENDS.sub("", text[at:]))
    try:
        value = _plain(ast.parse("".join(pieces), mode="eval").body)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    return value if isinstance(value, list | dict) else None


def _plain(node: ast.expr) -> Any:
    """The value of a literal, an object as the fields that it names, anything else as it is written. Nothing runs."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_plain(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        return {
            key: _plain(value)
            for name, value in zip(node.keys, node.values, strict=True)
            if name is not None and isinstance(key := _plain(name), str | int)
        }
    if isinstance(node, ast.Call) and node.keywords and not node.args:
        return {keyword.arg: _plain(keyword.value) for keyword in node.keywords if keyword.arg is not None}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _plain(node.operand)
        return -value if isinstance(value, int | float) else ast.unparse(node)
    return ast.unparse(node)


def _read_value(value: Any, fields: FieldNames, part: int, depth: int) -> list[Chunk]:
    if depth > _DEEPEST:
        return []
    if isinstance(value, str):
        return _read_text(value, fields, part, depth)
    if isinstance(value, (list, tuple)):
        return [chunk for element in value for chunk in _read_value(element, fields, part, depth + 1)]
    if isinstance(value, dict):
        inner = {
            name: _read_value(element, fields, part, depth + 1)
            for name, element in value.items()
            if isinstance(element, (list, tuple, dict))
        }
        own = _chunk(value, {name for name, chunks in inner.items() if chunks}, fields, part)
        if own is not None:
            inner.pop("metadata", None)  # it is this chunk's own
        nested = [chunk for chunks in inner.values() for chunk in chunks]
        if own is not None:
            return [own, *nested]
        texts = [element for element in value.values() if isinstance(element, str)]
        return nested + [chunk for text in texts for chunk in _read_text(text, fields, part, depth + 1)]
    return []


def _first(value: dict[Any, Any], names: tuple[str, ...], kinds: tuple[type, ...]) -> tuple[str | None, Any]:
    for name in names:
        found = value.get(name)
        if found is not None and isinstance(found, kinds) and not isinstance(found, bool) and found != "":
            return name, found
    return None, None


def _chunk(value: dict[Any, Any], read_already: set[Any], fields: FieldNames, part: int) -> Chunk | None:
    """An object with an id and content is a chunk; one with an id and a title or an address stands for itself."""
    metadata = value.get("metadata")
    beside: dict[Any, Any] = metadata if isinstance(metadata, dict) else {}
    id_name, chunk_id = _first(value, (*fields.id, *_OTHER_IDS), (str, int))
    if id_name is None and (value.get("type") == "resource_link" or "mimeType" in value):
        id_name, chunk_id = _first(value, fields.uri, (str,))  # MCP names a resource by its address alone
    content_name, content = _first(value, fields.content, (str,))
    if id_name is None and content_name is not None:
        _, chunk_id = _first(beside, fields.id, (str, int))
    if chunk_id is None:
        return None
    title_name, title = _first(value, fields.title, (str,))
    uri_name, uri = _first(value, fields.uri, (str,))
    if content is None and title is None and uri is None:
        return None
    named = {id_name, content_name, title_name, uri_name, "metadata", *fields.id, *read_already}
    title = title if title is not None else _first(beside, fields.title, (str,))[1]
    uri = uri if uri is not None else _first(beside, fields.uri, (str,))[1]
    collection = _first(value, fields.collection, (str,))[1] or _first(beside, fields.collection, (str,))[1]
    headings = _listed(value, beside, fields.headings, " > ")
    pages = _listed(value, beside, fields.pages, ", ")
    named |= {*fields.collection, *fields.headings, *fields.pages}
    rest = {name: item for name, item in value.items() if name not in named and _is_detail(name, item)}
    known = {*fields.id, *fields.title, *fields.uri, *fields.collection, *fields.headings, *fields.pages}
    rest |= {name: item for name, item in beside.items() if name not in known and _is_detail(name, item)}
    return Chunk(
        id=str(chunk_id),
        content=content if content is not None else "",
        source=source_line(title, uri, headings, pages),
        collection=collection,
        details=_encoded(rest) if rest else None,
        part=part,
        names=tuple(name for name in (title, uri) if name),
    )


def _encoded(rest: dict[Any, Any]) -> str | None:
    try:
        return json.dumps(rest, ensure_ascii=False, separators=(",", ":"), default=str)
    except (RecursionError, ValueError):  # nested too deep to be written, or a number that Python does not write
        return None


def _is_detail(name: Any, item: Any) -> bool:
    """Whether a field says something: not a score, not empty, not an encoded file."""
    if not isinstance(name, str) or name.lower() in _NOISE or item in (None, "", [], {}, ()):
        return False
    return not (isinstance(item, str) and _ENCODED.fullmatch(item) is not None)


def _listed(value: dict[Any, Any], beside: dict[Any, Any], names: tuple[str, ...], joint: str) -> str | None:
    found = _first(value, names, (list, str, int))[1]
    if found is None:
        found = _first(beside, names, (list, str, int))[1]
    if isinstance(found, list):
        return joint.join(str(item) for item in found) or None
    return None if found is None else str(found)


def _read_openers(text: str, part: int) -> list[Chunk]:
    """Chunks that open with `[id]` at the start of a line.

    Only openers that look like the first one count (digits that go up by one, or the same shape): a footnote or a
    remark in brackets inside a chunk is its content. An id that opens twice leaves it unclear where chunks end; then
    there are none, and what is cited of them keeps the whole return.
    """
    found = list(_OPENER.finditer(text))
    if not found:
        return []
    first = found[0][1]
    counted = _is_number(first)
    alike = [opener for opener in found if _is_number(opener[1]) == counted]
    if len({opener[1].strip() for opener in alike}) != len(alike):
        return []
    openers = [found[0]]
    if len(found) == 1 and not text[found[0].end() :].strip():
        return []  # `[cleared]` and the like: an opener of nothing
    for opener in alike[1:]:
        if counted:
            if int(opener[1]) == int(openers[-1][1]) + 1:
                openers.append(opener)
        elif _shape(opener[1]) == _shape(first):
            openers.append(opener)
    return [
        Chunk(
            id=opener[1].strip(),
            content=text[opener.end() : following.start() if following else len(text)].strip(),
            part=part,
        )
        for opener, following in zip(openers, [*openers[1:], None], strict=True)
    ]


def _is_number(chunk_id: str) -> bool:
    return chunk_id.isascii() and chunk_id.isdecimal() and len(chunk_id) < _SHORTEST_DIGEST


def _shape(chunk_id: str) -> str:
    """What ids of one return have in common: UUIDs and digests are alike, digests cut short where they are of one
    length, and so are names that differ in their numbers or in what stands after the last joint (`doc-a`, `doc-b`)."""
    if _RANDOM.fullmatch(chunk_id):
        return "random"
    if _DIGEST.fullmatch(chunk_id):
        return f"digest of {len(chunk_id)}"
    if len(chunk_id) == 1:
        return "@"
    joint = max(chunk_id.rfind(character) for character in "-_./:#")
    if joint > 0:
        last = chunk_id[joint + 1 :]
        kind = "#" if last.isdecimal() else "@"
        return re.sub(r"\d+", "#", chunk_id[: joint + 1]) + kind
    return re.sub(r"\d+", "#", chunk_id)
