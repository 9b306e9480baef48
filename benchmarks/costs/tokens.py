"""Tokens of o200k_base, without a network: the vocabulary lies inside the wheel of bpe-openai, tiktoken reads it.

Where either is absent, a token is four bytes, and `LABEL` says so. A picture counts as OpenAI documents it for
high detail: 85, and 170 for each tile of 512 pixels after it was scaled to fit 2,048 and then to a short side of 768.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import math
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

# How tiktoken names the file of o200k_base in its cache, and the digest that the file is published with.
_NAME = "fb374d419588a4632f3f557e76b4b70aebbca790"
_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def _vocabulary() -> Path | None:
    """The folder of tiktoken's cache, with the vocabulary in it; None where it is nowhere on this machine."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR")
    if named and _fits(Path(named, _NAME)):
        return Path(named)
    package = importlib.util.find_spec("bpe_openai")  # found, not imported: only its data is wanted
    if package is None or not package.submodule_search_locations:
        return None
    packed = Path(package.submodule_search_locations[0], "data", "o200k_base.tiktoken.gz")
    if not packed.is_file():
        return None
    folder = Path(tempfile.gettempdir(), f"evidence-proxy-vocabulary-{os.getuid()}")
    if not _fits(folder / _NAME):
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(gzip.decompress(packed.read_bytes()))
        Path(file.name).replace(folder / _NAME)
    return folder if _fits(folder / _NAME) else None


def _fits(file: Path) -> bool:
    # tiktoken would replace a file with another digest by a download, so the digest is looked at before it is asked.
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == _SHA256


def _encoder() -> tuple[Callable[[str], list[int]], str]:
    folder = _vocabulary()
    if folder is not None and importlib.util.find_spec("tiktoken") is not None:
        import tiktoken

        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            encoding = tiktoken.get_encoding("o200k_base")
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before
        return lambda text: encoding.encode(text, disallowed_special=()), "o200k_base"
    return _quarters, "bytes / 4 (the o200k_base vocabulary is not on this machine)"


def _quarters(text: str) -> list[int]:
    raw = text.encode("utf-8", "surrogatepass")
    return [int.from_bytes(raw[at : at + 4], "big") for at in range(0, len(raw), 4)]


encode, LABEL = _encoder()


@cache
def of_picture(url: str) -> tuple[int, ...]:
    """The tokens that stand for a picture: as many as it counts for, and none of them those of another picture."""
    digest = int.from_bytes(hashlib.sha256(url.encode()).digest()[:6], "big") << 16
    return tuple(-(digest + at) - 1 for at in range(picture_tokens(url)))


def picture_tokens(url: str) -> int:
    """How many tokens a picture counts for; one tile where its size cannot be read."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(base64.b64decode(url.partition("base64,")[2]))) as image:
            width, height = image.size
    except Exception:  # whatever Pillow raises for it: the provider could not read it either
        return 85 + 170
    scale = min(1.0, 2048 / max(width, height))
    width, height = round(width * scale), round(height * scale)
    scale = min(1.0, 768 / min(width, height))
    return 85 + 170 * math.ceil(width * scale / 512) * math.ceil(height * scale / 512)
