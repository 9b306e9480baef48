"""Real agents whose tool uses the library, through a running proxy over three questions with pictures.

What reached the provider is looked at: earlier evidence gone but for what was cited, the current question as it was.
The agents live in an environment of their own (`make clients`); where they are not installed, these tests are skipped.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.conftest import StartProcess
from tests.house.provider import Provider, Received, Reply, completion, json_reply
from tests.house.real_clients import here, is_node, run
from tests.rewrites import picture_bytes

#: How many pictures of one search this client sends on. The AI SDK puts them into a JSON string; google-adk wraps
#: what a tool returns in an object, so its tool returns the text alone.
PICTURES = {"pydantic-ai": 2, "openai-agents": 0, "langchain": 2, "google-adk": 0, "ai-sdk": 0}
#: Clients whose tools bring no labels either.
TEXT_ONLY = {"google-adk"}
SUBJECTS = ["alpha", "beta", "gamma"]
CONFIG = """\
[server]
port = 0
admin_port = 0

[upstream]
base_url = "{upstream}"

[store]
uri = "memory://"

[tags]
key_env = "EVIDENCE_TAG_KEYS"
"""


def position(body: dict[str, Any]) -> tuple[int, int]:
    """The question of a request, and how many tool messages it shows so far."""
    question = step = -1
    for message in body["messages"]:
        found = re.search(r"Q(\d): ", json.dumps(message["content"])) if message["role"] == "user" else None
        if found:
            question, step = int(found[1]) - 1, 0
        elif message["role"] == "tool":
            step += 1
    return question, step


def answer(received: Received) -> Reply:
    question, step = position(received.json())
    subject = SUBJECTS[question]
    if step == 0:
        return json_reply(completion(None, [(f"call_{question}_s", "search", {"query": subject})]))
    if step == 1:
        return json_reply(completion(None, [(f"call_{question}_c", "cite", {"ids": [f"{subject}-1"]})]))
    return json_reply(completion(f"Answer about {subject}."))


@pytest.mark.parametrize("client", [here(name) for name in PICTURES])
async def test_a_real_agents_tagged_evidence_is_compacted_and_what_it_cited_is_kept(
    provider: Provider, start_process: StartProcess, client: str
) -> None:
    provider.always(answer)
    proxy = await start_process(CONFIG, {"EVIDENCE_TAG_KEYS": "a key that only these tests have"})
    if is_node(client):
        await run("tagged.mjs", f"{proxy.url}/v1")
    else:
        await run("tagged.py", client, f"{proxy.url}/v1")

    sent = [received.json() for received in provider.requests]
    assert [position(body) for body in sent] == [(q, s) for q in range(3) for s in range(3)]
    for body in sent:
        question, step = position(body)
        texts = json.dumps(body["messages"], ensure_ascii=False)
        current = SUBJECTS[question]
        assert texts.count("[evidence 1 ") == (step > 0), "only the current question's return is as it was"
        for earlier in SUBJECTS[:question]:
            assert texts.count(f"What {earlier} says, number 1: naïve “café” 😀.") == 1
            assert f"[{earlier}-1] Source: \\" in texts and f"https://kb.example/{earlier}" in texts
            assert f"What {earlier} says, number 2" not in texts
        if step:
            assert f"What {current} says, number 2" in texts
        pictures, labels = shown(body)
        assert len(pictures) == (PICTURES[client] and question + 2 * (step > 0))
        assert len(set(pictures)) == len(pictures)
        # No label without its picture: those of earlier questions that this client dropped are gone as well.
        assert texts.count("[picture 1 ") == (0 if client in TEXT_ONLY else 2 * (step > 0))
        assert all("Picture of cited evidence" in label or "[picture 1 " in label for label in labels)
    assert len(provider.requests[-1].body) < 6000 + 3 * 400 * (PICTURES[client] > 0)


def shown(body: dict[str, Any]) -> tuple[list[bytes], list[str]]:
    """The pictures of a request, and the text directly before each."""
    pictures: list[bytes] = []
    labels: list[str] = []
    for message in body["messages"]:
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        for before, part in zip([None, *parts], parts, strict=False):
            if part["type"] == "image_url":
                pictures.append(picture_bytes(part["image_url"]["url"]))
                labels.append((before or {}).get("text", ""))
    return pictures, labels
