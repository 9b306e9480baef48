"""Traces, for OpenTelemetry: one span for a request, one for each room that it was in, one for asking the provider.

Needs the extra `traces`; nothing of it is imported unless it is on. Where traces go, how many are kept and what the
service is called is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER,
OTEL_SERVICE_NAME, ...). Attributes follow its semantic conventions for HTTP and generative AI; none holds content.

The rooms' spans are made when a request is over, from the times that were noted anyway, so that a request pays for no
more than the beginning of its own span. The provider has to be told the id of a span that does not exist yet: that id
is made at the request's arrival, and given to the span later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proxy import __version__
from proxy.gateway.watched import Arrived, Conversed, Passed
from proxy.visibility.metrics import named, weights

_MOST_OPEN = 10_000
_CLOSES_WITHIN = 5000

_OPERATIONS = {"chat": "chat", "responses": "chat"}


class _Ids(RandomIdGenerator):
    """Makes ids, and gives one that was promised to the next span."""

    promised: int | None = None

    def generate_span_id(self) -> int:
        given, self.promised = self.promised, None
        return super().generate_span_id() if given is None else given


class Traces:
    """A watcher. Everything but the export happens on the event loop."""

    def __init__(self, base_url: str, processor: SpanProcessor | None = None) -> None:
        """`base_url` is the provider's. Without a `processor` spans are exported by OTLP over HTTP, in batches."""
        if processor is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            processor = BatchSpanProcessor(OTLPSpanExporter())
        self._ids = _Ids()
        resource = Resource.create({SERVICE_VERSION: __version__})
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes before this.
        if str(resource.attributes.get(SERVICE_NAME)).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "evidence-proxy"}))
        self._provider = TracerProvider(id_generator=self._ids, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("evidence-proxy", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._open: dict[str, tuple[Span, int]] = {}
        address = urlsplit(base_url)
        self._server: dict[str, Any] = {
            "gen_ai.provider.name": _provider_name(address.hostname or ""),
            "server.address": address.hostname or "",
            "server.port": address.port or (443 if address.scheme == "https" else 80),
        }

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        if request.path in ("/healthz", "/readyz") or len(self._open) >= _MOST_OPEN:
            return ()
        carrier = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.trace}
        span = self._tracer.start_span(
            f"{request.method} {request.path}" if request.api is None else f"{request.method} {request.api}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=request.at,
        )
        promised = self._ids.generate_span_id()
        self._open[f"{request.id} {request.began}"] = span, promised
        ours = span.get_span_context()
        told: dict[str, str] = {}
        asking = SpanContext(ours.trace_id, promised, False, ours.trace_flags, ours.trace_state)
        self._propagator.inject(told, set_span_in_context(NonRecordingSpan(asking)))
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.items()]

    def passed(self, request: Passed) -> None:
        came = request.arrived
        span, promised = self._open.pop(f"{came.id} {came.began}", (None, 0))
        if span is None:
            return
        over = came.at + int(request.took * 1e9)
        if span.is_recording():
            span.set_attributes(_attributes(request))
            self._rooms(request, span, promised, over)
            if request.status >= 500 or request.end != "complete":
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute("error.type", request.end if request.end != "complete" else str(request.status))
        span.end(over)

    def _rooms(self, request: Passed, span: Span, promised: int, over: int) -> None:
        inside = set_span_in_context(span)
        since = request.arrived.at - request.arrived.began
        asking = [stay for stay in request.stays if stay.room == "provider"]
        for stay in request.stays:
            if stay.room != "provider":
                room = self._tracer.start_span(stay.room, context=inside, start_time=stay.began + since)
                room.end(stay.ended + since)
        if asking:
            told = request.conversed
            operation = _OPERATIONS.get(request.arrived.api or "")
            name = " ".join(filter(None, (operation, told.model if told is not None else None))) or "provider"
            self._ids.promised = promised
            asked = self._tracer.start_span(
                name, context=inside, kind=SpanKind.CLIENT, start_time=asking[0].began + since
            )
            asked.set_attributes({**self._server, **_generation(request, operation)})
            if request.asked is None or request.asked >= 400 or request.end == "upstream-broke":
                asked.set_status(Status(StatusCode.ERROR))
                asked.set_attribute("error.type", str(request.asked or request.end))
            asked.end(over)

    async def close(self) -> None:
        """Export what there is, within a few seconds."""
        await asyncio.to_thread(self._provider.force_flush, _CLOSES_WITHIN)
        await asyncio.to_thread(self._provider.shutdown)


def _attributes(request: Passed) -> dict[str, Any]:
    """What a request's own span says of it."""
    came = request.arrived
    found: dict[str, Any] = {
        "http.request.method": came.method,
        "url.path": came.path,
        "http.response.status_code": request.status,
        "http.request.body.size": request.received,
        "http.response.body.size": request.sent,
        "evidence_proxy.request_id": came.id,
        "evidence_proxy.end": request.end,
        "evidence_proxy.added_seconds": request.added,
    }
    told = request.conversed
    if told is not None:
        found |= _conversation(request, told)
    return found


def _conversation(request: Passed, told: Conversed) -> dict[str, Any]:
    outcome, reason = named(told)
    before, after = weights(request, told)
    figures = told.outcome.figures
    found: dict[str, Any] = {
        "evidence_proxy.outcome": outcome,
        "evidence_proxy.reason": reason,
        "evidence_proxy.before_bytes": before,
        "evidence_proxy.after_bytes": after,
        "evidence_proxy.settled": len(told.settled),
    }
    if figures is not None:
        found |= {
            "evidence_proxy.question": figures.question,
            "evidence_proxy.capsule": figures.capsule,
            "evidence_proxy.receipts": figures.receipts,
            "evidence_proxy.kept": figures.kept,
        }
    return found


def _generation(request: Passed, operation: str | None) -> dict[str, Any]:
    """What is said of the provider's part. Source: OpenTelemetry's semantic conventions for generative AI."""
    found: dict[str, Any] = {}
    if operation is not None:
        found["gen_ai.operation.name"] = operation
    if request.asked is not None:
        found["http.response.status_code"] = request.asked
    told = request.conversed
    if told is None:
        return found
    if told.model is not None:
        found["gen_ai.request.model"] = told.model
    if told.usage is not None:
        used = {
            "gen_ai.usage.input_tokens": told.usage.input,
            "gen_ai.usage.cache_read.input_tokens": told.usage.cached,
            "gen_ai.usage.output_tokens": told.usage.output,
        }
        found |= {name: count for name, count in used.items() if count is not None}
    return found


def _provider_name(host: str) -> str:
    if host == "openai.com" or host.endswith(".openai.com"):
        return "openai"
    if host.endswith(".openai.azure.com"):
        return "azure.ai.openai"
    return host
