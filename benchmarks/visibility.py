"""What it costs to be seen: added latency with nothing watching, with everything but traces, and with traces.

Three proxies stand side by side, each a process of its own, before one provider. The same conversations go through all
three in turn, and each request is compared with the very same one at the proxy that nobody watches.
Run: python -m benchmarks.visibility [--conversations N]
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

WAYS = ("nothing", "all but traces", "all")
#: What the promise allows at the median: this share of the bare proxy's time or so many milliseconds.
SHARE, MS, MS_WITH_TRACES = 0.10, 0.1, 0.5

_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-5",
    "usage": {"prompt_tokens": 900, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 640}},
}


def main() -> None:
    """Print the table, and end with 1 if the promise does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--provide", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--upstream", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.provide:
        asyncio.run(_provide())
    elif given.serve:
        asyncio.run(_serve(given.serve, given.upstream))
    else:
        sys.exit(_compare(given.conversations))


# The processes.


async def _provide() -> None:
    """A provider that answers at once, and a collector of traces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            body = await reader.readexactly(length)
            reply = b"{}" if b"/v1/traces" in head else _reply(body)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(reply)
            )
            writer.write(reply)

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, limit=1 << 24)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def _reply(body: bytes) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": "It is as the manual says."}
    last = json.loads(body)["messages"][-1]
    if last["role"] == "tool" and "found" in last["content"]:
        call = {"id": "c", "type": "function", "function": {"name": "cite", "arguments": '{"ids": ["a0"]}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return json.dumps({**_ANSWER, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


async def _serve(way: str, upstream: str) -> None:
    """What `evidence-proxy serve` puts together, seen by nobody or by everybody."""
    import os

    from proxy.gateway.admin import Admin
    from proxy.gateway.app import Gateway
    from proxy.gateway.conversation import Conversations
    from proxy.heap import keep_large_buffers
    from proxy.settings import Settings
    from proxy.store import open_store
    from proxy.visibility import logs
    from proxy.visibility.lookout import Lookout

    keep_large_buffers()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = upstream
    table = {"format": "auto", "tools": ["search"], "cite": "cite"}
    settings = Settings(
        server={"port": 0, "admin_port": 0},
        upstream={"base_url": f"{upstream}/v1"},
        store={"uri": "memory://"},
        traces={"enabled": way == "all"},
        inspector={"content": way != "nothing"},
        prices=[{"model": "*", "input": 1.0}],
        evidence=[table],
    )
    store = open_store(settings)
    conversations = Conversations(settings, store.records)
    watchers = None
    if way != "nothing":
        logs.configure(open(os.devnull, "w"))  # noqa: SIM115, ASYNC230, PTH123 - for as long as the process lives
        lookout = Lookout(settings, store, conversations)
        admin = Admin(settings.server)
        lookout.register(admin)
        await admin.start()
        watchers = lookout.watchers
    gateway = Gateway(settings, conversations, store, None, None, watchers)
    print(await gateway.start(), flush=True)
    await store.start()
    await asyncio.Event().wait()


# The comparison.


def _conversation(seed: int) -> Iterator[list[dict[str, Any]]]:
    """The messages of each request of a conversation of six questions, each of which searches once."""
    made = random.Random(seed)
    messages: list[dict[str, Any]] = []
    for question in range(6):
        words = " ".join(made.choices(["steam", "valve", "pressure", "boiler", "gauge", "日本語"], k=700))
        chunks = [{"id": f"a{n}", "content": words[n * 500 : (n + 1) * 500]} for n in range(8)]
        call = {"id": f"s{question}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"{seed}: what of {question}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"s{question}", "content": json.dumps({"found": chunks})},
        ]
        yield messages
        cite = {"id": "c", "type": "function", "function": {"name": "cite", "arguments": '{"ids": ["a0"]}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [cite]},
            {"role": "tool", "tool_call_id": "c", "content": "registered"},
        ]
        yield messages
        messages.append({"role": "assistant", "content": "It is as the manual says."})


def _start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "benchmarks.visibility", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _compare(conversations: int) -> int:
    processes: list[subprocess.Popen[str]] = []
    try:
        provider, upstream = _start("--provide")
        processes.append(provider)
        connections = {}
        for way in WAYS:
            process, address = _start("--serve", way, "--upstream", upstream)
            processes.append(process)
            at = urlsplit(address if "://" in address else f"//{address}")
            connections[way] = http.client.HTTPConnection(at.hostname or "", at.port)
        direct = http.client.HTTPConnection(urlsplit(upstream).hostname or "", urlsplit(upstream).port)
        for seed in range(8):
            _measure({"direct": direct, **connections}, seed)  # vocabularies are read, caches are filled
        time.sleep(2)
        times: list[dict[str, float]] = []
        for seed in range(8, 8 + conversations):
            times += _measure({"direct": direct, **connections}, seed)
        return _report(times)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def _measure(connections: dict[str, http.client.HTTPConnection], seed: int) -> list[dict[str, float]]:
    """Milliseconds of each request of a conversation, at each: one after the other, so that what a proxy does after a
    reply is in the way of its own next request, and of nobody else's."""
    bodies = [json.dumps({"model": "gpt-5", "messages": messages}).encode() for messages in _conversation(seed)]
    found: list[dict[str, float]] = [{} for _ in bodies]
    ways = list(connections)
    random.Random(seed).shuffle(ways)
    headers = {"Authorization": "Bearer benchmark", "Content-Type": "application/json"}
    for way in ways:
        for body, times in zip(bodies, found, strict=True):
            since = time.perf_counter()
            connections[way].request("POST", "/v1/chat/completions", body, headers)
            reply = connections[way].getresponse()
            reply.read()
            times[way] = (time.perf_counter() - since) * 1000
            assert reply.status == 200, reply.status
        time.sleep(0.1)  # what it does in quiet moments it does now, and not while another one is measured
    return found


def _report(times: list[dict[str, float]]) -> int:
    bare = [one["nothing"] - one["direct"] for one in times]
    base = statistics.median(bare)
    print(
        f"{len(times)} requests through each; added latency in ms, and beside the same request with nothing watching\n"
    )
    print(f"{'watching':16} {'p50':>8} {'p90':>8} {'paired p50':>11} {'paired p90':>11}   allowed at p50")
    print(f"{'nothing':16} {base:8.3f} {_p90(bare):8.3f}")
    failed = 0
    for way, allowed in ((WAYS[1], max(SHARE * base, MS)), (WAYS[2], MS_WITH_TRACES)):
        added = [one[way] - one["direct"] for one in times]
        more = [one[way] - one["nothing"] for one in times]
        middle = statistics.median(more)
        holds = middle <= allowed
        failed += not holds
        print(
            f"{way:16} {statistics.median(added):8.3f} {_p90(added):8.3f} {middle:+11.3f} {_p90(more):+11.3f}   "
            f"{allowed:.3f} {'holds' if holds else 'DOES NOT HOLD'}"
        )
    return 1 if failed else 0


def _p90(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[-1]


if __name__ == "__main__":
    main()
