"""A line chart as SVG, with nothing but text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = {
    "none": "#8a8f98",
    "single": "#c2702b",
    "append": "#1f6f8b",
    "as sent": "#8a8f98",
    "as it went up": "#1f6f8b",
}
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 340, 70, 100, 44, 44


def lines(title: str, series: Mapping[str, Sequence[float]], across: str, up: str) -> str:
    """A chart of each series over 1, 2, 3, ..., its name at its end; `across` and `up` name the axes."""
    most = max(max(values) for values in series.values()) or 1.0
    count = max(len(values) for values in series.values())
    step = _nice(most / 4)
    top = step * -(-most // step)

    def x(position: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (position - 1) / max(1, count - 1)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14" fill="#222222">{escape(title)}</text>',
    ]
    mark = 0.0
    while mark <= top + step / 2:
        drawn.append(
            f'<line x1="{_LEFT}" y1="{y(mark):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(mark):.1f}" stroke="#e4e6ea"/>'
        )
        drawn.append(
            f'<text x="{_LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end" fill="#555555">{_short(mark)}</text>'
        )
        mark += step
    below = f'y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="#555555"'
    for position in sorted({1, *range(max(1, count // 4), count + 1, max(1, count // 4)), count}):
        drawn.append(f'<text x="{x(position):.1f}" {below}>{position}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn.append(
        f'<text x="{middle:.1f}" y="{_HEIGHT - 8}" text-anchor="middle" fill="#555555">{escape(across)}</text>'
    )
    drawn.append(f'<text x="{_LEFT}" y="38" fill="#555555">{escape(up)}</text>')
    ends: list[float] = []
    for name, values in sorted(series.items(), key=lambda item: -item[1][-1]):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in enumerate(values, 1))
        colour = _COLOURS.get(name, "#444444")
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = max(y(values[-1]) + 4, ends[-1] + 14 if ends else 0)  # names do not overlap
        ends.append(at)
        drawn.append(f'<text x="{x(len(values)) + 6:.1f}" y="{at:.1f}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= value or factor == 10)


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"
