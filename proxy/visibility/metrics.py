"""`/metrics`: what this process did, counted, for Prometheus. docs/metrics.md says what each number means.

Every label takes one of a bounded set of values, whatever clients and providers send. What other rooms count by
themselves (the store, the policy, tags) is read when it is asked for.

A request adds to a few numbers here, and nothing else: they become Prometheus's metrics when somebody asks for them.
Its own library looks labels up and takes a lock for each of the twenty numbers that a request changes, which costs more
than all the rest that is noted of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import Protocol, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from proxy import __version__
from proxy.compaction.outcome import Compacted
from proxy.gateway.watched import Arrived, Conversed, Passed
from proxy.store import Stats
from proxy.visibility.counting import Counted

_Key = TypeVar("_Key")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MOST_MODELS = 50
_MOST_OF_A_NAME = 64

_OURS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_THEIRS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

_STATUSES = {0: "none", **{status.value: str(status.value) for status in HTTPStatus}}


class Sources(Protocol):
    """What other rooms count by themselves."""

    def stats(self) -> Mapping[str, Stats]:
        """The store's tables."""

    def counts(self) -> Mapping[str, int]:
        """What the conversations counted: `tag_...` for tags that do not fit, `policy_...` for the citation policy."""

    def left_out(self) -> int:
        """Requests whose tokens were not counted for want of room."""

    def not_looked_at(self) -> int:
        """Requests that the inspector lists without their messages, for want of time."""


class Metrics:
    """A watcher; one per process. Everything but the reading of other rooms' counts happens on the event loop."""

    def __init__(self, sources: Sources, about: Mapping[str, str]) -> None:
        """`about` says how the process is set up: which mode, which layout."""
        self._about = dict(about)
        self._models: dict[str, str] = {}
        self._in_flight = 0
        self._http: dict[tuple[str, ...], int] = {}
        self._requests: dict[tuple[str, ...], int] = {}
        self._changes: dict[str, _Change] = {}
        self._tokens: dict[tuple[str, ...], list[int]] = {}
        self._replies: dict[str, int] = {}
        self._usage: dict[str, list[int]] = {}
        self._settled = self._silent = 0
        self._added, self._waited, self._took = _Spread(_OURS), _Spread(_THEIRS), _Spread(_THEIRS)
        self._rooms = _Spread(_OURS)
        self._registry = CollectorRegistry()
        self._registry.register(_Here(self._counted_here))
        ProcessCollector(registry=self._registry)
        self._registry.register(_Elsewhere(sources))

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        self._in_flight += 1
        return ()

    def passed(self, request: Passed) -> None:
        self._in_flight -= 1
        api = request.arrived.api or "none"
        status = request.status
        _count(self._http, (api, _STATUSES.get(status, "other"), request.end))
        self._took.add(api, request.took)
        asked = request.asked
        if asked is not None:
            _count(self._replies, _STATUSES.get(asked, "other"))
        if request.waited is not None:
            self._waited.add(api, request.waited)
        told = request.conversed
        if told is None:
            return
        self._added.add(api, request.added)
        add_room = self._rooms.add
        for room, began, ended in request.stays:
            if room != "provider":
                add_room(room, (ended - began) / 1e9)
        outcome, reason = named(told)
        _count(self._requests, (api, outcome, reason))
        change = self._changes.get(outcome)
        if change is None:
            change = self._changes[outcome] = _Change()
        change.add(request, told)
        self._settled += len(told.settled)
        usage = told.usage
        if usage is not None:
            model = self._model(told.model)
            used = self._usage.get(model)
            if used is None:
                used = self._usage[model] = [0, 0, 0]
            used[0] += usage.input or 0
            used[1] += usage.cached or 0
            used[2] += usage.output or 0
        elif asked == 200:
            self._silent += 1

    def counted(self, counted: Counted) -> None:
        """Hear of a request's tokens, a moment after it passed."""
        told = counted.passed.conversed
        if told is None:
            return
        outcome, _ = named(told)
        model, before, after = self._model(told.model), counted.before, counted.after
        for kind, was, became in (("text", before.text, after.text), ("picture", before.pictures, after.pictures)):
            change = self._tokens.setdefault((outcome, model, kind), [0, 0])
            change[0] += was
            change[1] += became

    def render(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)

    def families(self) -> Iterable[Metric]:
        """All of it, as values."""
        return self._registry.collect()

    def _model(self, name: str | None) -> str:
        """A model's name as a label: the first ones that are heard of, then "other"."""
        if not name:
            return "unknown"
        known = self._models.get(name)
        if known is not None:
            return known
        label = "".join(c if c.isprintable() else "?" for c in name[:_MOST_OF_A_NAME])
        if label not in self._models:
            if len(self._models) >= _MOST_MODELS:
                return "other"
            self._models[label] = label
        return label

    def _counted_here(self) -> Iterator[Metric]:
        yield _counted("http_requests", "Requests by how they ended.", ("api", "status", "end"), self._http)
        yield GaugeMetricFamily(
            "evidence_proxy_requests_in_flight", "Requests that are being answered.", self._in_flight
        )
        yield _counted(
            "conversation_requests",
            "Requests of conversations, by what became of them.",
            ("api", "outcome", "reason"),
            self._requests,
        )
        changes: dict[tuple[str, ...], _Change] = {(of,): change for of, change in self._changes.items()}
        yield from _changed(
            "bytes", "Bytes of their bodies", ("outcome",), {of: (c.before, c.after) for of, c in changes.items()}
        )
        yield from _changed("tokens", "Tokens of their messages", ("outcome", "model", "kind"), self._tokens)
        rewritten = {of: change for of, change in changes.items() if change.figured}
        for name, help, values in (
            ("capsule_chunks", "Chunks that stood in capsules.", {of: c.capsule for of, c in rewritten.items()}),
            ("receipts", "Returns that receipts stood for.", {of: c.receipts for of, c in rewritten.items()}),
            ("kept_returns", "Earlier returns that had to stay.", {of: c.kept for of, c in rewritten.items()}),
        ):
            yield _counted(name, help, ("outcome",), values)
        yield _counted("questions_settled", "Questions that a reply settled.", (), {(): self._settled})
        yield _counted("provider_replies", "Replies of the provider, by status.", ("status",), _singly(self._replies))
        for place, (name, help) in enumerate(
            (
                ("provider_input_tokens", "Input tokens, as the provider reports them."),
                ("provider_cached_input_tokens", "Input tokens out of the provider's cache."),
                ("provider_output_tokens", "Output tokens, as the provider reports them."),
            )
        ):
            yield _counted(name, help, ("model",), _singly({model: used[place] for model, used in self._usage.items()}))
        yield _counted(
            "replies_without_usage", "Good replies to conversations that reported no usage.", (), {(): self._silent}
        )
        for name, help, label, spread in (
            ("added_latency", "What the proxy itself took, before and after the provider.", "api", self._added),
            ("provider_latency", "How long the provider's reply took to begin.", "api", self._waited),
            ("request", "Requests from head to last byte.", "api", self._took),
            ("room", "Time in each room of the house.", "room", self._rooms),
        ):
            yield spread.family(f"{name}_seconds", help, label)
        info = GaugeMetricFamily("evidence_proxy_info", "How this process is set up.", labels=("version", *self._about))
        info.add_metric((__version__, *self._about.values()), 1)
        yield info


class _Change:
    """What conversations' requests of one outcome came to."""

    __slots__ = ("after", "before", "capsule", "figured", "kept", "receipts")

    def __init__(self) -> None:
        self.before = self.after = self.capsule = self.receipts = self.kept = 0
        self.figured = False

    def add(self, request: Passed, told: Conversed) -> None:
        before, after = weights(request, told)
        self.before += before
        self.after += after
        figures = told.outcome.figures
        if figures is not None:
            self.figured = True
            self.capsule += figures.capsule
            self.receipts += figures.receipts
            self.kept += figures.kept


class _Spread:
    """Durations by a label: how many were at most as long as each bound, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sums")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, label: str, seconds: float) -> None:
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = [0] * (len(self._bounds) + 1)
            self._sums[label] = 0.0
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[label] += seconds

    def family(self, name: str, help: str, label: str) -> HistogramMetricFamily:
        made = HistogramMetricFamily(f"evidence_proxy_{name}", help, labels=(label,))
        for of, counts in self._counts.items():
            made.add_metric((of,), _buckets(self._bounds, counts), self._sums[of])
        return made


def named(told: Conversed) -> tuple[str, str]:
    """What became of a request, as label values: outcome and reason."""
    outcome = told.outcome
    if isinstance(outcome, Compacted):
        return _COMPACTED
    if told.refused:
        return "refused", outcome.reason.value
    return ("observed" if outcome.figures is not None else "untouched"), outcome.reason.value


_COMPACTED = ("compacted", "none")


def weights(request: Passed, told: Conversed) -> tuple[int, int]:
    """A conversation's body bytes before and after: what the reply header says, else what came, twice."""
    figures = told.outcome.figures
    if figures is not None:
        return figures.before, figures.after
    size = len(told.came) or request.received
    return size, size


class _Here:
    """What this room counts, asked for at each scrape."""

    def __init__(self, counted: Callable[[], Iterator[Metric]]) -> None:
        self.collect = counted

    def describe(self) -> Iterable[Metric]:
        return ()


class _Elsewhere:
    """What other rooms count, asked for at each scrape."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield _counted(
            "tokens_uncounted", "Requests whose tokens were not counted.", (), {(): self._sources.left_out()}
        )
        yield _counted(
            "requests_not_looked_at",
            "Requests that the inspector lists without their messages, for want of time.",
            (),
            {(): self._sources.not_looked_at()},
        )
        yield from _by_prefix(self._sources.counts())
        yield from _store(self._sources.stats())


#: How the counts of conversations begin that belong to a metric, and the label that the rest of the name becomes. The
#: first that fits counts.
_COUNTS = (
    ("tag_", "tag_failures", "Tags that did not fit, and are plain text.", "reason"),
    ("policy_enforced_", "policy_answers", "Answers that owed a declaration, by what they declared.", "declaration"),
    ("policy_violation_", "policy_violations", "Answers that went out without one, by why.", "reason"),
    ("policy_extra_tokens", "policy_extra_tokens", "Tokens that asking for declarations cost.", None),
    ("policy_", "policy_events", "What the citation policy did.", "event"),
)


def _by_prefix(counts: Mapping[str, int]) -> Iterator[Metric]:
    found: dict[str, dict[tuple[str, ...], int]] = {name: {} for _, name, _, _ in _COUNTS}
    for key, count in counts.items():
        fits = next((one for one in _COUNTS if key.startswith(one[0])), None)
        if fits is None:
            continue
        prefix, name, _, label = fits
        found[name][(key.removeprefix(prefix).replace("_", "-"),) if label else ()] = count
    for _, name, help, label in _COUNTS:
        yield _counted(name, help, (label,) if label else (), found[name])


def _store(tables: Mapping[str, Stats]) -> Iterator[Metric]:
    for key, name, help in _STORE_COUNTERS:
        yield _counted(f"store_{name}", help, ("table",), {(n,): stats.counts[key] for n, stats in tables.items()})
    for key, name, help in _STORE_GAUGES:
        gauge = GaugeMetricFamily(f"evidence_proxy_store_{name}", help, labels=("table",))
        for table, stats in tables.items():
            gauge.add_metric((table,), stats.counts[key])
        yield gauge
    for key, name, help in _STORE_HISTOGRAMS:
        histogram = HistogramMetricFamily(f"evidence_proxy_store_{name}_seconds", help, labels=("table",))
        for table, stats in tables.items():
            durations = getattr(stats, key)
            histogram.add_metric((table,), _buckets(durations.bounds, durations.counts), durations.total)
        yield histogram


_STORE_COUNTERS = (
    ("added", "rows_added", "Rows that were handed to the store."),
    ("duplicates", "duplicate_rows", "Rows that were there already, and were not written again."),
    ("written", "rows_written", "Rows that were written."),
    ("shed", "shed_writes", "Rows that were never written, for want of room or time."),
    ("failed", "failures", "Calls of the store that failed."),
    ("slow", "slow_finds", "Look-ups that a request did not wait for to the end."),
    ("cache_hits", "cache_hits", "Keys that were answered from memory."),
    ("cache_misses", "cache_misses", "Keys that the store was asked for."),
    ("followed", "followed_rows", "Rows that were read as other replicas wrote them, before anybody asked."),
    ("damaged", "damaged_rows", "Rows that were passed over because their seal did not fit."),
    ("pruned", "pruned_rows", "Rows that were deleted for their age."),
)
_STORE_GAUGES = (
    ("waiting", "queue_rows", "Rows that wait to be written."),
    ("waiting_bytes", "queue_bytes", "Bytes of the rows that wait to be written."),
    ("cached", "cache_rows", "Rows in memory."),
    ("cached_bytes", "cache_bytes", "Bytes of the rows in memory."),
)
_STORE_HISTOGRAMS = (
    ("find_seconds", "find", "What requests waited for rows, answers from memory included."),
    ("read_seconds", "read", "Queries of the store itself."),
    ("write_seconds", "write", "Commits of the store."),
)


def _count(counts: dict[_Key, int], key: _Key) -> None:
    counts[key] = counts.get(key, 0) + 1


def _singly(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(label,): count for label, count in counts.items()}


def _changed(
    unit: str, help: str, labels: Sequence[str], values: Mapping[tuple[str, ...], Sequence[int]]
) -> Iterator[Metric]:
    """Two counters: how much there was before, and how much after."""
    for place, (stage, when) in enumerate(
        (("before", "as they came"), ("after", "as they went up (observed: as they would have gone)"))
    ):
        stood = {of: value[place] for of, value in values.items()}
        yield _counted(f"conversation_{stage}_{unit}", f"{help}, {when}.", labels, stood)


def _counted(name: str, help: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"evidence_proxy_{name}", help, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Counts between bounds, as Prometheus wants them: each with all below it."""
    names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
    return [*zip(names, accumulate(counts), strict=True)]
