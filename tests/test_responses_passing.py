"""What passes the proxy of the Responses API: everything but `POST .../responses`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import StartHere
from tests.house.client import Client, Seen, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Received, Reply, json_reply
from tests.house.responding import response
from tests.house.running import InProcess, NoStore, settings
from tests.rewrites import CREDENTIAL

EVIDENCE = [{"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}]


def asked(*items: Any, **beside: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), **beside}


def earlier_question() -> list[Any]:
    """A question that searched, cited and was answered."""
    return [
        {"role": "user", "content": "One?"},
        {"type": "function_call", "call_id": "s1", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "s1", "output": '[{"id": "a", "text": "Alpha."}]'},
        {"type": "function_call", "call_id": "c1", "name": "cite", "arguments": '{"ids": ["a"]}'},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ]


def follow_up() -> list[Any]:
    (message,) = response("Alpha it is.")["output"]
    return [*earlier_question(), message, {"role": "user", "content": "Two?"}]


async def settled(start_here: StartHere, provider: Provider) -> str:
    """A proxy that has a record of the earlier question."""
    proxy = await start_here(evidence=EVIDENCE)
    provider.reply(json_reply(response("Alpha it is.")))
    await ask(proxy.url, asked(*earlier_question()), "/v1/responses", headers=[CREDENTIAL])
    return proxy.url


async def sent(url: str, provider: Provider, body: Any, target: str, method: str = "POST") -> tuple[Seen, Received]:
    provider.reply(json_reply(response("Two.")))
    seen = await ask(url, body, target, method, headers=[CREDENTIAL])
    return seen, provider.requests[-1]


@pytest.mark.parametrize("target", ["/v1/responses", "/openai/v1/responses", "/v1/responses?api-version=1"])
async def test_every_path_that_ends_in_responses_is_compacted(
    start_here: StartHere, provider: Provider, target: str
) -> None:
    url = await settled(start_here, provider)
    seen, received = await sent(url, provider, asked(*follow_up()), target)
    assert seen.evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    assert b"Evidence that earlier answers cited" in received.body


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/responses/compact"),
        ("POST", "/v1/responses/input_tokens"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/responses/"),
        ("POST", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_promise_1_paths_that_only_contain_responses_are_not_read(
    start_here: StartHere, provider: Provider, method: str, target: str
) -> None:
    url = await settled(start_here, provider)
    body = request("POST", "/", asked(*follow_up())).partition(b"\r\n\r\n")[2]
    seen, received = await sent(url, provider, body, target, method)
    assert (received.body, received.target.decode()) == (body, target)
    assert seen.value("evidence-proxy") is None


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=4"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("DELETE", "/v1/responses/resp_1"),
    ],
)
async def test_stored_responses_are_fetched_and_deleted_through_the_proxy(
    start_here: StartHere, provider: Provider, method: str, target: str
) -> None:
    proxy = await start_here(evidence=EVIDENCE)
    seen, received = await sent(proxy.url, provider, None, target, method)
    assert (received.method.decode(), received.target.decode(), received.body) == (method, target, b"")
    assert seen.json()["id"] == "resp_1"


async def test_background_mode_passes_and_settles_nothing(start_here: StartHere, provider: Provider) -> None:
    url = await settled(start_here, provider)
    seen, received = await sent(url, provider, asked(*follow_up(), background=True), "/v1/responses")
    assert seen.evidence == "untouched; reason=background"
    assert received.json()["input"] == follow_up()
    fresh = await start_here(evidence=EVIDENCE)
    await sent(fresh.url, provider, asked(*earlier_question(), background=True), "/v1/responses")
    seen, _ = await sent(fresh.url, provider, asked(*follow_up()), "/v1/responses")
    assert seen.evidence == "untouched; reason=no-record"


# WebSocket mode.

_ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
)
_WANTED = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
    CREDENTIAL,
]


async def test_websocket_mode_is_relayed_in_both_directions() -> None:
    """A provider that accepts and then answers each piece with itself, in capitals."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(_ACCEPTED + b"\x81\x05early")
        while piece := await reader.read(1 << 16):
            writer.write(piece.upper())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    chosen = settings(f"http://127.0.0.1:{port}/v1")
    proxy = await InProcess(chosen, Conversation(), NoStore(), None).start()
    client = await Client.connect(proxy.url)
    await client.send(request("GET", "/v1/responses", None, _WANTED))
    seen = await client.head()
    assert (seen.status, seen.value("upgrade"), seen.value("sec-websocket-accept")) == (101, b"websocket", b"x")
    assert await client.exactly(7) == b"\x81\x05early"
    for piece in (b"one", b"\x82\x7e" + b"two" * 100_000):
        await client.send(piece)
        assert await client.exactly(len(piece)) == piece.upper()
    assert heads[0].startswith(b"GET /v1/responses HTTP/1.1\r\n")
    assert b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" in heads[0] and b"Upgrade: websocket" in heads[0]
    client.close()
    await proxy.stop()
    server.close()


async def test_a_provider_that_has_no_websocket_mode_says_so_itself(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here()
    refusal = b'{"error":{"message":"no such mode"}}'
    provider.reply(Reply(426, "Upgrade Required", [("Content-Type", "application/json")], [refusal], "length"))
    client = await Client.connect(proxy.url)
    await client.send(request("GET", "/v1/responses", None, _WANTED))
    seen = await client.reply()
    assert (seen.status, seen.body) == (426, refusal)
    assert await client.ended()
