"""haiku.rag's citation policy as the judge: which questions it asked to declare, which it counts as violations, what
they declared (arm P), against what this proxy does for an agent without any policy of its own.

haiku.rag puts its request and the answer that the model repeats into the client's history; ours shows neither. What may
differ beside that is named here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxy.ledger import records
from proxy.policy import redirect
from tests.captures import CAPTURES, each
from tests.conftest import StartHere
from tests.house.agent import Agent, reply
from tests.house.provider import Provider, Received
from tests.house.watching import Listening

EVIDENCE = [{"name": "kb", "format": "haiku"}]
THEIR_TAG = "[haiku.rag/citation-redirect]"

#: Where ours does something else, and why.
DIFFERENCES = {
    (
        "s14",
        1,
    ): "its tool is still offered, and only the agent knows that its grace is spent: asked, and a violation too",
    ("s21b", 1): "haiku.rag fails in a host that streams; ours asks, and the host never notices",
    ("s21b", 2): "haiku.rag fails in a host that streams; ours asks, and the host never notices",
}


@dataclass(frozen=True)
class Verdict:
    """What became of one question: whether it was asked, whether it is a violation, and what it declared (None: it did
    not, or was not obliged to)."""

    asked: bool
    violated: bool
    declared: frozenset[str] | None


@dataclass
class Captured:
    """A scenario with a policy: what its host asked, what the model was scripted to say, and haiku.rag's verdicts."""

    name: str
    meta: dict[str, Any] = field(init=False)
    bodies: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        place = CAPTURES / "haiku" / self.name
        self.meta = json.loads((place / "meta.json").read_bytes())
        count = max(number for run in self.runs for number in run["requests"])
        self.bodies = [json.loads((place / f"P-{number}.json").read_bytes()) for number in range(1, count + 1)]

    @property
    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.meta["arms"]["P"]["runs"]
        return found

    def verdicts(self) -> list[Verdict]:
        found: list[Verdict] = []
        known: list[int] = []
        for run in self.runs:
            last = self.bodies[run["requests"][-1] - 1]["messages"]
            first = self.bodies[run["requests"][0] - 1]["messages"]
            asked = any(THEIR_TAG in str(message.get("content")) for message in last[len(first) :])
            state = run["state_after"]
            violations = state["citation_policy"]["violations"]
            declared = state["rag"]["evidence"]["declaration"]
            refs = frozenset(ref["chunk_id"] for ref in declared["refs"]) if declared is not None else None
            found.append(Verdict(asked, len(violations) > len(known), refs))
            known = violations
        return found

    def returned(self, name: str, arguments: str) -> str:
        """What a tool said to a call with these arguments."""
        for body in reversed(self.bodies):
            answers = {m["tool_call_id"]: m["content"] for m in body["messages"] if m["role"] == "tool"}
            for message in body["messages"]:
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    same = function["name"] == name and json.loads(function["arguments"]) == json.loads(arguments)
                    if same and call["id"] in answers:
                        said = answers[call["id"]]
                        return said if isinstance(said, str) else json.dumps(said)
        assert name == "cite", f"{name}({arguments}) was never called"
        return "Registered 1 citation(s)."  # in a host that failed before its model could cite


def scripted(parts: list[dict[str, Any]], number: Iterator[int], streamed: bool) -> Any:
    text = "".join(part["text"] for part in parts if part["kind"] == "text") or None
    calls = [(f"call_{next(number)}", p["name"], p["args"]) for p in parts if p["kind"] == "call"]
    return reply("chat", streamed, text, calls)


class Host(Agent):
    """An agent with haiku.rag's tools and without its policy."""

    def body(self) -> dict[str, Any]:
        body = {**self.beside, "messages": self.history}
        return {**body, "stream": True} if self.streamed else body


async def ours(captured: Captured, provider: Provider, start_here: StartHere, streamed: bool) -> list[Verdict]:
    listening = Listening()
    proxy = await start_here(watcher=listening, evidence=EVIDENCE, policy={"mode": "enforce"})
    host = Host(proxy.url, "chat", streamed)
    host.history = [m for m in captured.bodies[0]["messages"] if m["role"] == "system"]
    number = iter(range(1000))
    found: list[Verdict] = []
    for question, run in zip(captured.meta["questions"], captured.runs, strict=True):
        script, after = list(question["script"]), list(question["after_redirect"])

        def model(asked: Received, script: Any = script, after: Any = after) -> Any:
            ours = redirect.TAG.encode() in asked.body
            return scripted((after if ours else script).pop(0), number, streamed and not ours)

        provider.always(model)
        before = len(provider.requests)
        host.history.append({"role": "user", "content": question["host_prompt"]})
        while True:
            step = min(len(question["script"]) - len(script), len(question["script"]) - 1)
            shown = captured.bodies[run["requests"][step] - 1]
            host.beside = {name: value for name, value in shown.items() if name not in ("messages", "stream")}
            said = await host.send()
            if not said.calls:
                break
            for call in said.calls:
                host.returns(call, captured.returned(call.name, call.arguments))
        assert said.text == next(part["text"] for part in question["script"][-1] if part["kind"] == "text")
        told = await listening.told(len(listening.arrivals))
        written = [p for one in told[-1:] if one.conversed is not None for p in one.conversed.settled]
        record = records.decode(written[0]) if written else None
        asks = [one for one in provider.requests[before:] if redirect.TAG.encode() in one.body]
        assert len(asks) <= 1
        owed = record is not None and record.verdict is not None
        declared = None
        if record is not None and owed and record.declaration != "missing":
            declared = frozenset(entry.id for entry in record.cited if entry.group == record.ordinal)
        violated = record is not None and record.verdict is not None and record.verdict.violation is not None
        found.append(Verdict(bool(asks), violated, declared))
    assert redirect.TAG not in json.dumps(host.history) and THEIR_TAG not in json.dumps(host.history)
    answers = [m["content"] for m in host.history if m["role"] == "assistant" and not m.get("tool_calls")]
    assert len(answers) == len(found), "an answer stands twice in the history"
    return found


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", each(["s11", "s11b", "s12", "s13", "s14", "s14c", "s21b"]))
async def test_the_same_questions_are_asked_violated_and_left_alone(
    provider: Provider, start_here: StartHere, name: str, streamed: bool
) -> None:
    captured = Captured(name)
    theirs, done = captured.verdicts(), await ours(captured, provider, start_here, streamed)
    for number, (judge, verdict) in enumerate(zip(theirs, done, strict=True), 1):
        if (name, number) in DIFFERENCES:
            assert verdict != judge, f"not needed: {DIFFERENCES[name, number]}"
            assert verdict.asked and verdict.violated is judge.violated
            assert verdict.violated is (verdict.declared is None)
        else:
            assert verdict == judge, f"question {number}"
