"""How many tokens a request has: counted where a vocabulary lies on this machine, else estimated and called so.

Nothing is downloaded. Only text counts as text; a picture counts by OpenAI's published rule for one tile (all of the
demo's drawings fit in one).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How tiktoken names the file of o200k_base in its cache, and the digest that the file is published with.
_O200K_NAME = "fb374d419588a4632f3f557e76b4b70aebbca790"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_ONE_TILE = 85 + 170


class TokenCount:
    """Counts a request's tokens. `label` says how: by which vocabulary, or that it is an estimate."""

    def __init__(self) -> None:
        encode = _local_encoder()
        self.label = "o200k_base" if encode else "estimate: bytes / 4"
        self._count: Callable[[str], int] = encode or (lambda text: len(text.encode()) // 4)

    def of(self, body: bytes) -> int:
        """The tokens of a request body: its messages' text and calls, and its pictures."""
        pictures = 0
        texts: list[str] = []
        for message in json.loads(body)["messages"]:
            parts: Any = message.get("content")
            for part in parts if isinstance(parts, list) else [{"type": "text", "text": parts or ""}]:
                if part["type"] == "text":
                    texts.append(part["text"])
                else:
                    pictures += 1
            texts.extend(json.dumps(call["function"]) for call in message.get("tool_calls") or [])
        return self._count("\n".join(texts)) + pictures * _ONE_TILE


def _local_encoder() -> Callable[[str], int] | None:
    """A counter by o200k_base if tiktoken and the right vocabulary file are here already, else `None`."""
    folder = (
        os.environ.get("TIKTOKEN_CACHE_DIR")
        or os.environ.get("DATA_GYM_CACHE_DIR")
        or str(Path(tempfile.gettempdir(), "data-gym-cache"))
    )
    file = Path(folder, _O200K_NAME)
    # tiktoken would replace a file with another digest by a download, so the digest is looked at before it is asked.
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != _O200K_SHA256:
        return None
    try:
        import tiktoken
    except ImportError:
        return None
    encoding = tiktoken.get_encoding("o200k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))
