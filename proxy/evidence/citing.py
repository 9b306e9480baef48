"""What a cite call or an answer names: ids out of arguments and text, and ids that were damaged in transcription."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

import msgspec
from rapidfuzz.distance import Levenshtein

#: How alike a damaged id and the one it stands for must be: 1 - (edit distance / length of the longer).
#: Two random UUIDs are 0.47 alike at the most, in ten million pairs; a UUID that lost its longest group still has 0.64.
NEAR_RANDOM = 0.62
#: For ids that are not random, neighbours are alike (`manual-p3`, `manual-p4`): nearer, and the same numbers in both.
NEAR_NAMED = 0.85
_SHORTEST_NAMED = 12
#: How much of an id names it, where "…" says that it goes on.
SHORTEST_BEGINNING = 6

#: UUIDs and digests: what looks like it was drawn at random.
RANDOM = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9a-f]{32,}", re.IGNORECASE)
_WRAPPING = " \t\r\n\"'`“”‘’[](){}<>【】,;"
_ID_KEY = re.compile(r"(?:^|_)(?:ids?|chunks?|cit(?:e|es|ed|ations?)|sources?|references?|refs?)$|Ids?$", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.){1,200})"')
_NUMBER = re.compile(r"\d+")
_HEXADECIMAL = re.compile(r"[0-9a-f-]+", re.IGNORECASE)
_RUN = re.compile(r"(.)\1{4}")
_TOKEN = re.compile(r"[\w.\-/:#]+")
_WORD = re.compile(r"[^\W_]+")
_CITED_BY = re.compile(r"(?<=[?&])utm_source=openai(?:&|\Z)")
_BRACKETED = re.compile(r"\[([^\[\]\n]{1,400})\]|【([^【】\n]{1,400})】")


class Written(msgspec.Struct, frozen=True):
    """What a cite call's arguments say.

    `ids` stand where ids are expected; `perhaps` are other texts, which count only if they name a chunk exactly;
    `nothing` is whether the call says that nothing grounds the answer; `clear` is False where the arguments could not
    be read, so that nobody knows what was cited.
    """

    ids: tuple[str, ...] = ()
    perhaps: tuple[str, ...] = ()
    nothing: bool = False
    clear: bool = True


def written(arguments: str) -> Written:
    """What the arguments of a cite call name, as written."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
        if isinstance(value, str):
            value = json.loads(value)  # encoded twice
    except (ValueError, RecursionError):
        return Written(perhaps=tuple(_QUOTED.findall(arguments)), clear=False)
    if isinstance(value, list) and value:
        value = {"ids": value}
    if not isinstance(value, dict):
        return Written(clear=False)
    ids: list[str] = []
    perhaps: list[str] = []
    try:
        _collect(value, False, ids, perhaps, 0)
    except RecursionError:
        return Written(clear=False)
    named = [item for key, item in value.items() if _ID_KEY.search(key)]
    nothing = not ids and (not value or any(map(_is_blank, named)))
    return Written(tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(perhaps)), nothing)


def _is_blank(item: Any) -> bool:
    if isinstance(item, list):
        return all(map(_is_blank, item))
    return item is None or item == {} or (isinstance(item, str) and not item.strip())


def _collect(value: Any, is_id: bool, ids: list[str], perhaps: list[str], depth: int) -> None:
    if depth > 8:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            named = _ID_KEY.search(key) is not None
            if is_id:
                perhaps.append(key)
            _collect(item, named or (is_id and isinstance(item, list)), ids, perhaps, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _collect(item, True, ids, perhaps, depth + 1)
    elif isinstance(value, str) and value.strip():
        inner = _as_list(value) if is_id else None
        if inner is not None:
            _collect(inner, True, ids, perhaps, depth + 1)
        else:
            (ids if is_id else perhaps).append(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        (ids if is_id else perhaps).append(_number(value))


def _as_list(value: str) -> list[Any] | None:
    """The list that was written as a string; None for `[7]`, which is an id in brackets."""
    stripped = value.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return None
    try:
        inner = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, list) and not (len(inner) == 1 and isinstance(inner[0], int)) else None


def _number(value: int | float) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    try:
        return str(value)
    except ValueError:  # Python does not write integers of thousands of digits
        return ""


def spellings(written: str) -> list[str]:
    """The ids that a written one may mean, likeliest first: as it stands, bare of brackets and quotes, its pieces."""
    bare = written.strip().strip(_WRAPPING)
    options = [written, written.strip(), bare]
    return list(dict.fromkeys(option for option in options if option))


def pieces(written: str) -> list[str]:
    """The single ids of a written list ("c1, c3" or "[c1][c3]")."""
    return [bare for piece in re.split(r"[,;\s\]\[]+", written) if (bare := piece.strip(_WRAPPING))]


def bracketed(text: str) -> tuple[list[str], list[str]]:
    """What stands in brackets in an answer, in order; apart from it, the texts of links (`[text](address)`)."""
    brackets: list[str] = []
    links: list[str] = []
    for match in _BRACKETED.finditer(text):
        is_link = text.startswith("(", match.end())
        (links if is_link else brackets).append(match[1] or match[2])
    return brackets, links


def ids_in(inner: str) -> list[str]:
    """The ids that a bracket may name, likeliest first: `c1`, `c1, c3`, `"c1"`, `2†source`, `id:2`."""
    options = [*spellings(inner), *pieces(inner), *_TOKEN.findall(inner), *_WORD.findall(inner)]
    return list(dict.fromkeys(bare for option in options if (bare := option.lstrip("^#"))))


def same_source(named: str, name: str) -> bool:
    """Whether a citation that names a file or an address means the source that a return called `name`.

    Addresses come back with a fragment or a mark of who cited them; files without their folders.
    """
    if named == name or _address(named) == _address(name):
        return True
    return "/" not in named and named == unquote(_address(name).rpartition("/")[2])


def _address(url: str) -> str:
    return _CITED_BY.sub("", url.partition("#")[0]).rstrip("/?&")


def recovered(damaged: str, known: Iterable[str]) -> str | None:
    """The one known id that a damaged one stands for; None where none, or more than one, is near enough.

    Ids that were counted rather than drawn have neighbours, and a neighbour is no damage: they must keep their numbers.
    """
    best: list[str] = []
    bare = "".join(damaged.split()).strip(_WRAPPING)
    if bare.endswith(("…", "...")) and len(stem := bare.rstrip("….")) >= SHORTEST_BEGINNING:
        # A model may spare itself the rest of a long id.
        best = [candidate for candidate in set(known) if candidate.startswith(stem)]
        return best[0] if len(best) == 1 else None
    for candidate in set(known):
        likeness = Levenshtein.normalized_similarity(bare.lower(), candidate.lower())
        if _looks_drawn(candidate):
            near = likeness >= NEAR_RANDOM
        elif _HEXADECIMAL.fullmatch(candidate):
            near = False  # counted: the next one is as near as any damage
        else:
            near = (
                len(candidate) >= _SHORTEST_NAMED
                and likeness >= NEAR_NAMED
                and _NUMBER.findall(candidate) == _NUMBER.findall(bare)
            )
        if near:
            best.append(candidate)
    return best[0] if len(best) == 1 else None


def _looks_drawn(chunk_id: str) -> bool:
    """Whether an id was drawn at random: a UUID or digest of many different digits, without a long run of one."""
    if not RANDOM.fullmatch(chunk_id):
        return False
    digits = chunk_id.replace("-", "").lower()
    return len(set(digits)) >= 8 and not _RUN.search(digits)


def random_ids(text: str) -> set[str]:
    """The UUIDs and long hexadecimal ids that stand in a text."""
    return {match[0] for match in RANDOM.finditer(text)}
