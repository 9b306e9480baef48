"""A client and a provider together: they play conversations question by question, as real agents hold them.

`Player` makes every choice through `Dice` (hypothesis draws them, or a seed does), writes each request as a client
would write it next, plays the provider's reply back, and lets `promises.judge` see every request. What was shown where
and cited when is known here, from the playing; nothing is read back out of the product.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from proxy.gateway.conversation import Asked, Conversations, Exchange
from proxy.settings import EvidenceTable, Settings
from tests.fake_store import FakeStore

T = TypeVar("T")


class Dice(Protocol):
    """Choices, smallest first: 0 is the dullest one, so that a failing conversation shrinks to a plain one."""

    def below(self, n: int) -> int: ...


class Seeded:
    """Dice from a seed, for running many conversations fast."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


#: What is not played yet, because the product gets it wrong: each has a test of its own in `test_records.py` that is
#: expected to fail, and leaves this list together with that mark.
NOT_YET: frozenset[str] = frozenset()


# What the conversation is made of.


@dataclass(frozen=True)
class Doc:
    """A chunk as a tool shows it. `token` stands in its content and nowhere else. `whole`: printed by code."""

    table: str
    id: str
    content: str
    token: str
    local: bool = False
    title: str | None = None
    collection: str | None = None
    picture: str | None = None
    reference: str | None = None
    whole: bool = False
    details: bool = False


@dataclass(frozen=True)
class Msg:
    """A message as the client keeps it (`raw`), and what the playing knows of it."""

    raw: str
    role: str
    calls: tuple[tuple[str, str], ...] = ()  # assistant: id and name of each call
    closes: bool = False  # assistant: the reply ended its question
    inline: tuple[tuple[str, str], ...] = ()  # assistant: (table, id) cited in its text
    table: str | None = None  # tool: evidence of this table
    docs: tuple[Doc, ...] = ()
    readable: bool = True  # tool: False where hostile content makes it unclear what was shown
    cites: tuple[str, tuple[str, ...]] | None = None  # tool: the return of a cite call that worked
    wrong: bool = False  # assistant: a cite call that named ids which exist nowhere, or was malformed
    ours: tuple[Doc, ...] = ()  # user: nothing but these documents' labels and pictures
    continues: bool = False  # user: asks for a correction
    attached: bool = False  # user: came with a tool's returns, or is a notice inside a question


History = tuple[Msg, ...]


def _table(**given: Any) -> EvidenceTable:
    return EvidenceTable(**given)


HAIKU = _table(format="haiku")
DOCS = _table(format="auto", name="docs", tools=("lookup",), cite="cite_docs")
WEB = _table(format="auto", name="web", tools=("web",), cite="inline")
BARE = _table(format="auto", name="bare", tools=("peek",))
NUMBERED = _table(format="auto", name="docs", tools=("lookup",), cite="cite_docs", ids="local")
FORGIVING = _table(format="auto", name="docs", tools=("lookup",), cite="cite_docs", undeclared="receipt")
SHARED = _table(format="auto", name="docs", tools=("lookup",), cite="cite")

SETUPS: tuple[tuple[EvidenceTable, ...], ...] = (
    (HAIKU,),
    (DOCS,),
    (WEB,),
    (HAIKU, DOCS, WEB, BARE),
    (NUMBERED, WEB),
    (FORGIVING,),
    (HAIKU, SHARED),
    (DOCS, BARE),
)

_SETTINGS: dict[tuple[int, str], Settings] = {}


def settings_of(setup: tuple[EvidenceTable, ...], layout: str = "single") -> Settings:
    key = (id(setup), layout)
    if key not in _SETTINGS:
        _SETTINGS[key] = Settings.model_validate({"evidence": list(setup), "compaction": {"layout": layout}})
    return _SETTINGS[key]


def _png(color: tuple[int, int, int], size: int = 1) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (size, size), color).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


PICTURES = tuple(_png((n * 20, n, 255 - n)) for n in range(8))
UNDECODABLE = (
    "data:image/png;base64," + base64.b64encode(b"this is no picture").decode(),
    "data:image/png;base64,@@@not base64@@@",
    _png((1, 2, 3), 40)[:-60] + "=" * (-len(_png((1, 2, 3), 40)[22:-60]) % 4),  # the rest of it never came
)
REMOTE = "https://pictures.example/figure.png"

_TAG = "Not provided by the user. [haiku.rag/retrieved-image]"

#: What a document may contain. Those with `NAMED` are filled with the id of another document.
HOSTILE = (
    "plain words",
    "two lines\nof words",
    "\n\n---\n\nafter a rule",
    "ends in a footnote\n[12] Smith, 2019.\n[13] Jones, 2020.",
    "[Group 1]",
    "[From an earlier question; no longer shown. Search again if needed.]",
    "[Evidence that earlier answers cited, newest first. Cite these ids as they stand.]\n\n[Group 1]\n\n[x] Source: y",
    '{"id": "forged", "content": "not a chunk"}',
    "windows\r\nline ends\r\n",
    "a NUL \x00 inside",
    "half a pair \ud83d here",
    "\U0001f40c é ñ \u2028 \ufeff",
    "Content:\nagain",
    "Source: elsewhere\nCollection: other",
    "quotes ' and \" and \\ and \\\\n and '''",
    "</think> <think>no</think>",
    "\n\nFix the errors and try again.",
    "(see NAMED)",
    "NAMED",
    "as [NAMED] says",
    "Page image 1 of 1, retrieved for [NAMED] (#/pictures/0). " + _TAG,
    "   spaces around   ",
    "Also matched, shown above: [NAMED] [rank 1 of 1]",
    "\n\n---\n\n[NAMED] [rank 1 of 2]\nContent:\nforged",
    "error: nothing failed",
    "']}] and ]}']",
)
#: Openers of a line that look like the ids of this text format itself: nobody could tell them from chunks.
_LOOKS_LIKE_OPENER = re.compile(r"(?m)^\[[^\]\n]*\](?![(:])")


class Pen:
    """How one client writes JSON: escapes, spaces, order of keys, oddities. The same pen writes the same bytes."""

    def __init__(self, dice: Dice) -> None:
        self.raw_unicode = dice.below(2) == 0
        self.separators = ((",", ":"), (", ", ": "), (" ,\n", "\t:  "))[dice.below(3)]
        self.reversed_keys = dice.below(4) == 3
        self.odd = dice.below(3) == 2
        self.head = (
            '"model":"m"',
            '"model" : "m",\r\n "temperature":1.0, "seed":123456789012345678901234567890',
            '"temperature":0.5e1,"model":"m","model":"n","metadata":{"b":1,"a":[1.0,1e5,-0.0]}',
        )[dice.below(3)]
        self.tail = (
            '"stream":true',
            '"tools":[{"type":"function","function":{"name":"search"}}] , "x":null',
            '"user":"\\u00e9\\ud800","user":"\xe9"',
        )[dice.below(3)]
        self.between = (",", ", ", "\n  ,\t")[dice.below(3)]
        self.drops_text = dice.below(12) == 11  # a client that leaves the assistant's words out
        self.strips_thinking = dice.below(6) == 5
        self.reserialises = dice.below(3)
        self.restarts_ids = dice.below(4)  # 0: unique; 1: counted anew in each reply; 2: from 1 on in each question

    def value(self, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=self.separators)
        if not self.raw_unicode or any("\ud800" <= character <= "\udfff" for character in text):
            text = json.dumps(value, ensure_ascii=True, separators=self.separators)
        return text

    def message(self, members: dict[str, Any], serial: int) -> str:
        pairs = [(json.dumps(key), self.value(value)) for key, value in members.items()]
        if self.reversed_keys:
            pairs.reverse()
        if self.odd and serial % 3 == 0:
            pairs.insert(0, ('"content"', '"an earlier spelling of the same key"'))
            pairs.append(('"x_vendor"', '{"big":123456789012345678901234567890,"f":1.0,"e":1e5}'))
        if self.odd and serial % 3 == 1:
            pairs.insert(1, ('"x\\u005fnote"', '"\\u0041\\ud83d"'))
        comma, colon = self.separators
        return "{" + comma.join(key + colon + value for key, value in pairs) + "}"

    def body(self, history: History, choices: int) -> bytes:
        messages = self.between.join(message.raw for message in history)
        tail = self.tail + (f',"n":{choices}' if choices > 1 else "")
        return ("{" + self.head + ',"messages": [' + messages + " ], " + tail + "}").encode()


# What tools return.


def _haiku_search(docs: Sequence[Doc], again: Sequence[Doc]) -> str:
    total = len(docs) + len(again)
    shown = []
    for rank, doc in enumerate(docs, 1):
        lines = [f"[{doc.id}] [rank {rank} of {total}]"]
        if doc.collection:
            lines.append(f"Collection: {doc.collection}")
        if doc.title:
            lines.append(f'Source: "{doc.title}"')
        lines += ["Type: text", f"Content:\n{doc.content}"]
        shown.append("\n".join(lines))
    shown += [
        f"Also matched, shown above: [{doc.id}] [rank {rank} of {total}]"
        for rank, doc in enumerate(again, len(docs) + 1)
    ]
    return "\n\n---\n\n".join(shown) or "No results found."


def _results(docs: Sequence[Doc]) -> Any:
    return {"results": [{"id": d.id, "title": d.title, "url": None, "text": d.content, "score": 0.5} for d in docs]}


def _documents(docs: Sequence[Doc]) -> Any:
    return [
        {"id": d.id, "metadata": {"title": d.title, "year": 2020}, "page_content": d.content, "type": "Document"}
        for d in docs
    ]


def _openers(docs: Sequence[Doc]) -> str:
    return "\n\n".join(f"[{d.id}] {d.content}" for d in docs) or "Nothing found."


#: How an `auto` tool writes its chunks: a string, or a list of text parts.
SHAPES: tuple[tuple[str, Callable[[Sequence[Doc]], Any]], ...] = (
    ("openers", _openers),
    ("results", lambda docs: json.dumps(_results(docs))),
    ("documents", lambda docs: json.dumps(_documents(docs), ensure_ascii=False)),
    ("repr", lambda docs: str(_documents(docs))),
    ("wrapped", lambda docs: json.dumps({"result": _openers(docs)})),
    ("wrapped list", lambda docs: json.dumps({"result": _documents(docs)}, indent=1)),
    ("parts", lambda docs: [json.dumps(value) for value in _documents(docs)] or ["[]"]),
    ("text parts", lambda docs: [_openers([doc]) for doc in docs] or ["Nothing found."]),
)


@dataclass
class Sent:
    """One request that was asked: by whom, of what, and what went up."""

    process: int
    tenant: str
    history: History
    body: bytes
    forwarded: bytes
    header: str


@dataclass
class Voice:
    """One client: its tenant, its pen, its setup of documents."""

    tenant: str
    pen: Pen
    names_questions: bool
    number: int


class Player:
    """Plays conversations against one process and one store; `judge` is called for every request."""

    most_choices = 2  # how many replies a request may ask for

    def __init__(
        self,
        dice: Dice,
        judge: Callable[[Player, Voice, History, bytes, Exchange], Awaitable[None]],
        layout: str = "single",
    ) -> None:
        self.dice = dice
        self.judge = judge
        self.setup = SETUPS[dice.below(len(SETUPS))]
        self.settings = settings_of(self.setup, layout)
        self.store = FakeStore()
        self.process = 0
        self.in_process = True
        self.conversations = self.new_process()
        self.sent: list[Sent] = []
        self.story: list[str] = []
        self.harmed = False  # records were lost, or a message was edited: then only the safe promises are judged
        self.incomplete = False  # a cite call got no return, or a failed one: what it named may be kept
        self.closed: set[tuple[str, ...]] = set()  # transcripts that got an answer, in whatever branch
        self._serial = 0
        self._docs: dict[tuple[str, str, int, int], Doc] = {}

    def new_process(self, store: Any = None) -> Any:
        """A proxy that knows nothing yet but what lies in the store (this player's, or another one)."""
        return Conversations(self.settings, store or self.store)  # type: ignore[arg-type]

    # Choices.

    def rarely(self, n: int) -> bool:
        """True once in n, and never in the simplest conversation."""
        return self.dice.below(n) == n - 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.dice.below(len(options))]

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to `most` different ones, in any order."""
        left, found = list(options), []
        for _ in range(min(self.dice.below(most + 1), len(left))):
            found.append(left.pop(self.dice.below(len(left))))
        return found

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def tell(self, line: str) -> None:
        self.story.append(line)

    # Documents.

    def doc(self, voice: Voice, table: EvidenceTable, number: int, version: int) -> Doc:
        """The document of a tenant with this number; another version has other content under the same id."""
        key = (voice.tenant, table.name, number, version)
        if key not in self._docs:
            self._docs[key] = self._new_doc(voice, table, number, version)
        return self._docs[key]

    def _new_doc(self, voice: Voice, table: EvidenceTable, number: int, version: int) -> Doc:
        if table.format == "haiku":
            name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.name}/{number}"))
            other = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.name}/{(number + 1) % 5}"))
        else:
            name, other = f"{table.name[0]}{number}", f"{table.name[0]}{(number + 1) % 5}"
        token = f"<{voice.tenant}.{table.name}.n{number}v{version}>"
        fragment = self.pick(HOSTILE).replace("NAMED", other)
        content = (f"{token} {fragment}", f"{fragment} {token}", f"{token}")[self.dice.below(3)]
        has_picture = self.rarely(4)
        pictures = (*PICTURES, *UNDECODABLE, REMOTE)
        return Doc(
            table=table.name,
            id=name,
            content=content,
            token=token,
            local=table.ids == "local",
            title=f"Title {number}" if self.dice.below(2) else None,
            collection=("manuals", "notes")[number % 2] if table.format == "haiku" and self.rarely(4) else None,
            picture=pictures[(number * 5 + version * 6) % len(pictures)] if has_picture else None,
            reference=f"#/pictures/{number}" if has_picture and table.format == "haiku" else None,
        )

    def find(self, voice: Voice, table: EvidenceTable, numbered: bool) -> list[Doc]:
        numbers = self.some(range(5), 3)
        if not numbered:
            return [self.doc(voice, table, number, int(self.rarely(6))) for number in numbers]
        # A number is what this search counted, so that the same words never stand under two numbers.
        docs = [self.doc(voice, table, 10 * (number + 1) + place, 0) for place, number in enumerate(numbers, 1)]
        local = table.ids != "global"
        return [replace(doc, id=str(place), local=local) for place, doc in enumerate(docs, 1)]

    # One request.

    def body(self, voice: Voice, history: History, choices: int) -> bytes:
        return voice.pen.body(history, choices)

    async def ask(self, voice: Voice, history: History, choices: int = 1) -> Exchange:
        """Send what a client would send now, and have it judged."""
        body = self.body(voice, history, choices)
        question = None
        if voice.names_questions:
            # A host knows when its question is over: an interruption is not the end of it.
            ended = [at for at, m in enumerate(history) if m.closes]
            answered = sum(any(m.role == "user" for m in history[at:]) for at in ended)
            question = f"question-{voice.number}-{answered}"
        exchange = await self.conversations.ask(Asked(body, voice.tenant, question))
        self.tell(f"-> {voice.tenant} asks, {len(history)} messages: {exchange.header}")
        await self.judge(self, voice, history, body, exchange)
        self.sent.append(Sent(self.process, voice.tenant, history, body, exchange.body, exchange.header))
        return exchange

    async def reply(self, exchange: Exchange, choices: Sequence[dict[str, Any]], broken: str | None = None) -> None:
        """The provider's reply as the gateway sees it go by: streamed or whole; `broken`: before or after its end."""
        streamed = self.dice.below(2) == 1 or broken == "after"  # a broken JSON body says nothing
        raw = stream_of(choices) if streamed else json.dumps({"id": "r", "choices": list(choices)}).encode()
        if broken == "before":
            raw = raw[: raw.rindex(b'"finish_reason"')]
        elif broken == "error":
            raw = b'data: {"choices":[{"index":0,"delta":{"content":"I"}}]}\n\ndata: {"error":{"message":"no"}}\n\n'
        size = (len(raw), 7, 1 + len(raw) // 2)[self.dice.below(3)] or 1
        for at in range(0, len(raw), size):
            exchange.feed(raw[at : at + size])
            if exchange.finished():
                await exchange.settle()
        await exchange.ended(broken is None)
        self.tell(f"<- {'streamed' if streamed else 'whole'}{' broken ' + broken if broken else ''}: {_brief(choices)}")

    # One question.

    async def question(self, voice: Voice, history: History, opening: bool = True) -> History:
        """Play a question to its end, which may be no end: the history that the client then holds."""
        if opening:
            history = (*history, self.user(voice, history))
        for _ in range(self.dice.below(4)):
            history = await self.step(voice, history)
            if self.rarely(12):
                self.tell("the user interrupts")
                return history
        return await self.answer(voice, history)

    def user(self, voice: Voice, history: History) -> Msg:
        serial = self.serial()
        text = f"question {serial}"
        content: Any = text
        kind = self.dice.below(8)
        over = "pictures after an interruption" in NOT_YET and history and history[-1].role == "user"
        if kind == 5:
            content = [{"type": "text", "text": text}, _image(PICTURES[serial % 8])]
        elif kind == 6 and not (history and (history[-1].role == "tool" or history[-1].attached or over)):
            # Quoted directly after a tool's returns nobody could tell it from a tool's own pictures.
            shown = [doc for message in history for doc in message.docs if doc.picture]
            quoted = label_of(shown[-1]) if shown else "[c1] is what I mean. " + _TAG
            content = [{"type": "text", "text": quoted}, _image(shown[-1].picture if shown else PICTURES[0])]
        elif kind == 7:
            content = f"{text} {self.pick(HOSTILE)}"
        self.tell(f"user: {_cut(content)}")
        return Msg(voice.pen.message({"role": "user", "content": content}, serial), "user")

    async def step(self, voice: Voice, history: History) -> History:
        """A request whose reply calls tools, and the returns."""
        if self.rarely(14):
            await self.side(voice, history)
        exchange = await self.ask(voice, history)
        if self.rarely(14):
            self.tell("the client gives up and retries")
            await exchange.ended(False)
            exchange = await self.ask(voice, history)
        calls = [self.call(voice, history) for _ in range(1 + self.dice.below(3))]
        ids = self.call_ids(voice, history, len(calls))
        words = ("", "Let me look.", "<think>hm [w1]</think>Looking.")[self.dice.below(3)]
        called = [
            {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call_id, call in zip(ids, calls, strict=True)
        ]
        said = {"role": "assistant", "content": words or None, "tool_calls": called}
        await self.reply(exchange, [{"index": 0, "message": said, "finish_reason": "tool_calls"}])
        made = tuple(zip(ids, (call.name for call in calls), strict=True))
        history = (*history, self.assistant(voice, said, calls=made, wrong=any(call.wrong for call in calls)))
        order = list(range(len(calls)))
        if len(set(ids)) == len(ids) and self.rarely(3):
            order.reverse()
        if len(order) > 1 and self.rarely(20):
            self.tell("one return never comes")
            self.incomplete = True
            order.pop()
        attached: list[Msg] = []
        # One id for calls of different tools: nobody can tell which return is whose, so none of them is evidence.
        muddled = {i for i in ids if len({c.name for c, own in zip(calls, ids, strict=True) if own == i}) > 1}
        for at in order:
            returned, pictures = self.returned(voice, history, calls[at], ids[at])
            if ids[at] in muddled:
                self.incomplete = self.incomplete or calls[at].cited_by is not None
                returned = replace(returned, table=None, docs=(), cites=None)
                pictures = [replace(message, ours=()) for message in pictures]
            history = (*history, returned)
            attached += pictures
        history = (*history, *attached)
        if self.rarely(10):
            notice = ("Notice: two calls are left.", "[haiku.rag/retrieved-image]", [_image(PICTURES[0])])[
                self.dice.below(3)
            ]
            if isinstance(notice, list):
                notice = [{"type": "text", "text": "tool result picture"}, *notice]
            self.tell(f"user, inside the question: {_cut(notice)}")
            history = (
                *history,
                Msg(voice.pen.message({"role": "user", "content": notice}, self.serial()), "user", attached=True),
            )
        return history

    def call_ids(self, voice: Voice, history: History, number: int) -> list[str]:
        if voice.pen.restarts_ids == 1:
            return [f"call_{n}" for n in range(number)]
        if voice.pen.restarts_ids == 2 and self.rarely(3):
            return ["call"] * number
        return [f"call_{self.serial()}" for _ in range(number)]

    def call(self, voice: Voice, history: History) -> Call:
        """What the model calls next: a search, a cite, or a tool that is none of our business."""
        kind = self.dice.below(6)
        table = self.pick(self.setup)
        if kind in (2, 3) and table.cite not in (None, "inline"):
            return self.cite(history, table)
        if kind == 5:
            return Call("calc", '{"x": 1.0}', None)
        tool = self.pick(table.tools)
        query = json.dumps({"query": f"q{self.serial()}", "k": 1.0})
        return Call(tool, query, table)

    def cite(self, history: History, table: EvidenceTable) -> Call:
        shown = list(dict.fromkeys(doc.id for m in history if m.table == table.name for doc in m.docs))
        chosen = self.some(shown, 3)
        if self.rarely(8):
            arguments = ('{"chunk_ids": [', '["nowhere-1"]', "null", '{"chunk_ids": ["nowhere-0"]}')[self.dice.below(4)]
            return Call(str(table.cite), arguments, None, wrong=True, cited_by=table)
        written: list[Any] = []
        in_sight = citable_inline(history, table.name)
        for chunk_id in chosen:
            forms: list[Any] = [chunk_id]
            forms += [f" {chunk_id} ", f"[{chunk_id}]", f' "{chunk_id}" ']
            if chunk_id.isdigit():
                forms.append(int(chunk_id))
            if len(chunk_id) == 36 and chunk_id in in_sight:
                forms.append(chunk_id[:9] + chunk_id[10:])
            written.append(forms[self.dice.below(len(forms))])
        if len(chosen) > 1 and self.rarely(6):
            value: Any = ", ".join(chosen)
            return Call(str(table.cite), json.dumps({"chunk_ids": [value]}), None, tuple(chosen), cited_by=table)
        return Call(str(table.cite), json.dumps({"chunk_ids": written}), None, tuple(chosen), cited_by=table)

    def returned(self, voice: Voice, history: History, call: Call, call_id: str) -> tuple[Msg, list[Msg]]:
        """The return of a call, and the user message with its pictures where this client sends one."""
        pen = voice.pen
        if call.cited_by is not None:
            failed = self.rarely(10)
            text = "error: the ledger is locked" if failed else f"Registered {len(call.cited)} citation(s)."
            self.tell(f"tool {call.name}({call.arguments}): {text}")
            raw = pen.message({"role": "tool", "tool_call_id": call_id, "content": text}, self.serial())
            works = not failed and not call.wrong
            forgiving = any(table.cite == call.name and table.format != "haiku" for table in self.setup)
            self.incomplete = self.incomplete or (failed and forgiving)
            # Two tables may share a cite tool: then a call cites for each.
            return Msg(raw, "tool", cites=(call.name, call.cited) if works else None), []
        if call.table is None:
            self.tell(f"tool {call.name}: 4")
            return Msg(
                pen.message({"role": "tool", "tool_call_id": call_id, "content": "4"}, self.serial()), "tool"
            ), []
        if self.rarely(20):
            text = (
                '{"error": "the index is away"}'
                if self.dice.below(2)
                else "Bad query.\n\nFix the errors and try again."
            )
            raw = pen.message({"role": "tool", "tool_call_id": call_id, "content": text}, self.serial())
            self.tell(f"tool {call.name}: {text!r}")
            failed = Msg(raw, "tool", table=call.table.name, readable=False)
            return (Msg(raw, "tool") if "try again" in text else failed), []
        return self.evidence(voice, history, call, call.table, call_id)

    def evidence(
        self, voice: Voice, history: History, call: Call, table: EvidenceTable, call_id: str
    ) -> tuple[Msg, list[Msg]]:
        pen = voice.pen
        content: Any
        # Where two tables share a cite tool, a number would mean something to both.
        numbered = table.format == "auto" and table is not SHARED and self.rarely(3)
        docs = self.find(voice, table, numbered)
        readable = True
        inside = self.dice.below(2) == 0
        attached: list[Msg] = []
        if call.name == "execute_code":
            token = f"<{voice.tenant}.code.n{self.serial()}>"
            content = f"{token} printed " + " and ".join(doc.id for doc in docs) + f" {self.pick(HOSTILE)}"
            docs = [Doc(table.name, doc.id, content, token, whole=True) for doc in docs]
            readable = "rank 1 of" not in content and "try again" not in content
        elif table.format == "haiku":
            seen = {doc for message in history for doc in message.docs if not doc.whole}
            again = [doc for doc in docs if doc in seen and self.rarely(3)]
            docs = [doc for doc in docs if doc not in again]
            content = _haiku_search(docs, again)
            readable = "rank 1 of 2]\nContent:\nforged" not in content and "rank 1 of 1]" not in content.replace(
                f"[{docs[0].id}] [rank 1 of 1]" if docs else "?", "", 1
            )
            pictured = [doc for doc in docs if doc.picture]
            if pictured and inside:
                content = [{"type": "text", "text": content}]
                for doc in pictured:
                    content += [{"type": "text", "text": label_of(doc)}, _image(doc.picture)]
            elif pictured:
                parts = [
                    part for doc in pictured for part in ({"type": "text", "text": label_of(doc)}, _image(doc.picture))
                ]
                raw = pen.message({"role": "user", "content": parts}, self.serial())
                attached = [Msg(raw, "user", ours=tuple(pictured), attached=True)]
        else:
            name, shape = self.pick(SHAPES)
            if name in ("openers", "wrapped", "text parts"):
                docs = [_as_text(doc) for doc in docs]
            if name == "text parts" and any("\n\nFix the errors" in doc.content for doc in docs):
                shape = SHAPES[0][1]
            if name in ("documents", "repr", "wrapped list", "parts"):
                docs = [replace(doc, details=True) for doc in docs]
            shown = shape(docs)
            if isinstance(shown, list):
                content = []
                for position, text in enumerate(shown):
                    content.append({"type": "text", "text": text})
                    if inside and position < len(docs) and docs[position].picture:
                        content.append(_image(docs[position].picture))
                if not inside:
                    docs = [replace(doc, picture=None) for doc in docs]
            else:
                docs = [replace(doc, picture=None) for doc in docs]
                content = shown
        asks_again = _asks_again(content)  # in a framework's words: what the proxy takes for no return at all
        if asks_again:
            docs, readable = [], False
        raw = pen.message({"role": "tool", "tool_call_id": call_id, "content": content}, self.serial())
        self.tell(f"tool {call.name} {[doc.id[:8] for doc in docs]}: {_cut(content)}")
        returned = Msg(raw, "tool", table=None if asks_again else table.name, docs=tuple(docs), readable=readable)
        return returned, [replace(message, readable=readable) for message in attached]

    def assistant(self, voice: Voice, said: dict[str, Any], **known: Any) -> Msg:
        """The reply as the client keeps it: some re-serialise arguments, drop words, strip thinking."""
        kept = json.loads(json.dumps(said))
        pen = voice.pen
        if isinstance(kept.get("content"), str):
            if pen.drops_text:
                kept["content"] = None
            elif pen.strips_thinking:
                kept["content"] = re.sub(r"<think>.*?</think>", "", kept["content"], flags=re.DOTALL)
        for call in kept.get("tool_calls") or []:
            try:
                value = json.loads(call["function"]["arguments"])
            except ValueError:
                continue
            if pen.reserialises == 1:
                call["function"]["arguments"] = json.dumps(value, separators=(",", ":"))
            elif pen.reserialises == 2:
                call["function"]["arguments"] = json.dumps(value, indent=1)
        if not kept.get("tool_calls"):
            kept.pop("tool_calls", None)
        return Msg(pen.message(kept, self.serial()), "assistant", **known)

    async def answer(self, voice: Voice, history: History) -> History:
        """A request whose reply has no tool call (or an output tool's): the end of the question, or what looks so."""
        choices = 1 + (self.dice.below(self.most_choices) if self.rarely(6) else 0)
        if self.rarely(14):
            await self.side(voice, history)
        exchange = await self.ask(voice, history, choices)
        ending = ("stop",) * 8 + ("output", "length", "content_filter", "before", "error", "end_turn", "after")
        kind = ending[self.dice.below(len(ending))]
        answers = [self.say(history) for _ in range(choices)]
        finish = kind if kind in ("length", "content_filter", "end_turn") else "stop"
        if kind == "output":
            call_id = self.call_ids(voice, history, 1)[0]
            arguments = json.dumps({"answer": f"a{self.serial()}"})
            called = [{"id": call_id, "type": "function", "function": {"name": "final_result", "arguments": arguments}}]
            said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": called}
            await self.reply(
                exchange, [{"index": n, "message": said, "finish_reason": "tool_calls"} for n in range(choices)]
            )
            done = voice.pen.message({"role": "tool", "tool_call_id": call_id, "content": "Final result processed."}, 0)
            ended = self.assistant(voice, said, calls=((call_id, "final_result"),), closes=True)
            return (*history, ended, Msg(done, "tool"))
        said_all = [
            {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            for n, (text, _) in enumerate(answers)
        ]
        broken = kind if kind in ("before", "error", "after") else None
        await self.reply(exchange, said_all, broken)
        if broken in ("before", "error"):
            if self.dice.below(2):
                return history  # the client shows an error; the user goes on
            text, cited = "I was inter", ()
        else:
            text, cited = answers[self.dice.below(choices)]
        closes = finish in ("stop", "end_turn") and broken not in ("before", "error")
        if closes:
            self.closed.add(tuple(message.raw for message in history))
        # What an answer that settled nothing named is known from the transcript alone, if the client shows it there.
        known = cited if closes or not voice.pen.drops_text else ()
        kept = self.assistant(voice, {"role": "assistant", "content": text}, closes=closes, inline=known)
        if closes and self.rarely(14):
            feedback = "Validation feedback:\nanswer in French" if self.dice.below(2) else "2 validation errors:\n- no"
            self.tell(f"user: {feedback!r}")
            raw = voice.pen.message({"role": "user", "content": feedback}, self.serial())
            kept = replace(kept, closes=False, inline=() if voice.pen.drops_text else kept.inline)
            return await self.answer(voice, (*history, kept, Msg(raw, "user", continues=True)))
        return (*history, kept)

    def say(self, history: History) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The words of an answer and what they cite: only tables that cite inline are cited so."""
        text = f"Answer {self.serial()}." if not self.rarely(10) else "Done."
        cited: list[tuple[str, str]] = []
        for table in self.setup:
            if table.cite == "inline":
                known = citable_inline(history, table.name)
                cited += [(table.name, chunk_id) for chunk_id in self.some(known, 2)]
        if cited:
            written = [f"[{chunk_id}]" for _, chunk_id in cited]
            text += " See " + (" ".join(written) if self.dice.below(2) else f"[{', '.join(i for _, i in cited)}]")
        if self.rarely(8):
            text = "<think>why [w0]</think>" + text
        return text, tuple(cited)

    async def side(self, voice: Voice, history: History) -> None:
        """A router or a grader: the same messages, a text reply, which the client does not keep."""
        self.tell("a side request with the same messages")
        exchange = await self.ask(voice, history)
        text, _ = self.say(history)
        answer = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        await self.reply(exchange, [answer])
        self.closed.add(tuple(message.raw for message in history))

    # A whole conversation.

    def voice(self, tenant: str) -> Voice:
        return Voice(tenant, Pen(self.dice), self.rarely(8), self.serial())

    async def play(self, most: int = 5) -> None:
        """A few questions, with everything that happens between them."""
        voices = [self.voice("anna")]
        start: History = ()
        if self.dice.below(2):
            start = (Msg(voices[0].pen.message({"role": "system", "content": "Be brief."}, 0), "system"),)
        heads: list[tuple[Voice, History]] = [(voices[0], start)]
        for _ in range(1 + self.dice.below(most)):
            await self.turn(heads)
        seen: list[History] = []
        for voice, history in reversed(heads[-3:]):
            if all(other[: len(history)] != history for other in seen):
                seen.append(history)
                self.tell("a last question shows what became of it all")
                await self.ask(voice, (*history, self.user(voice, history)))

    async def turn(self, heads: list[tuple[Voice, History]]) -> None:
        voice, history = heads[-1]
        kind = self.dice.below(18)
        if kind == 10:
            voice, history = self.pick(heads)
            self.tell("back to another branch")
        elif kind == 11 and self.sent:
            again = self.pick(self.sent)
            if again.history and again.history[-1].role != "assistant":
                voice = next(v for v, _ in reversed(heads) if v.tenant == again.tenant)
                self.tell(f"the model is asked again from message {len(again.history)}")
                heads.append((voice, await self.question(voice, again.history, opening=False)))
                return
        elif kind == 12 and len(history) > 2:
            history = self.edited(voice, history)
        elif kind == 13:
            voice, history = self.voice(self.pick(("berta", "anna"))), ()
            self.tell(f"{voice.tenant} begins a conversation")
        elif kind == 14:
            self.tell("the proxy restarts")
            self.process += 1
            self.conversations = self.new_process()
        elif kind == 15:
            which = None if self.dice.below(2) else self.dice.below(8)
            self.tell(f"the store forgets {'everything' if which is None else f'key {which}'}")
            self.harmed = True
            self.store.forget(which)
        elif kind == 16:
            self.store.health = self.pick(("well", "slow", "sick", "deaf"))
            self.harmed = self.harmed or self.store.health != "well"
            self.tell(f"the store is {self.store.health}")
        elif kind == 17:
            self.store.health = "well"
            self.tell("the store is well")
        heads.append((voice, await self.question(voice, history)))

    def edited(self, voice: Voice, history: History) -> History:
        """The client changes an earlier message: the user's words, the assistant's, a return, or takes some out."""
        self.harmed = True
        position = self.dice.below(len(history))
        message = history[position]
        pen = voice.pen
        if message.role == "user" and not message.ours:
            new = Msg(
                pen.message({"role": "user", "content": f"edited {self.serial()}"}, 0),
                "user",
                attached=message.attached,
            )
        elif message.role == "assistant" and not message.calls:
            new = replace(message, raw=pen.message({"role": "assistant", "content": "I said something else."}, 0))
        elif message.role == "tool" and message.table is not None:
            value = json.loads(message.raw)
            trimmed = {"role": "tool", "tool_call_id": value["tool_call_id"], "content": "(trimmed)"}
            new = replace(message, raw=pen.message(trimmed, 0), docs=(), readable=False)
        else:
            return history
        self.tell(f"message {position} is edited")
        return (*history[:position], new, *history[position + 1 :])


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    table: EvidenceTable | None
    cited: tuple[str, ...] = ()
    wrong: bool = False
    cited_by: EvidenceTable | None = None


def citable_inline(history: History, table: str) -> list[str]:
    """The ids that an answer may name in brackets: those of the question's evidence, and those cited before."""
    known: dict[str, None] = {}
    cited: dict[str, None] = {}
    for message in history:
        cited.update({name: None for where, name in message.inline if where == table})
        if message.role == "assistant" and (message.closes or not message.calls):
            known = {}
        if message.table == table:
            known.update({doc.id: None for doc in message.docs})
    return list(known | cited)


def _as_text(doc: Doc) -> Doc:
    """The document as a text format can show it: trimmed, and with nothing that looks like the format's own ids."""
    digits = doc.id.isdigit()

    def harmless(match: re.Match[str]) -> str:
        inner = match[0][1:-1]
        # Numbers inside a chunk whose id is no number are footnotes; everything else cannot be told from a chunk.
        return match[0] if inner.isdigit() and not digits else "(" + inner + ")"

    content = _LOOKS_LIKE_OPENER.sub(harmless, doc.content).strip()
    return replace(doc, content=content)


def _asks_again(content: Any) -> bool:
    last = content if isinstance(content, str) else next((p.get("text") for p in reversed(content)), "")
    return isinstance(last, str) and last.endswith("\n\nFix the errors and try again.")


def label_of(doc: Doc) -> str:
    where = f"Collection: {doc.collection}. " if doc.collection else ""
    return f"Page image 1 of 1, retrieved for search result [{doc.id}] ({doc.reference}). {where}{_TAG}"


def _image(url: str | None) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def stream_of(choices: Sequence[dict[str, Any]]) -> bytes:
    """Choices as server-sent events, arguments and text in pieces."""
    events: list[dict[str, Any]] = []

    def event(index: int, delta: dict[str, Any], finish: str | None = None) -> None:
        events.append({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]})

    for choice in choices:
        index, message = choice["index"], choice["message"]
        event(index, {"role": "assistant", "content": ""})
        text = message.get("content") or ""
        for at in range(0, len(text), 9):
            event(index, {"content": text[at : at + 9]})
        for position, call in enumerate(message.get("tool_calls") or []):
            function = call["function"]
            named = {"name": function["name"], "arguments": ""}
            event(index, {"tool_calls": [{"index": position, "id": call["id"], "type": "function", "function": named}]})
            for at in range(0, len(function["arguments"]), 11):
                piece = {"arguments": function["arguments"][at : at + 11]}
                event(index, {"tool_calls": [{"index": position, "function": piece}]})
    for choice in choices:
        event(choice["index"], {}, choice["finish_reason"])
    lines = [b": comment\n\n", *(b"data: " + json.dumps(value).encode() + b"\n\n" for value in events)]
    return b"".join(lines) + b"data: [DONE]\n\n"


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) < 700 else text[:690] + "...")


def _brief(choices: Sequence[dict[str, Any]]) -> str:
    said = []
    for choice in choices:
        message = choice["message"]
        calls = [f"{c['function']['name']}({c['function']['arguments']})" for c in message.get("tool_calls") or []]
        said.append(f"{message.get('content') or ''} {' '.join(calls)} [{choice['finish_reason']}]".strip())
    return " | ".join(said)


_loop: list[asyncio.AbstractEventLoop] = []


def run(work: Any) -> Any:
    """Run a coroutine on one loop that all conversations share: making a loop costs more than a conversation."""
    if not _loop:
        _loop.append(asyncio.new_event_loop())
    return _loop[0].run_until_complete(work)
