"""Real clients with a cite tool of their own, and a model that never cites by itself, end to end: each runs the cite
call that it is given, ends with the provider's own answer, and its next question is compacted.

`make clients` installs them; where they are not installed these tests are skipped.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from proxy.policy.redirect import TAG
from tests.conftest import StartProcess
from tests.house.provider import Provider, Received, Reply, completion, events, json_reply, sse_reply
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

[policy]
mode = "enforce"

[[evidence]]
format = "auto"
tools = ["search"]
cite = "cite"
undeclared = "receipt"
"""
SUBJECTS = {1: "alpha", 2: "beta", 3: "gamma"}
VARIANTS = [f"{api}/{how}/m/cite" for api in ("chat", "responses") for how in ("whole", "streamed")]


class Model:
    """It searches and answers, and cites only when it is asked; then it answers differently, too."""

    def __init__(self) -> None:
        self.identity = 0

    def __call__(self, received: Received) -> Reply:
        self.identity += 1
        body = received.json()
        text, calls = self.next(received.body.decode(), body)
        if "messages" in body:
            whole = completion(text, calls, identity=f"chatcmpl-{self.identity}")
            return sse_reply(events(whole)) if body.get("stream") else json_reply(whole)
        thought = [item("reasoning", f"{self.identity}", summary=[])]
        whole = response(text, calls, f"resp_{self.identity}", before=thought)
        return sse_reply(response_events(whole)) if body.get("stream") else json_reply(whole)

    def next(self, sent: str, body: dict[str, Any]) -> tuple[str | None, list[tuple[str, str, Any]]]:
        question = max(int(number) for number in re.findall(r"Q(\d): ", sent))
        subject = SUBJECTS[question]
        if TAG in sent:
            return "Or was it otherwise?", [(f"c_{self.identity}", "cite", {"ids": [f"{subject}-2"]})]
        if f"Chunk 1 of {subject}" in sent:
            return answer_to(question), []
        return None, [(f"s_{self.identity}", "search", {"query": subject})]


def answer_to(question: int) -> str:
    return f"Answer {question}: naïve “{SUBJECTS[question]}” 😀."


@pytest.mark.parametrize(
    "client", [here(name) for name in ("openai", "pydantic-ai", "openai-agents", "langchain", "ai-sdk")]
)
async def test_a_client_runs_its_cite_tool_and_ends_with_the_providers_own_answer(
    provider: Provider, start_process: StartProcess, client: str
) -> None:
    provider.always(Model())
    proxy = await start_process(CONFIG)

    script = "toolless.mjs" if is_node(client) else "toolless.py"
    told = await run(script, client, f"{proxy.url}/v1", *VARIANTS)

    each = [{"answer": answer_to(question), "calls": ["search", "cite"]} for question in SUBJECTS]
    assert told == [each] * len(VARIANTS)
    await proxy.stop()  # what it has to say is said by then
    outcomes = [line["outcome"] for line in proxy.lines if line.get("event") == "request"]
    assert len(outcomes) == 9 * len(VARIANTS), "a search, a cite call and an answer for each question"
    for at in range(0, len(outcomes), 9):
        kinds = [outcome.split(";")[0] for outcome in outcomes[at : at + 9]]
        assert kinds == ["untouched"] * 3 + ["compacted"] * 6
        assert re.findall(r"(question|capsule)=(\d+)", outcomes[at + 8]) == [("question", "3"), ("capsule", "2")]
    # Each question: a search, an answer, and one request of ours; the held answer cost none.
    assert len(provider.requests) == 9 * len(VARIANTS)
    assert sum(TAG.encode() in received.body for received in provider.requests) == 3 * len(VARIANTS)
    for received in provider.requests:
        body = received.body.decode()
        assert "Or was it otherwise?" not in body, "what the model said beside its citation reached a history"
        if "Q3: " in body:
            assert "Chunk 2 of alpha" in body and "Chunk 1 of alpha" not in body
