"""Did the demo show what it says? Compares what left the client with what reached the provider.

Pure: values in, sentences out.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from proxy.demo.handbook import BY_ID
from proxy.demo.pictures import png_of
from proxy.demo.provider import texts_of
from proxy.demo.rows import Request, Row


def faults(rows: list[Row], expected_answers: list[str]) -> list[str]:
    """Everything that is not as promised, one sentence each; an empty list if all is well."""
    found: list[str] = []
    if not any(request.outcome == "compacted" for row in rows for request in row.requests):
        found.append("no request was compacted")
    cited: list[str] = []
    for row, expected in zip(rows, expected_answers, strict=True):
        if row.answer != expected:
            found.append(f"question {row.number}: expected the answer {expected!r}, got {row.answer!r}")
        for at, request in enumerate(row.requests, 1):
            found.extend(f"question {row.number}, request {at}: {fault}" for fault in _of_request(row, request, cited))
        cited = [*cited, *(chunk for chunk in row.cited if chunk not in cited)]
    return found


def _of_request(row: Row, request: Request, cited: list[str]) -> list[str]:
    found: list[str] = []
    if request.header is None:
        return ["the reply carried no Evidence-Proxy header"]
    if row.number > 1 and request.outcome != "compacted":
        found.append(f"expected compaction, the proxy said {request.header!r}")
    said = (request.figure("before"), request.figure("after"))
    if request.outcome == "compacted" and said != (request.before, request.after):
        found.append(
            f"the header says before={said[0]}; after={said[1]}, measured {request.before} and {request.after}"
        )
    if row.number == 1 and request.body_sent != request.body_received:
        found.append("nothing was earlier, and yet the body was changed")
    sent, received = (json.loads(body)["messages"] for body in (request.body_sent, request.body_received))
    if _since_question(sent, row.question) != _since_question(received, row.question):
        found.append("the current question was changed")
    earlier = "\n".join(text for message in _before_question(received, row.question) for text in texts_of(message))
    for chunk in cited:
        if (times := earlier.count(BY_ID[chunk].text)) != 1:
            found.append(f"{chunk} was cited and should stand once among the earlier messages; it stands {times} times")
    had, kept = (_pictures(_before_question(messages, row.question)) for messages in (sent, received))
    due = {png_of(chunk) for chunk in cited if BY_ID[chunk].picture}
    if set(kept) != due or len(kept) != len(due):
        found.append(f"of {len(had)} earlier pictures {len(due)} are cited; {len(kept)} were sent")
    return found


def _question_at(messages: list[dict[str, Any]], question: str) -> int:
    return max(
        at for at, message in enumerate(messages) if message["role"] == "user" and message["content"] == question
    )


def _since_question(messages: list[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    return messages[_question_at(messages, question) :]


def _before_question(messages: list[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    return messages[: _question_at(messages, question)]


def _pictures(messages: list[dict[str, Any]]) -> list[bytes]:
    """The decoded pictures of these messages, in order."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [base64.b64decode(url.partition(",")[2]) for url in urls]
