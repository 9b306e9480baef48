"""Conversations in three lines, for the tests of the pure rooms: messages, what settles them, what goes up next."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.compaction.rewrite import Rewrite, rewrite
from proxy.evidence.tables import Table
from proxy.ledger import settling
from proxy.ledger.notes import Noted
from proxy.ledger.questions import Habits
from proxy.ledger.records import Record
from proxy.ledger.transcript import Transcript
from proxy.ledger.transcript import read as read_transcript
from proxy.wire import chat
from proxy.wire.messages import Call, Picture, Reply, splice

HABITS = Habits()
AUTO = Table("kb", "auto", frozenset({"search"}), "cite")
MANAGED = Table("kb", "auto", frozenset({"search"}), "managed")
INLINE = Table("kb", "auto", frozenset({"search"}), "inline")
HAIKU = Table("kb", "haiku", frozenset({"search", "execute_code"}), "cite", undeclared="receipt")

Json = dict[str, Any]


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def says(text: str | None) -> Json:
    return {"role": "assistant", "content": text}


def calls(*made: tuple[str, str, Any]) -> Json:
    """A reply that calls tools: (id, name, arguments as a value or as the text that stands on the wire)."""
    written = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)}}
        for i, n, a in made
    ]
    return {"role": "assistant", "content": None, "tool_calls": written}


def returns(call_id: str, content: Any) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def searched(content: Any, call_id: str = "s") -> list[Json]:
    """A search and its return."""
    return [calls((call_id, "search", {"q": call_id})), returns(call_id, content)]


def cited(ids: Any, answer: str = "registered", call_id: str = "c") -> list[Json]:
    """A cite call and its return."""
    return [calls((call_id, "cite", {"ids": ids})), returns(call_id, answer)]


def body(*messages: Json, **beside: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **beside}).encode()


def transcript(*messages: Json) -> Transcript:
    return read_transcript(chat.cut(body(*messages)))


def settled(
    *messages: Json,
    answer: str = "the answer",
    made: tuple[Call, ...] = (),
    tables: tuple[Table, ...] = (AUTO,),
    before: Record | None = None,
    from_reply: int = 0,
    question_id: str | None = None,
    noted: tuple[Noted, ...] = (),
) -> Record:
    """The record of a question that this answer settled."""
    return settling.settle(
        transcript(*messages),
        Reply(answer, made, "stop"),
        previous=before,
        from_reply=from_reply,
        tables=tables,
        habits=HABITS,
        question_id=question_id,
        noted=noted,
    )


@dataclass(frozen=True)
class Sent:
    """What a rewrite made of a request."""

    done: Rewrite
    raw: bytes

    @property
    def messages(self) -> list[Json]:
        return list(json.loads(self.raw)["messages"])

    @property
    def returns(self) -> list[Any]:
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    def shows(self, text: str) -> bool:
        """Whether a text still stands anywhere in what goes up."""
        return text in json.dumps(self.messages, ensure_ascii=False)


def rewritten(
    *messages: Json,
    record: Record,
    tables: tuple[Table, ...] = (AUTO,),
    decodes: Callable[[Picture], bool] = lambda _: True,
) -> Sent:
    """What goes up instead of these messages, by a record."""
    raw = body(*messages)
    done = rewrite(read_transcript(chat.cut(raw)), record, tables, decodes)
    return Sent(done, splice(raw, done.splices))


def asked_next(
    *messages: Json,
    tables: tuple[Table, ...] = (AUTO,),
    answer: str = "the answer",
    made: tuple[Call, ...] = (),
    noted: tuple[Noted, ...] = (),
) -> tuple[Record, Sent]:
    """Settle these messages as one question, and see what goes up when the next one is asked."""
    record = settled(*messages, tables=tables, answer=answer, made=made, noted=noted)
    return record, rewritten(*messages, says(answer), user("next"), record=record, tables=tables)


def ids_of(record: Record) -> list[str]:
    return [entry.id for entry in record.cited]


def grows_gently(work: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Whether four times the input takes less than nine times the steps (linear: 4, quadratic: 16).

    Steps are calls, of Python's and of C's functions: they are the same on every machine. What goes on inside one call
    (a pattern that backtracks) is not counted; sixteen times the input shows that: it would not end within the suite's
    time limit.
    """

    def steps(n: int) -> int:
        run, seen = work(n), 0

        def count(*_: object) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(count)
        try:
            run()
        finally:
            sys.setprofile(None)
        return seen

    work(16 * size)()
    return steps(4 * size) < 9 * max(steps(size), 50)
