"""`/metrics`: what this process did, counted, for Prometheus. docs/metrics.md says what each number means.

Every label takes one of a bounded set of values, whatever clients and providers send. What other rooms count by
themselves (the store, the policy, tags) is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from proxy import __version__
from proxy.compaction.outcome import Compacted, Figures, Outcome
from proxy.gateway.watched import Arrived, Conversed, Passed
from proxy.store import Stats
from proxy.visibility.counting import Counted

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MOST_MODELS = 50
_MOST_OF_A_NAME = 64

_OURS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_THEIRS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

_STATUSES = {str(status.value) for status in HTTPStatus}

# A series that says when another one began tells nobody anything here, and doubles their number.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Sources(Protocol):
    """What other rooms count by themselves."""

    def stats(self) -> Mapping[str, Stats]:
        """The store's tables."""

    def counts(self) -> Mapping[str, int]:
        """What the conversations counted: `tag_...` for tags that do not fit, `policy_...` for the citation policy."""

    def left_out(self) -> int:
        """Requests whose tokens were not counted for want of room."""


class Metrics:
    """A watcher; one per process."""

    def __init__(self, sources: Sources, about: Mapping[str, str]) -> None:
        """`about` says how the process is set up: which mode, which layout."""
        registry = self._registry = CollectorRegistry()
        self._models: set[str] = set()

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"evidence_proxy_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, *labels: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"evidence_proxy_{name}", help, labels, registry=registry, buckets=buckets)

        self._http = counter("http_requests", "Requests by how they ended.", "api", "status", "end")
        self._in_flight = Gauge(
            "evidence_proxy_requests_in_flight", "Requests that are being answered.", registry=registry
        )
        self._requests = counter(
            "conversation_requests", "Requests of conversations, by what became of them.", "api", "outcome", "reason"
        )
        self._bytes = _Change(counter, "bytes", "Bytes of their bodies", "outcome")
        self._tokens = _Change(counter, "tokens", "Tokens of their messages", "outcome", "model", "kind")
        self._capsule = counter("capsule_chunks", "Chunks that stood in capsules.", "outcome")
        self._receipts = counter("receipts", "Returns that receipts stood for.", "outcome")
        self._kept = counter("kept_returns", "Earlier returns that had to stay.", "outcome")
        self._settled = counter("questions_settled", "Questions that a reply settled.")
        self._replies = counter("provider_replies", "Replies of the provider, by status.", "status")
        self._input = counter("provider_input_tokens", "Input tokens, as the provider reports them.", "model")
        self._cached = counter("provider_cached_input_tokens", "Input tokens out of the provider's cache.", "model")
        self._output = counter("provider_output_tokens", "Output tokens, as the provider reports them.", "model")
        self._silent = counter("replies_without_usage", "Good replies to conversations that reported no usage.")
        self._added = histogram(
            "added_latency_seconds", "What the proxy itself took, before and after the provider.", "api", buckets=_OURS
        )
        self._waited = histogram(
            "provider_latency_seconds", "How long the provider's reply took to begin.", "api", buckets=_THEIRS
        )
        self._took = histogram("request_seconds", "Requests from head to last byte.", "api", buckets=_THEIRS)
        self._rooms = histogram("room_seconds", "Time in each room of the house.", "room", buckets=_OURS)
        Gauge("evidence_proxy_info", "How this process is set up.", ("version", *about), registry=registry).labels(
            __version__, *about.values()
        ).set(1)
        ProcessCollector(registry=registry)
        registry.register(_Elsewhere(sources))

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        self._in_flight.inc()
        return ()

    def passed(self, request: Passed) -> None:
        self._in_flight.dec()
        api = request.arrived.api or "none"
        self._http.labels(api, _status(request.status), request.end).inc()
        self._took.labels(api).observe(request.took)
        if request.asked is not None:
            self._replies.labels(_status(request.asked)).inc()
        if request.waited is not None:
            self._waited.labels(api).observe(request.waited)
        if request.conversed is None:
            return
        self._added.labels(api).observe(request.added)
        for stay in request.stays:
            if stay.room != "provider":
                self._rooms.labels(stay.room).observe((stay.ended - stay.began) / 1e9)
        self._converse(api, request, request.conversed)

    def _converse(self, api: str, request: Passed, told: Conversed) -> None:
        outcome, reason = named(told)
        self._requests.labels(api, outcome, reason).inc()
        figures = told.outcome.figures
        before, after = weights(request, told)
        self._bytes.inc(before, after, outcome)
        if figures is not None:
            self._capsule.labels(outcome).inc(figures.capsule)
            self._receipts.labels(outcome).inc(figures.receipts)
            self._kept.labels(outcome).inc(figures.kept)
        self._settled.inc(len(told.settled))
        usage = told.usage
        if usage is not None:
            model = self._model(told.model)
            self._input.labels(model).inc(usage.input or 0)
            self._cached.labels(model).inc(usage.cached or 0)
            self._output.labels(model).inc(usage.output or 0)
        elif request.asked == 200:
            self._silent.inc()

    def counted(self, counted: Counted) -> None:
        """Hear of a request's tokens, a moment after it passed."""
        told = counted.passed.conversed
        if told is None:
            return
        outcome, _ = named(told)
        model = self._model(told.model)
        self._tokens.inc(counted.before.text, counted.after.text, outcome, model, "text")
        self._tokens.inc(counted.before.pictures, counted.after.pictures, outcome, model, "picture")

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
        name = "".join(c if c.isprintable() else "?" for c in name[:_MOST_OF_A_NAME])
        if name not in self._models:
            if len(self._models) >= _MOST_MODELS:
                return "other"
            self._models.add(name)
        return name


class _Change:
    """Two counters: how much there was before, and how much after."""

    def __init__(self, counter: Callable[..., Counter], unit: str, help: str, *labels: str) -> None:
        self._before = counter(f"conversation_before_{unit}", f"{help}, as they came.", *labels)
        self._after = counter(
            f"conversation_after_{unit}", f"{help}, as they went up (observed: as they would have gone).", *labels
        )

    def inc(self, before: int, after: int, *labels: str) -> None:
        self._before.labels(*labels).inc(before)
        self._after.labels(*labels).inc(after)


def named(told: Conversed) -> tuple[str, str]:
    """What became of a request, as label values: outcome and reason."""
    outcome: Outcome = told.outcome
    if isinstance(outcome, Compacted):
        return "compacted", "none"
    if told.refused:
        return "refused", outcome.reason.value
    return ("observed" if outcome.figures is not None else "untouched"), outcome.reason.value


def weights(request: Passed, told: Conversed) -> tuple[int, int]:
    """A conversation's body bytes before and after: what the reply header says, else what came, twice."""
    figures: Figures | None = told.outcome.figures
    if figures is not None:
        return figures.before, figures.after
    size = len(told.came) or request.received
    return size, size


def _status(status: int) -> str:
    return str(status) if str(status) in _STATUSES else "none" if status == 0 else "other"


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
            total, buckets = 0, []
            for bound, count in zip([*map(_bound, durations.bounds), "+Inf"], durations.counts, strict=True):
                total += count
                buckets.append((bound, total))
            histogram.add_metric((table,), buckets, durations.total)
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


def _counted(name: str, help: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"evidence_proxy_{name}", help, labels=labels)
    for given, value in values.items():
        family.add_metric(given, value)
    return family


def _bound(seconds: float) -> str:
    return repr(float(seconds))
