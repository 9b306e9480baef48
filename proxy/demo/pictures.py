"""The drawings of the handbook, made with Pillow when they are asked for. Drawing only: no file is read or written."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

# Within one tile of 512 pixels, so that the estimate of a picture's tokens is one figure for all of them.
WIDTH, HEIGHT = 480, 320
INK, PAPER, RED, GREY = (24, 32, 40), (250, 248, 240), (190, 50, 40), (150, 150, 145)


@cache
def png_of(passage_id: str) -> bytes:
    """The drawing that goes with a passage, as a PNG.

    Raises `KeyError` for a passage that has none.
    """
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    _DRAWINGS[passage_id](ImageDraw.Draw(image))
    out = io.BytesIO()
    # A few colours are plenty for a line drawing, and keep it at a few kilobytes.
    image.quantize(5).save(out, format="PNG", optimize=True)
    return out.getvalue()


def _lens_panel(draw: ImageDraw) -> None:
    x, y = WIDTH / 2, HEIGHT / 2 + 20
    for ring in range(11, 0, -1):
        rx, ry = 16 + ring * 19, 12 + ring * 10.5
        draw.ellipse((x - rx, y - ry, x + rx, y + ry), outline=RED if ring > 6 else INK, width=1)
        draw.text((x + rx - 14, y - 6), str(ring), fill=INK)
    draw.ellipse((x - 16, y - 12, x + 16, y + 12), fill=INK)
    draw.text((12, 12), "One panel: 1-6 bend the light, 7-11 throw it back", fill=INK)


def _day_mark(draw: ImageDraw) -> None:
    bands = (
        (40, 70, INK, "lantern"),
        (70, 150, PAPER, "14-21 m"),
        (150, 225, RED, "7-14 m"),
        (225, 300, PAPER, "0-7 m"),
    )
    for top, bottom, fill, name in bands:
        draw.rectangle((190, top, 290, bottom), fill=fill, outline=INK, width=2)
        draw.line((290, top, 340, top), fill=GREY)
        draw.text((350, (top + bottom) / 2 - 6), name, fill=INK)
    draw.text((12, 12), "The day mark, heights in metres", fill=INK)


def _fog_timing(draw: ImageDraw) -> None:
    left, scale, low, high = 40, 13, 220, 110
    line = [(0, low)]
    for second, level in ((0, high), (2, high), (2, low), (4, low), (4, high), (6, high), (6, low), (30, low)):
        line.append((second, level))
    draw.line([(left + second * scale, level) for second, level in line], fill=RED, width=4)
    for second in range(0, 31, 2):
        draw.line((left + second * scale, low + 20, left + second * scale, low + 28), fill=INK)
        draw.text((left + second * scale - 5, low + 34), str(second), fill=INK)
    draw.text((12, 12), "Fog signal: two blasts every thirty seconds", fill=INK)


_DRAWINGS: dict[str, Callable[[ImageDraw], None]] = {
    "lens-2": _lens_panel,
    "paint-2": _day_mark,
    "fog-2": _fog_timing,
}
