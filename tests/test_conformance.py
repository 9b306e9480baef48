"""Transport to the byte: what a client writes to its socket, what the provider reads from its own, and back.

Each case is a row of exact bytes. What the proxy may change is written out in `up` and `down`: the request line's path
under the base URL, Host, lines about the connection, the framing (each side has its own), and the lines that it adds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Iterator

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.gateway.encodings import zstd
from tests.conftest import StartHere
from tests.house.conversing import Conversation
from tests.house.running import InProcess
from tests.house.wire import HOST, Exchange, RawProvider, play

ID = b"X-Request-Id: r"  # the client's, so that the one that the proxy tells is known
TELLS = b"x-request-id: r"
END = b"\r\n\r\n"
OK = b"HTTP/1.1 200 OK"
CHAT = b"POST /v1/chat/completions HTTP/1.1"
EVIDENCE = b"Evidence-Proxy: untouched; reason=no-evidence"
NO_JSON = b"Evidence-Proxy: untouched; reason=not-json"


def lines(*given: bytes) -> bytes:
    return b"\r\n".join(given)


def sent(first: bytes, *more: bytes, body: bytes | None = None) -> bytes:
    """A request as a client writes it."""
    length = [] if body is None else [b"Content-Length: %d" % len(body)]
    return lines(first, b"Host: proxy.test", *length, ID, *more) + END + (body or b"")


def up(first: bytes, *more: bytes, body: bytes | None = None) -> bytes:
    """The same as it must reach the provider."""
    length = [] if body is None else [b"Content-Length: %d" % len(body)]
    return lines(first, b"Host: " + HOST, ID, *more, *length) + END + (body or b"")


def answer(first: bytes, *more: bytes, body: bytes | None = b"{}") -> bytes:
    """A reply as a provider writes it."""
    length = [] if body is None else [b"Content-Length: %d" % len(body)]
    return lines(first, *more, *length) + END + (body or b"")


def down(first: bytes, *more: bytes, body: bytes | None = b"{}", ours: tuple[bytes, ...] = ()) -> bytes:
    """The same as it must reach the client."""
    length = [] if body is None else [b"Content-Length: %d" % len(body)]
    return lines(first, *more, *length, *ours) + END + (body or b"")


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def streamed(*chunks: bytes, more: tuple[bytes, ...] = (), ours: tuple[bytes, ...] = ()) -> bytes:
    """A chunked reply as it must reach the client: each chunk as the provider framed it."""
    return lines(OK, *more, *ours, b"Transfer-Encoding: chunked") + END + chunked(*chunks)


def stream(*chunks: bytes, more: tuple[bytes, ...] = ()) -> list[bytes]:
    """A chunked reply as a provider writes it, chunk by chunk."""
    head = lines(OK, *more, b"Transfer-Encoding: chunked") + END
    return [head, *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks), b"0\r\n\r\n"]


Rows = Iterator[tuple[str, list[Exchange]]]
GET = b"GET /v1/models HTTP/1.1"
PLAIN = ([answer(OK)], down(OK))


def one(
    sends: bytes | list[bytes], arrives: bytes, answers: list[bytes], receives: bytes, **how: bool
) -> list[Exchange]:
    return [Exchange([sends] if isinstance(sends, bytes) else sends, arrives, answers, receives, **how)]


def methods() -> Rows:
    for method in (b"GET", b"DELETE", b"OPTIONS", b"PROPFIND", b"REPORT", b"PURGE", b"SEARCH"):
        first = method + b" /v1/things/1 HTTP/1.1"
        yield f"{method.decode()} without a body", one(sent(first), up(first), *PLAIN)
    for method in (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"MKCOL", b"LOCK", b"SEARCH"):
        first = method + b" /v1/things/1 HTTP/1.1"
        body = b"\x00any\r\nbytes\xff"
        yield f"{method.decode()} with a body", one(sent(first, body=body), up(first, body=body), *PLAIN)
    first = b"POST /v1/things HTTP/1.1"
    yield "a body of no bytes", one(sent(first, body=b""), up(first, body=b""), *PLAIN)


def targets() -> Rows:
    for asked, arrives in (
        (b"/v1/models/a%2Fb", b"/v1/models/a%2Fb"),
        (b"/v1/models/a%2fb", b"/v1/models/a%2fb"),
        (b"/v1/x?q=%20+&&a=b=c&", b"/v1/x?q=%20+&&a=b=c&"),
        (b"/v1/x?", b"/v1/x?"),
        (b"/v1/x??", b"/v1/x??"),
        (b"/v1/x?a=%ZZ%", b"/v1/x?a=%ZZ%"),
        (b"/v1/x;p=1/y", b"/v1/x;p=1/y"),
        (b"/v1/./x", b"/v1/./x"),
        (b"/v1/../x", b"/v1/../x"),
        (b"/v1/..%2f..%2fetc", b"/v1/..%2f..%2fetc"),
        (b"/v1//x", b"/v1//x"),
        (b"//v1/x", b"//v1/x"),
        (b"/v1/x/", b"/v1/x/"),
        (b"/v1/", b"/v1/"),
        (b"/v1", b"/v1"),
        (b"/v10/x", b"/v10/x"),
        (b"/", b"/"),
        (b"/openai/deployments/d/embeddings?api-version=2024-10-21", None),
        (b"/v1/x?url=http://elsewhere.test/", None),
        (b"/v1/~user/$metadata('x')", None),
        (b"/v1/x?a[]=1&a[]=2", None),
        (b"/v1/x|y", None),
        (b"/v1/x?q=a%0d%0aX-Injected:%201", None),
        (b"http://elsewhere.test/v1/x", b"/v1/x"),
        (b"http://elsewhere.test:99/x?y", b"/x?y"),
        (b"http://elsewhere.test", b"/"),
        (b"/v1/" + b"x" * 3000, None),
    ):
        first, mapped = b"GET %b HTTP/1.1" % asked, b"GET %b HTTP/1.1" % (arrives or asked)
        yield f"target {asked.decode()[:40]}", one(sent(first), up(mapped), *PLAIN)


def header_lines() -> Rows:
    for name, given in (
        ("repeated lines in order", (b"X-A: 1", b"X-B: 2", b"X-A: 3", b"x-a: 4")),
        ("cookies on lines of their own", (b"Cookie: a=1", b"Cookie: b=2; c=3")),
        ("odd case", (b"aUTHORIZATION: Bearer k", b"x-STAINLESS-Lang: python")),
        ("an empty value", (b"X-Empty: ",)),
        ("latin-1", (b"X-Latin: caf\xe9",)),
        ("utf-8", ("X-Name: naïve 😀".encode(),)),
        ("bytes that are neither", (b"X-Odd: \xc3\x28\xff",)),
        ("a tab inside", (b"X-Tab: a\tb",)),
        ("commas and quotes", (b'X-List: a, "b, c" ,d',)),
        ("a colon in the value", (b"X-Url: http://x:1/",)),
        ("a long value", (b"X-Long: " + b"x" * 20_000,)),
        ("many lines", tuple(b"X-%d: %d" % (n, n) for n in range(120))),
        ("accept-encoding as it is", (b"Accept-Encoding: gzip, br;q=0.5, *;q=0",)),
        ("user-agent as it is", (b"User-Agent: OpenAI/Python 2.1",)),
        ("names with odd characters", (b"X_Under!#$%&'*+-.^`|~9: 1",)),
        ("traces", (b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"tracestate: a=1")),
        ("forwarded", (b"X-Forwarded-For: 1.2.3.4", b"Forwarded: for=1.2.3.4", b"Via: 1.1 x")),
        ("range and conditions", (b"Range: bytes=0-1", b'If-None-Match: "x"', b"If-Modified-Since: now")),
        ("organization and project", (b"OpenAI-Organization: o", b"OpenAI-Project: p", b"OpenAI-Beta: assistants=v2")),
        ("idempotency", (b"Idempotency-Key: stainless-1", b"X-Stainless-Retry-Count: 0")),
    ):
        yield f"up: {name}", one(sent(GET, *given), up(GET, *given), *PLAIN)
    yield (
        "up: spaces around a value are not part of it",
        one(sent(GET, b"X-A:   a b \t ", b"X-B:b"), up(GET, b"X-A: a b", b"X-B: b"), *PLAIN),
    )
    hop = (
        b"Connection: keep-alive, X-Mine",
        b"Keep-Alive: timeout=5",
        b"X-Mine: 1",
        b"TE: trailers",
        b"Proxy-Connection: a",
    )
    yield "up: lines about the connection stay", one(sent(GET, *hop, b"X-Kept: 1"), up(GET, b"X-Kept: 1"), *PLAIN)
    ours = (b"Evidence-Question: q", b"Evidence-Compaction: off", b"Evidence-Conversation: c")
    yield "up: our own request headers stay", one(sent(GET, *ours), up(GET), *PLAIN)
    for name, given in (
        ("repeated lines in order", (b"Set-Cookie: a=1", b"X-B: 2", b"Set-Cookie: b=2", b"set-cookie: c=3")),
        (
            "rate limits",
            (b"Retry-After: 7", b"retry-after-ms: 6500", b"x-ratelimit-remaining-requests: 0", b"x-should-retry: true"),
        ),
        ("latin-1", (b"X-Latin: caf\xe9",)),
        ("an empty value", (b"X-Empty: ",)),
        (
            "openai's lines",
            (b"openai-processing-ms: 12", b"openai-version: 2020-10-01", b"CF-RAY: 1-FRA", b'alt-svc: h3=":443"'),
        ),
        ("date and server", (b"Date: Mon, 30 Nov 2026 15:00:00 GMT", b"Server: cloudflare")),
        ("no date and no server", ()),
        (
            "a body that is described",
            (b'ETag: "x"', b"Content-Language: de", b'Content-Disposition: attachment; filename="a b"'),
        ),
        ("caching", (b"Cache-Control: no-cache, no-store", b"Vary: Accept", b"Age: 3")),
        ("a long value", (b"X-Long: " + b"x" * 20_000,)),
        ("many lines", tuple(b"X-%d: %d" % (n, n) for n in range(120))),
        ("cors", (b"Access-Control-Allow-Origin: *", b"Access-Control-Expose-Headers: X-Request-ID")),
    ):
        yield f"down: {name}", one(sent(GET), up(GET), [answer(OK, *given)], down(OK, *given))
    yield (
        "down: lines about the connection stay",
        one(
            sent(GET),
            up(GET),
            [answer(OK, b"Connection: keep-alive, X-Mine", b"X-Mine: 1", b"Keep-Alive: 5", b"X-Kept: 1")],
            down(OK, b"X-Kept: 1"),
        ),
    )
    yield (
        "down: the provider's own request id is the one that is told",
        one(sent(GET), up(GET), [answer(OK, b"X-Request-ID: req_1")], down(OK, b"X-Request-ID: req_1")),
    )


def statuses() -> Rows:
    for status in (
        200,
        201,
        202,
        206,
        207,
        299,
        300,
        301,
        302,
        303,
        307,
        308,
        400,
        401,
        403,
        404,
        405,
        408,
        409,
        413,
        418,
        422,
        425,
        429,
        451,
        498,
        499,
        500,
        501,
        502,
        503,
        504,
        520,
        529,
        599,
    ):
        first = b"HTTP/1.1 %d Some Reason" % status
        location = (b"Location: http://elsewhere.test/v1/x",) if 300 <= status < 400 else ()
        body = json.dumps({"error": {"message": "as it is", "code": status}}).encode()
        yield (
            f"status {status}",
            one(sent(GET), up(GET), [answer(first, *location, body=body)], down(first, *location, body=body)),
        )
    for reason in (b"", b"Very  Fine", b"caf\xe9", b"x" * 300):
        first = b"HTTP/1.1 200 " + reason
        yield f"reason {reason[:20]!r}", one(sent(GET), up(GET), [answer(first)], down(first))
    for status in (204, 304):
        first = b"HTTP/1.1 %d X" % status
        after = Exchange([sent(GET)], up(GET), *PLAIN)
        yield (
            f"{status} has no body",
            [*one(sent(GET), up(GET), [answer(first, body=None)], down(first, body=None)), after],
        )
    first = b"HTTP/1.1 304 Not Modified"
    same = (b'ETag: "x"', b"Content-Length: 1234")
    yield (
        "304 with the length of what it stands for",
        [
            *one(sent(GET), up(GET), [answer(first, *same, body=None)], down(first, *same, body=None)),
            Exchange([sent(GET)], up(GET), *PLAIN),
        ],
    )
    head = b"HEAD /v1/files/1/content HTTP/1.1"
    for name, given in (
        ("a length", (b"Content-Length: 99",)),
        ("no length", ()),
        ("its type", (b"Content-Type: audio/wav",)),
    ):
        yield (
            f"HEAD with {name}",
            [
                *one(sent(head), up(head), [answer(OK, *given, body=None)], down(OK, *given, body=None)),
                Exchange([sent(GET)], up(GET), *PLAIN),
            ],
        )
    yield (
        "HEAD of what would be chunked",
        [
            *one(sent(head), up(head), [answer(OK, b"Transfer-Encoding: chunked", body=None)], down(OK, body=None)),
            Exchange([sent(GET)], up(GET), *PLAIN),
        ],
    )
    for interim in (b"HTTP/1.1 100 Continue", b"HTTP/1.1 102 Processing", b"HTTP/1.1 103 Early Hints\r\nLink: </x>"):
        yield f"interim {interim[9:12].decode()}", one(sent(GET), up(GET), [interim + END, answer(OK)], down(OK))
        yield (
            f"interim {interim[9:12].decode()} in one piece",
            one(sent(GET), up(GET), [(interim + END) * 3 + answer(OK)], down(OK)),
        )


def uploads() -> Rows:
    first = b"POST /v1/files HTTP/1.1"
    multipart = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + bytes(range(256)) * 400
        + b"\r\n--b--\r\n"
    )
    kind = b"Content-Type: multipart/form-data; boundary=b"
    yield "multipart with its length", one(sent(first, kind, body=multipart), up(first, kind, body=multipart), *PLAIN)
    whole = sent(first, kind, body=multipart)
    yield (
        "multipart in pieces",
        one([whole[at : at + 9001] for at in range(0, len(whole), 9001)], up(first, kind, body=multipart), *PLAIN),
    )
    opened = sent(first, b"Transfer-Encoding: chunked")
    arrives = lines(first, b"Host: " + HOST, ID, b"Transfer-Encoding: chunked") + END
    for name, body, goes in (
        ("chunks", [chunked(b"one", b"two")], None),
        ("no chunks", [b"0\r\n\r\n"], chunked()),
        ("a trailer", [b"3\r\none\r\n0\r\nX-Sum: 1\r\n\r\n"], chunked(b"one")),
        ("trailers", [b"3\r\none\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n"], chunked(b"one")),
        ("an extension", [b"3;a=b;c\r\none\r\n0\r\n\r\n"], chunked(b"one")),
        ("upper-case sizes", [b"A\r\n0123456789\r\n0\r\n\r\n"], chunked(b"0123456789")),
        ("sizes with zeros before", [b"0003\r\none\r\n000\r\n\r\n"], chunked(b"one")),
    ):
        yield (
            f"upload, chunked: {name}",
            one(
                [opened, *body],
                arrives + (goes or chunked(b"one", b"two")) if name != "chunks" else arrives + chunked(b"onetwo"),
                *PLAIN,
            ),
        )
    expects = sent(first, b"Expect: 100-continue", body=b"hello")
    yield (
        "expect: 100-continue",
        one(expects, up(first, body=b"hello"), [answer(OK)], b"HTTP/1.1 100 Continue\r\n\r\n" + down(OK)),
    )
    yield (
        "expect: 100-continue, in a conversation",
        one(
            sent(CHAT, b"expect: 100-Continue", body=b"{}"),
            up(CHAT, body=b"{}"),
            [answer(OK)],
            b"HTTP/1.1 100 Continue\r\n\r\n" + down(OK, ours=(EVIDENCE, TELLS)),
        ),
    )
    refused = b"HTTP/1.1 413 Too Large"
    yield (
        "an answer before the upload is done",
        one(
            [sent(first, body=b"x" * 100)[:-50]],
            up(first, body=b"x" * 100)[:-50],
            [answer(refused)],
            down(refused),
            early=True,
        ),
    )
    big = bytes(range(256)) * 8192
    yield "two megabytes", one(sent(first, body=big), up(first, body=big), *PLAIN)


def replies() -> Rows:
    for name, chunks in (
        ("one chunk", [b"hello"]),
        ("many chunks", [b"%d" % n for n in range(200)]),
        ("chunks of one byte", [bytes([n]) for n in range(256)]),
        ("a large chunk", [b"x" * 20_000, b"y"]),
        ("no chunks", []),
    ):
        yield f"chunked: {name}", one(sent(GET), up(GET), stream(*chunks), streamed(*chunks))
    head = lines(OK, b"Transfer-Encoding: chunked") + END
    yield (
        "chunked: all in one piece",
        one(sent(GET), up(GET), [head + chunked(b"a", b"bc", b"d")], streamed(b"a", b"bc", b"d")),
    )
    yield "chunked: an extension", one(sent(GET), up(GET), [head + b'3;a="b"\r\none\r\n0\r\n\r\n'], streamed(b"one"))
    yield (
        "chunked: trailers are dropped, and the connection goes on",
        [
            *one(sent(GET), up(GET), [head + b"3\r\none\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n"], streamed(b"one")),
            Exchange([sent(GET)], up(GET), *PLAIN),
        ],
    )
    closing = lines(OK, b"Connection: close") + END
    yield (
        "a reply that ends with its connection",
        one(sent(GET), up(GET), [closing, b"one", b"two"], streamed(b"one", b"two"), provider_ends=True),
    )
    old = b"HTTP/1.0 200 OK"
    yield "a provider of HTTP/1.0, with a length", one(sent(GET), up(GET), [answer(old)], down(OK), provider_ends=True)
    yield (
        "a provider of HTTP/1.0, without",
        one(sent(GET), up(GET), [old + END, b"body"], streamed(b"body"), provider_ends=True),
    )
    for name, coding, body in (
        ("gzip", b"gzip", gzip.compress(b"{}" * 500, mtime=0)),
        ("deflate", b"deflate", zlib.compress(b"{}" * 500)),
        ("br", b"br", brotli.compress(b"{}" * 500)),
        ("zstd", b"zstd", zstd.compress(b"{}" * 500)),
        ("two codings", b"gzip, br", brotli.compress(gzip.compress(b"{}" * 500, mtime=0))),
        ("one that nobody knows", b"x-odd", b"\x00\x01\x02"),
        ("one that it is not", b"gzip", b"not gzip"),
    ):
        given = b"Content-Encoding: " + coding
        yield f"compressed: {name}", one(sent(GET), up(GET), [answer(OK, given, body=body)], down(OK, given, body=body))
        yield (
            f"compressed, of a conversation: {name}",
            one(
                sent(CHAT, body=b"{}"),
                up(CHAT, body=b"{}"),
                [answer(OK, given, body=body)],
                down(OK, given, body=body, ours=(EVIDENCE, TELLS)),
            ),
        )
    binary = bytes(range(256)) * 4000
    kind = b"Content-Type: audio/mpeg"
    yield "a binary download", one(sent(GET), up(GET), [answer(OK, kind, body=binary)], down(OK, kind, body=binary))
    yield "a length of no bytes", one(sent(GET), up(GET), [answer(OK, body=b"")], down(OK, body=b""))
    whole = answer(OK, b"X-A: 1", body=b"body")
    yield (
        "a reply byte by byte",
        one(sent(GET), up(GET), [bytes([byte]) for byte in whole], down(OK, b"X-A: 1", body=b"body")),
    )


def server_sent_events() -> Rows:
    kind = (b"Content-Type: text/event-stream; charset=utf-8",)
    for name, chunks in (
        ("events", [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]),
        ("comments", [b": ping\n\n", b":\n", b"data: 1\n\n: OPENROUTER PROCESSING\n\n"]),
        ("CRLF", [b"data: 1\r\n\r\n", b"data: 2\r\n", b"\r\n"]),
        ("CR", [b"data: 1\r\rdata: 2\r\r"]),
        ("lines of data", [b"data: {\ndata: }\n\n"]),
        ("split UTF-8", [b"data: \xe2", b"\x82", b"\xac\n\n", b"data: \xf0\x9f", b"\x98\x80\n\n"]),
        ("no final newline", [b"data: 1\n\n", b"data: [DONE]"]),
        ("half an event", [b"data: 1\n\n", b'data: {"choi']),
        ("event, id and retry", [b"event: delta\nid: 7\nretry: 10\ndata: 1\n\n"]),
        ("a byte order mark", [b"\xef\xbb\xbfdata: 1\n\n"]),
        ("many events in a chunk", [b"data: 1\n\n" * 50]),
        ("an event in many chunks", [bytes([byte]) for byte in b"data: 12345\n\n"]),
        ("empty data", [b"data\n\ndata:\n\ndata: \n\n"]),
        ("NUL bytes", [b"data: a\x00b\n\n"]),
        ("no events at all", []),
        ("a large event", [b"data: " + b"x" * 20_000 + b"\n\n"]),
    ):
        answers, receives = stream(*chunks, more=kind), streamed(*chunks, more=kind)
        yield f"events: {name}", one(sent(GET), up(GET), answers, receives)
        yield (
            f"events of a conversation: {name}",
            one(
                sent(CHAT, body=b"{}"),
                up(CHAT, body=b"{}"),
                answers,
                streamed(*chunks, more=kind, ours=(EVIDENCE, TELLS)),
            ),
        )


def conversations() -> Rows:
    for name, body, ours in (
        ("odd spaces", b' {\n\t"messages" :\r\n [ ] , "model":"m" } \n', EVIDENCE),
        ("escapes", rb'{"messages":[{"role":"user","content":"\u0041\/\ud83d\ude00\ud83d"}]}', EVIDENCE),
        ("raw UTF-8", '{"messages":[{"role":"user","content":"naïve 😀"}]}'.encode(), EVIDENCE),
        (
            "spelling of numbers",
            b'{"messages":[],"temperature":1.0E-0,"seed":123456789012345678901234567890,"x":-0}',
            EVIDENCE,
        ),
        ("doubled keys", b'{"messages":[1],"messages":[],"model":"a","model":"b"}', EVIDENCE),
        ("unknown fields", b'{"x-vendor":{"deep":[[[{}]]]},"messages":[],"provider":{"order":["a"]}}', EVIDENCE),
        ("no JSON", b"hello", NO_JSON),
        ("half a JSON", b'{"messages":[', EVIDENCE),
        ("no bytes", b"", NO_JSON),
        ("bytes that are no UTF-8", b'{"messages":[{"role":"user","content":"\xff"}]}', None),
        ("a byte order mark", b'\xef\xbb\xbf{"messages":[]}', None),
        ("NUL bytes after it", b'{"messages":[]}\x00\x00', None),
    ):
        if ours is None:
            ours = NO_JSON if not body.lstrip().startswith(b"{") else EVIDENCE
        yield (
            f"conversation: {name}",
            one(sent(CHAT, body=body), up(CHAT, body=body), [answer(OK)], down(OK, ours=(ours, TELLS))),
        )
    plain = b'{"messages": []}'
    for name, coding, body in (
        ("gzip", b"gzip", gzip.compress(plain, mtime=0)),
        ("deflate", b"deflate", zlib.compress(plain)),
        ("br", b"br", brotli.compress(plain)),
        ("zstd", b"zstd", zstd.compress(plain)),
        ("gzip in capitals", b"GZIP", gzip.compress(plain, mtime=0)),
        ("identity", b"identity", plain),
    ):
        given = b"Content-Encoding: " + coding
        yield (
            f"conversation, compressed: {name}",
            one(
                sent(CHAT, given, body=body), up(CHAT, given, body=body), [answer(OK)], down(OK, ours=(EVIDENCE, TELLS))
            ),
        )
    for name, body in (("chunked", [chunked(plain)]), ("chunked, in pieces", [b"1\r\n{\r\n", chunked(plain[1:])])):
        yield (
            f"conversation, {name}",
            one(
                [sent(CHAT, b"Transfer-Encoding: chunked"), *body],
                up(CHAT, body=plain),
                [answer(OK)],
                down(OK, ours=(EVIDENCE, TELLS)),
            ),
        )
    for path in (
        b"/v1/chat/completions?a=%20b",
        b"/openai/deployments/d/chat/completions?api-version=1",
        b"/v1/responses",
    ):
        first = b"POST %b HTTP/1.1" % path
        yield (
            f"conversation at {path.decode()}",
            one(sent(first, body=plain), up(first, body=plain), [answer(OK)], down(OK, ours=(EVIDENCE, TELLS))),
        )
    first = b"GET /v1/chat/completions HTTP/1.1"
    yield "a list of completions", one(sent(first), up(first), [answer(OK)], down(OK, ours=(NO_JSON, TELLS)))


def connections() -> Rows:
    first = b"POST /v1/files HTTP/1.1"
    three = [
        Exchange([sent(GET)], up(GET), *PLAIN),
        Exchange([sent(first, body=b"x")], up(first, body=b"x"), *PLAIN),
        Exchange([sent(CHAT, body=b"{}")], up(CHAT, body=b"{}"), [answer(OK)], down(OK, ours=(EVIDENCE, TELLS))),
    ]
    yield "three requests on one connection", three
    yield (
        "requests that do not wait for each other's replies are answered in order",
        [
            Exchange([sent(GET) + sent(b"GET /v1/x HTTP/1.1")], up(GET), *PLAIN),
            Exchange([], up(b"GET /v1/x HTTP/1.1"), *PLAIN),
        ],
    )
    big = bytes(range(256)) * 2048
    yield (
        "a request right behind a large body",
        [
            Exchange([sent(first, body=big) + sent(GET)], up(first, body=big), *PLAIN),
            Exchange([], up(GET), *PLAIN),
        ],
    )
    yield (
        "a request in one piece with the end of a large body",
        [
            Exchange(
                [sent(first, body=big)[:100_000], sent(first, body=big)[100_000:] + sent(GET)],
                up(first, body=big),
                *PLAIN,
            ),
            Exchange([], up(GET), *PLAIN),
        ],
    )
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    yield (
        "a change to HTTP/2 is not offered, and the request is answered as ever",
        [
            Exchange([sent(first, *upgrade, body=b"body")], up(first, body=b"body"), *PLAIN),
            Exchange([sent(GET, *upgrade) + sent(first, body=b"x")], up(GET), *PLAIN),
            Exchange([], up(first, body=b"x"), *PLAIN),
        ],
    )
    yield (
        "a change to HTTP/2 with chunks",
        [
            Exchange(
                [sent(first, *upgrade, b"Transfer-Encoding: chunked"), b"3\r\none\r\n", b"0\r\n\r\n" + sent(GET)],
                lines(first, b"Host: " + HOST, ID, b"Transfer-Encoding: chunked") + END + chunked(b"one"),
                *PLAIN,
            ),
            Exchange([], up(GET), *PLAIN),
        ],
    )
    yield (
        "what follows the last request is not read",
        one(
            sent(GET, b"Connection: close") + sent(GET),
            up(GET),
            [answer(OK)],
            down(OK, ours=(b"Connection: close",)),
            ends=True,
        ),
    )
    yield (
        "a client that closes",
        one(
            sent(GET, b"Connection: close"),
            up(GET),
            [answer(OK)],
            down(OK, ours=(b"Connection: close",)),
            ends=True,
        ),
    )
    old = b"GET /v1/models HTTP/1.0"
    closing = lines(b"HTTP/1.0 200 OK", b"Content-Length: 2", b"Connection: close") + END + b"{}"
    yield "a client of HTTP/1.0", one(sent(old), up(GET), [answer(OK)], closing, ends=True)
    keeping = lines(b"HTTP/1.0 200 OK", b"Content-Length: 2", b"Connection: keep-alive") + END + b"{}"
    alive = Exchange([sent(old, b"Connection: keep-alive")], up(GET), [answer(OK)], keeping)
    yield "a client of HTTP/1.0 that keeps the connection", [alive, alive]
    until_closed = lines(b"HTTP/1.0 200 OK", b"Connection: close") + END + b"onetwo"
    yield "a stream to a client of HTTP/1.0", one(sent(old), up(GET), stream(b"one", b"two"), until_closed, ends=True)
    yield (
        "a provider that closes after its reply does not end the client's connection",
        [
            *one(sent(GET), up(GET), [answer(OK, b"Connection: close")], down(OK), provider_ends=True),
            Exchange([sent(GET)], up(GET), *PLAIN),
        ],
    )
    yield "a line end before the request", one(b"\r\n" + sent(GET), up(GET), *PLAIN)
    request = sent(first, b"X-A: 1", body=b"body")
    yield "a request byte by byte", one([bytes([byte]) for byte in request], up(first, b"X-A: 1", body=b"body"), *PLAIN)


def websockets() -> Rows:
    first = b"GET /v1/realtime?model=m HTTP/1.1"
    given = (
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Protocol: realtime, k",
    )
    wants = sent(first, b"Connection: Upgrade", b"Upgrade: websocket", *given)
    arrives = up(first, *given, b"Connection: Upgrade", b"Upgrade: websocket")
    changed = (
        lines(
            b"HTTP/1.1 101 Switching Protocols",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        )
        + END
    )
    frame = b"\x81\x85\x00\x01\x02\x03hello"
    yield (
        "a websocket, the provider speaks first",
        one(
            wants,
            arrives,
            [changed, b"\x81\x02hi", b"\x88\x00"],
            changed + b"\x81\x02hi\x88\x00",
            provider_ends=True,
            ends=True,
        ),
    )
    yield (
        "a websocket, both ways",
        [
            Exchange([wants], arrives, [changed], changed),
            Exchange([frame], frame, [b"\x81\x02yo"], b"\x81\x02yo"),
            Exchange(
                [b"\x82\x7e\xff\xff" + bytes(65535)], b"\x82\x7e\xff\xff" + bytes(65535), [b"\x88\x00"], b"\x88\x00"
            ),
        ],
    )
    yield (
        "a websocket with the first frame beside the request",
        [Exchange([wants + frame], arrives, [changed], changed), Exchange([], frame, [b"\x81\x00"], b"\x81\x00")],
    )
    yield (
        "a websocket with the first frame beside the reply",
        one(wants, arrives, [changed + b"\x81\x02hi"], changed + b"\x81\x02hi"),
    )
    for status in (400, 401, 403, 404, 426, 429):
        refused = answer(b"HTTP/1.1 %d No" % status, b"Retry-After: 3", body=b'{"error": 1}')
        yield f"a websocket that is refused with {status}", one(wants, arrives, [refused], refused, ends=True)
    answered = lines(b"HTTP/1.1 403 No", b"Transfer-Encoding: chunked") + END + chunked(b"no", b"thing")
    yield "a websocket that is refused in chunks", one(wants, arrives, [answered], answered, ends=True)


TABLES = (
    methods,
    targets,
    header_lines,
    statuses,
    uploads,
    replies,
    server_sent_events,
    conversations,
    connections,
    websockets,
)
ROWS = [row for table in TABLES for row in table()]


def test_there_are_enough_cases_and_each_has_its_name() -> None:
    names = [name for name, _ in ROWS]
    assert len(names) >= 150
    assert len(set(names)) == len(names)


@pytest.fixture
async def raw() -> AsyncIterator[RawProvider]:
    running = await RawProvider().start()
    yield running
    await running.stop()


@pytest.mark.parametrize("exchanges", [pytest.param(row, id=name) for name, row in ROWS])
async def test_promise_10_every_byte_is_the_one_that_was_sent(
    raw: RawProvider, start_here: StartHere, exchanges: list[Exchange]
) -> None:
    proxy: InProcess = await start_here(Conversation(), upstream={"base_url": raw.url})
    await play(proxy.url, raw, exchanges)
