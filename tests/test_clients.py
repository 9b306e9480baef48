"""Real clients of the Responses API, end to end: through a running proxy they receive what the provider sent.

Each plays three questions with parallel tools and pictures twice, straight to the scripted provider and through the
proxy, whole and streamed; what it says it received must be the same. `make clients` installs them, apart from
everything else; where they are not installed these tests are skipped.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conftest import StartProcess
from tests.house.provider import Provider, Received, Reply, json_reply, sse_reply
from tests.house.real_clients import here, is_node, run
from tests.house.responding import item, response, response_events

CONFIG = """\
[server]
port = 0
admin_port = 0

[upstream]
base_url = "{upstream}"

[store]
uri = "memory://"

[[evidence]]
name = "kb"
format = "auto"
tools = ["search"]
cite = "cite"
"""
SUBJECTS = {1: "alpha", 2: "beta", 3: "gamma"}


# The provider's part: what it says depends on the question and on how many of its returns a request shows.


def script(question: int, step: int) -> dict[str, Any]:
    """Think and search twice at once, cite, answer."""
    subject, identity = SUBJECTS[question], f"resp_{question}_{step}"
    thought = item("reasoning", identity, summary=[])
    if step == 0:
        calls = [(f"call_{question}_{side}", "search", {"query": f"{subject}-{side}"}) for side in ("left", "right")]
        text = "Let me look." if question == 2 else None
        return response(text, calls, identity, before=[thought])
    if step == 1:
        return response(None, [(f"call_{question}_cite", "cite", {"ids": [f"{subject}-left-2"]})], identity)
    cited = {
        "type": "url_citation",
        "url": "https://kb.example/",
        "title": "x",
        "start_index": 0,
        "end_index": 1,
    }
    return response(f"Answer {question}: naïve “{subject}” 😀.", (), identity, annotations=[cited])


def position(body: dict[str, Any]) -> tuple[int, int]:
    """Which question a request belongs to, and which of its steps comes next."""
    question = step = 0
    if body.get("previous_response_id"):
        question, step = map(int, re.findall(r"\d+", body["previous_response_id"]))
        step += 1
    outputs = 0
    for value in body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]:
        found = re.search(r"Q(\d): ", json.dumps(value)) if value.get("role") == "user" else None
        if found:
            question, step, outputs = int(found[1]), 0, 0
        elif value.get("type") == "function_call_output":
            outputs += 1
    if not body.get("previous_response_id") or outputs == 0:
        step = {0: 0, 2: 1, 3: 2}[outputs]
    return question, step


def answer(received: Received) -> Reply:
    body = received.json()
    whole = script(*position(body))
    return sse_reply(response_events(whole)) if body.get("stream") else json_reply(whole)


async def played(client: str, *addresses: str) -> list[list[Any]]:
    """What the client received: for each address whole, then streamed."""
    return await run("drive.mjs" if is_node(client) else "drive.py", client, *addresses)


def carries(received: Received, text: str) -> bool:
    return text.encode() in received.body


#: Clients that show the provider's events, or whole responses, as they are.
RAW = ("openai", "agents", "openai-node")


@pytest.mark.parametrize(
    "client",
    [
        here("openai"),
        here("openai-agents", "agents"),
        here("pydantic-ai"),
        here("openai-node"),
        here("ai-sdk"),
    ],
)
async def test_promise_10_a_real_client_receives_what_the_provider_sent(
    provider: Provider, start_process: StartProcess, client: str
) -> None:
    provider.always(answer)
    proxy = await start_process(CONFIG)
    whole, streamed, whole_through, streamed_through = await played(client, provider.url, f"{proxy.url}/v1")
    assert whole_through == whole and whole
    assert streamed_through == streamed and streamed
    said = [script(question, step) for question in SUBJECTS for step in range(3)]
    if client in RAW:
        events = [json.loads(piece.split(b"data: ", 1)[1]) for one in said for piece in response_events(one)]
        seen = [event for event in streamed_through if "final" not in event]
        assert [(e["type"], e["sequence_number"]) for e in seen] == [(e["type"], e["sequence_number"]) for e in events]
        assert seen == events
        ids = [one["id"] for one in whole_through if "final" not in one]
        assert ids == [one["id"] for one in said]
    # Straight and through the proxy, each twice nine requests; pictures went up; what earlier questions cited, too.
    requests = provider.requests
    straight, through = requests[:18], requests[18:]
    assert len(through) == 18
    for plain, rewritten in zip(straight, through, strict=True):
        question, step = position(rewritten.json())
        assert (question, step) == position(plain.json())
        assert carries(plain, "iVBORw0KGgo") == carries(rewritten, "iVBORw0KGgo") == (question > 1 or step > 0)
        assert carries(rewritten, "Evidence that earlier answers cited") == (question > 1)
        if question == 1:
            assert rewritten.body == plain.body
        else:
            assert carries(plain, "Chunk 2 of alpha-right") and not carries(rewritten, "Chunk 2 of alpha-right")
            assert carries(rewritten, "Chunk 2 of alpha-left")
    await proxy.stop()  # what it has to say is said by then
    outcomes = [line["outcome"] for line in proxy.lines if line.get("event") == "request"]
    assert [outcome.split(";")[0] for outcome in outcomes] == (["untouched"] * 3 + ["compacted"] * 6) * 2


@pytest.mark.parametrize("memory", [here("openai-agents", "agents-previous"), here("openai-agents", "agents-session")])
async def test_an_agents_sdk_run_that_keeps_its_history_elsewhere_does_the_right_thing_and_says_which(
    provider: Provider, start_process: StartProcess, memory: str
) -> None:
    """`previous_response_id`: the provider has the history, and nothing is touched. A session: the client has it, and
    it is compacted."""
    provider.always(answer)
    proxy = await start_process(CONFIG)
    whole, streamed = await played(memory, f"{proxy.url}/v1")
    assert [one["final"] for one in whole if "final" in one] == [
        f"Answer {n}: naïve “{SUBJECTS[n]}” 😀." for n in SUBJECTS
    ]
    assert [one["final"] for one in streamed if "final" in one] == [one["final"] for one in whole if "final" in one]
    await proxy.stop()  # what it has to say is said by then
    outcomes = [line["outcome"] for line in proxy.lines if line.get("event") == "request"]
    if memory == "agents-session":
        assert [outcome.split(";")[0] for outcome in outcomes] == (["untouched"] * 3 + ["compacted"] * 6) * 2
        assert [outcome.split(";")[1].strip() for outcome in outcomes[3:9]] == ["question=2"] * 3 + ["question=3"] * 3
    else:
        named = [bool(received.json().get("previous_response_id")) for received in provider.requests]
        assert named.count(True) == 16
        for names_it, outcome in zip(named, outcomes, strict=True):
            assert outcome == f"untouched; reason={'server-side-history' if names_it else 'no-evidence'}"
