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


def unreachable(where: str, what: str) -> Answer:
    """`where` is scheme, host and port only: a path or query may hold what must not be repeated."""
    return shaped(
        502,
        f"Evidence Proxy asked {where} and {what}. Check that the provider is up and that upstream.base_url is right, "
        "then try again.",
        "upstream_error",
        "upstream_unreachable",
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
