"""A conversation is read, may be rewritten, and goes up either changed as decided or as the very bytes that came."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from functools import partial

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.gateway.conversation import Refusal
from proxy.gateway.encodings import zstd
from tests.conftest import StartHere
from tests.house.client import ask
from tests.house.conversing import Conversation
from tests.house.provider import Provider, completion, json_reply

# With a fixed time in its head, so that equal bytes are equal in every process that collects these tests.
zipped = partial(gzip.compress, mtime=0)

BODY = b'{ "messages":[ ],"x" : 1.0, "n":1e5 ,"x":2}\n'


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", zipped),
    ("x-gzip", zipped),
    ("GZIP", zipped),
    ("deflate", zlib.compress),
    ("deflate", _raw_deflate),
    ("zstd", zstd.compress),
    ("br", brotli.compress),
    ("identity, gzip", zipped),
    ("gzip, br", lambda data: brotli.compress(zipped(data))),
    ("deflate , zstd", lambda data: zstd.compress(zlib.compress(data))),
]


@pytest.mark.parametrize(
    "target, api",
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/responses", "responses"),
        ("/openai/deployments/gpt/chat/completions?api-version=2024", "chat"),
        ("/api/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/v1/responses?include=a", "responses"),
    ],
)
async def test_every_path_that_ends_like_a_conversation_is_one(
    provider: Provider, start_here: StartHere, target: str, api: str
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(json_reply(completion("hi")))

    seen = await ask(proxy.url, BODY, target=target)

    assert seen.evidence == "untouched; reason=no-evidence"
    assert (conversation.last.asked.api, conversation.last.asked.body) == (api, BODY)
    assert provider.requests[0].target == target.encode()
    assert provider.requests[0].body == BODY


@pytest.mark.parametrize(
    "target", ["/v1/chat/completions/", "/v1/responses/resp_1", "/v1/embeddings", "/v1?/responses"]
)
async def test_other_paths_are_none(provider: Provider, start_here: StartHere, target: str) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(json_reply({}))

    seen = await ask(proxy.url, BODY, target=target)

    assert seen.value("evidence-proxy") is None
    assert conversation.told == []


async def test_a_rewritten_body_goes_up_with_its_own_length(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(rewrite=lambda body: b'{"small":true}'))
    provider.reply(json_reply(completion("hi")))

    seen = await ask(proxy.url, BODY, headers=[("Content-Type", "application/json")])

    assert seen.evidence == "compacted; question=2"
    (received,) = provider.requests
    assert received.body == b'{"small":true}'
    assert received.headers[1:] == [(b"Content-Type", b"application/json"), (b"Content-Length", b"14")]


@pytest.mark.parametrize("coding, pack", CODINGS)
async def test_a_compressed_body_is_read_and_goes_up_as_the_bytes_that_came_when_untouched(
    provider: Provider, start_here: StartHere, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(json_reply(completion("hi")))
    packed = pack(BODY)

    seen = await ask(proxy.url, packed, headers=[("Content-Encoding", coding)])

    assert seen.evidence == "untouched; reason=no-evidence"
    assert conversation.last.asked.body == BODY
    (received,) = provider.requests
    assert received.body == packed
    assert received.values("content-encoding") == [coding.encode()]
    assert received.values("content-length") == [str(len(packed)).encode()]


@pytest.mark.parametrize("coding, pack", CODINGS)
async def test_a_rewritten_body_is_no_longer_compressed_and_does_not_say_so(
    provider: Provider, start_here: StartHere, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    proxy = await start_here(Conversation(rewrite=lambda body: body.replace(b"1.0", b"2")))
    provider.reply(json_reply(completion("hi")))

    await ask(proxy.url, pack(BODY), headers=[("Content-Encoding", coding), ("Content-Digest", "sha-256=:x:")])

    (received,) = provider.requests
    assert received.body == BODY.replace(b"1.0", b"2")
    assert received.names() == [b"Host", b"Content-Length"]


async def test_codings_may_stand_in_several_lines(provider: Provider, start_here: StartHere) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation)
    provider.reply(json_reply(completion("hi")))

    await ask(
        proxy.url,
        zipped(zlib.compress(BODY)),
        headers=[("Content-Encoding", "deflate"), ("Content-Encoding", "gzip")],
    )

    assert conversation.last.asked.body == BODY


@pytest.mark.parametrize(
    "coding, body",
    [
        ("compress", BODY),
        ("gzip", BODY),
        ("gzip", zipped(BODY)[:-4]),
        ("gzip", zipped(BODY)[:-8] + b"\0" * 8),
        ("gzip", zipped(BODY) + b"rubbish"),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("deflate", b"x"),
        ("zstd", zstd.compress(BODY)[:-1]),
        ("zstd", b"\0" * 40),
        ("br", brotli.compress(BODY)[:-1]),
        ("br", brotli.compress(BODY) + b"more"),
        ("gzip, gzip", zipped(BODY)),
        ("gzip", b""),
    ],
)
async def test_a_coding_that_is_unknown_or_broken_goes_up_as_it_came(
    provider: Provider, start_here: StartHere, coding: str, body: bytes
) -> None:
    conversation = Conversation(rewrite=lambda body: body if not body else b"{}")
    proxy = await start_here(conversation)
    provider.reply(json_reply({"error": "bad encoding"}, 400, "Bad Request"))

    seen = await ask(proxy.url, body, headers=[("Content-Encoding", coding)])

    assert (seen.status, seen.json()) == (400, {"error": "bad encoding"})
    assert seen.evidence == "untouched; reason=not-json"
    assert provider.requests[0].body == body
    assert provider.requests[0].values("content-encoding") == [coding.encode()]


@pytest.mark.parametrize(
    "by, lines, credential",
    [
        ("authorization", [("Authorization", "Bearer a")], "Bearer a"),
        ("authorization", [("api-key", "k"), ("Authorization", "Bearer a"), ("x-api-key", "x")], "Bearer a"),
        ("authorization", [("X-Api-Key", "x"), ("API-Key", "k")], "k"),
        ("authorization", [("x-api-key", "x")], "x"),
        ("authorization", [("Authorization", ""), ("x-api-key", "x")], "x"),
        ("authorization", [("X-Tenant", "t")], None),
        ("authorization", [], None),
        ("header:X-Tenant", [("Authorization", "Bearer a"), ("x-tenant", "t")], "t"),
        ("header:X-Tenant", [("Authorization", "Bearer a")], None),
        ("none", [], "none"),
        ("none", [("Authorization", "Bearer a")], "none"),
    ],
)
async def test_the_tenant_is_what_the_settings_say(
    provider: Provider, start_here: StartHere, by: str, lines: list[tuple[str, str]], credential: str | None
) -> None:
    conversation = Conversation()
    proxy = await start_here(conversation, tenant={"by": by})
    provider.reply(json_reply({}))

    await ask(proxy.url, BODY, headers=[*lines])

    assert conversation.last.asked.credential == credential


async def test_a_refusal_is_answered_without_asking_the_provider(provider: Provider, start_here: StartHere) -> None:
    refusal = Refusal(
        422, b'{"error":{"message":"why"}}', (("Content-Type", "application/json"), ("x-should-retry", "false"))
    )
    conversation = Conversation(refusal=refusal, header="untouched; reason=no-record")
    proxy = await start_here(conversation)

    seen = await ask(proxy.url, BODY)

    assert (seen.status, seen.body) == (422, b'{"error":{"message":"why"}}')
    assert (seen.value("x-should-retry"), seen.evidence) == (b"false", "untouched; reason=no-record")
    assert provider.requests == []
    assert conversation.last.story == []


async def test_a_fault_of_ours_never_breaks_a_request(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation(fails=RuntimeError("a bug")))
    provider.reply(json_reply(completion("hi")))

    seen = await ask(proxy.url, zipped(BODY), headers=[("Content-Encoding", "gzip")])

    assert (seen.status, seen.evidence) == (200, "untouched; reason=store-error")
    assert provider.requests[0].body == zipped(BODY)


async def test_a_get_on_a_conversations_path_passes_through_and_says_so(
    provider: Provider, start_here: StartHere
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"data": []}))

    seen = await ask(proxy.url, method="GET", target="/v1/chat/completions?limit=2")

    assert (seen.json(), seen.evidence) == ({"data": []}, "untouched; reason=not-json")


async def test_a_header_of_a_proxy_behind_this_one_is_replaced(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.always(json_reply({}, headers=[("evidence-proxy", "compacted; question=9")]))

    conversation = await ask(proxy.url, BODY)
    other = await ask(proxy.url, BODY, target="/v1/embeddings")

    assert conversation.values("evidence-proxy") == [b"untouched; reason=no-evidence"]
    assert other.values("evidence-proxy") == [b"compacted; question=9"]


async def test_the_real_conversations_pass_what_holds_no_evidence(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here()
    provider.always(json_reply(completion("hi")))
    body = b'{"model":"m", "messages":[{"role":"user","content":"hello"}]}'

    plain = await ask(proxy.url, body, headers=[("Authorization", "Bearer a")])
    off = await ask(proxy.url, body, headers=[("Evidence-Compaction", "off")])
    odd = await ask(proxy.url, b"[1,", headers=[("Authorization", "Bearer a")])

    assert [r.body for r in provider.requests] == [body, body, b"[1,"]
    assert plain.evidence == "untouched; reason=no-evidence"
    assert off.evidence == "untouched; reason=off"
    assert odd.evidence == "untouched; reason=not-json"
