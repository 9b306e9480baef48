"""Real clients that have no cite tool, end to end: each ends with the provider's own answer, and sees no call that it
does not know. Those that have a step limit are at it: one more request would be too many.

`make clients` installs them; where they are not installed these tests are skipped.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from proxy.policy.cite_tool import NAME
from proxy.policy.redirect import TAG
from tests.conftest import StartProcess
from tests.house.provider import Provider, Received, Reply, completion, events, json_reply, sse_reply
from tests.house.real_clients import here, is_node, run
from tests.house.responding import item, response, response_events
from tests.house.toolless import went_up

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
cite = "managed"
"""
SUBJECTS = {1: "alpha", 2: "beta", 3: "gamma"}


class Model:
    """The provider's part: it searches, and answers. The model `cites` does so by itself before its answer (and once,
    in vain, beside its search); the model `asked` only when it is asked."""

    def __init__(self) -> None:
        self.identity = 0

    def __call__(self, received: Received) -> Reply:
        self.identity += 1
        body = received.json()
        text, calls = self.next(went_up(received)["messages"], body["model"] == "cites")
        if "messages" in body:
            whole = completion(text, calls, identity=f"chatcmpl-{self.identity}")
            return sse_reply(events(whole)) if body.get("stream") else json_reply(whole)
        thought = [item("reasoning", f"{self.identity}", summary=[])]
        whole = response(text, calls, f"resp_{self.identity}", before=thought)
        return sse_reply(response_events(whole)) if body.get("stream") else json_reply(whole)

    def next(self, messages: list[dict[str, Any]], cites: bool) -> tuple[str | None, list[tuple[str, str, Any]]]:
        opened = max(
            i for i, m in enumerate(messages) if m["role"] == "user" and re.search(r"Q\d: ", str(m["content"]))
        )
        question = int(re.search(r"Q(\d): ", str(messages[opened]["content"]))[1])  # type: ignore[index]
        subject = SUBJECTS[question]
        cite = (f"own_{question}", NAME, {"ids": [f"{subject}-2"]})
        if TAG in str(messages[-1]["content"]):
            return "I said so.", [cite]
        returned = [m["tool_call_id"] for m in messages[opened:] if m["role"] == "tool"]
        if not returned:
            beside = [(f"early_{question}", NAME, {"ids": []})] if cites else []
            return None, [(f"s_{question}", "search", {"query": subject}), *beside]
        if cites and f"own_{question}" not in returned:
            return None, [cite]
        return answer_to(question), []


def answer_to(question: int) -> str:
    return f"Answer {question}: naïve “{SUBJECTS[question]}” 😀."


VARIANTS = [
    f"{api}/{how}/{model}"
    for api in ("chat", "responses")
    for how in ("whole", "streamed")
    for model in ("cites", "asked")
]


@pytest.mark.parametrize(
    "client", [here(name) for name in ("openai", "pydantic-ai", "openai-agents", "langchain", "ai-sdk")]
)
async def test_a_client_without_a_cite_tool_ends_with_the_answer_and_the_next_question_is_compacted(
    provider: Provider, start_process: StartProcess, client: str
) -> None:
    provider.always(Model())
    proxy = await start_process(CONFIG)

    script = "toolless.mjs" if is_node(client) else "toolless.py"
    told = await run(script, client, f"{proxy.url}/v1", *VARIANTS)

    assert told == [[{"answer": answer_to(question), "calls": ["search"]} for question in SUBJECTS]] * len(VARIANTS)
    await proxy.stop()  # what it has to say is said by then
    outcomes = [line["outcome"] for line in proxy.lines if line.get("event") == "request"]
    assert len(outcomes) == 6 * len(VARIANTS), "two requests for each question, whatever was asked beside them"
    for at in range(0, len(outcomes), 6):
        figures = [re.findall(r"(question|capsule|receipts)=(\d+)", outcome) for outcome in outcomes[at : at + 6]]
        kinds = [outcome.split(";")[0] for outcome in outcomes[at : at + 6]]
        assert kinds == ["untouched"] * 2 + ["compacted"] * 4
        assert figures[-1] == [("question", "3"), ("capsule", "2"), ("receipts", "1")]
    for received in provider.requests:
        body = received.body.decode()
        if "Q3: " in body:
            assert "Chunk 2 of alpha" in body and "Chunk 1 of alpha" not in body
            assert "Chunk 2 of beta" in body and "Chunk 1 of beta" not in body
    asked = [received.json()["model"] for received in provider.requests if TAG.encode() in received.body]
    assert asked == ["asked"] * (3 * len(VARIANTS) // 2)
