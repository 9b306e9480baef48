"""What it all came to since the process started: requests, bytes, tokens, and money where there is a price table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.gateway.watched import Arrived, Passed
from proxy.visibility.counting import Counted
from proxy.visibility.metrics import named, weights
from proxy.visibility.prices import Price, price_of

_MOST_MODELS = 100
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Change:
    """How much there was before, and after. `observed` counts apart what `observe` would have changed."""

    before: int = 0
    after: int = 0

    def plus(self, before: int, after: int) -> Change:
        return Change(self.before + before, self.after + after)


@dataclass(frozen=True, slots=True)
class Money:
    """What was spent and saved, in the currency of the price table.

    `spent` is by the provider's own usage, with the price of what its cache gave; `spent_without_cache` the same at the
    full price. Nobody can know how much of what was not sent would have come out of the cache: `saved_without_cache` is
    at the full price, `saved_with_cache` as if all of it had (the least that it can be). What was not sent is by our
    own count of tokens, and of requests that the provider answered. `estimated` counts requests whose provider reported
    no usage, so that their input was priced by our own count; `unpriced` those of models that the table does not name.
    """

    spent: float = 0.0
    spent_without_cache: float = 0.0
    saved_with_cache: float = 0.0
    saved_without_cache: float = 0.0
    estimated: int = 0
    unpriced: int = 0

    @property
    def unchanged_with_cache(self) -> tuple[float, float]:
        """What the same would have cost unchanged: had all that was not sent come out of the cache, and had none."""
        return (self.spent + self.saved_with_cache, self.spent + self.saved_without_cache)

    @property
    def unchanged_without_cache(self) -> float:
        """What the same would have cost unchanged, and without any cache."""
        return self.spent_without_cache + self.saved_without_cache


@dataclass(frozen=True, slots=True)
class Totals:
    """A moment's totals. `outcomes` counts conversations' requests by (outcome, reason), as the metrics name them.

    `bytes` and `tokens` are of requests that went up as `after` says; `observed_...` of those that `observe` only
    looked at. `pictures` is the part of `tokens` that is an estimate (`observed_pictures` of `observed_tokens`), and
    `guessed` how many requests were counted by a vocabulary that may not be their model's. `counted` is how many the
    tokens are of; `input`, `cached` and `output` are what providers reported, for `reported` requests. `money` is None
    without a price table.
    """

    requests: int = 0
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    bytes: Change = Change()
    observed_bytes: Change = Change()
    counted: int = 0
    tokens: Change = Change()
    observed_tokens: Change = Change()
    pictures: Change = Change()
    observed_pictures: Change = Change()
    guessed: int = 0
    reported: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    money: Money | None = None


class Tally:
    """A watcher that adds up. Everything happens on the event loop."""

    def __init__(self, prices: Sequence[Price] = ()) -> None:
        self._prices = tuple(prices)
        self._price_of: dict[str, Price | None] = {}
        self._requests = 0
        self._outcomes: dict[tuple[str, str], int] = {}
        self._bytes, self._observed_bytes = [0, 0], [0, 0]
        self._counted = self._guessed = 0
        self._tokens = self._observed_tokens = Change()
        self._pictures = self._observed_pictures = Change()
        self._reported = self._input = self._cached = self._output = 0
        self._money: dict[str, float] = dict.fromkeys(Money.__slots__, 0.0)

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        return ()

    def passed(self, request: Passed) -> None:
        self._requests += 1
        told = request.conversed
        if told is None:
            return
        key = named(told)
        self._outcomes[key] = self._outcomes.get(key, 0) + 1
        before, after = weights(request, told)
        changed = self._observed_bytes if key[0] == "observed" else self._bytes
        changed[0] += before
        changed[1] += after
        usage = told.usage
        if usage is None:
            return
        read, cached, wrote = usage.input or 0, usage.cached or 0, usage.output or 0
        self._reported += 1
        self._input += read
        self._cached += cached
        self._output += wrote
        self._spend(told.model, read, min(cached, read), wrote)

    def counted(self, counted: Counted) -> None:
        """Hear of a request's tokens, a moment after it passed."""
        told = counted.passed.conversed
        if told is None:
            return
        before, after = counted.before, counted.after
        self._counted += 1
        self._guessed += not before.known
        if named(told)[0] == "observed":
            self._observed_tokens = self._observed_tokens.plus(before.total, after.total)
            self._observed_pictures = self._observed_pictures.plus(before.pictures, after.pictures)
            sent, saved = before.total, 0
        else:
            self._tokens = self._tokens.plus(before.total, after.total)
            self._pictures = self._pictures.plus(before.pictures, after.pictures)
            sent, saved = after.total, before.total - after.total
        if told.usage is None:
            if counted.passed.asked != 200:
                return  # nothing was answered: nothing was spent, and nothing saved
            self._money["estimated"] += self._spend(told.model, sent, 0, 0)
        price = self._price(told.model)
        if price is not None:
            self._money["saved_with_cache"] += price.of(saved, saved, 0)
            self._money["saved_without_cache"] += price.of(saved, 0, 0)

    def _spend(self, model: str | None, read: int, cached: int, wrote: int) -> bool:
        price = self._price(model)
        if price is None:
            self._money["unpriced"] += 1
            return False
        self._money["spent"] += price.of(read, cached, wrote)
        self._money["spent_without_cache"] += price.of(read, 0, wrote)
        return True

    def _price(self, model: str | None) -> Price | None:
        """What a model costs, by the table; remembered for the first models that are heard of."""
        if not self._prices or not model:
            return None
        if model in self._price_of:
            return self._price_of[model]
        price = price_of(self._prices, model)
        if len(self._price_of) < _MOST_MODELS and len(model) <= _LONGEST_NAME:
            self._price_of[model] = price
        return price

    def totals(self) -> Totals:
        """What it came to so far."""
        money = self._money
        return Totals(
            requests=self._requests,
            outcomes=dict(self._outcomes),
            bytes=Change(*self._bytes),
            observed_bytes=Change(*self._observed_bytes),
            counted=self._counted,
            tokens=self._tokens,
            observed_tokens=self._observed_tokens,
            pictures=self._pictures,
            observed_pictures=self._observed_pictures,
            guessed=self._guessed,
            reported=self._reported,
            input=self._input,
            cached=self._cached,
            output=self._output,
            money=Money(
                spent=money["spent"],
                spent_without_cache=money["spent_without_cache"],
                saved_with_cache=money["saved_with_cache"],
                saved_without_cache=money["saved_without_cache"],
                estimated=int(money["estimated"]),
                unpriced=int(money["unpriced"]),
            )
            if self._prices
            else None,
        )
