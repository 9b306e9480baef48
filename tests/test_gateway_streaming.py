"""A reply comes back as it is made: piece by piece, to the byte, and what it settles is settled in time."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.gateway.encodings import zstd
from tests.conftest import StartHere
from tests.house.client import Client, Torn, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Break, Provider, Reply, Wait, completion, events, json_reply, sse_reply

# With a fixed time in its head, so that equal bytes are equal in every process that collects these tests.
zipped = partial(gzip.compress, mtime=0)

FINISH = b'"finish_reason": "stop"'


async def test_a_stream_reaches_the_client_chunk_by_chunk_before_the_provider_ends(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    chunks = [b"data: 1\n\n", b"da", b"ta: \xe2", b"\x82\xac\r\n\r\n", b": comment\n\n", b"data: [DONE]\n\n"]
    gates = [Wait() for _ in chunks]
    provider.reply(sse_reply([step for pair in zip(gates, chunks, strict=True) for step in pair]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={"stream": True}))

    head = await client.head()  # before the first byte of the body
    assert head.value("content-type") == b"text/event-stream"
    for gate, chunk in zip(gates, chunks, strict=True):
        await gate.reached.wait()
        gate.go()
        assert await client.chunk() == chunk
    assert await client.chunk() == b""
    client.close()


async def test_chunks_that_arrive_together_are_not_merged(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    chunks = [b"data: %d\n\n" % n for n in range(50)]
    provider.reply(sse_reply(chunks))

    seen = await ask(proxy.url, {})

    assert seen.chunks == chunks


async def test_a_stream_passes_on_other_paths_too(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    gate = Wait()
    provider.reply(sse_reply([b"data: 1\n\n", gate, b"data: 2\n\n"]))
    client = await Client.connect(proxy.url)
    await client.send(request(target="/v1/completions", body={}))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"
    gate.go()
    assert await client.chunk() == b"data: 2\n\n"
    client.close()


async def test_what_a_stream_settles_is_settled_after_its_finish_went_out_and_before_its_last_byte(
    provider: Provider, start_here: StartHere
) -> None:
    hold = asyncio.Event()
    conversation = Conversation(finish=FINISH, hold=hold)
    proxy = await start_here(conversation)
    *first, finish, done = events(completion("hello"))
    provider.reply(sse_reply([*first, finish, done]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    for chunk in first:
        assert await client.chunk() == chunk

    assert await client.chunk() == finish[:-1]  # relayed, but no client can read it as an event yet
    await conversation.last.settling.wait()
    assert conversation.last.steps == ["fed"] * (len(first) + 1)
    hold.set()
    assert await client.chunk() == finish[-1:]
    assert "settled" in conversation.last.steps
    assert await client.chunk() == done
    assert await client.chunk() == b""
    await conversation.last.over.wait()
    assert conversation.last.story[-1] == ("ended", b"whole")
    client.close()


async def test_a_finish_and_done_in_one_chunk_do_not_let_the_client_get_ahead_of_the_record(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation(finish=FINISH, hold=asyncio.Event())
    proxy = await start_here(conversation)
    everything = b"".join(events(completion("hello")))
    provider.reply(sse_reply([everything]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()

    assert await client.chunk() == everything[:-1]
    assert conversation.last.hold is not None
    conversation.last.hold.set()
    assert await client.chunk() == everything[-1:]
    assert "settled" in conversation.last.steps
    client.close()


async def test_a_whole_reply_is_settled_before_its_last_bytes_leave(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    whole = completion("x" * 200_000)
    provider.reply(json_reply(whole))

    seen = await ask(proxy.url, {})

    assert seen.json() == whole
    assert conversation.last.fed == seen.body
    assert conversation.last.story[-1] == ("ended", b"whole")


async def test_a_client_that_hangs_up_at_the_finish_still_gets_its_question_settled(
    provider: Provider, start_here: StartHere
) -> None:
    hold = asyncio.Event()
    conversation = Conversation(finish=FINISH, hold=hold)
    proxy = await start_here(conversation)
    gate = Wait()
    chunks = events(completion("hello"))
    provider.reply(sse_reply([*chunks[:-1], gate, chunks[-1]]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    received = await provider.request()
    await conversation.last.settling.wait()

    client.vanish()
    await received.gone.wait()
    hold.set()
    await conversation.last.over.wait()

    assert "settled" in conversation.last.steps


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_clients_disconnect_ends_the_upstream_request_at_once(
    provider: Provider, start_here: StartHere, streaming: bool
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    gate = Wait()
    provider.reply(sse_reply([b"data: 1\n\n", gate]) if streaming else Reply(steps=[gate, b"{}"], headers=()))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await gate.reached.wait()
    if streaming:
        await client.head()
        await client.chunk()

    client.close()

    await provider.requests[0].gone.wait()
    await conversation.last.over.wait()
    assert conversation.last.story[-1] == ("ended", b"broken")


async def test_a_disconnect_before_the_reply_has_a_head_ends_the_upstream_request_too(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    client = await Client.connect(proxy.url)
    provider.reply(Reply(early=True, steps=[Wait()], framing="none", raw=None, status=103, reason="Early Hints"))
    await client.send(request(body={}))
    received = await provider.request()

    client.close()

    await received.gone.wait()
    await conversation.last.over.wait()


async def test_a_client_that_leaves_during_its_upload_takes_the_upstream_request_with_it(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\nhalf")
    received = await provider.request()

    client.close()

    await received.gone.wait()
    assert not received.complete.is_set()


@pytest.mark.parametrize(
    "reply",
    [
        sse_reply([b"data: 1\n\n", Break()]),
        Reply(200, "OK", [("Content-Length", "100")], [b"data: 1\n\n", Break()], framing="none"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"),
        Reply(
            200, "OK", [("Transfer-Encoding", "chunked")], [b"9\r\ndata: 1\n\n\r\n", Wait(), b"zz\r\n", Wait()], "none"
        ),
    ],
)
async def test_a_stream_that_breaks_upstream_breaks_for_the_client_too(
    provider: Provider, start_here: StartHere, reply: Reply
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(reply)
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n" if "chunked" in str(reply) else True
    if len(reply.steps) > 1 and isinstance(gate := reply.steps[1], Wait):
        gate.go()

    with pytest.raises(Torn):
        while await client.chunk():
            pass

    await conversation.last.over.wait()
    assert conversation.last.fed == b"data: 1\n\n"
    assert conversation.last.story[-1] == ("ended", b"broken")


async def test_a_break_shows_even_to_a_client_of_http_1_0(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    gate = Wait()
    provider.reply(sse_reply([b"data: 1\n\n", gate, Break()]))
    reader, writer = await asyncio.open_connection(*proxy.url[7:].split(":"))
    writer.write(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    await reader.readuntil(b"data: 1\n\n")
    gate.go()

    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


def _gzip_pieces(chunks: list[bytes]) -> list[bytes]:
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH) for chunk in chunks]
    return [*packed, packer.flush()]


def _zstd_pieces(chunks: list[bytes]) -> list[bytes]:
    packer = zstd.ZstdCompressor()
    packed = [packer.compress(chunk, packer.FLUSH_BLOCK) for chunk in chunks]
    return [*packed, packer.flush()]


def _brotli_pieces(chunks: list[bytes]) -> list[bytes]:
    packer: Any = brotli.Compressor()
    packed = [packer.process(chunk) + packer.flush() for chunk in chunks]
    return [*packed, packer.finish()]


@pytest.mark.parametrize("coding, pack", [("gzip", _gzip_pieces), ("zstd", _zstd_pieces), ("br", _brotli_pieces)])
async def test_a_compressed_stream_is_relayed_as_it_is_and_read_on_the_side(
    provider: Provider, start_here: StartHere, coding: str, pack: Callable[[list[bytes]], list[bytes]]
) -> None:
    conversation = Conversation(finish=FINISH)
    proxy = await start_here(conversation)
    chunks = events(completion("hello world, this is an answer"))
    packed = pack(chunks)
    provider.reply(sse_reply([p for p in packed if p], headers=[("Content-Encoding", coding)]))

    seen = await ask(proxy.url, {}, headers=[("Accept-Encoding", coding)])

    assert seen.body == b"".join(packed)
    assert seen.value("content-encoding") == coding.encode()
    assert provider.requests[0].values("accept-encoding") == [coding.encode()]
    assert conversation.last.fed == b"".join(chunks)
    assert conversation.last.steps.count("settled") == 1
    assert conversation.last.story[-1] == ("ended", b"whole")


async def test_a_compressed_whole_reply_is_read_on_the_side(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    reply = json_reply(completion("hello"), zipped=True)
    provider.reply(reply)

    seen = await ask(proxy.url, {})

    assert [seen.body] == list(reply.steps)
    assert conversation.last.fed == gzip.decompress(seen.body)


@pytest.mark.parametrize(
    "coding, body",
    [
        ("gzip", b"this is no gzip"),
        ("sdch", b"whatever"),
        ("gzip", zipped(b"\0" * 3_000_000)),
        ("br", b"\xff" * 99),
    ],
)
async def test_a_reply_that_cannot_be_read_flows_all_the_same_and_settles_nothing(
    provider: Provider, start_here: StartHere, coding: str, body: bytes
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, server={"max_body_bytes": 1_000_000})
    provider.reply(Reply(200, "OK", [("Content-Encoding", coding)], [body, b"more"], framing="length"))

    seen = await ask(proxy.url, {})

    assert (seen.status, seen.body) == (200, body + b"more")
    assert conversation.last.story[-1] == ("ended", b"broken")


async def test_only_a_reply_of_status_200_is_read(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(json_reply(completion("hello"), 201, "Created"))

    await ask(proxy.url, {})

    assert conversation.last.fed == b""


async def test_an_interim_reply_is_not_taken_for_the_reply(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.reply(
        Reply(raw=b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    )

    seen = await ask(proxy.url, {})

    assert (seen.status, seen.body) == (200, b"{}")


async def test_a_slow_client_holds_the_provider_back_and_loses_nothing(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    chunk = b"x" * 65_536
    last = Wait()
    provider.reply(Reply(steps=[*([chunk] * 400), last, b"end"]))
    client = await Client.connect(proxy.url)
    await client.send(request("GET", "/v1/files/1/content"))
    await client.head()

    total = 0
    while total < 400 * len(chunk):
        total += len(await client.chunk())
    last.go()

    assert total == 400 * len(chunk)
    assert await client.chunk() == b"end"
    client.close()


async def test_two_requests_use_one_connection_each_way(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.always(sse_reply(events(completion("hi"))))
    client = await Client.connect(proxy.url)

    for _ in range(3):
        await client.send(request(body={}))
        assert (await client.reply()).status == 200

    assert provider.connections == 1
    client.close()


async def test_stopping_lets_a_stream_end(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    gate = Wait()
    provider.reply(sse_reply([b"data: 1\n\n", gate, b"data: 2\n\n"]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"

    stopping = asyncio.create_task(proxy.stop())
    await gate.reached.wait()
    gate.go()

    assert await client.chunk() == b"data: 2\n\n"
    assert await client.chunk() == b""
    await stopping
    with pytest.raises(OSError):
        await Client.connect(proxy.url)
