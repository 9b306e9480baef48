"""Tokens of o200k_base, as the proxy itself counts them, and pictures as stretches of tokens that are theirs alone."""

from __future__ import annotations

import hashlib
from functools import cache

from proxy.visibility import pictures, vocabularies

LABEL = "o200k_base"


def encode(text: str) -> list[int]:
    """The tokens of a text."""
    return vocabularies.encoding(LABEL).encode_ordinary(text)


@cache
def of_picture(url: str) -> tuple[int, ...]:
    """The tokens that stand for a picture: as many as it counts for, and none of them those of another picture."""
    digest = int.from_bytes(hashlib.sha256(url.encode()).digest()[:6], "big") << 16
    return tuple(-(digest + at) - 1 for at in range(picture_tokens(url)))


def picture_tokens(url: str) -> int:
    """How many tokens a picture counts for, by OpenAI's rule for most of its models."""
    return pictures.tokens(pictures.size_of(url), None)
