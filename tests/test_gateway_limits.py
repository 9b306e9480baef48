"""How much is taken on at once, how long anybody is waited for, and what is said at each limit."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from proxy.gateway.limits import SLOWEST_BYTES_PER_SECOND, Capacity, Full, Patience
from tests.conftest import StartHere
from tests.house.client import Client, Seen, Torn, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Reply, Wait, completion, json_reply, sse_reply

ANSWER = json_reply(completion("hi"))
SOON = 0.2


def code(seen: Seen) -> str:
    error = seen.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


# How much.


async def test_beyond_max_requests_it_is_503_with_retry_after_and_health_is_still_answered(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation(), server={"max_requests": 2})
    gates = [Wait(), Wait()]
    provider.reply(*(sse_reply([gate, b"data: x\n\n"]) for gate in gates))
    clients = [await Client.connect(proxy.url) for _ in gates]
    for client, target in zip(clients, ("/v1/chat/completions", "/v1/files"), strict=True):
        await client.send(request(target=target, body={}))
        await client.head()

    refused = [await ask(proxy.url, {}, target=target) for target in ("/v1/chat/completions", "/v1/files")]
    health = [await ask(proxy.url, method="GET", target=target) for target in ("/healthz", "/readyz")]
    for gate in gates:
        gate.go()
    for client in clients:
        assert await client.chunk() == b"data: x\n\n"
        assert await client.chunk() == b""
        client.close()
    provider.reply(ANSWER)
    after = await ask(proxy.url, {})

    assert [(seen.status, seen.value("retry-after"), code(seen)) for seen in refused] == [(503, b"1", "proxy_full")] * 2
    assert "server.max_requests" in refused[0].json()["error"]["message"]
    assert [seen.status for seen in health] == [200, 200]
    assert after.status == 200
    assert len(provider.requests) == 3


async def test_beyond_max_bytes_in_flight_it_is_503_before_the_body_is_read(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation(), server={"max_bytes_in_flight": 100_000, "max_body_bytes": 100_000})
    gate = Wait()
    provider.reply(sse_reply([gate, b"data: x\n\n"]))
    first = await Client.connect(proxy.url)
    await first.send(request(body=b"{" + b" " * 60_000 + b"}"))
    await first.head()

    second = await Client.connect(proxy.url)
    await second.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 60000\r\n\r\n")
    announced = await second.reply()
    third = await Client.connect(proxy.url)
    await third.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(6):
        await third.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
    grown = await third.reply()
    provider.reply(ANSWER)
    small = await ask(proxy.url, {})
    gate.go()
    await first.chunk()
    await first.chunk()
    provider.reply(ANSWER)
    after = await ask(proxy.url, b"{" + b" " * 90_000 + b"}")

    for seen in (announced, grown):
        assert (seen.status, seen.value("retry-after"), code(seen)) == (503, b"1", "proxy_full")
    assert small.status == after.status == 200
    for client in (first, second, third):
        client.close()


def test_what_a_request_holds_is_given_back_once() -> None:
    capacity = Capacity(1, 100)
    one, other = capacity.share(), capacity.share()
    one.enter()
    one.enter()
    one.hold(100)
    with pytest.raises(Full):
        other.enter()
    with pytest.raises(Full):
        other.hold(1)
    one.release()
    one.release()
    assert (capacity.requests, capacity.bytes) == (0, 0)
    other.enter()
    other.hold(100)


@pytest.mark.parametrize(
    "head",
    [
        b"X-Long: " + b"x" * 70_000 + b"\r\n",
        b"".join(b"X-%d: %b\r\n" % (n, b"x" * 700) for n in range(100)),
        b"".join(b"X-%d: 1\r\n" % n for n in range(20_000)),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
async def test_a_head_over_max_header_bytes_is_431(
    provider: Provider, start_here: StartHere, head: bytes, whole: bool
) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    await client.send(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n" + head + (b"\r\n" if whole else b""))

    seen = await client.reply()

    assert (seen.status, code(seen)) == (431, "header_too_large") or (
        len(head) > 200_000 and (seen.status, code(seen)) == (400, "malformed_request")
    )
    assert await client.ended()
    assert provider.requests == []
    client.close()


async def test_a_url_over_max_header_bytes_is_431(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"max_header_bytes": 2000})

    assert (await ask(proxy.url, method="GET", target="/v1/models?" + "x" * 1800)).status == 500  # nothing scripted
    assert (await ask(proxy.url, method="GET", target="/v1/models?" + "x" * 2000)).status == 431
    assert len(provider.requests) == 1


# How long: clients.


@pytest.mark.parametrize("begun", [b"GET /v1/models HTTP/1.1\r\n", b"GET", b"POST /v1/x HTTP/1.1\r\nHost: p\r\nX: "])
async def test_a_head_that_does_not_end_is_408(provider: Provider, start_here: StartHere, begun: bytes) -> None:
    proxy = await start_here(Conversation(), server={"header_seconds": SOON})
    provider.reply(ANSWER)
    client = await Client.connect(proxy.url)
    await client.send(request("GET", "/v1/models"))
    assert (await client.reply()).status == 200
    for byte in begun:
        await client.send(bytes([byte]))

    seen = await client.reply()

    assert (seen.status, code(seen)) == (408, "request_timeout")
    assert await client.ended()
    client.close()


async def test_a_head_that_comes_in_pieces_is_read(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"header_seconds": 60})
    provider.always(ANSWER)
    client = await Client.connect(proxy.url)
    for _ in range(2):
        for byte in request(body={}):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.reply()).status == 200
    client.close()


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files", "/evidence/v1/returns"])
async def test_a_body_that_does_not_come_is_408_and_leaves_the_provider(
    provider: Provider, start_here: StartHere, target: str
) -> None:
    proxy = await start_here(server={"body_seconds": SOON})
    client = await Client.connect(proxy.url)
    await client.send(b"POST %b HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\nhalf" % target.encode())

    seen = await client.reply()

    assert (seen.status, code(seen)) == (408, "request_timeout")
    if target == "/v1/files":
        await (await provider.request()).gone.wait()
    else:
        assert provider.requests == []
    client.close()


def test_a_trickle_gets_no_more_time_than_its_bytes_are_worth() -> None:
    trickle, stream, none = Patience(60), Patience(60), Patience(0)
    for _ in range(10):
        trickle.waited(7)
        trickle.moved(1)
        stream.waited(7)
        stream.moved(7 * SLOWEST_BYTES_PER_SECOND)
        none.waited(7)
    assert trickle.left() == 0
    assert stream.left() == 60
    assert none.left() is None


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_a_client_that_does_not_take_its_reply_is_left_and_so_is_the_provider(
    provider: Provider, start_here: StartHere, framing: str
) -> None:
    proxy = await start_here(Conversation(), server={"send_seconds": SOON})
    provider.reply(Reply(steps=[b"x" * 65_536] * 400, framing=framing))
    client = await Client.connect(proxy.url)
    client.stop_reading()
    await client.send(request("GET", "/v1/files/1/content"))
    received = await provider.request()

    await received.gone.wait()

    client.close()


async def test_a_connection_without_a_request_is_closed_in_the_end(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"keep_alive_seconds": SOON})
    provider.reply(ANSWER)
    fresh, used = await Client.connect(proxy.url), await Client.connect(proxy.url)
    await used.send(request(body={}))
    await used.reply()

    assert await fresh.ended()
    assert await used.ended()


# How long: the provider.


async def test_a_provider_that_does_not_reply_in_time_is_504_and_the_error_says_what_was_sent(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, upstream={"first_byte_seconds": SOON})
    never = Wait()
    provider.always(Reply(early=True, steps=[never], framing="none", status=103, reason="Early Hints"))

    seen = await ask(proxy.url, b'{"a": 1}')
    upload = await ask(proxy.url, b"x" * 300, target="/v1/files")

    assert (seen.status, code(seen), upload.status) == (504, "upstream_timeout", 504)
    assert (
        "did not reply within 0.2 seconds. The request was sent whole, with 8 bytes of body; it was not asked"
        in (seen.json()["error"]["message"])
    )
    assert "sent whole, with 300 bytes of body" in upload.json()["error"]["message"]
    assert conversation.last.story == [("ended", b"broken")]
    for received in provider.requests:
        await received.gone.wait()


async def test_the_providers_time_begins_when_it_has_the_request(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), upstream={"first_byte_seconds": SOON})
    provider.reply(ANSWER)
    client = await Client.connect(proxy.url)
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nab")
    await asyncio.sleep(2 * SOON)
    await client.send(b"cd")

    assert (await client.reply()).status == 200
    client.close()


async def test_a_stream_that_falls_silent_breaks_off(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, upstream={"idle_seconds": SOON})
    provider.reply(sse_reply([b"data: 1\n\n", Wait()]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"

    with pytest.raises(Torn):
        await client.chunk()

    await provider.requests[0].gone.wait()
    await conversation.last.over.wait()
    assert conversation.last.story[-1] == ("ended", b"broken")
    client.close()


async def test_a_stream_that_goes_on_is_not_silent_however_long_it_takes(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation(), upstream={"idle_seconds": 4 * SOON}, server={"comment_seconds": 0})
    gates = [Wait() for _ in range(8)]
    provider.reply(sse_reply([step for gate in gates for step in (gate, b"data: 1\n\n")]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    for gate in gates:
        await asyncio.sleep(SOON)
        gate.go()
        assert await client.chunk() == b"data: 1\n\n"
    assert await client.chunk() == b""
    client.close()


async def test_no_connection_in_time_is_502_and_nothing_was_sent(start_here: StartHere) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        proxy = await start_here(
            Conversation(), upstream={"base_url": f"http://127.0.0.1:{port}/v1", "connect_seconds": SOON}
        )

        seen = await ask(proxy.url, {})

        assert (seen.status, code(seen)) == (502, "upstream_unreachable")
        assert "got no connection within 0.2 seconds. Nothing was sent" in seen.json()["error"]["message"]
        for one in waiting:
            one.close()


async def test_a_provider_that_hangs_up_is_not_asked_again(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.always(Reply(raw=b""))

    seen = await ask(proxy.url, b'{"a": 1}')

    assert seen.status == 502
    assert "may have been sent whole, with 8 bytes of body; it was not asked again" in seen.json()["error"]["message"]
    assert len(provider.requests) == 1


# Comments in the silence.


async def test_a_silent_stream_gets_comments_between_its_events_and_nowhere_else(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, server={"comment_seconds": SOON})
    gates = [Wait() for _ in range(4)]
    provider.reply(
        sse_reply([gates[0], b"data: 1\r\n\r", gates[1], b"\ndata: ", gates[2], b"2\n\n", gates[3], b"data: 3\n\n"])
    )
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()

    async def until(chunk: bytes) -> int:
        """How many comments come before this chunk."""
        comments = 0
        while (came := await client.chunk()) != chunk:
            assert came == b": keep-alive\n\n"
            comments += 1
        return comments

    assert await client.chunk() == b": keep-alive\n\n"  # before the first event
    gates[0].go()
    await until(b"data: 1\r\n\r")
    await asyncio.sleep(3 * SOON)
    gates[1].go()
    assert await until(b"\ndata: ") == 0
    await asyncio.sleep(3 * SOON)
    gates[2].go()
    assert await until(b"2\n\n") == 0
    assert await client.chunk() == b": keep-alive\n\n"
    gates[3].go()
    await until(b"data: 3\n\n")
    assert await client.chunk() == b""
    await conversation.last.over.wait()
    assert conversation.last.fed == b"data: 1\r\n\r\ndata: 2\n\ndata: 3\n\n"
    client.close()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, "OK", [("Content-Type", "application/json")], [Wait(), b"{}"]),
        Reply(
            200,
            "OK",
            [("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")],
            [Wait(), b"whatever"],
        ),
        Reply(200, "OK", [("Content-Type", "text/event-stream"), ("Content-Length", "2")], [Wait(), b"{}"], "none"),
    ],
)
async def test_nothing_else_gets_comments(provider: Provider, start_here: StartHere, reply: Reply) -> None:
    proxy = await start_here(Conversation(), server={"comment_seconds": SOON})
    provider.reply(reply)
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    head = await client.head()
    await asyncio.sleep(3 * SOON)
    gate: Any = reply.steps[0]
    gate.go()

    assert (await client.rest(head)).body == reply.steps[1]
    client.close()


# Stopping.


async def test_stopping_waits_for_streams_no_longer_than_drain_seconds(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, server={"drain_seconds": SOON})
    provider.reply(sse_reply([b"data: 1\n\n", Wait()]))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"

    await proxy.stop()

    with pytest.raises(Torn):
        await client.chunk()
    await provider.requests[0].gone.wait()
    assert conversation.last.story[-1] == ("ended", b"broken")


async def test_stopping_closes_connections_without_a_request_and_lets_an_upload_end(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(ANSWER, json_reply({"id": "file-1"}))
    idle, busy = await Client.connect(proxy.url), await Client.connect(proxy.url)
    await idle.send(request(body={}))
    await idle.reply()
    await busy.send(b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nab")
    received = await provider.request(1)

    stopping = asyncio.create_task(proxy.stop())
    assert await idle.ended()
    await busy.send(b"cd" + request("GET", "/v1/models"))
    seen = await busy.reply()

    assert (seen.json(), received.body) == ({"id": "file-1"}, b"abcd")
    assert await busy.ended()
    await stopping
    assert len(provider.requests) == 2


# Backpressure: what cannot be passed on is not read.


async def _moved(writer: asyncio.StreamWriter, total: int) -> int:
    """Write until the other side takes no more (or `total` bytes); returns how many went out."""
    piece, sent = b"x" * 65_536, 0
    try:
        while sent < total:
            writer.write(piece)
            async with asyncio.timeout(0.5):
                await writer.drain()
            sent += len(piece)
    except TimeoutError:
        pass
    return sent


async def test_an_upload_that_the_provider_does_not_take_is_not_read_either(start_here: StartHere) -> None:
    total = 200 << 20
    released = asyncio.Event()

    async def lazy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(lazy, "127.0.0.1", 0, limit=1 << 16)
    proxy = await start_here(
        Conversation(), upstream={"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    )
    _reader, writer = await asyncio.open_connection(*proxy.url[7:].split(":"))
    writer.write(b"POST /v1/audio HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n" % total)

    sent = await _moved(writer, total)

    assert sent < total // 2  # the sockets' own buffers take some megabytes
    released.set()
    assert await _moved(writer, total - sent - (1 << 20)) >= total - sent - (1 << 20)
    writer.transport.abort()
    server.close()


async def test_a_download_that_the_client_does_not_take_is_not_read_either(start_here: StartHere) -> None:
    total = 200 << 20
    went: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        went.set_result(await _moved(writer, total))
        writer.transport.abort()

    server = await asyncio.start_server(eager, "127.0.0.1", 0)
    proxy = await start_here(
        Conversation(), upstream={"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    )
    client = await Client.connect(proxy.url)
    client.stop_reading()
    await client.send(request("GET", "/v1/files/1/content"))

    assert await went < total // 2
    client.vanish()
    server.close()
