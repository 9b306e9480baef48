"""The watcher behind the inspector: it hears of each request, looks at it on a thread of its own, and keeps that.

A request is listed as it passes, and looked at when there is time (`leisure`). What waits for that is bounded, and so
is all that is kept: past that a request is listed without its messages, which `left_out` counts, or forgotten.
Everything but the looking happens on the event loop.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy.gateway.watched import Arrived, Passed
from proxy.ledger.questions import Habits
from proxy.visibility import accounts, logs
from proxy.visibility.inspector.kept import Blobs, Row, Rows, packed, unpacked
from proxy.visibility.inspector.looking import Looked, Looking, line_bytes, opened
from proxy.visibility.leisure import Leisure, Turn
from proxy.wire.messages import Message

if TYPE_CHECKING:
    from proxy.settings import Settings
    from proxy.visibility.counting import Counted
    from proxy.visibility.totals import Tally

_MOST_WAITING = 512
_MOST_WAITING_BYTES = 128 * 1024 * 1024
_MOST_LISTENERS = 32
_MOST_UNHEARD = 512
_MOST_QUESTIONS = 400
_STATE_EVERY = 0.25
#: How long somebody who wants to see what passed waits for it to be looked at, in seconds.
_CATCHES_UP = 1.0

#: What a listener hears: the name of an event, and its data.
Event = tuple[str, Any]


class Listener:
    """A page that is open: what it has not heard yet. One that cannot keep up is told to begin anew."""

    def __init__(self) -> None:
        self._unheard: asyncio.Queue[Event] = asyncio.Queue(_MOST_UNHEARD)

    def tell(self, event: Event) -> None:
        if self._unheard.full():
            while not self._unheard.empty():
                self._unheard.get_nowait()
            event = ("anew", None)
        self._unheard.put_nowait(event)

    async def hear(self) -> Event:
        """The next event."""
        return await self._unheard.get()


@dataclass(slots=True)
class _Waiting:
    """A request that is to be looked at; None once it waits no longer, which `left` tells whoever waits for that."""

    since: float
    size: int
    row: Row
    request: Passed | None
    left: asyncio.Event | None = None


class Inspector:
    """One per process, made on its event loop. `left_out` counts requests that it had no time or room to look at."""

    def __init__(self, settings: Settings, tally: Tally, leisure: Leisure | None = None) -> None:
        """`tally` adds up the same requests, and hears of each before this does; so does `leisure`, without which
        there is always time."""
        given = settings.inspector
        habits = Habits(
            output_tools=frozenset(settings.policy.output_tools),
            continuation_prefixes=tuple(settings.policy.continuation_prefixes),
        )
        self.content = given.content
        self._tally = tally
        self._rows = Rows(given.requests)
        self._blobs = Blobs(given.memory_bytes)
        self._looking = Looking(habits, given.content)
        self._loop = asyncio.get_running_loop()
        self._listeners: set[Listener] = set()
        self._underway = 0
        self._serial = 0
        self.left_out = 0
        self._leisure = leisure or Leisure()
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._inside: dict[int, _Waiting] = {}
        self._bytes = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._telling: asyncio.TimerHandle | None = None
        self._opened: tuple[int, tuple[bytes, dict[int, bytes]]] | None = None

    # What it hears.

    def arrived(self, request: Arrived) -> Sequence[tuple[bytes, bytes]]:
        if request.api is not None:
            self._underway += 1
        return ()

    def passed(self, request: Passed) -> None:
        if request.arrived.api is None:
            return
        self._underway -= 1
        brief = self._looking.brief(request)
        self._serial = serial = self._serial + 1
        row: Row = {"serial": serial, "id": brief.id, "conversation": None, "tokens": None, "brief": brief}
        told = request.conversed
        if told is not None and told.was_read:
            size = len(told.came)
            if len(self._inside) >= _MOST_WAITING or self._bytes + size > _MOST_WAITING_BYTES:
                self.left_out += 1
                row["left_out"] = True
            else:
                self._look_later(_Waiting(time.monotonic(), size, row, request))
        gone = self._rows.add(row)
        if gone is not None:
            self._forget(gone)
        if self._listeners:
            self._tell_of(row)

    def counted(self, counted: Counted) -> None:
        """Tokens come later than their request. A listener of `Counting`."""
        row = self._rows.called(counted.passed.arrived.id)
        if row is None:
            return
        row["tokens"] = {
            "before": counted.before.total,
            "after": counted.after.total,
            "estimated": not counted.before.known or counted.before.pictures > 0,
        }
        if self._listeners:
            self._tell_of(row)

    async def caught_up(self) -> None:
        """Somebody wants to see what passed: wait until it was looked at, though not for long."""
        last = next(reversed(self._inside.values()), None)
        if last is not None:
            self._leisure.hurry()
            left = last.left = last.left or asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CATCHES_UP):
                    await left.wait()

    def forget(self) -> None:
        """Something was erased, and nobody says what: what was said is shown no more. That there were requests is."""
        self._blobs.clear()
        self._opened = None
        if not self.content:
            return
        for row in self._rows:
            if "title" in row:
                row["title"] = None
            if (brief := row.get("brief")) is not None:
                row["brief"] = brief._replace(title=None)

    async def idle(self) -> None:
        """Wait until everything that passed was looked at."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let the thread end. What still waits is not looked at."""
        if self._telling is not None:
            self._telling.cancel()
        self._closed = True
        if self._thread is not None:
            self._leisure.hurry()
            self._waiting.put(None)
            await asyncio.to_thread(self._thread.join, 1.0)

    # What it tells.

    def listen(self) -> Listener | None:
        """A new listener, or None where there are too many."""
        if len(self._listeners) >= _MOST_LISTENERS:
            return None
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def state(self) -> dict[str, Any]:
        """Totals, and how much is kept."""
        return {
            **accounts.totals(self._tally.totals()),
            "underway": self._underway,
            "kept": len(self._rows),
            "conversations": self._rows.conversations(),
            "left_out": self.left_out,
            "memory_bytes": self._blobs.size,
            "content": self.content,
        }

    def newest(self, most: int, before: int | None = None) -> list[Row]:
        """So many requests, newest first."""
        return [self._shown(row) for row in self._rows.newest(most, before)]

    def conversation(self, name: str) -> dict[str, Any] | None:
        """A conversation: its requests, oldest first, and its questions; None where nothing of it is kept."""
        rows = [self._shown(row) for row in self._rows.conversation(name)]
        if not rows:
            return None
        questions = unpacked(self._blobs.get("questions", name)) or {}
        return {
            "id": name,
            "title": next((row["title"] for row in reversed(rows) if row["title"]), None),
            "tenant": rows[-1]["tenant"],
            "requests": rows,
            "questions": [questions[key] for key in sorted(questions, key=int)],
        }

    def request(self, serial: int) -> dict[str, Any] | None:
        """A request, message by message; without its messages where those are no longer kept."""
        row = self._rows.get(serial)
        if row is None:
            return None
        detail = unpacked(self._blobs.get("detail", str(serial))) or {"messages": None, "questions": []}
        shown = self.content and self._blobs.get("content", str(serial)) is not None
        return {"row": self._shown(row), **detail, "content": shown}

    async def line(self, serial: int, number: int, went: bool) -> list[Message] | None:
        """What stands in one line of a request; None where content is not shown, or no longer kept."""
        row = self._rows.get(serial)
        blob = self._blobs.get("content", str(serial)) if self.content else None
        detail = unpacked(self._blobs.get("detail", str(serial)))
        if row is None or blob is None or detail is None or not 0 <= number < len(detail["messages"]):
            return None
        if self._opened is None or self._opened[0] != serial:
            self._opened = (serial, await asyncio.to_thread(opened, blob))
        raw = line_bytes(self._opened[1], number, detail["messages"][number]["span"], went)
        return await asyncio.to_thread(_messages, self._shown(row)["api"], raw)

    def _shown(self, row: Row) -> Row:
        """A row as it is shown. One that was not looked at is only made now."""
        brief = row.pop("brief", None)
        if brief is not None:
            row.update({**self._looking.row(brief), **row})
        return row

    # Looking.

    def _look_later(self, waiting: _Waiting) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="evidence-inspector", daemon=True)
            self._thread.start()
        self._inside[waiting.row["serial"]] = waiting
        self._bytes += waiting.size
        self._idle.clear()
        self._waiting.put(waiting)

    def _work(self) -> None:
        turn = self._leisure.turn()
        while self._one(turn):
            pass

    def _one(self, turn: Turn) -> bool:
        """Wait for a request and look at it; False at the end. While it waits it holds no request: bodies are large."""
        waiting = self._waiting.get()
        if waiting is None:
            return False
        with turn.since(waiting.since):
            request = waiting.request
            if self._closed:
                return False
            if request is None:
                return True
            looked = None
            try:
                looked = self._looking.look(request)
                self._note_questions(looked.row["conversation"], looked.questions)
            except Exception as fault:
                logs.fault("inspector-failed", fault, id=request.arrived.id)
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._done, waiting, looked)
        return True

    def _done(self, waiting: _Waiting, looked: Looked | None) -> None:
        if waiting.request is not None:
            self._leave(waiting)
            if looked is not None:
                self._seen(waiting.row, looked)

    def _leave(self, waiting: _Waiting) -> None:
        """A request waits no longer."""
        waiting.request = None
        if waiting.left is not None:
            waiting.left.set()
        self._bytes -= waiting.size
        del self._inside[waiting.row["serial"]]
        if not self._inside:
            self._idle.set()

    def _seen(self, row: Row, looked: Looked) -> None:
        """What was seen of a request whose row is kept."""
        row.pop("brief", None)
        conversation = looked.row["conversation"]
        row.update({**looked.row, "tokens": row["tokens"]})
        if conversation is not None:
            self._rows.belongs(row, conversation)
        name = str(row["serial"])
        if looked.detail is not None:
            row["detail"] = self._blobs.put("detail", name, looked.detail)
        if looked.content is not None:
            self._blobs.put("content", name, looked.content)
        if self._listeners:
            self._tell_of(row)

    def _forget(self, gone: Row) -> None:
        """All else that is kept of a request whose row had to go."""
        serial = gone["serial"]
        waiting = self._inside.get(serial)
        if waiting is not None:
            self._leave(waiting)
            self.left_out += 1
        if "detail" in gone:
            self._blobs.drop("detail", str(serial))
            self._blobs.drop("content", str(serial))
        conversation = gone["conversation"]
        if conversation is not None and not self._rows.has(conversation):
            self._blobs.drop("questions", conversation)

    def _tell_of(self, row: Row) -> None:
        self._tell(("request", self._shown(row)))
        if self._telling is None:
            self._telling = self._loop.call_later(_STATE_EVERY, self._tell_state)

    def _tell_state(self) -> None:
        """Totals change with each request; pages are told a few times a second."""
        self._telling = None
        self._tell(("state", self.state()))

    def _note_questions(self, conversation: str | None, questions: dict[int, dict[str, Any]]) -> None:
        """What is known of a conversation's questions, with what this request adds."""
        if conversation is None or not questions:
            return
        known: dict[str, dict[str, Any]] = unpacked(self._blobs.get("questions", conversation)) or {}
        for number, told in questions.items():
            before = known.get(str(number), {})
            # What a record said stays known, also where a later request no longer shows it.
            kept = {key: value if value not in (None, []) else before.get(key, value) for key, value in told.items()}
            known[str(number)] = kept
        newest = sorted(known, key=int)[-_MOST_QUESTIONS:]
        self._blobs.put("questions", conversation, packed({key: known[key] for key in newest}))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener.tell(event)


def _messages(api: str, raw: bytes) -> list[Message]:
    from proxy.compaction.account import messages_of
    from proxy.wire import chat, responses

    return list(messages_of(chat if api == "chat" else responses, raw))
