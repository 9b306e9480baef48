"""What tokens cost, by a price table of the configuration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

_PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, for the models whose names fit `model` (`*` stands for anything)."""

    model: str
    input: float
    cached: float
    output: float

    def of(self, input: int, cached: int, output: int) -> float:
        """The cost of so many tokens; `cached` is a part of `input`."""
        return ((input - cached) * self.input + cached * self.cached + output * self.output) / _PER


def price_of(prices: Sequence[Price], model: str | None) -> Price | None:
    """The first price that a model's name fits, with or without its provider's prefix."""
    if not model:
        return None
    names = (model.lower(), model.lower().rpartition("/")[2])
    return next((price for price in prices if any(fnmatchcase(name, price.model.lower()) for name in names)), None)
