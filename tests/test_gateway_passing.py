"""What is no conversation passes through: any method, any path, both ways, as it came."""

from __future__ import annotations

import random

import pytest

from proxy.gateway.upstream import Destination, origin_form
from tests.conftest import StartHere
from tests.house.client import Client, ask, request
from tests.house.conversing import Conversation
from tests.house.provider import Provider, Reply, Wait, json_reply, sse_reply


@pytest.mark.parametrize(
    "sent, arrives",
    [
        (b"/v1/models", b"/v1/models"),
        (b"/v1/files/a%2Fb%20c?after=%7B%7D&x=+&&y=%zz", b"/v1/files/a%2Fb%20c?after=%7B%7D&x=+&&y=%zz"),
        (b"/v1/models?", b"/v1/models?"),
        (b"/v1/models?a=1?b=2", b"/v1/models?a=1?b=2"),
        (b"/v1", b"/v1"),
        (b"/v1?x=1", b"/v1?x=1"),
        (b"/v1beta/models", b"/v1beta/models"),
        (b"/api/v1/models", b"/api/v1/models"),
        (b"/", b"/"),
        (b"//elsewhere.test/v1/models", b"//elsewhere.test/v1/models"),
        (b"/v1/../../admin", b"/v1/../../admin"),
        (b"/@elsewhere.test/", b"/@elsewhere.test/"),
        (b"http://elsewhere.test/v1/models?k=1", b"/v1/models?k=1"),
        (b"HTTPS://elsewhere.test:1@x:2?k=1", b"/?k=1"),
    ],
)
async def test_a_path_goes_to_the_provider_raw_and_to_no_other_host(
    provider: Provider, start_here: StartHere, sent: bytes, arrives: bytes
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"ok": True}))

    seen = await ask(proxy.url, method="GET", target=sent)

    assert (seen.status, seen.json()) == (200, {"ok": True})
    (received,) = provider.requests
    assert received.target == arrives
    assert received.values("host") == [f"127.0.0.1:{provider.port}".encode()]


@pytest.mark.parametrize(
    "base, asked, arrives",
    [
        ("https://api.test/v1", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("https://api.test/v1/", b"/v1/models", b"/v1/models"),
        ("https://api.test/openai/deployments/x", b"/v1/chat/completions?api-version=1", None),
        ("https://api.test", b"/v1/models", b"/models"),
        ("https://api.test", b"/v1", b"/"),
        ("https://api.test", b"/v1?x=1", b"/?x=1"),
        ("https://api.test/api/v1", b"/v1", b"/api/v1"),
        ("https://api.test/api/v1", b"/v2/models", b"/v2/models"),
        ("https://api.test/a%20b", b"/v1/x", b"/a%20b/x"),
    ],
)
def test_a_leading_v1_becomes_the_path_of_the_base_url(base: str, asked: bytes, arrives: bytes | None) -> None:
    expected = arrives or b"/openai/deployments/x/chat/completions?api-version=1"
    assert Destination.of(base).target(asked) == expected


def test_a_destination_names_its_host_as_a_client_would() -> None:
    assert Destination.of("http://127.0.0.1:9/v1").host == b"127.0.0.1:9"
    assert Destination.of("https://api.test:443/v1").host == b"api.test"
    assert Destination.of("http://[::1]:9").host == b"[::1]:9"
    assert Destination.of("https://bücher.test").host == b"xn--bcher-kva.test"


def test_a_target_that_names_no_path_is_none() -> None:
    assert origin_form(b"*") is None
    assert origin_form(b"elsewhere.test:443") is None
    assert origin_form(b"ftp://elsewhere.test/") is None


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_every_method_passes_with_its_body(provider: Provider, start_here: StartHere, method: str) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"ok": True}))

    seen = await ask(proxy.url, b"\x00any bytes\xff", method=method, target="/v1/things/1")

    assert seen.status == 200
    (received,) = provider.requests
    assert (received.method, received.body) == (method.encode(), b"\x00any bytes\xff")
    assert received.values("content-length") == [b"11"]
    assert seen.value("evidence-proxy") is None


async def test_a_request_without_a_body_gets_none(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.always(json_reply({}))

    await ask(proxy.url, method="GET", target="/v1/models")
    await ask(proxy.url, b"", method="POST", target="/v1/cancel")

    assert provider.requests[0].names() == [b"Host"]
    assert provider.requests[1].names() == [b"Host", b"Content-Length"]
    assert provider.requests[1].value("content-length") == b"0"


async def test_nothing_is_added_to_a_request_and_header_lines_keep_their_order_spelling_and_bytes(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({}))
    lines: list[tuple[str | bytes, str | bytes]] = [
        ("X-Tag", "a"),
        ("x-tag", "b"),
        ("Authorization", "Bearer sk-client"),
        ("X-TAG", "a"),
        ("Cookie", "a=1; b=2"),
        (b"X-Latin", b"caf\xe9"),
        ("accept", "application/json"),
        ("X-Empty", ""),
    ]

    await ask(proxy.url, method="GET", target="/v1/models", headers=lines)

    (received,) = provider.requests
    assert received.headers[1:] == [
        (b"X-Tag", b"a"),
        (b"x-tag", b"b"),
        (b"Authorization", b"Bearer sk-client"),
        (b"X-TAG", b"a"),
        (b"Cookie", b"a=1; b=2"),
        (b"X-Latin", b"caf\xe9"),
        (b"accept", b"application/json"),
        (b"X-Empty", b""),
    ]


async def test_a_reply_keeps_its_status_reason_header_lines_and_bytes(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    lines = [
        (b"Set-Cookie", b"a=1"),
        (b"x-ratelimit", b"1"),
        (b"Set-Cookie", b"b=2"),
        (b"X-Latin", b"caf\xe9"),
        (b"X-RateLimit", b"2"),
    ]
    provider.reply(Reply(299, "Quite  Fine", lines, [b"\x00\xffbody"], framing="length"))

    seen = await ask(proxy.url, method="GET", target="/v1/models")

    assert (seen.status, seen.reason, seen.body) == (299, b"Quite  Fine", b"\x00\xffbody")
    assert seen.headers == [*lines, (b"Content-Length", b"6")]


async def test_hop_by_hop_headers_stay_at_their_hop_both_ways(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    hop = [
        ("Connection", "keep-alive, X-Private"),
        ("Connection", "x-also"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("X-Private", "1"),
        ("X-Also", "1"),
    ]
    provider.reply(json_reply({}, headers=[*hop, ("Trailer", "X-T"), ("X-Kept", "1")]))

    seen = await ask(proxy.url, method="GET", target="/v1/models", headers=[*hop, ("X-Kept", "1")])

    assert provider.requests[0].names() == [b"Host", b"X-Kept"]
    assert [name for name, _ in seen.headers] == [b"Content-Type", b"X-Kept", b"Content-Length"]


async def test_our_request_headers_are_not_forwarded(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.always(json_reply({}))
    ours: list[tuple[str | bytes, str | bytes]] = [
        ("Evidence-Question", "q-7"),
        ("evidence-compaction", "OFF"),
        ("Evidence-Conversation", "c"),
    ]

    for target in ("/v1/models", "/v1/chat/completions"):
        await ask(proxy.url, {}, target=target, headers=ours)

    assert [r.names() for r in provider.requests] == [[b"Host", b"Content-Length"]] * 2
    assert (conversation.last.asked.question_id, conversation.last.asked.compaction_off) == ("q-7", True)


async def test_a_key_of_the_proxy_takes_the_place_of_the_clients_credentials(
    provider: Provider, start_here: StartHere
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, key="sk-proxy")
    provider.reply(json_reply({}))

    await ask(proxy.url, {}, headers=[("Authorization", "Bearer sk-client"), ("api-key", "k"), ("X-Api-Key", "x")])

    assert provider.requests[0].values("authorization") == [b"Bearer sk-proxy"]
    assert provider.requests[0].values("api-key") == provider.requests[0].values("x-api-key") == []
    assert conversation.last.asked.credential == "Bearer sk-client"


async def test_an_upload_streams_through_before_it_is_complete(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"id": "file-1"}))
    parts = [b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n', b"\x00\xff" * 5000, b"\r\n--b--\r\n"]
    client = await Client.connect(proxy.url)
    await client.send(
        b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )

    received = await provider.request()
    assert not received.complete.is_set()
    for part in parts:
        await client.send(b"%x\r\n%b\r\n" % (len(part), part))
    await client.send(b"0\r\n\r\n")
    seen = await client.reply()

    assert seen.json() == {"id": "file-1"}
    assert received.body == b"".join(parts)
    assert received.value("transfer-encoding") == b"chunked"
    assert received.value("content-type") == b"multipart/form-data; boundary=b"


async def test_an_upload_that_is_larger_than_max_body_bytes_passes_where_nothing_is_read(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation(), server={"max_body_bytes": 1024})
    provider.reply(json_reply({}))
    big = b"x" * 300_000

    seen = await ask(proxy.url, big, target="/v1/files")

    assert seen.status == 200
    assert provider.requests[0].body == big


async def test_a_reply_that_comes_before_the_upload_is_done_is_passed_on(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(Reply(400, "Bad", (), [b"no"], framing="length", early=True))
    client = await Client.connect(proxy.url)
    await client.send(b"POST /v1/files HTTP/1.1\r\nHost: p\r\nContent-Length: 1000000\r\n\r\nabc")

    seen = await client.reply()

    assert (seen.status, seen.body) == (400, b"no")
    client.close()


@pytest.mark.parametrize("target", ["/v1/models", "/v1/chat/completions"])
async def test_an_upstream_error_comes_back_as_it_is(provider: Provider, start_here: StartHere, target: str) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply(b'{"error" :  1}', 429, "Slow Down", [("Retry-After", "7"), ("x-should-retry", "true")]))

    seen = await ask(proxy.url, {}, target=target)

    assert (seen.status, seen.reason, seen.body) == (429, b"Slow Down", b'{"error" :  1}')
    assert (seen.value("retry-after"), seen.value("x-should-retry")) == (b"7", b"true")
    assert seen.evidence == ("untouched; reason=no-evidence" if "chat" in target else "")


async def test_a_redirect_is_passed_on_and_not_followed(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({}, 307, "Temporary Redirect", [("Location", "http://elsewhere.test/")]))

    seen = await ask(proxy.url, {}, target="/v1/files")

    assert (seen.status, seen.value("location")) == (307, b"http://elsewhere.test/")
    assert len(provider.requests) == 1


async def test_head_204_and_304_have_no_body_and_the_connection_goes_on(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(
        Reply(200, "OK", [("Content-Length", "1234"), ("ETag", '"x"')], framing="none"),
        Reply(204, "No Content", (), framing="none"),
        Reply(304, "Not Modified", [("Content-Length", "99")], framing="none"),
        json_reply({"last": True}),
    )
    client = await Client.connect(proxy.url)

    await client.send(request("HEAD", "/v1/files/1"))
    head = await client.reply(bodiless=True)
    await client.send(request("DELETE", "/v1/files/1"))
    deleted = await client.reply()
    await client.send(request("GET", "/v1/files/1"))
    same = await client.reply()
    await client.send(request("GET", "/v1/files/2"))
    last = await client.reply()

    assert head.headers == [(b"Content-Length", b"1234"), (b"ETag", b'"x"')]
    assert (deleted.status, deleted.headers) == (204, [])
    assert (same.status, same.headers) == (304, [(b"Content-Length", b"99")])
    assert last.json() == {"last": True}
    assert provider.connections == 1
    client.close()


async def test_a_client_that_waits_for_100_is_told_to_go_on(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.always(json_reply({}))
    for target in ("/v1/files", "/v1/chat/completions"):
        client = await Client.connect(proxy.url)
        head = request(target=target, body=b"{}", headers=[("Expect", "100-continue")])[:-2]
        await client.send(head)
        assert (await client.head()).status == 100
        await client.send(b"{}")
        assert (await client.reply()).status == 200
        client.close()
    assert [r.body for r in provider.requests] == [b"{}", b"{}"]
    assert [r.values("expect") for r in provider.requests] == [[], []]


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(sse_reply([b"data: 1\n\n", b"data: 2\n\n"]))
    client = await Client.connect(proxy.url)
    await client.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")

    seen = await client.reply()

    assert seen.body == b"data: 1\n\ndata: 2\n\n"
    assert seen.value("transfer-encoding") is None
    assert await client.ended()


async def test_a_reply_that_ends_with_its_connection_is_framed_for_the_client(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(Reply(200, "OK", (), [b"some", b" more"], framing="close"))

    seen = await ask(proxy.url, method="GET", target="/v1/files/1/content")

    assert seen.body == b"some more"
    assert seen.value("transfer-encoding") == b"chunked"


async def test_health_and_readiness_are_answered_here(provider: Provider, start_here: StartHere) -> None:
    ready = await start_here(Conversation())
    opening = await start_here(Conversation(), ready=False)

    assert (await ask(ready.url, method="GET", target="/healthz")).json() == {"status": "ok"}
    assert (await ask(ready.url, method="GET", target="/readyz?x=1")).status == 200
    not_yet = await ask(opening.url, method="GET", target="/readyz")
    assert (not_yet.status, not_yet.json()) == (503, {"ready": False, "reason": "the store is still opening"})
    assert (await ask(opening.url, method="GET", target="/healthz")).status == 200
    assert provider.requests == []


async def test_it_is_no_tunnel_and_says_so(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())

    tunnel = await ask(proxy.url, method="CONNECT", target="elsewhere.test:443")
    star = await ask(proxy.url, method="OPTIONS", target="*")

    assert (tunnel.status, star.status) == (405, 400)
    assert "base URL" in tunnel.json()["error"]["message"]
    assert provider.requests == []


async def test_many_requests_at_once_are_not_queued_behind_each_other(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    gates = [Wait() for _ in range(150)]
    provider.reply(*(sse_reply([gate, b"data: x\n\n"]) for gate in gates))
    clients = [await Client.connect(proxy.url) for _ in gates]

    for client in clients:
        await client.send(request("GET", "/v1/slow"))
    for client in clients:
        await client.head()
    for gate in gates:
        await gate.reached.wait()
        gate.go()

    for client in clients:
        assert await client.chunk() == b"data: x\n\n"
        client.close()


@pytest.mark.parametrize("size", [300_000, (16 << 20) - 1, 16 << 20, (16 << 20) + 1, 40_000_000])
async def test_a_conversation_of_any_size_goes_up_as_it_came(
    provider: Provider, start_here: StartHere, size: int
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"ok": True}))
    body = random.Random(size).randbytes(size)

    seen = await ask(proxy.url, target=b"/v1/chat/completions", body=body)

    assert seen.status == 200
    (received,) = provider.requests
    assert received.body == body
