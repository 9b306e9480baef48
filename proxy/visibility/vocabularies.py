"""The vocabularies that OpenAI's models read by. They lie beside this file, so nothing is ever downloaded.

`vocabularies/` holds the files of tiktoken's encodings as OpenAI publishes them, packed with xz; what is unpacked must
have the digest that it was published with. How an encoding cuts text is tiktoken's knowledge, and is taken from there.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import threading
from importlib import resources
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tiktoken import Encoding

#: What is carried, and its published sha256. Source: tiktoken_ext/openai_public.py of tiktoken.
DIGESTS = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}

#: Another name's text is cut by the same vocabulary; only the marks between messages differ.
_SAME_TEXT = {"o200k_harmony": "o200k_base"}
_DEFAULT = "o200k_base"

_loaded: dict[str, Encoding] = {}
_loading = threading.Lock()


class BrokenVocabulary(Exception):
    """A vocabulary is not what was published, or tiktoken cannot be given it: nothing can be counted by it."""


class Chosen(NamedTuple):
    """An encoding for a model. Where it is not known to be the model's own, counts by it are estimates."""

    name: str
    known: bool


def chosen(model: str | None) -> Chosen:
    """The encoding of a model, by its name; providers' prefixes, as in `openai/gpt-4o`, do not count."""
    from tiktoken.model import encoding_name_for_model

    for name in (model, model.rpartition("/")[2]) if model else ():
        try:
            found = encoding_name_for_model(name.lower())
        except KeyError:
            continue
        found = _SAME_TEXT.get(found, found)
        if found in DIGESTS:
            return Chosen(found, True)
    return Chosen(_DEFAULT, False)


def encoding(name: str) -> Encoding:
    """The encoding of that name, one of `DIGESTS`. Loads it where nobody has: a second's work, which holds the
    interpreter for a part of it. Raises BrokenVocabulary."""
    with _loading:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def is_loaded(name: str) -> bool:
    """Whether `encoding` has it ready."""
    return name in _loaded


def _load(name: str) -> Encoding:
    import tiktoken
    from tiktoken_ext import openai_public  # type: ignore[import-untyped]

    defined = openai_public.ENCODING_CONSTRUCTORS[name]
    if "load_tiktoken_bpe" not in defined.__code__.co_names:
        raise BrokenVocabulary(f"tiktoken {tiktoken.__version__} loads {name} in a way that this version does not know")
    # tiktoken's own definition of the encoding, with a loader that reads what lies here: its own one would download it.
    here = FunctionType(defined.__code__, {**vars(openai_public), "load_tiktoken_bpe": lambda *_, **__: _ranks(name)})
    found: dict[str, Any] = here()
    made = tiktoken.Encoding(**found)
    # What encodes holds a copy of its own; this one, of 28 MB, is for those who want to look.
    made._mergeable_ranks = {}
    return made


def _ranks(name: str) -> dict[bytes, int]:
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, unpacked(name).splitlines())}


def unpacked(name: str) -> bytes:
    """A vocabulary's file as it was published. Raises BrokenVocabulary."""
    try:
        packed = resources.files(__package__).joinpath("vocabularies", f"{name}.tiktoken.xz").read_bytes()
        raw = lzma.decompress(packed)
    except (OSError, lzma.LZMAError) as fault:
        raise BrokenVocabulary(f"the vocabulary {name} cannot be read; install the package again") from fault
    if hashlib.sha256(raw).hexdigest() != DIGESTS[name]:
        raise BrokenVocabulary(f"the vocabulary {name} is not the published one; install the package again")
    return raw
