"""What a cite call or an answer names: ids out of arguments and text, and ids that were damaged in transcription."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from rapidfuzz.distance import Levenshtein

#: How alike a damaged id and the one it stands for must be: 1 - (edit distance / length of the longer).
#: Two random UUIDs are 0.47 alike at the most, in ten million pairs; a UUID that lost its longest group still has 0.64.
NEAR_RANDOM = 0.62
#: For ids that are not random, neighbours are alike (`manual-p3`, `manual-p4`): nearer, and the same numbers in both.
NEAR_NAMED = 0.85
_SHORTEST_NAMED = 12

_RANDOM = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|[0-9a-f]{24,}", re.IGNORECASE)
_WRAPPING = " \t\r\n\"'`“”‘’[](){}<>【】,;"
_ID_KEY = re.compile(r"(?:^|_)(?:ids?|chunks?|cit(?:e|es|ed|ations?)|sources?|references?|refs?)$|Ids?$", re.IGNORECASE)
_BRACKETED = re.compile(r"\[([^\[\]\n]{1,400})\]|【([^【】\n]{1,400})】")

_CITED_BY = re.compile(r"(?<=[?&])utm_source=openai(?:&|\Z)")


def cited_ids(arguments: str) -> list[str] | None:
    """The ids that a cite call's arguments name, as written; an empty list declares that nothing grounds the answer.

    None where the arguments are not a JSON object: such a call declares nothing.
    """
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    found: list[str] = []
    _collect(value, False, found, 0)
    return list(dict.fromkeys(found))


def _collect(value: Any, is_id: bool, found: list[str], depth: int) -> None:
    if depth > 8:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            named = _ID_KEY.search(key) is not None
            _collect(item, named or (is_id and isinstance(item, list)), found, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _collect(item, True, found, depth + 1)
    elif is_id and isinstance(value, str):
        stripped = value.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            try:  # a list that was written as a string
                inner = json.loads(stripped)
            except ValueError:
                inner = None
            if isinstance(inner, list) and not (len(inner) == 1 and isinstance(inner[0], int)):
                _collect(inner, True, found, depth + 1)
                return
        if stripped:
            found.append(value)
    elif is_id and isinstance(value, int | float) and not isinstance(value, bool):
        found.append(str(int(value)) if float(value).is_integer() else str(value))


def spellings(written: str) -> list[str]:
    """The ids that a written one may mean, likeliest first: as it stands, bare of brackets and quotes, its pieces."""
    bare = written.strip().strip(_WRAPPING)
    options = [written, written.strip(), bare]
    return list(dict.fromkeys(option for option in options if option))


def pieces(written: str) -> list[str]:
    """The single ids of a written list ("c1, c3" or "[c1][c3]")."""
    return [bare for piece in re.split(r"[,;\s\]\[]+", written) if (bare := piece.strip(_WRAPPING))]


def inline_ids(text: str, known: Iterable[str]) -> list[str]:
    """The known ids that stand in brackets in an answer, in order: `[c1]`, `[c1, c3]`, `[ "c1" ]`."""
    wanted = set(known)
    found: dict[str, None] = {}
    for match in _BRACKETED.finditer(text):
        inner = match[1] or match[2]
        for option in (*spellings(inner), *pieces(inner)):
            bare = option.lstrip("^#")
            for name in (option, bare):
                if name in wanted:
                    found[name] = None
    return list(found)


def same_source(named: str, name: str) -> bool:
    """Whether a citation that names a file or an address means the source that a return called `name`.

    Addresses come back with a fragment or a mark of who cited them; files without their folders.
    """
    if named == name or _address(named) == _address(name):
        return True
    return "/" not in named and named == unquote(_address(name).rpartition("/")[2])


def _address(url: str) -> str:
    bare = _CITED_BY.sub("", url.partition("#")[0])
    return bare.rstrip("/?&")


def recovered(written: str, known: Iterable[str]) -> str | None:
    """The one known id that a damaged one stands for; None where none, or more than one, is near enough."""
    best: list[str] = []
    bare = written.strip().strip(_WRAPPING)
    digits = re.findall(r"\d+", bare)
    for candidate in set(known):
        likeness = Levenshtein.normalized_similarity(bare.lower(), candidate.lower())
        if _RANDOM.fullmatch(candidate):
            near = likeness >= NEAR_RANDOM
        else:
            near = (
                len(candidate) >= _SHORTEST_NAMED and likeness >= NEAR_NAMED and re.findall(r"\d+", candidate) == digits
            )
        if near:
            best.append(candidate)
    return best[0] if len(best) == 1 else None


def random_ids(text: str) -> set[str]:
    """The UUIDs and long hexadecimal ids that stand in a text."""
    return {match[0] for match in _RANDOM.finditer(text)}
