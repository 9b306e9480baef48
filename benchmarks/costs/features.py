"""What a host knows of its traffic, measured on a conversation: its length, how much is found and cited."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.costs.prefixes import cut, message_tokens
from benchmarks.costs.traffic import Conversation


@dataclass(frozen=True)
class Features:
    """`found` is how many tokens of evidence (pictures too) a question's searches return, on average, and `requests`
    how many requests it takes; `cited` is the share of the chunks found that an answer cites."""

    questions: int
    found: float
    cited: float
    requests: float

    @property
    def uncited(self) -> float:
        """How many of the tokens found, on average, no answer cites: what compaction can leave out."""
        return self.found * max(0.0, 1 - self.cited)


def features(conversation: Conversation) -> Features:
    """The features of a conversation."""
    last = conversation.steps[-1]
    searched: set[str] = set()
    found = 0
    chunks = cites = 0
    after_search = False
    for raw in cut(last.body)[1]:
        message = json.loads(raw)
        calls = {call["id"]: call["function"] for call in message.get("tool_calls") or ()}
        searched |= {call for call, function in calls.items() if function["name"] in ("search", "execute_code")}
        cites += sum(
            len(json.loads(f["arguments"]).get("chunk_ids", ())) for f in calls.values() if f["name"] == "cite"
        )
        is_evidence = message["role"] == "tool" and message["tool_call_id"] in searched
        is_picture = message["role"] == "user" and isinstance(message["content"], list) and after_search
        if is_evidence or is_picture:
            found += len(message_tokens(raw))
        if is_evidence:
            text = message["content"]
            chunks += text.count("[rank ") if isinstance(text, str) else sum("text" in part for part in text)
        after_search = is_evidence or is_picture
    questions = conversation.questions
    return Features(questions, found / questions, cites / max(1, chunks), len(conversation.steps) / questions)
