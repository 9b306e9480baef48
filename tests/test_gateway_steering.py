"""A reply that is steered: what the client gets, what the provider is asked, and who learns that somebody left."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Callable

import pytest

from proxy.gateway.steering import Head, Piece, Provider, Steering
from tests.conftest import StartHere
from tests.house.client import Client, Torn, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Break, Reply, Wait, completion, events, json_reply, sse_reply
from tests.house.provider import Provider as ScriptedProvider

FINISH = b'"finish_reason": "stop"'
JSON = ((b"Content-Type", b"application/json"),)


class Steered:
    """A steering that is written as a function of the provider."""

    def __init__(self, steer: Callable[[Provider], AsyncGenerator[Piece, None]]) -> None:
        self.steer = steer


def passing_on() -> Steering:
    async def steer(provider: Provider) -> AsyncGenerator[Piece, None]:
        reply = await provider.ask()
        yield reply.head
        while chunk := await reply.chunk():
            yield chunk

    return Steered(steer)


async def test_what_is_only_passed_on_arrives_as_it_came(provider: ScriptedProvider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(steering=passing_on()))
    reply = json_reply(completion("hello"), headers=[("X-Request-Id", "7")])
    provider.reply(reply)

    seen = await ask(proxy.url, b'{"messages": [] }')

    assert seen.body == reply.steps[0]
    assert seen.value("x-request-id") == b"7" and seen.value("content-length") == b"%d" % len(seen.body)
    assert provider.requests[-1].body == b'{"messages": [] }'


async def test_a_steered_stream_arrives_piece_by_piece_and_settles_before_its_last_byte(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    hold = asyncio.Event()
    conversation = Conversation(steering=passing_on(), finish=FINISH, hold=hold)
    proxy = await start_here(conversation)
    gate = Wait()
    *first, finish, done = events(completion("hello"))
    provider.reply(sse_reply([*first, gate, finish, done]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={"stream": True}))
    await client.head()
    for piece in first:
        assert await client.chunk() == piece
    gate.go()
    assert await client.chunk() == finish[:-1]
    await conversation.last.settling.wait()
    hold.set()
    assert [await client.chunk(), await client.chunk()] == [finish[-1:], done]
    assert "settled" in conversation.last.steps
    client.close()


async def test_a_compressed_reply_is_read_and_goes_out_as_what_it_says(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    conversation = Conversation(steering=passing_on())
    proxy = await start_here(conversation)
    plain = b'{"choices": []}'
    lines = [("Content-Type", "application/json"), ("Content-Encoding", "gzip"), ("ETag", '"1"')]
    provider.reply(Reply(200, "OK", lines, [gzip.compress(plain)], framing="length"))

    seen = await ask(proxy.url, {})

    assert seen.body == plain and conversation.last.fed == plain
    assert seen.value("content-encoding") is None and seen.value("etag") is None


async def test_a_coding_that_nobody_knows_is_passed_on_as_it_is(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation(steering=passing_on()))
    lines = [("Content-Type", "application/json"), ("Content-Encoding", "own")]
    provider.reply(Reply(200, "OK", lines, [b"\x00\x01"], framing="length"))

    seen = await ask(proxy.url, {})

    assert seen.body == b"\x00\x01" and seen.value("content-encoding") == b"own"


async def test_the_provider_can_be_asked_for_more_with_the_clients_headers_and_another_body(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def steer(given: Provider) -> AsyncGenerator[Piece, None]:
        first = await given.ask()
        said = await first.chunk()
        second = await given.ask(b'{"more": 1}')
        yield first.head.holding(None)
        yield said + b" "
        yield await second.chunk()

    proxy = await start_here(Conversation(steering=Steered(steer)))
    provider.reply(json_reply(b"[1]"))
    provider.reply(json_reply(b"[2]"))

    seen = await ask(proxy.url, b'{"messages":[]}', headers=[("Authorization", "Bearer a"), ("X-Own", "b")])

    assert seen.body == b"[1] [2]"
    first, second = provider.requests
    assert (first.body, second.body) == (b'{"messages":[]}', b'{"more": 1}')
    assert first.target == second.target
    assert second.values("authorization") == [b"Bearer a"] and second.values("x-own") == [b"b"]
    assert second.value("content-length") == b"11"


async def test_a_reply_can_be_given_without_asking_the_provider(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def steer(given: Provider) -> AsyncGenerator[Piece, None]:
        yield Head(200, b"OK", JSON, 2)
        yield b"{}"

    conversation = Conversation(steering=Steered(steer))
    proxy = await start_here(conversation)

    seen = await ask(proxy.url, {})

    assert (seen.status, seen.body) == (200, b"{}") and not provider.requests
    assert conversation.last.steps == ["fed", "ended"]


async def test_a_provider_that_cannot_be_reached_is_reported_as_ever(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    conversation = Conversation(steering=passing_on())
    proxy = await start_here(conversation)
    await provider.stop()

    seen = await ask(proxy.url, {})

    assert seen.status == 502 and seen.json()["error"]["code"] == "upstream_unreachable"
    assert conversation.last.story == [("ended", b"broken")]


async def test_a_reply_that_breaks_off_breaks_off_for_the_client(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    conversation = Conversation(steering=passing_on())
    proxy = await start_here(conversation)
    provider.reply(sse_reply([b"data: 1\n\n", Break()]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    head = await client.head()
    with pytest.raises(Torn):
        await client.rest(head)
    await conversation.last.over.wait()
    assert conversation.last.story[-1] == ("ended", b"broken")


async def test_a_fault_of_the_steering_is_an_error_in_the_shape_that_clients_parse(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def steer(given: Provider) -> AsyncGenerator[Piece, None]:
        await given.ask()
        raise LookupError("secret")
        yield b""

    proxy = await start_here(Conversation(steering=Steered(steer)))
    provider.reply(json_reply(b"[1]"))

    seen = await ask(proxy.url, {})

    assert seen.status == 500 and seen.json()["error"]["code"] == "internal_error" and b"secret" not in seen.body


async def test_when_the_client_leaves_every_request_that_was_sent_for_it_ends(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def steer(given: Provider) -> AsyncGenerator[Piece, None]:
        first, second = await given.ask(), await given.ask(b"{}")
        await second.chunk()
        yield first.head

    proxy = await start_here(Conversation(steering=Steered(steer)))
    gates = [Wait(), Wait()]
    for gate in gates:
        provider.reply(sse_reply([gate]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    for gate in gates:
        await gate.reached.wait()
    client.vanish()
    for asked in provider.requests:
        await asked.gone.wait()


# What is decided while the request is on its way.


async def test_a_request_is_sent_before_it_is_decided_what_becomes_of_its_reply(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    decide = asyncio.Event()

    async def deciding() -> None:
        await decide.wait()

    proxy = await start_here(Conversation(deciding=deciding))
    packed = gzip.compress(b"{}", mtime=0)
    lines = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")]
    provider.reply(Reply(200, "OK", lines, [packed], framing="length"))
    asking = asyncio.ensure_future(ask(proxy.url, {}))
    await (await provider.request(0)).complete.wait()
    decide.set()
    seen = await asking
    assert seen.body == packed and seen.value("content-encoding") == b"gzip"  # the way that knows nothing of steering


async def test_what_is_decided_meanwhile_gets_the_reply_that_came(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def deciding() -> Steering:
        return passing_on()

    proxy = await start_here(Conversation(deciding=deciding))
    provider.reply(json_reply(b"[1]"))
    assert (await ask(proxy.url, {})).body == b"[1]" and len(provider.requests) == 1


async def test_a_decision_that_fails_lets_the_reply_pass(provider: ScriptedProvider, start_here: StartHere) -> None:
    async def deciding() -> Steering:
        raise LookupError("secret")

    proxy = await start_here(Conversation(deciding=deciding))
    provider.reply(json_reply(b"[1]"))
    assert (await ask(proxy.url, {})).body == b"[1]"


async def test_a_client_that_leaves_while_it_is_decided_ends_the_request(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    conversation = Conversation(deciding=asyncio.Event().wait)  # type: ignore[arg-type]
    proxy = await start_here(conversation)
    gate = Wait()
    provider.reply(sse_reply([gate]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await gate.reached.wait()
    client.vanish()
    await provider.requests[0].gone.wait()
    await conversation.last.over.wait()
    assert conversation.last.story == [("ended", b"broken")]


async def test_a_provider_that_cannot_be_reached_meanwhile_is_reported_as_ever(
    provider: ScriptedProvider, start_here: StartHere
) -> None:
    async def deciding() -> Steering:
        return passing_on()

    proxy = await start_here(Conversation(deciding=deciding))
    await provider.stop()
    seen = await ask(proxy.url, {})
    assert seen.status == 502 and seen.json()["error"]["code"] == "upstream_unreachable"
