"""What the proxy itself answers when it has no reply to pass on: OpenAI-shaped, for the reader, nothing secret."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A whole reply of our own: status, body, and header lines besides Content-Length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ((b"Content-Type", b"application/json"),)


def shaped(status: int, message: str, kind: str, code: str) -> Answer:
    """An error in the shape that OpenAI's clients parse."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    return Answer(status, json.dumps({"error": error}).encode())


def body_too_large(limit: int, decoded: bool) -> Answer:
    after = " after decompression" if decoded else ""
    return shaped(
        413,
        f"The request body is larger than {limit} bytes{after}, the limit of Evidence Proxy. Send less, or raise "
        "server.max_body_bytes in its settings.",
        "invalid_request_error",
        "body_too_large",
    )


def unreachable(where: str, what: str, sent: str, late: bool) -> Answer:
    """`where` is scheme, host and port only: a path or query may hold what must not be repeated. `sent` says how much
    of the request the provider may have seen; nothing was sent twice. `late` if it only did not reply in time."""
    do = (
        "Try again, or raise upstream.first_byte_seconds in its settings"
        if late
        else "Check that the provider is up and that upstream.base_url is right, then try again"
    )
    return shaped(
        504 if late else 502,
        f"Evidence Proxy asked {where} and {what}. {sent}; it was not asked again. {do}.",
        "upstream_error",
        "upstream_timeout" if late else "upstream_unreachable",
    )


def unknown_key() -> Answer:
    answer = shaped(
        401,
        "Evidence Proxy does not know this key, or none was sent. Send one of the proxy's own keys as Authorization: "
        "Bearer KEY, or as api-key.",
        "invalid_request_error",
        "invalid_api_key",
    )
    return Answer(answer.status, answer.body, (*answer.headers, (b"WWW-Authenticate", b"Bearer")))


def full(what: str) -> Answer:
    """More than the proxy takes on at once. Clients wait as long as Retry-After says, and ask again."""
    return _later(f"Evidence Proxy is at its limit: {what}. Try again later.", "proxy_full")


def stopping() -> Answer:
    return _later("Evidence Proxy is stopping and takes no new requests. Try again.", "proxy_stopping")


def _later(message: str, code: str) -> Answer:
    answer = shaped(503, message, "server_error", code)
    return Answer(answer.status, answer.body, (*answer.headers, (b"Retry-After", b"1")))


def too_slow() -> Answer:
    return shaped(
        408,
        "Evidence Proxy waited for the request, and it did not come in time. Send it again without pauses, or raise "
        "server.header_seconds or server.body_seconds in its settings.",
        "invalid_request_error",
        "request_timeout",
    )


def header_too_large(limit: int) -> Answer:
    return shaped(
        431,
        f"The request line and headers are larger than {limit} bytes, the limit of Evidence Proxy. Send fewer, or "
        "raise server.max_header_bytes in its settings.",
        "invalid_request_error",
        "header_too_large",
    )


def malformed(what: str) -> Answer:
    return shaped(
        400,
        f"Evidence Proxy could not read the request: {what}. Send a well-formed HTTP/1.1 request.",
        "invalid_request_error",
        "malformed_request",
    )


def unsupported_method(method: str) -> Answer:
    return shaped(
        405,
        f"Evidence Proxy does not open tunnels ({method}). Use it as the base URL of a client, not as its HTTP proxy.",
        "invalid_request_error",
        "method_not_supported",
    )


def only_posts(path: str) -> Answer:
    return shaped(405, f"Evidence Proxy answers only POST at {path}.", "invalid_request_error", "method_not_supported")


def internal() -> Answer:
    return shaped(
        500,
        "Evidence Proxy failed on this request; its log has a line with the same request id. Nothing was changed; "
        "try again, and report it if it stays.",
        "server_error",
        "internal_error",
    )
