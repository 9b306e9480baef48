"""Which header lines travel, and which stay at this hop. Pure: header lines in, header lines out, in order.

Header lines are pairs of bytes throughout, as they stood on the wire: a value that is not UTF-8, a name in odd case
or a repeated line goes on as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Headers = tuple[tuple[bytes, bytes], ...]
#: The values of each header, in order, by its name in lower case: for whoever asks for many of them.
Named = Mapping[bytes, list[bytes]]

EVIDENCE_PROXY = b"Evidence-Proxy"
_EVIDENCE_PROXY = EVIDENCE_PROXY.lower()
QUESTION = b"evidence-question"
CONVERSATION = b"evidence-conversation"
COMPACTION = b"evidence-compaction"
REQUEST_ID = b"x-request-id"
#: Source: W3C, "Trace Context". What says which trace a request belongs to.
TRACE = frozenset({b"traceparent", b"tracestate"})

#: Whose records the record API is asked for: of no use to a provider, and a credential.
TENANT = b"evidence-tenant"

# Our own request headers: the provider must not see them.
_OURS = frozenset({QUESTION, COMPACTION, CONVERSATION, TENANT})

# RFC 9110, 7.6.1 and the older list of RFC 2616, 13.5.1: about this connection only. Trailer goes with the trailers,
# which are not relayed; Content-Length is about framing, which each side sets for itself.
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# Expect is answered at this hop: nobody here waits with the body.
_NOT_UP = _HOP | _OURS | {b"host", b"content-length", b"expect"}

# What describes the bytes of a body that is no longer the one that was sent.
_OF_THE_BODY = frozenset({b"content-encoding", b"content-md5", b"digest", b"content-digest", b"repr-digest"})

_CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")

_A_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")


def by_name(headers: Iterable[tuple[bytes, bytes]]) -> Named:
    """Every header's values by its name."""
    named: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        name = name.lower()
        if name in named:
            named[name].append(value)
        else:
            named[name] = [value]
    return named


def first(named: Named, name: bytes) -> str | None:
    """What `value` gives, out of headers by name."""
    for found in named.get(name, ()):
        if text := found.decode("latin-1").strip():
            return text
    return None


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """All values of a header, in order. `name` in lower case."""
    return [value for key, value in headers if key.lower() == name]


def value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header that is not empty, as text, or None."""
    return next((text for found in values(headers, name) if (text := found.decode("latin-1").strip())), None)


def request_id(named: Named) -> str | None:
    """The id that the sender gave its request; None where there is none that can stand in a log and a header."""
    given = first(named, REQUEST_ID)
    return given if given is not None and _A_REQUEST_ID.fullmatch(given) else None


def up(
    headers: Headers, named: Named, rewritten: bool, api_key: str | None, ours: bool = False
) -> list[tuple[bytes, bytes]]:
    """The lines that go to the provider: without Host and Content-Length, which the new connection sets itself. `named`
    are the same by name.

    `rewritten` drops what described the body that came. An `api_key` takes the place of every credential that the
    client sent, so that what identifies a tenant here is never shown to the provider; with `ours`, where the client's
    credential is a key of this proxy, it is taken off also if no `api_key` takes its place.
    """
    dropped = _NOT_UP
    if b"connection" in named:
        dropped |= _options(named[b"connection"])
    if rewritten:
        dropped |= _OF_THE_BODY
    if api_key is not None or ours:
        dropped |= set(_CREDENTIALS)
    lines = [line for line in headers if line[0].lower() not in dropped]
    if api_key is not None:
        lines.append((b"Authorization", b"Bearer " + api_key.encode("ascii")))
    return lines


def down(
    headers: Headers, evidence: str | None, framed: bool, request_id: str | None = None
) -> list[tuple[bytes, bytes]]:
    """The lines that go to the client. `evidence` is the value of Evidence-Proxy, if any; Content-Length stays where
    it stood if it frames the body (`framed`). A `request_id` is told where the provider tells none of its own, which
    is what its support will ask for."""
    lines: list[tuple[bytes, bytes]] = []
    connection: list[bytes] = []
    told = False
    for line in headers:
        name = line[0].lower()
        if name == REQUEST_ID:
            told = True
        if name == b"connection":
            connection.append(line[1])
        elif name in _HOP or (name == b"content-length" and not framed):
            continue
        elif name == _EVIDENCE_PROXY and evidence is not None:
            continue  # from a proxy behind this one; two would contradict each other
        else:
            lines.append(line)
    if connection:
        dropped = _options(connection) - {b"content-length"}
        lines = [line for line in lines if line[0].lower() not in dropped]
    return lines + ours(evidence, None if told else request_id)


def ours(evidence: str | None, request_id: str | None) -> list[tuple[bytes, bytes]]:
    """Our own lines on a reply."""
    lines = [] if evidence is None else [(EVIDENCE_PROXY, printable(evidence))]
    return lines if request_id is None else [*lines, (REQUEST_ID, printable(request_id))]


def of_another_body(lines: Headers) -> Headers:
    """The lines of a reply whose body is replaced: without those that described the bytes of the first one."""
    gone = _OF_THE_BODY | {b"content-length", b"etag"}
    return tuple(line for line in lines if line[0].lower() not in gone)


def printable(text: str) -> bytes:
    """`text` as a header value that cannot end its line, whatever stands in it."""
    return _UNPRINTABLE.sub(b"?", text.encode("utf-8", "replace"))


def credentials(headers: Headers) -> list[bytes]:
    """All credentials that a request shows, without the word `Bearer` before them."""
    shown = [found.strip() for name in _CREDENTIALS for found in values(headers, name)]
    return [found[7:].strip() if found[:7].lower() == b"bearer " else found for found in shown]


def credential(named: Named, by: str, header: str | None) -> str | None:
    """What stands for the tenant, as `[tenant] by` says: a header's value, a constant for "none", None if missing."""
    if by == "none":
        return "none"
    names = _CREDENTIALS if header is None else (header.encode("ascii"),)
    return next((found for name in names if (found := first(named, name)) is not None), None)


def _options(connection: Iterable[bytes]) -> frozenset[bytes]:
    """What the values of Connection name."""
    return frozenset(option.strip().lower() for line in connection for option in line.split(b","))
