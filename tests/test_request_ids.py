"""Every request has an id: the client is told it, and the log line of that request says it."""

from __future__ import annotations

import re

import pytest

from tests.conftest import StartHere, StartProcess
from tests.house.client import ask
from tests.house.conversing import Conversation
from tests.house.provider import Provider, completion, json_reply

BODY = b'{"messages": [{"role": "user", "content": "hi"}]}'


async def test_a_client_is_told_the_id_that_the_log_says(provider: Provider, start_process: StartProcess) -> None:
    running = await start_process()
    provider.reply(json_reply(completion("hi")))
    provider.reply(json_reply(completion("hi"), headers=[("X-Request-ID", "req_of_the_provider")]))

    ours = await ask(running.url, BODY)
    theirs = await ask(running.url, BODY)
    refused = await ask(running.url, method="CONNECT", target="x:1")
    await running.stop()

    lines = [line for line in running.lines if line["event"] == "request"]
    assert [(seen.value("x-request-id") or b"").decode() for seen in (ours, theirs, refused)] == [
        lines[0]["id"],
        lines[1]["provider_id"],
        lines[2]["id"],
    ]
    assert lines[1]["provider_id"] == "req_of_the_provider"
    assert len({line["id"] for line in lines}) == 3


async def test_an_id_that_the_client_gave_is_kept(provider: Provider, start_process: StartProcess) -> None:
    running = await start_process()
    provider.reply(json_reply(completion("hi")))

    seen = await ask(running.url, BODY, headers=[("X-Request-Id", "mine-1")])
    await running.stop()

    assert seen.values("x-request-id") == [b"mine-1"]
    assert provider.requests[0].values("x-request-id") == [b"mine-1"]
    assert next(line for line in running.lines if line["event"] == "request")["id"] == "mine-1"


@pytest.mark.parametrize("given", [b"", b"two words", b"caf\xe9", b"x" * 129])
async def test_an_id_that_cannot_stand_in_a_log_is_replaced(
    provider: Provider, start_here: StartHere, given: bytes
) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply(completion("hi")))

    seen = await ask(proxy.url, BODY, headers=[(b"X-Request-Id", given)])

    assert re.fullmatch(rb"[0-9a-f]{32}", seen.value("x-request-id") or b"")


async def test_a_reply_that_only_passes_through_gets_no_line_of_ours(provider: Provider, start_here: StartHere) -> None:
    proxy = await start_here(Conversation())
    provider.reply(json_reply({"data": []}))

    seen = await ask(proxy.url, method="GET", target="/v1/models")

    assert seen.values("x-request-id") == seen.values("evidence-proxy") == []
