"""Input that is made to hurt: bombs, depths, lengths, shapes that two servers would read in two ways, and clients that
are slow on purpose. Each is answered or cut off, costs what its bytes cost, and nobody else notices.

Costs are counted, not timed: calls for what is read here, bytes for what is held.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.gateway import encodings
from proxy.gateway.conversation import Asked, Conversations
from proxy.gateway.encodings import zstd
from proxy.wire.bodies import refuse_dust
from proxy.wire.messages import NotJson
from tests.conftest import StartHere, StartProcess
from tests.conversations import run, settings_of
from tests.fake_store import FakeStore
from tests.fuzzing import _TABLES as TABLES
from tests.house.client import Client, Torn, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, completion, json_reply
from tests.talk import body, calls, grows_gently, returns, says, user

ANSWER = json_reply(completion("hi"))
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "gzip, gzip": lambda data: gzip.compress(gzip.compress(data)),
    "zstd, br": lambda data: brotli.compress(zstd.compress(data)),
    "gzip of many members": lambda data: gzip.compress(data[:1_000_000]) * (len(data) // 1_000_000),
    "zstd of many frames": lambda data: zstd.compress(data[:1_000_000]) * (len(data) // 1_000_000),
}


# Bombs.


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_never_held_beyond_its_limit(coding: str) -> None:
    """A hundred megabytes of nothing: the decoder gives up at the limit, and has not given more until then."""
    bomb = CODINGS[coding](bytes(100_000_000))
    assert len(bomb) < 1_000_000
    limit = 4_000_000
    decoder = encodings.Decoder(encodings.named([coding.partition(" of ")[0]]), limit)
    given = 0
    with pytest.raises(encodings.TooLarge):
        for at in range(0, len(bomb), 1000):
            for piece in decoder.feed(bomb[at : at + 1000]):
                given += len(piece)
    assert given <= limit


@pytest.mark.parametrize("coding", CODINGS)
async def test_many_bombs_at_once_are_413_and_an_honest_request_beside_them_is_served(
    provider: Provider, start_here: StartHere, coding: str
) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": 1_000_000})
    provider.always(ANSWER)
    bomb = CODINGS[coding](bytes(20_000_000))
    header: list[tuple[str | bytes, str | bytes]] = [("Content-Encoding", coding.partition(" of ")[0])]

    bombs, honest = await asyncio.gather(
        asyncio.gather(*(ask(proxy.url, bomb, headers=header) for _ in range(8))), ask(proxy.url, {})
    )

    assert [seen.status for seen in bombs] == [413] * 8
    assert honest.status == 200
    assert len(provider.requests) == 1
    assert proxy.gateway.capacity.bytes == 0


# Depths and lengths.

DEEP = 100_000
DEEPS = {
    "arrays": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "arrays that do not end": b"[" * DEEP,
    "in a content": b'{"messages":[{"role":"user","content":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "in an unknown field": b'{"messages":[],"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "in the messages": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "in arguments": json.dumps(
        {"messages": [calls(("s", "search", "[" * DEEP + "]" * DEEP)), returns("s", "[c1] x")]}
    ).encode(),
    "in a tool's JSON": body(user("q"), calls(("s", "search", {})), returns("s", "[" * DEEP + "]" * DEEP)),
    "in a tool's repr": body(user("q"), calls(("s", "search", {})), returns("s", "[(" * DEEP + ")]" * DEEP)),
    "in cited ids": json.dumps(
        {"messages": [calls(("c", "cite", '{"ids": ' + "[" * DEEP + "]" * DEEP + "}")), returns("c", "registered")]}
    ).encode(),
    "braces in text": body(user("q"), calls(("s", "search", {})), returns("s", "{" * DEEP)),
}


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("name", DEEPS)
async def test_what_is_nested_a_hundred_thousand_deep_passes_as_it_came(
    provider: Provider, start_here: StartHere, name: str, api: str
) -> None:
    proxy = await start_here(evidence=[{"format": "auto", "tools": ["search"], "cite": "cite"}])
    provider.always(ANSWER)
    sent = DEEPS[name] if api == "chat" else DEEPS[name].replace(b'"messages"', b'"input"')
    target = "/v1/chat/completions" if api == "chat" else "/v1/responses"

    seen = await ask(proxy.url, sent, target=target, headers=[("Authorization", "Bearer a")])

    assert seen.status == 200
    assert seen.evidence.startswith("untouched; ")
    assert provider.requests[0].body == sent


@pytest.mark.parametrize(
    "deep", [b"[" * DEEP + b"]" * DEEP, b'{"choices":' + b"[" * DEEP, b"data: " + b"[" * DEEP + b"\n\n"]
)
async def test_a_reply_that_is_nested_so_deep_passes_as_it_came(
    provider: Provider, start_here: StartHere, deep: bytes
) -> None:
    proxy = await start_here(evidence=[{"format": "auto", "tools": ["search"], "cite": "cite"}])
    provider.always(json_reply(deep))
    assert (await ask(proxy.url, body(user("q")), headers=[("Authorization", "Bearer a")])).body == deep


TEN_MILLION = 10_000_000
LONGS = {
    "numbers": b'{"messages":[],"x":[' + b"1," * (TEN_MILLION - 1) + b"1]}",
    "messages that are none": b'{"messages":[' + b"1," * (TEN_MILLION - 1) + b"1]}",
    "parts that are none": b'{"messages":[{"role":"user","content":[' + b"1," * (TEN_MILLION - 1) + b"1]}]}",
}


@pytest.mark.parametrize("name", LONGS)
async def test_ten_million_elements_pass_as_they_came(provider: Provider, start_here: StartHere, name: str) -> None:
    proxy = await start_here(evidence=[{"format": "auto", "tools": ["search"], "cite": "cite"}])
    provider.always(ANSWER)

    seen = await ask(proxy.url, LONGS[name], headers=[("Authorization", "Bearer a")])

    assert (seen.status, seen.evidence) == (200, "untouched; reason=not-json")
    assert provider.requests[0].body == LONGS[name]


def test_texts_and_tables_of_numbers_are_not_taken_for_such_dust() -> None:
    prose = "Well, so it goes, and so on, he said. " * 100_000
    numbers = json.dumps([n / 7 for n in range(200_000)])
    for text in (prose, numbers):
        asked = body(user("q"), calls(("s", "search", {})), returns("s", text))
        refuse_dust(asked)
    with pytest.raises(NotJson):
        refuse_dust(LONGS["numbers"])


@pytest.mark.parametrize("at", [0.0, 0.37, 0.74])
def test_such_dust_is_found_wherever_it_stands_in_a_large_body(at: float) -> None:
    words = b"w" * 12_000_000
    cut = round(len(words) * at)
    for _ in range(20):  # where is looked is left to chance
        with pytest.raises(NotJson):
            refuse_dust(words[:cut] + b"1," * 3_000_000 + words[cut:])


def test_what_was_looked_at_before_is_not_looked_at_again() -> None:
    refuse_dust(LONGS["numbers"] + b"w" * 300_000, known=len(LONGS["numbers"]))
    with pytest.raises(NotJson):
        refuse_dust(b"w" * 1_000_000 + LONGS["numbers"], known=1_000_000)


# Work grows with the bytes, and not with their square.


def _asking(*messages: Any) -> Callable[[], object]:
    """Two requests of one conversation and the settling between them."""
    first, again = body(*messages), body(*messages, says("an answer"), user("next?"))
    reply = json.dumps(completion("an answer")).encode()

    async def work() -> None:
        conversations = Conversations(settings_of(TABLES[0]), FakeStore())  # type: ignore[arg-type]
        for sent in (first, again):
            exchange = await conversations.ask(Asked(sent, "anna"))
            exchange.feed(reply)
            await exchange.ended(True)

    return lambda: run(work())


GROWING: dict[str, Callable[[int], list[Any]]] = {
    "messages": lambda n: [m for k in range(n) for m in (user(f"q{k}"), says("a"))] + [user("q")],
    "questions in a row": lambda n: [user(f"q{k}") for k in range(n)],
    "searches": lambda n: [
        user("q"), *(m for k in range(n) for m in (calls((f"s{k}", "search", {})), returns(f"s{k}", f"[c{k}] x")))
    ],
    "the same call id": lambda n: [
        user("q"), *(m for k in range(n) for m in (calls(("s", "search", {})), returns("s", f"[c{k}] x")))
    ],
    "calls of one reply": lambda n: [
        user("q"), calls(*((f"s{k}", "search", {}) for k in range(n))),
        *(returns(f"s{k}", f"[c{k}] x") for k in range(n)),
    ],
    "chunks of one return": lambda n: [
        user("q"), calls(("s", "search", {})), returns("s", "\n\n".join(f"[c{k}] x" for k in range(n)))
    ],
    "cited ids": lambda n: [
        user("q"), calls(("s", "search", {})), returns("s", "[c1] x"),
        calls(("c", "cite", {"ids": [f"c{k}" for k in range(n)]})), returns("c", "registered"),
    ],
    "unknown ids that look alike": lambda n: [
        user("q"), calls(("s", "search", {})), returns("s", "[aaaaaaaaaaaaaaaa] x"),
        calls(("c", "cite", {"ids": ["aaaaaaaaaaaaaaab" + str(k) for k in range(n // 8)]})), returns("c", "registered"),
    ],
    "open brackets": lambda n: [user("q"), calls(("s", "search", {})), returns("s", "[" * n * 8)],
    "openers without ends": lambda n: [user("q"), calls(("s", "search", {})), returns("s", "[evidence 1 " * n)],
    "quotes": lambda n: [user("q"), calls(("s", "search", {})), returns("s", "['" * n * 4)],
    "parts": lambda n: [user([{"type": "text", "text": "x"}] * n)],
    "backslashes": lambda n: [user("q"), calls(("s", "search", {})), returns("s", '["' + "\\" * n * 8)],
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_with_the_bytes(name: str) -> None:
    assert grows_gently(lambda n: _asking(*GROWING[name](n)), 60)


# Shapes that two servers would read in two ways.

HOST = b"Host: p\r\n"
SECOND = b"GET /v1/smuggled HTTP/1.1\r\nHost: p\r\n\r\n"
SMUGGLING = {
    "CL.TE": HOST + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "TE.CL": HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + SECOND + b"0\r\n\r\n",
    "two lengths": HOST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + SECOND,
    "two equal lengths on one line": HOST + b"Content-Length: 2, 2\r\n\r\n{}" + SECOND,
    "a length with a plus": HOST + b"Content-Length: +2\r\n\r\n{}" + SECOND,
    "a length with a space inside": HOST + b"Content-Length: 1 2\r\n\r\n{}" + SECOND,
    "a hexadecimal length": HOST + b"Content-Length: 0x2\r\n\r\n{}" + SECOND,
    "a length that is too large for a number": HOST + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "a negative length": HOST + b"Content-Length: -1\r\n\r\n" + SECOND,
    "a folded line": HOST + b"X-A: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + SECOND,
    "a folded coding": HOST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a bare LF between lines": b"Host: p\nContent-Length: 0\nTransfer-Encoding: chunked\n\n0\r\n\r\n" + SECOND,
    "a bare LF at the end": HOST + b"Content-Length: 0\r\n\n" + SECOND,
    "a bare CR": HOST + b"X-A: a\rContent-Length: 99\r\nContent-Length: 0\r\n\r\n" + SECOND,
    "a space before the colon": HOST + b"Content-Length : 40\r\n\r\n" + SECOND,
    "a tab before the colon": HOST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a coding that is not the last": HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n" + SECOND,
    "a coding twice": HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "an unknown coding": HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a coding with a NUL": HOST + b"Transfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n" + SECOND,
    "a coding with a form feed": HOST + b"Transfer-Encoding: \x0cchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "a chunk size with a sign": HOST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n" + SECOND,
    "a chunk size with 0x": HOST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + SECOND,
    "a chunk size that is too large": HOST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}" + SECOND,
    "a chunk longer than it says": HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n" + SECOND,
    "a chunk that ends with LF": HOST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n" + SECOND,
    "no host": b"\r\n" + SECOND,
    "two hosts": HOST + HOST + b"Content-Length: 0\r\n\r\n" + SECOND,
    "a change to HTTP/2": HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}" + SECOND,
    "a change with two lengths": HOST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n"
    + SECOND,
    "a change with a broken chunk": HOST
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    + SECOND,
    "a NUL in a name": HOST + b"X\x00A: 1\r\n\r\n" + SECOND,
    "a line without a colon": HOST + b"Content-Length\r\n\r\n" + SECOND,
}


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("name", SMUGGLING)
async def test_what_two_servers_would_read_in_two_ways_smuggles_nothing(
    provider: Provider, start_here: StartHere, name: str, target: str
) -> None:
    """Either it is refused and the connection ends, or it is read in the one way that the standard leaves; then what
    goes up says the same once, whatever the client wrote, and a second request is seen by us, too."""
    proxy = await start_here(Conversation())
    provider.always(ANSWER)
    client = await Client.connect(proxy.url)
    await client.send(b"POST %b HTTP/1.1\r\n" % target.encode() + SMUGGLING[name])

    statuses = []
    try:
        while len(statuses) < 2:
            statuses.append((await asyncio.wait_for(client.reply(), 1)).status)
    except (Torn, TimeoutError):
        pass
    client.close()

    assert statuses, "it is answered"
    for received in provider.requests:
        framing = received.values("content-length") + received.values("transfer-encoding")
        assert len(framing) <= 1, framing
        if received.value("content-length") is not None:
            assert int(received.value("content-length") or b"") == len(received.body)
        assert b"smuggled" not in received.body
    asked = [received for received in provider.requests if b"smuggled" not in received.target]
    smuggled = [received for received in provider.requests if b"smuggled" in received.target]
    assert len(asked) <= 1
    if statuses[0] == 400:
        assert smuggled == [], "after a refusal nothing more is read from a connection"
    else:
        assert len(smuggled) == len(statuses) - 1, "every request that goes up is one that we answered"


@pytest.mark.parametrize("later", [False, True])
async def test_bytes_after_a_reply_are_never_another_requests_reply(start_here: StartHere, later: bool) -> None:
    """A provider that answers what nobody asked, at once or while its connection is idle."""
    unasked = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nstolen!"
    said = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        if later:
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(unasked)
        await writer.drain()
        said.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = await start_here(
        Conversation(), upstream={"base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    )
    bodies = []
    for _ in range(3):
        said.clear()
        bodies.append((await ask(proxy.url, method="GET", target="/x")).body)
        await said.wait()

    assert bodies == [b"{}"] * 3
    server.close()


# Many, and slow on purpose.


async def test_ten_thousand_idle_connections_keep_nobody_out(provider: Provider, start_process: StartProcess) -> None:
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 1000:
        pytest.skip(f"a process may open {hard} files here, and {count + 1000} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 1000), hard))
    proxy = await start_process(
        '[server]\nkeep_alive_seconds = 0\nheader_seconds = 0\n[upstream]\nbase_url = "{upstream}"\n'
        '[store]\nuri = "memory://"\n'
    )
    provider.always(ANSWER)
    host, _, port = proxy.url.partition("//")[2].rpartition(":")
    loop = asyncio.get_running_loop()
    idle: list[asyncio.Transport] = []
    for _ in range(0, count, 200):
        made = await asyncio.gather(*(loop.create_connection(asyncio.Protocol, host, int(port)) for _ in range(200)))
        idle += [transport for transport, _ in made]
    for transport in idle[::10]:
        transport.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ")

    assert len(idle) == count
    assert (await ask(proxy.url, {})).status == 200
    assert (await ask(proxy.url, method="GET", target="/healthz")).status == 200
    assert not any(transport.is_closing() for transport in idle)
    for transport in idle:
        transport.abort()


async def test_slow_heads_slow_bodies_and_slow_readers_hold_no_place_at_the_provider(
    provider: Provider, start_here: StartHere
) -> None:
    """Two hundred clients that will never finish, where only four requests may be at the provider."""
    proxy = await start_here(Conversation(), server={"max_requests": 4, "header_seconds": 0, "body_seconds": 0})
    provider.always(ANSWER)
    slow = []
    for number in range(200):
        client = await Client.connect(proxy.url)
        raw = request(body={"messages": ["x" * 100]})
        await client.send(raw[: 20 if number % 2 else len(raw) - 20])
        slow.append(client)

    answers = [(await ask(proxy.url, {})).status for _ in range(8)]

    assert answers == [200] * 8
    assert len(provider.requests) == 8
    for client in slow:
        client.close()
