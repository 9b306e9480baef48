"""A trace tells where a request was and for how long, goes on at the provider, and holds nothing that was said."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.settings import Settings, SettingsError, traces_are_possible
from proxy.visibility.traces import Traces
from proxy.visibility.watching import Watchers
from tests.conftest import StartHere, StartProcess
from tests.house.client import Seen, ask
from tests.house.provider import Break, Provider, Reply, completion, events, json_reply, sse_reply
from tests.house.watching import Listening
from tests.talk import body, user
from tests.test_cli import one_line, run
from tests.test_watching import FIRST, KEY, SECOND, TABLE, chat_usage

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"

Start = Callable[..., Awaitable[tuple[str, "Traced"]]]


class Traced:
    """The spans that were exported, in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = Traces("https://api.openai.com/v1", SimpleSpanProcessor(self._exporter))
        self.listening = Listening()

    async def spans(self, count: int = 1) -> list[ReadableSpan]:
        """The spans of so many requests; a request's own is the last of its."""
        await self.listening.told(count)
        return list(self._exporter.get_finished_spans())


@pytest.fixture
async def start(start_here: StartHere) -> AsyncIterator[Start]:
    made: list[Traced] = []

    async def start(**sections: Any) -> tuple[str, Traced]:
        traced = Traced()
        made.append(traced)
        proxy = await start_here(watcher=Watchers([traced.traces, traced.listening]), evidence=[TABLE], **sections)
        return proxy.url, traced

    yield start
    for traced in made:
        await traced.traces.close()


def hexed(number: int | None, digits: int = 16) -> str:
    return format(number or 0, f"0{digits}x")


def identity(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return hexed(context.trace_id, 32), hexed(context.span_id)


def own(spans: list[ReadableSpan]) -> ReadableSpan:
    return [span for span in spans if span.kind is SpanKind.SERVER][-1]


def asking(spans: list[ReadableSpan]) -> ReadableSpan:
    return [span for span in spans if span.kind is SpanKind.CLIENT][-1]


async def asked(url: str, messages: list[Any], *lines: tuple[str, str]) -> Seen:
    return await ask(url, body(*messages, model="gpt-5"), headers=[*KEY, *lines])


async def test_a_trace_goes_on_through_every_room_to_the_provider(provider: Provider, start: Start) -> None:
    url, traced = await start()
    for text in ("the answer", "more"):
        provider.reply(json_reply({**completion(text), "usage": chat_usage(90, 60, 7)}))

    await asked(url, FIRST)
    seen = await asked(url, SECOND, ("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1"))
    spans = [span for span in await traced.spans(2) if identity(span)[0] == TRACE]

    request, client = own(spans), asking(spans)
    assert request.parent is not None and hexed(request.parent.span_id) == PARENT
    assert provider.requests[1].values("traceparent") == [f"00-{TRACE}-{identity(client)[1]}-01".encode()]
    assert provider.requests[1].values("tracestate") == [b"vendor=1"]
    inside = [span for span in spans if span is not request]
    assert all(span.parent is not None and hexed(span.parent.span_id) == identity(request)[1] for span in inside)
    assert {span.name for span in inside} >= {"wire", "ledger", "evidence", "store", "compaction", "settling"}
    for span in inside:
        assert span.start_time and span.end_time and request.start_time and request.end_time
        assert request.start_time <= span.start_time <= span.end_time <= request.end_time

    assert (request.name, client.name) == ("POST chat", "chat gpt-5")
    assert client.attributes is not None and request.attributes is not None
    assert dict(client.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.output_tokens": 7,
        "server.address": "api.openai.com",
        "server.port": 443,
        "http.response.status_code": 200,
    }
    figures = dict(pair.split("=") for pair in seen.evidence.split("; ")[1:])
    said = {name.removeprefix("evidence_proxy."): value for name, value in request.attributes.items()}
    assert (said["outcome"], said["reason"], said["question"]) == ("compacted", "none", int(figures["question"]))
    assert (said["before_bytes"], said["after_bytes"]) == (int(figures["before"]), int(figures["after"]))
    assert said["request_id"] == (seen.value("x-request-id") or b"").decode()


async def test_no_span_holds_what_was_said_or_who_said_it(provider: Provider, start: Start) -> None:
    url, traced = await start()
    provider.reply(json_reply(completion("hunter2")))
    await ask(
        url,
        body(user("hunter2"), model="gpt-5"),
        target="/v1/chat/completions?key=hunter2",
        headers=[("Authorization", "Bearer hunter2")],
    )
    assert "hunter2" not in "".join(span.to_json() for span in await traced.spans())


@pytest.mark.parametrize("sent", [None, "", "00-zz-zz-01", f"00-{TRACE}-{PARENT}", f"ff-{TRACE}-{PARENT}-01"])
async def test_what_is_no_trace_begins_a_new_one(provider: Provider, start: Start, sent: str | None) -> None:
    url, traced = await start()
    provider.reply(json_reply(completion("hi")))
    await asked(url, [user("hi")], *([("traceparent", sent)] if sent is not None else []))
    request = own(await traced.spans())
    assert request.parent is None
    (line,) = provider.requests[0].values("traceparent")
    version, trace, parent, flags = line.decode().split("-")
    assert (version, trace, parent) == ("00", *identity(asking(await traced.spans())))
    assert (trace, int(flags, 16) & 1) == (identity(request)[0], 1)


async def test_a_trace_that_its_sender_does_not_keep_goes_on_unkept(provider: Provider, start: Start) -> None:
    url, traced = await start()
    for _ in range(2):
        provider.reply(json_reply(completion("hi")))
    await asked(url, [user("hi")], ("traceparent", f"00-{TRACE}-{PARENT}-00"))
    await asked(url, [user("hi")])
    spans = await traced.spans()
    assert TRACE not in {identity(span)[0] for span in spans}
    (line,) = provider.requests[0].values("traceparent")
    assert line.startswith(f"00-{TRACE}-".encode()) and line.endswith(b"-00")


async def test_what_goes_wrong_is_marked(provider: Provider, start: Start) -> None:
    url, traced = await start()
    provider.reply(json_reply({"error": {}}, status=429, reason="Too Many Requests"))
    await asked(url, [user("hi")])
    provider.reply(Reply(500, "Internal Server Error", [], [b"{}"], framing="length"))
    await asked(url, [user("hi")])
    provider.reply(sse_reply([*events(completion("x"))[:1], Break()]))
    with pytest.raises(Exception):  # noqa: B017 - whatever the torn reply looks like here
        await asked(url, [user("hi")])
    spans = await traced.spans(3)
    servers = [span for span in spans if span.kind is SpanKind.SERVER]
    clients = [span for span in spans if span.kind is SpanKind.CLIENT]
    assert [span.status.status_code for span in servers] == [StatusCode.UNSET, StatusCode.ERROR, StatusCode.ERROR]
    assert [(span.attributes or {}).get("error.type") for span in servers] == [None, "500", "upstream-broke"]
    assert [(span.attributes or {}).get("error.type") for span in clients] == ["429", "500", "200"]


async def test_a_real_process_sends_its_spans_to_a_collector(provider: Provider, start_process: StartProcess) -> None:
    collector = await Provider().start()
    collector.always(json_reply({}))
    running = await start_process(
        '[upstream]\nbase_url = "{upstream}"\n[traces]\nenabled = true\n',
        {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.removesuffix("/v1"), "OTEL_BSP_SCHEDULE_DELAY": "50"},
    )
    provider.reply(json_reply(completion("hi")))
    await asked(running.url, [user("hi")], ("traceparent", f"00-{TRACE}-{PARENT}-01"))
    assert await running.stop() == 0

    exported = [
        ExportTraceServiceRequest.FromString(got.body) for got in collector.requests if got.path == "/v1/traces"
    ]
    await collector.stop()
    resources = [one for request in exported for one in request.resource_spans]
    spans = [span for one in resources for scope in one.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {"POST chat", "wire", "chat gpt-5"} <= {span.name for span in spans}
    service = {kv.key: kv.value.string_value for kv in resources[0].resource.attributes}
    assert service["service.name"] == "evidence-proxy"


async def test_off_nothing_of_it_is_imported() -> None:
    script = (
        "import sys, proxy.cli, proxy.visibility.lookout, proxy.gateway.conversation; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.strip() == b"[]"


def test_without_the_extra_they_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    traces_are_possible(Settings(traces={"enabled": True}))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    traces_are_possible(Settings())
    with pytest.raises(SettingsError, match=r'pip install "evidence-proxy\[traces\]"'):
        traces_are_possible(Settings(traces={"enabled": True}))


async def test_a_wrong_value_is_refused() -> None:
    code, _, err = await run("serve", EVIDENCE_PROXY_TRACES__ENABLED="perhaps")
    assert (code, one_line(err)) == (
        2,
        'evidence-proxy: EVIDENCE_PROXY_TRACES__ENABLED: traces.enabled = "perhaps": expected true or false',
    )
