"""`POST /evidence/v1/returns` over a socket: results in, tool content out, kept for when a host cuts it short."""

from __future__ import annotations

import base64
import io
import json
from itertools import pairwise
from typing import Any

import pytest
from PIL import Image

from proxy.compaction import wording
from proxy.tagging import Picture, Result, tag
from tests.conftest import StartHere, StartProcess
from tests.house.client import ask
from tests.house.keys import KEYS
from tests.house.provider import Provider, completion, json_reply
from tests.rewrites import CREDENTIAL
from tests.talk import body, calls, cited, returns, says, user

PATH = "/evidence/v1/returns"
PNG = b"\x89PNG\r\n\x1a\n valve"
GIVEN = {
    "id": "c1",
    "content": "The pump runs at 3 bar. " * 40,
    "title": "Pump manual",
    "uri": "https://kb.example/pump.pdf",
    "document_id": "d1",
    "collection": "kb",
    "headings": ["Operation"],
    "pages": [3],
    "kind": "text",
    "pictures": [{"data": base64.b64encode(PNG).decode(), "reference": "#/pictures/0"}, "#/pictures/1"],
}
SAME = Result(**{**GIVEN, "pictures": [Picture(PNG, "#/pictures/0"), "#/pictures/1"]})  # type: ignore[arg-type]


async def post(url: str, given: Any, **more: Any) -> Any:
    return await ask(url, given, target=PATH, headers=more.pop("headers", [CREDENTIAL]), **more)


@pytest.mark.parametrize("shape", ["text", "chat", "responses"])
async def test_results_come_back_as_the_library_tags_them(
    start_here: StartHere, provider: Provider, shape: str
) -> None:
    proxy = await start_here()
    done = tag([SAME], KEYS)
    seen = await post(proxy.url, {"results": [GIVEN], "shape": shape})
    assert seen.status == 200, seen.body
    expected = {"text": done.text, "chat": done.chat(), "responses": done.responses()}[shape]
    assert seen.json() == {
        "content": expected,
        "text": done.text,
        "pictures": [{"label": picture.label, "url": picture.url} for picture in done.pictures],
    }
    assert provider.requests == []  # it never reaches the provider


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "expected a JSON object"),
    "no results": ({}, "results"),
    "an unknown field": ({"results": [{"id": "a", "content": "b", "contents": "c"}]}, "contents"),
    "a content that is no text": ({"results": [{"id": "a", "content": 1}]}, "results[0].content"),
    "an id that cannot be cited": ({"results": [{"id": "a\nb", "content": "x"}]}, "cannot be a chunk's id"),
    "an address": (
        {"results": [{"id": "a", "content": "x", "pictures": [{"data": "https://kb.example/a.png"}]}]},
        "not fetched",
    ),
    "a shape that is none": ({"results": [], "shape": "xml"}, "shape"),
    "too many results": ({"results": [{"id": "a", "content": ""}] * 10_001}, "at most 10000"),
    "too many pictures": (
        {"results": [{"id": "a", "content": "", "pictures": [{"data": ""}] * 501}]},
        "at most 500",
    ),
    "deep nesting": (b'{"results":' + b"[" * 5000, "results"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED.keys())
async def test_bad_input_is_refused_in_the_shape_that_clients_parse(
    start_here: StartHere, provider: Provider, given: Any, said: str
) -> None:
    proxy = await start_here()
    seen = await post(proxy.url, given)
    assert seen.status == 400
    error = seen.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_results")
    assert said in error["message"]
    assert provider.requests == []


async def test_other_methods_and_larger_bodies_are_refused(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here(server={"port": 0, "max_body_bytes": 1024})
    assert (await ask(proxy.url, target=PATH, method="GET")).status == 405
    seen = await post(proxy.url, {"results": [{"id": "a", "content": "x" * 2000}]})
    assert (seen.status, seen.json()["error"]["code"]) == (413, "body_too_large")
    assert provider.requests == []


def conversation(content: Any) -> list[dict[str, Any]]:
    return [user("?"), calls(("s", "fetch", {})), returns("s", content), *cited(["c1"])]


async def told(url: str, provider: Provider, messages: list[dict[str, Any]], who: Any = CREDENTIAL) -> tuple[str, Any]:
    provider.reply(json_reply(completion("the answer")))
    seen = await ask(url, body(*messages), headers=[who])
    return seen.evidence, provider.requests[-1].json()["messages"]


async def test_what_a_host_cuts_short_is_still_had_when_it_is_cited(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here()
    text = (await post(proxy.url, {"results": [GIVEN], "shape": "text"})).json()["content"]
    shown = text[:300] + "… [cut]"
    await told(proxy.url, provider, conversation(shown))
    evidence, sent = await told(proxy.url, provider, [*conversation(shown), says("the answer"), user("next")])
    assert evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    assert GIVEN["content"].rstrip() in sent[2]["content"] and sent[2]["content"].endswith("\n\n… [cut]")  # type: ignore[attr-defined]


async def test_promise_9_what_one_tenant_registered_another_does_not_have(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here()
    text = (await post(proxy.url, {"results": [GIVEN], "shape": "text"})).json()["content"]
    shown = text[:300]
    other = ("Authorization", "Bearer sk-test-two")
    await told(proxy.url, provider, conversation(shown), other)
    evidence, sent = await told(proxy.url, provider, [*conversation(shown), says("the answer"), user("next")], other)
    assert evidence == "untouched; reason=no-evidence" and sent[2]["content"] == shown


async def test_without_a_credential_results_are_tagged_and_not_kept(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here()
    seen = await post(proxy.url, {"results": [GIVEN], "shape": "text"}, headers=[])
    assert seen.json()["content"] == tag([SAME], KEYS).text
    shown = seen.json()["content"][:300]
    await told(proxy.url, provider, conversation(shown))
    evidence, _ = await told(proxy.url, provider, [*conversation(shown), says("the answer"), user("next")])
    assert evidence == "untouched; reason=no-evidence"


async def test_a_key_is_in_no_log_error_metric_or_help(start_process: StartProcess, provider: Provider) -> None:
    secret = "correct horse battery staple tag key"
    config = '[upstream]\nbase_url = "{upstream}"\n[store]\nuri = "memory://"\n[tags]\nkey_env = "TAGS"\n'
    proxy = await start_process(config, {"TAGS": f"{secret}, another key of tests"})
    bodies = [
        await post(proxy.url, given)
        for given in ({"results": [GIVEN]}, {"results": 1}, b"{", {"results": [{"id": "\n", "content": ""}]})
    ]
    forged = tag([Result("c", "x")], KEYS).text
    provider.reply(json_reply(completion("a")))
    bodies.append(await ask(proxy.url, body(*conversation(forged)), headers=[CREDENTIAL]))
    await proxy.stop()
    assert any("a tag does not fit (signature)" in line["event"] for line in proxy.lines)
    shown = json.dumps(proxy.lines) + "".join(repr(seen.headers) + seen.body.decode() for seen in bodies)
    assert secret not in shown and "another key" not in shown


def figure(colour: str) -> str:
    """A picture that decodes, as base64."""
    out = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


RED, BLUE = figure("red"), figure("blue")
SHOWN_TWICE = {
    "results": [
        {"id": "c1", "content": "one", "document_id": "d", "pictures": [{"data": RED, "reference": "#/1"}]},
        {"id": "c2", "content": "two", "document_id": "d", "pictures": ["#/1", {"data": BLUE, "reference": "#/2"}]},
    ]
}


def pictures_of(sent: Any) -> list[tuple[str, str]]:
    """The pictures in what went up, each with the line before it."""
    parts = [part for message in sent if isinstance(message["content"], list) for part in message["content"]]
    return [
        (label["text"], part["image_url"]["url"].partition(",")[2])
        for label, part in pairwise(parts)
        if part["type"] == "image_url"
    ]


def registered_talk(content: Any, *cited_ids: str, attached: list[Any] | None = None) -> list[dict[str, Any]]:
    shown = [user(attached)] if attached else []
    return [user("?"), calls(("s", "fetch", {})), returns("s", content), *shown, *cited(list(cited_ids))]


async def test_promise_6_a_registered_picture_comes_where_the_host_attached_another(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here()
    given = (await post(proxy.url, SHOWN_TWICE)).json()
    text, (red_label, red), _ = given["content"][0], given["content"][1:3], given["content"][3:]
    messages = registered_talk(text["text"], "c2", attached=[red_label, red])  # the host left the blue one out
    await told(proxy.url, provider, messages)
    evidence, sent = await told(proxy.url, provider, [*messages, says("the answer"), user("next")])
    assert evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    # c2 shows both; one picture went, so one comes: the one that stood on the wire.
    assert pictures_of(sent) == [(wording.label("c2", "#/1", None), RED)]


async def test_promise_6_a_registered_picture_takes_the_place_of_one_that_nobody_cited(
    start_here: StartHere, provider: Provider
) -> None:
    proxy = await start_here()
    other = {"results": [{"id": "x", "content": "beside", "pictures": [{"data": RED}]}]}
    beside = (await post(proxy.url, other)).json()["content"]
    text = (await post(proxy.url, SHOWN_TWICE)).json()["text"]
    messages = [
        user("?"),
        calls(("s", "fetch", {}), ("t", "fetch", {})),
        returns("s", text),
        returns("t", beside),
        *cited(["c2"]),
    ]
    await told(proxy.url, provider, messages)
    _, sent = await told(proxy.url, provider, [*messages, says("the answer"), user("next")])
    shown = pictures_of(sent)
    assert len(shown) == 1 and shown[0][1] in (RED, BLUE) and "[c2]" in shown[0][0]


async def test_promise_6_where_no_picture_was_none_comes(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here()
    text = (await post(proxy.url, SHOWN_TWICE)).json()["text"]
    messages = registered_talk(text, "c1")
    await told(proxy.url, provider, messages)
    evidence, sent = await told(proxy.url, provider, [*messages, says("the answer"), user("next")])
    assert evidence.startswith("compacted;") and pictures_of(sent) == []


async def test_promise_9_a_registered_picture_is_its_tenants_alone(start_here: StartHere, provider: Provider) -> None:
    proxy = await start_here()
    given = (await post(proxy.url, SHOWN_TWICE)).json()
    other = ("Authorization", "Bearer sk-test-two")
    beside = await post(proxy.url, {"results": [{"id": "x", "content": "y", "pictures": [{"data": figure("green")}]}]})
    messages = [
        user("?"),
        calls(("s", "fetch", {}), ("t", "fetch", {})),
        returns("s", given["text"]),
        returns("t", beside.json()["content"]),
        *cited(["c1"]),
    ]
    await told(proxy.url, provider, messages, other)
    evidence, sent = await told(proxy.url, provider, [*messages, says("the answer"), user("next")], other)
    assert evidence.startswith("compacted;") and pictures_of(sent) == []
