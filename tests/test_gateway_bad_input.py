"""Input that no honest client sends: each is answered, none crashes the process or reaches another request."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import zlib
from collections.abc import Callable
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.gateway.encodings import zstd
from proxy.gateway.upstream import _why
from tests.conftest import StartHere
from tests.house.client import Client, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Reply, completion, json_reply

LIMIT = 100_000
ANSWER = json_reply(completion("hi"))


async def still_works(proxy_url: str, provider: Provider) -> None:
    provider.reply(ANSWER)
    assert (await ask(proxy_url, {"messages": []})).status == 200


def openai_error(body: bytes) -> dict[str, Any]:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] is None
    return dict(error)


async def test_a_body_over_the_limit_is_413_before_it_is_sent(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": LIMIT})
    client = await Client.connect(proxy.url)
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        % (LIMIT + 1)
    )

    seen = await client.reply()

    assert (seen.status, seen.evidence) == (413, "untouched; reason=not-json")
    error = openai_error(seen.body)
    assert (error["type"], error["code"]) == ("invalid_request_error", "body_too_large")
    assert "100000 bytes" in error["message"] and "server.max_body_bytes" in error["message"]
    assert provider.requests == []
    client.close()
    await still_works(proxy.url, provider)


async def test_a_body_that_grows_over_the_limit_is_413(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": LIMIT})
    client = await Client.connect(proxy.url)
    await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(11):
        await client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")

    seen = await client.reply()

    assert seen.status == 413
    assert provider.requests == []
    client.close()
    await still_works(proxy.url, provider)


async def test_a_body_of_exactly_the_limit_is_read(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": LIMIT})
    body = b"{" + b" " * (LIMIT - 2) + b"}"
    provider.always(ANSWER)

    assert (await ask(proxy.url, body)).status == 200
    assert (await ask(proxy.url, gzip.compress(body), headers=[("Content-Encoding", "gzip")])).status == 200


@pytest.mark.parametrize(
    "coding, pack",
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstd.compress),
        ("br", brotli.compress),
        ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))),
        ("gzip, identity, br", lambda data: brotli.compress(gzip.compress(data))),
    ],
)
async def test_a_bomb_is_413_and_unfolds_no_further_than_the_limit(
    provider: Provider, start_here: StartHere, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": LIMIT})
    bomb = pack(b"\0" * 50_000_000)
    assert len(bomb) < LIMIT

    seen = await ask(proxy.url, bomb, headers=[("Content-Encoding", coding)])

    assert seen.status == 413
    assert "after decompression" in openai_error(seen.body)["message"]
    assert provider.requests == []
    await still_works(proxy.url, provider)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nX-A: a\rX-B: b\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nX-A: a\nX-B: b\r\n X: c\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nX-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nX A: a\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: -2\r\n\r\n{}",
        b"POST /v1/chat\x00/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nHost: q\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/2.0\r\nHost: p\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Type: a\r\nContent-Type: b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
    ],
)
async def test_what_is_not_well_formed_is_400_and_goes_nowhere(
    provider: Provider, start_here: StartHere, head: bytes
) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    await client.send(head)

    seen = await client.reply()

    assert seen.status == 400
    error = openai_error(seen.body)
    assert (error["type"], error["code"]) == ("invalid_request_error", "malformed_request")
    assert b"X-A" not in seen.body
    assert await client.ended()
    assert provider.requests == []
    await still_works(proxy.url, provider)


async def test_a_malformed_chunk_ends_a_body_that_is_being_read(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    await client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await client.head()).status == 100  # the body is being read now
    await client.send(b"zz\r\n")

    seen = await client.reply()

    assert (seen.status, seen.evidence) == (400, "untouched; reason=not-json")
    client.close()


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
async def test_a_body_that_is_not_framed_as_announced_is_400(
    provider: Provider, start_here: StartHere, target: str
) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    await client.send(b"POST %b HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n" % target.encode())
    if target == "/v1/files":
        await provider.request()
    await client.send(b"zz\r\n")

    seen = await client.reply()

    assert seen.status == 400
    assert openai_error(seen.body)["code"] == "malformed_request"
    client.close()
    await still_works(proxy.url, provider)


async def test_a_request_before_one_that_is_not_well_formed_is_answered_first(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(ANSWER)
    client = await Client.connect(proxy.url)
    await client.send(request(body={}) + b"hello\r\n\r\n" + request(body={}))

    seen = [await client.reply(), await client.reply()]

    assert [one.status for one in seen] == [200, 400]
    assert await client.ended()
    assert len(provider.requests) == 1


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("more", [b"0\r\nX: ", b"2;"])
async def test_trailers_and_chunk_extensions_do_not_grow_for_ever(
    provider: Provider, start_here: StartHere, target: str, more: bytes
) -> None:
    proxy = await start_here(Conversation())
    client = await Client.connect(proxy.url)
    head = b"POST %b HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    await client.send(head % target.encode())
    assert (await client.head()).status == 100
    await client.send(more)
    for _ in range(7):  # one more than `server.max_header_bytes` allows
        await client.send(b"x" * 10_000)

    seen = await client.reply()

    assert (seen.status, openai_error(seen.body)["code"]) == (400, "malformed_request")
    client.close()
    await still_works(proxy.url, provider)


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 ", b"HTTP/1.1 200 "])
async def test_a_reply_whose_head_does_not_end_is_502(provider: Provider, start_here: StartHere, begun: bytes) -> None:
    proxy = await start_here(Conversation())
    provider.reply(Reply(raw=begun + b"x" * 3_000_000))

    seen = await ask(proxy.url, {})

    assert (seen.status, openai_error(seen.body)["code"]) == (502, "upstream_unreachable")
    await still_works(proxy.url, provider)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX-A: a\rX-Injected: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: a\nX-Injected: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: a\r\n X-Injected: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: a\r\r\nX-B: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
async def test_a_header_value_of_the_provider_cannot_become_a_line_of_its_own(
    provider: Provider, start_here: StartHere, raw: bytes
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(Reply(raw=raw))
    client = await Client.connect(proxy.url)
    await client.send(request(body={}))

    head = await client.head()

    assert head.status in (200, 502)
    honest = b"X-A: a\nX-Injected" in raw  # a bare LF ends a line by the letter of RFC 9112, 2.2
    assert honest or b"X-Injected" not in [name for name, _ in head.headers]
    assert all(b"\r" not in value and b"\n" not in value and b"\0" not in value for _, value in head.headers)
    client.close()
    await still_works(proxy.url, provider)


async def test_our_own_header_cannot_become_two(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(header="compacted\r\nX-Injected: 1\0é"))
    provider.reply(ANSWER)

    seen = await ask(proxy.url, {})

    assert seen.evidence == "compacted??X-Injected: 1???"
    assert seen.value("x-injected") is None


async def test_nul_bytes_in_a_body_pass(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.reply(ANSWER)

    await ask(proxy.url, b'{"messages":[]}\0\0')

    assert provider.requests[0].body == b'{"messages":[]}\0\0'


async def test_an_unreachable_provider_is_502_and_says_what_to_do(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    await provider.stop()

    seen = await ask(
        proxy.url, {}, target="/v1/chat/completions?key=sk-secret", headers=[("Authorization", "Bearer sk-secret")]
    )
    other = await ask(proxy.url, method="GET", target="/v1/models/secret")

    assert (seen.status, seen.evidence) == (502, "untouched; reason=no-evidence")
    error = openai_error(seen.body)
    assert (error["type"], error["code"]) == ("upstream_error", "upstream_unreachable")
    assert (
        f"http://127.0.0.1:{provider.port if provider._server and provider._server.sockets else ''}" in error["message"]
    )
    assert "upstream.base_url" in error["message"]
    assert other.status == 502
    assert b"secret" not in seen.body + other.body
    assert conversation.last.story == [("ended", b"broken")]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 ",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
async def test_what_is_no_reply_is_502(provider: Provider, start_here: StartHere, raw: bytes) -> None:
    proxy = await start_here(Conversation())
    provider.reply(Reply(raw=raw))

    seen = await ask(proxy.url, {})

    assert seen.status == 502
    assert openai_error(seen.body)["code"] == "upstream_unreachable"
    await still_works(proxy.url, provider)


def test_a_failure_to_connect_is_told_in_the_operating_systems_words_and_never_by_its_address() -> None:
    secret = "https://user:sk-secret@api.test"

    assert _why(socket.gaierror(-2, secret)) == "the host name is not known"
    assert _why(OSError(111, "Connection refused", secret)) == "Connection refused"
    assert _why(OSError(secret)) == "OSError"


async def test_logs_hold_no_content_no_credentials_and_no_query(
    provider: Provider, start_here: StartHere, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = await start_here(Conversation(fails=RuntimeError("hunter2 in an error")))
    provider.reply(ANSWER)

    with caplog.at_level(logging.DEBUG):
        await ask(
            proxy.url,
            {"messages": [{"content": "hunter2"}]},
            target="/v1/chat/completions?key=hunter2",
            headers=[("Authorization", "Bearer hunter2"), ("Cookie", "hunter2")],
        )
        client = await Client.connect(proxy.url)
        await client.send(b"GET / HTTP/1.1\r\nhunter2\r\n\r\n")
        await client.reply()

    from proxy.visibility.logs import JsonLines

    lines = [JsonLines().format(record) for record in caplog.records if record.name.startswith("proxy")]
    assert any('"event": "request"' in line and '"path": "/v1/chat/completions"' in line for line in lines)
    assert any('"error": "RuntimeError"' in line for line in lines)
    assert not any("hunter2" in line for line in lines)
