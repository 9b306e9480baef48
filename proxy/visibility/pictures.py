"""What a picture costs in tokens: an estimate, by the rules that OpenAI publishes.

Source: OpenAI's guide "Images and vision", "Calculating costs": models that count tiles of 512 pixels, and models that
count patches of 32. Which rule a model follows is known by how its name begins.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from typing import NamedTuple

Size = tuple[int, int]

#: Taken for a picture whose size cannot be seen from here (an address, a file that Pillow cannot read).
UNKNOWN_SIZE: Size = (1024, 1024)


class Tiles(NamedTuple):
    """`base` tokens, and `tile` for each square of 512 pixels once it was scaled to fit 2048 and to a short side of
    768. With detail `low`: `base` alone."""

    base: int
    tile: int

    def tokens(self, size: Size, low: bool) -> int:
        if low:
            return self.base
        width, height = _shrunk(size, min(1.0, 2048 / max(size)))
        width, height = _shrunk((width, height), min(1.0, 768 / min(width, height)))
        return self.base + self.tile * math.ceil(width / 512) * math.ceil(height / 512)


class Patches(NamedTuple):
    """`factor` tokens for each square of 32 pixels, of which a picture is scaled to have at most 1536."""

    factor: float

    def tokens(self, size: Size, low: bool) -> int:
        return math.ceil(_patches(size) * self.factor)


#: The first that a model's name begins with counts.
RULES: tuple[tuple[str, Tiles | Patches], ...] = (
    ("gpt-5-mini", Patches(1.62)),
    ("gpt-5-nano", Patches(2.46)),
    ("gpt-5", Tiles(70, 140)),
    ("gpt-4.1-mini", Patches(1.62)),
    ("gpt-4.1-nano", Patches(2.46)),
    ("o4-mini", Patches(1.72)),
    ("gpt-4o-mini", Tiles(2833, 5667)),
    ("o1", Tiles(75, 150)),
    ("o3", Tiles(75, 150)),
    ("computer-use-preview", Tiles(65, 129)),
)
#: gpt-4o, gpt-4.1, gpt-4.5, and models of which nothing is known.
USUAL = Tiles(85, 170)


def rule(model: str | None) -> Tiles | Patches:
    """How a model counts pictures, by its name."""
    name = (model or "").lower().rpartition("/")[2]
    return next((found for beginning, found in RULES if name.startswith(beginning)), USUAL)


def tokens(size: Size | None, model: str | None, detail: str | None = None) -> int:
    """About how many tokens a picture of this size (None: unknown) counts for. `detail` is what its part asks for."""
    return rule(model).tokens(size or UNKNOWN_SIZE, detail == "low")


def size_of(url: str) -> Size | None:
    """Width and height of the picture in a data URL; None where they cannot be seen from here."""
    from PIL import Image

    head, found, data = url.partition("base64,")
    if not found or not head.startswith("data:"):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(base64.b64decode(data))) as image:
                width, height = image.size
    except (OSError, ValueError, binascii.Error, SyntaxError, Image.DecompressionBombError):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _shrunk(size: Size, scale: float) -> Size:
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _patches(size: Size, most: int = 1536, side: int = 32) -> int:
    width, height = size
    whole = math.ceil(width / side) * math.ceil(height / side)
    if whole <= most:
        return whole
    scale = math.sqrt(side * side * most / (width * height))
    # Scaled so that a whole number of patches fits each way, as the guide does it.
    wide, high = width * scale / side, height * scale / side
    scale *= min(math.floor(wide) / wide, math.floor(high) / high) if min(wide, high) >= 1 else 1
    # What is a whole number by the rule must not become the next one by a rounding in its last place.
    across, down = (math.ceil(round(length * scale / side, 6)) for length in size)
    return min(most, across * down)
