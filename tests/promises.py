"""What is promised, judged on the bytes: a parser of its own, a truth of its own, and a verdict per request.

Nothing of the product is used here but the words that it writes (to tell a receipt from a capsule).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

from proxy.compaction.wording import HEADER, RECEIPT
from proxy.gateway.conversation import Asked, Exchange
from proxy.settings import EvidenceTable
from tests.conversations import NOT_YET, UNDECODABLE, Doc, History, Msg, Player, Voice, run

_decode = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")


class Broken(AssertionError):
    """A promise was broken; the message is the transcript."""


# The bytes, cut by hand.


@dataclass(frozen=True)
class Cut:
    """A body as text: `head`, then messages with what stands between them, then `tail`."""

    head: str
    messages: tuple[str, ...]
    between: tuple[str, ...]
    tail: str


def cut(body: bytes, name: str = "messages") -> Cut:
    """Cut a body at the elements of its last member of this name."""
    text = body.decode("utf-8", "surrogatepass")
    at = _space(text, 0)
    assert text[at] == "{"
    at = _space(text, at + 1)
    found: tuple[int, int] | None = None
    while text[at] != "}":
        key, at = _decode(text, at)
        at = _space(text, at)
        assert text[at] == ":"
        start = _space(text, at + 1)
        _, at = _decode(text, start)
        if key == name:
            found = (start, at)
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    assert found is not None
    slices, gaps = elements(text, found[0])
    if not slices:
        return Cut(text, (), (), "")
    first, last = slices[0][0], slices[-1][1]
    return Cut(text[:first], tuple(text[a:b] for a, b in slices), tuple(gaps), text[last:])


def elements(text: str, at: int) -> tuple[list[tuple[int, int]], list[str]]:
    """The offsets of an array's elements, and what stands between them."""
    assert text[at] == "["
    at = _space(text, at + 1)
    slices: list[tuple[int, int]] = []
    gaps: list[str] = []
    while text[at] != "]":
        if slices:
            gaps.append(text[slices[-1][1] : at])
        _, end = _decode(text, at)
        slices.append((at, end))
        at = _space(text, end)
        if text[at] == ",":
            at = _space(text, at + 1)
    return slices, gaps


def members(text: str) -> list[tuple[str, str]]:
    """The members of an object in order, as raw text."""
    found: list[tuple[str, str]] = []
    at = _space(text, 1)
    while text[at] != "}":
        start = at
        _, end = _decode(text, at)
        key = text[start:end]
        at = _space(text, _space(text, end) + 1)
        start = at
        _, at = _decode(text, at)
        found.append((key, text[start:at]))
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    return found


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


@lru_cache(maxsize=20_000)
def texts_of(raw: str) -> tuple[str, ...]:
    """Every text that a message shows, as sent and as read when it is JSON or a Python literal."""
    found: list[str] = []
    content = json.loads(raw).get("content")
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            found.append(text)
            _inside(text, found)
    return tuple(found)


def _inside(text: str, found: list[str]) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        if text[:1] not in "[{(":
            return
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return
    _strings(value, found)


def _strings(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
        _inside(value, found) if value[:1] in "[{(" else None
    elif isinstance(value, list | tuple):
        for item in value:
            _strings(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _strings(item, found)


def parts_of(raw: str) -> list[tuple[str, str]]:
    """A message's parts: ("text", its text) or ("picture", its address)."""
    content = json.loads(raw).get("content")
    found: list[tuple[str, str]] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            found.append(("text", part))
        elif isinstance(part, dict) and part.get("type") == "text":
            found.append(("text", part["text"]))
        elif isinstance(part, dict) and part.get("type") == "image_url":
            found.append(("picture", part["image_url"]["url"]))
    return found


def pictures_in(raws: Iterable[str]) -> list[str]:
    return [url for raw in raws if "image_url" in raw for kind, url in parts_of(raw) if kind == "picture"]


# The truth, walked through what the client and the provider know.


Key = tuple[str, str | None, str, str | None]


@dataclass
class CitedDoc:
    """A chunk that questions cited: `docs` are its contents in the newest question that both showed and cited it."""

    docs: list[Doc]
    group: int
    first: tuple[int, int, int]
    shown_times: int
    moot: bool = False  # cited before this question showed it: what had been shown before, or this, may be meant
    far: bool = False  # cited where it had not been shown: before an interruption, or in an older question


@dataclass
class Fate:
    """What is to become of an earlier evidence return: True, False, or None where both would be right."""

    table: str
    replaced: bool | None
    in_brackets: bool = False  # an assistant text of its question holds brackets, which count where a record was lost


@dataclass
class Truth:
    """`current` is where the question in progress begins (its user message), `questions` how many were settled."""

    current: int = 0
    earliest: int = 0
    questions: int = 0
    cited: dict[Key, CitedDoc] = field(default_factory=dict)
    fates: dict[int, Fate] = field(default_factory=dict)
    interrupted: bool = False


def identity(doc: Doc) -> Key:
    return (doc.table, doc.collection, doc.id, doc.content + str(doc.details) if doc.local else None)


@dataclass
class _Shown:
    """A document as it was shown: in which reply, of which stretch, and where (reply, message, place in it)."""

    reply: int
    stretch: int
    order: tuple[int, int, int]
    doc: Doc


@dataclass
class _Question:
    """One question while it is walked: what it showed, what it cited, and its evidence returns."""

    shown: list[_Shown] = field(default_factory=list)
    cites: list[tuple[int, int, str, Sequence[str]]] = field(default_factory=list)  # reply, stretch, table, ids
    returns: list[tuple[int, int, str, bool, bool]] = field(
        default_factory=list
    )  # message, reply, table, ids, readable
    found: list[tuple[int, str, bool]] = field(default_factory=list)  # reply, table, declares
    wrong: bool = False
    brackets: bool = False
    interrupted: bool = False
    ambiguous: bool = False  # which reply stands in it cannot be told


class _Walk:
    """Reads a history question by question; what the current one cites counts only when it is over."""

    def __init__(self, history: History, setup: Sequence[EvidenceTable], closed: set[tuple[str, ...]]) -> None:
        self.history, self.setup, self.closed = history, setup, closed
        self.truth = Truth()
        self.questions = [_Question()]
        self.times: dict[Key, int] = {}

    def walk(self) -> Truth:
        truth, reply, stretch = self.truth, 0, 0
        began = ended = ambiguous = answered = False
        for index, message in enumerate(self.history):
            now = self.questions[-1]
            if message.role == "assistant":
                reply += 1
                ended, answered = message.closes, not message.calls
                ambiguous = answered and tuple(m.raw for m in self.history[:index]) in self.closed
                now.wrong = now.wrong or message.wrong
                now.brackets = now.brackets or "[" in message.raw[1:].split('"tool_calls"')[0]
                for table in dict.fromkeys(where for where, _ in message.inline):
                    now.cites.append(
                        (reply, stretch, table, [name for where, name in message.inline if where == table])
                    )
            elif message.role == "tool":
                self.returned(index, message, reply, stretch)
            elif message.role == "user" and not began:
                began = True
                truth.current = truth.earliest = index
            elif message.role == "user":
                if message.continues or (message.attached and not answered):
                    continue
                if ended:
                    self.close()
                    stretch = 0
                    truth.current = truth.earliest = index
                else:
                    now.interrupted = truth.interrupted = True
                    stretch += answered
                    if ambiguous:
                        # A router, or another branch, got an answer here: which of the two stands here cannot be told.
                        truth.earliest = index
                        now.ambiguous = True
                ended = ambiguous = answered = False
        for place, question in enumerate(self.questions):
            self.judge_returns(question, place == len(self.questions) - 1)
        return truth

    def returned(self, index: int, message: Msg, reply: int, stretch: int) -> None:
        now = self.questions[-1]
        if message.table is not None:
            for place, doc in enumerate(message.docs):
                now.shown.append(_Shown(reply, stretch, (reply, index, place), doc))
                self.times[identity(doc)] = self.times.get(identity(doc), 0) + 1
            now.returns.append((index, reply, message.table, bool(message.docs), message.readable))
        if message.cites is not None:
            for table in self.setup:
                if table.cite == message.cites[0]:
                    now.cites.append((reply, stretch, table.name, message.cites[1]))

    def close(self) -> None:
        """The question is over: now its citations count."""
        now, number = self.questions[-1], self.truth.questions
        cited: dict[Key, list[Doc]] = {}
        self.far = set[Key]()
        self.moot = set[Key]()
        for reply, stretch, table, ids in now.cites:
            resolved = [self.cite(now, cited, reply, stretch, table, name) for name in ids]
            now.found.append((reply, table, not ids or any(resolved)))
        for key, docs in cited.items():
            whose = list(dict.fromkeys(docs))
            self.truth.cited[key] = CitedDoc(whose, number, self.first(key), self.times[key])
            self.truth.cited[key].far, self.truth.cited[key].moot = key in self.far, key in self.moot
        self.truth.questions += 1
        self.questions.append(_Question())

    def cite(
        self, now: _Question, cited: dict[Key, list[Doc]], reply: int, stretch: int, table: str, name: str
    ) -> bool:
        """What was seen in this question; else what was cited before; else what came later; else what is older."""
        mine = [s for s in now.shown if (s.doc.table, s.doc.id) == (table, name)]
        same = [s for s in mine if s.stretch == stretch]
        seen = [s for s in mine if s.reply < reply]
        near = [s for s in same if s.reply < reply]
        before = [key for key in self.truth.cited if (key[0], key[2]) == (table, name)]
        for scope in (near, seen, mine):
            for doc in [s.doc for s in scope if not s.doc.whole] or [s.doc for s in scope]:
                cited.setdefault(identity(doc), []).append(doc)
                if scope is not near:
                    self.far.add(identity(doc))
                if scope is mine:
                    self.moot.add(identity(doc))
            if scope:
                return True
        for key in before:
            self.truth.cited[key].group = self.truth.questions
        if before:
            return True
        earlier = [s.doc for q in self.questions[:-1] for s in q.shown if (s.doc.table, s.doc.id) == (table, name)]
        earlier = [doc for doc in earlier if not doc.whole] or earlier
        for doc in earlier if earlier and earlier[0].local else earlier[-1:]:
            cited.setdefault(identity(doc), []).append(doc)
            self.far.add(identity(doc))
            if len({other.content for other in earlier}) > 1:
                self.moot.add(identity(doc))  # of one reply's returns, either order is the order that they came in
        return bool(earlier)

    def first(self, key: Key) -> tuple[int, int, int]:
        return next(s.order for q in self.questions for s in q.shown if identity(s.doc) == key)

    def judge_returns(self, question: _Question, current: bool) -> None:
        tables = {table.name: table for table in self.setup}
        for index, _, name, has_ids, readable in question.returns:
            table = tables[name]
            # Tables that are cited in one way share what is cited: a call declares for all of them.
            way = {other.name for other in self.setup if other.cite == table.cite}
            # What came back of a tool that failed is no evidence, and needs no declaration.
            returns = [(reply, readable) for _, reply, where, _, readable in question.returns if where in way]
            newest, surely = (max((r for r, sure in returns if sure or every), default=0) for every in (True, False))
            after = [reply for reply, where, declares in question.found if where in way and declares]
            declared = any(reply > surely for reply in after)
            perhaps = declared and not any(reply > newest for reply in after)
            fate: bool | None
            if current or table.cite is None:
                fate = False
            elif not readable or question.wrong or question.ambiguous or perhaps:
                fate = None
            elif not has_ids and table.format == "auto":
                fate = False
            elif declared or table.undeclared == "receipt":
                fate = None if question.interrupted else True
            elif question.interrupted and (question.brackets or any(where in way for _, where, _ in question.found)):
                fate = None
            else:
                fate = False
            self.truth.fates[index] = Fate(name, fate, question.brackets)


def truth_of(history: History, setup: Sequence[EvidenceTable], closed: set[tuple[str, ...]]) -> Truth:
    """What earlier questions cited, what they showed, and where the current one begins."""
    return _Walk(history, setup, closed).walk()


# The verdict.


@dataclass
class Verdict:
    """Which of the client's messages went up how."""

    same: set[int] = field(default_factory=set)
    replaced: dict[int, str] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    inserted: str | None = None


async def judge(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> None:
    """Check every promise on one request; raises Broken with the transcript."""
    try:
        verdict = _judge(player, voice, history, body, exchange)
        _stable(player, voice, history, body, exchange, verdict)
        await _elsewhere(player, voice, history, body, exchange)
    except Broken:
        raise
    except AssertionError as error:
        raise Broken(f"{error}\n\n{transcript(player, history, body, exchange)}") from error
    except Exception as error:
        raise Broken(f"{error!r}\n\n{transcript(player, history, body, exchange)}") from error


def _judge(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> Verdict:
    came, went = cut(body), cut(exchange.body)
    assert came.messages == tuple(m.raw for m in history), "the checker cuts as the client wrote"
    truth = truth_of(history, player.setup, player.closed)
    verdict = align(came, went, history)
    _only_ours(player, history, truth, verdict, came, went)
    capsule = _one_capsule(history, verdict)
    _nothing_lost(player, history, truth, verdict, came, went, capsule)
    _pictures(player, history, truth, verdict, came, went, capsule)
    _nothing_foreign(came, went)
    _figures(player, truth, verdict, body, exchange, capsule)
    if not player.harmed and not voice.pen.drops_text:
        _fates_kept(truth, verdict, exchange)
        _arranged(player, history, truth, verdict, capsule)
    return verdict


def align(came: Cut, went: Cut, history: History) -> Verdict:
    """Promises 1 and 4: every message is the very bytes, or ours and in its place; nothing moves, no return goes."""
    verdict = Verdict()
    at = 0
    for index, raw in enumerate(came.messages):
        there = went.messages[at] if at < len(went.messages) else ""
        if there == raw:
            verdict.same.add(index)
            at += 1
            continue
        message = history[index]
        if message.role == "tool" and there:
            _same_but_content(raw, there)
            verdict.replaced[index] = there
            at += 1
            continue
        if message.ours and (
            there in came.messages[index + 1 :] or not _is_user(there) or verdict.inserted is not None
        ):
            verdict.removed.add(index)
            continue
        assert _is_user(there) and verdict.inserted is None, (
            f"message {index} went up changed: {raw[:200]} => {there[:200]}"
        )
        verdict.inserted = there
        at += 1
        there = went.messages[at] if at < len(went.messages) else ""
        if there == raw:
            verdict.same.add(index)
            at += 1
        else:
            assert message.ours, f"message {index} went up changed: {raw[:200]} => {there[:200]}"
            verdict.removed.add(index)
    assert at == len(went.messages), "messages were added at the end"
    assert (came.head, came.tail) == (went.head, went.tail), "the rest of the body changed"
    if not verdict.removed and verdict.inserted is None:
        assert came.between == went.between, "what stands between messages changed"
    return verdict


def _is_user(raw: str) -> bool:
    return bool(raw) and json.loads(raw).get("role") == "user"


def _same_but_content(raw: str, there: str) -> None:
    before, after = members(raw), members(there)
    last = max(n for n, (key, _) in enumerate(before) if json.loads(key) == "content")
    for n, (old, new) in enumerate(zip(before, after, strict=True)):
        assert old == new or (n == last and old[0] == new[0]), f"a return changed beside its content: {old} => {new}"


def _only_ours(player: Player, history: History, truth: Truth, verdict: Verdict, came: Cut, went: Cut) -> None:
    tables = {table.name: table for table in player.setup}
    for index in (*verdict.replaced, *verdict.removed):
        message = history[index]
        assert index < truth.earliest, f"promise 2: message {index} belongs to the current question"
        assert message.ours or message.table, f"promise 1: message {index} is no evidence"
        if message.table:
            assert tables[message.table].cite is not None, f"promise 1: nobody can cite message {index}"
    for index in verdict.removed:
        # Going back to the reply that called for them: pictures go only together with the returns that they came with.
        step = index - 1
        while history[step].role != "assistant":
            holds = history[step].readable and set(history[step].docs) & set(history[index].ours)
            assert not holds or step in verdict.replaced, f"promise 6: message {index} went, and {step} with it stayed"
            step -= 1
    tail = len(history) - truth.earliest
    if tail > 0 and history:
        assert came.messages[-tail:] == went.messages[-tail:], "promise 2: the current question changed"
    for index, fate in truth.fates.items():
        if player.harmed and fate.in_brackets and tables[fate.table].cite is not None:
            continue
        if fate.replaced is False and (index >= truth.earliest or truth.earliest == truth.current):
            assert index in verdict.same, f"promise 3: message {index} was undeclared, and had to stay"


def _one_capsule(history: History, verdict: Verdict) -> int | None:
    carriers = [index for index, raw in verdict.replaced.items() if not _is_receipt(raw)]
    assert len(carriers) <= 1, f"promise 5: capsules at {carriers}"
    if carriers:
        assert carriers[0] == max(verdict.replaced), "promise 5: the capsule is not on the newest replaced return"
        assert parts_of(verdict.replaced[carriers[0]])[0][1].startswith(HEADER), "neither a receipt nor a capsule"
    return carriers[0] if carriers else None


def _is_receipt(raw: str) -> bool:
    return parts_of(raw) == [("text", RECEIPT)]


def _nothing_lost(
    player: Player, history: History, truth: Truth, verdict: Verdict, came: Cut, went: Cut, capsule: int | None
) -> None:
    """Promise 3: what was cited and stood in the client's request stands in ours."""
    if not verdict.replaced:
        return
    forwarded = [text for raw in went.messages for text in texts_of(raw)]
    capsule_text = parts_of(verdict.replaced[capsule])[0][1] if capsule is not None else ""
    for entry in truth.cited.values():
        if _is_open(player, truth, entry):
            continue
        for doc in entry.docs:
            if any(doc.content in text for text in forwarded):
                continue
            stood = any(doc.content in text for raw in came.messages for text in texts_of(raw))
            assert not stood, f"promise 3: [{doc.id}] was cited, and its content is gone: {doc.content!r}"
    for entry in truth.cited.values():
        for doc in entry.docs:
            times = capsule_text.count(doc.content)
            same = sum(any(doc.content in other.content for other in e.docs) for e in truth.cited.values())
            if "the same words twice" in NOT_YET and (truth.interrupted or player.harmed or entry.far or entry.moot):
                continue
            if player.incomplete:
                continue  # what a failed call named is kept beside what was cited later under the same id
            assert times <= max(1, same) or doc.local or doc.whole, (
                f"promise 8: [{doc.id}] stands {times} times in the capsule"
            )


def _is_open(player: Player, truth: Truth, entry: CitedDoc) -> bool:
    """Whether nobody can say which words a citation meant: then none are asked for."""
    if truth.earliest != truth.current:
        return True  # whether the question before this one was over cannot be told
    return entry.moot or (entry.far and (player.harmed or truth.interrupted or entry.docs[0].id.isdigit()))


def _pictures(
    player: Player, history: History, truth: Truth, verdict: Verdict, came: Cut, went: Cut, capsule: int | None
) -> None:
    """Promise 6: labels and pictures pair up, their number never grows, and a cited picture comes again once."""
    if not verdict.replaced and not verdict.removed:
        return
    before, after = pictures_in(came.messages), pictures_in(went.messages)
    assert len(after) <= len(before), f"promise 6: {len(before)} pictures came, {len(after)} went"
    assert set(after) <= set(before), "promise 6: a picture that nobody sent"
    ours: list[tuple[str, str]] = []
    for raw, from_part in (
        (verdict.replaced.get(capsule, "") if capsule is not None else "", 1),
        (verdict.inserted or "", 0),
    ):
        if raw:
            parts = parts_of(raw)[from_part:]
            assert [kind for kind, _ in parts] == ["text", "picture"] * (len(parts) // 2), (
                f"promise 6: unpaired: {parts}"
            )
            ours += [(label, url) for (_, label), (_, url) in zip(parts[::2], parts[1::2], strict=True)]
    for label, url in ours:
        assert url not in UNDECODABLE, f"promise 6: a picture that does not decode was sent again: {label}"
        owners = [doc for m in history for doc in (*m.docs, *m.ours) if doc.picture == url and f"[{doc.id}]" in label]
        assert owners, f"promise 6: this label does not name the picture's chunk: {label}"
    gone = [history[index] for index in (*verdict.replaced, *verdict.removed)]
    for entry in truth.cited.values():
        if _is_open(player, truth, entry):
            continue
        for doc in entry.docs:
            held = [m for m in gone if doc in m.docs or doc in m.ours]
            if not doc.picture or doc.picture in UNDECODABLE or not held or not all(m.readable for m in history):
                continue
            if not any(
                doc.picture in parts for m in held for parts in [[u for k, u in parts_of(m.raw) if k == "picture"]]
            ):
                continue
            assert any(url == doc.picture for url in after), f"promise 8: the picture of cited [{doc.id}] is gone"


def _nothing_foreign(came: Cut, went: Cut) -> None:
    """Promise 9: no token that the client did not send."""
    if came is went:
        return
    token = re.compile(r"<\w+\.\w+\.\w+>")
    sent = {found for raw in came.messages for found in token.findall(raw)}
    got = {found for raw in went.messages for found in token.findall(raw)}
    assert got <= sent, f"promise 9: {got - sent} came from elsewhere"


def _figures(
    player: Player, truth: Truth, verdict: Verdict, body: bytes, exchange: Exchange, capsule: int | None
) -> None:
    """The reply header agrees with the bytes."""
    if exchange.header.startswith("untouched"):
        assert exchange.body is body, "untouched means the very object"
        assert re.fullmatch(r"untouched; reason=[a-z-]+", exchange.header), exchange.header
        return
    figures = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", exchange.header)}
    assert re.fullmatch(r"compacted(; \w+=\d+)+", exchange.header), exchange.header
    assert exchange.body != body and verdict.replaced
    assert (figures["before"], figures["after"]) == (len(body), len(exchange.body)), exchange.header
    assert figures["receipts"] == len(verdict.replaced) - (capsule is not None), exchange.header
    assert (figures["capsule"] > 0) == (capsule is not None), exchange.header
    if not player.harmed and not truth.interrupted and truth.earliest == truth.current:
        assert figures["question"] == truth.questions + 1, (
            f"question: {truth.questions + 1} is right: {exchange.header}"
        )


def _fates_kept(truth: Truth, verdict: Verdict, exchange: Exchange) -> None:
    """Promise 5: every earlier return that is accounted for was replaced."""
    if truth.earliest != truth.current or truth.interrupted:
        return
    for index, fate in truth.fates.items():
        if fate.replaced is True:
            assert index in verdict.replaced, f"promise 5: message {index} is of an earlier question, and stayed"


def _arranged(player: Player, history: History, truth: Truth, verdict: Verdict, capsule: int | None) -> None:
    """Promise 8: whole, exact, once; newest group first; in a group by first appearance, haiku's by id."""
    if capsule is None or truth.interrupted or truth.earliest != truth.current or player.incomplete:
        return
    text = parts_of(verdict.replaced[capsule])[0][1]
    haiku = {table.name for table in player.setup if table.format == "haiku"}
    placed: list[tuple[int, CitedDoc, Doc]] = []
    if any(entry.moot and any(doc.whole for doc in entry.docs) for entry in truth.cited.values()):
        return  # what an id meant before is kept under it, too, and may be another id's output
    for entry in truth.cited.values():
        for doc in entry.docs:
            at = text.find(doc.content)
            if at >= 0:
                placed.append((at, entry, doc))
    # Words that stand under two ids cannot be told apart by where they stand.
    placed = [item for item in placed if sum(item[2].token in other[2].content for other in placed) == 1]
    placed.sort(key=lambda item: item[0])
    for at, _, doc in placed:
        ending = text[at + len(doc.content) :]
        cut_here = f"promise 8: [{doc.id}] does not end where it ended: {ending[:60]!r}"
        assert ending == "" or ending.startswith("\n\n["), cut_here
        assert text[:at].endswith("\n"), f"promise 8: [{doc.id}] does not begin where it began"
    for (before, first, one), (after, second, two) in pairwise(placed):
        assert first.group >= second.group, f"promise 8: [{two.id}] of a newer group stands after [{one.id}]"
        between = text[before + len(one.content) : after]
        assert f"[{two.id}]" in between, f"promise 8: [{two.id}] does not stand under its id"
        assert first.group == second.group or "[Group " in between, "promise 8: groups are not told apart"
        if first.group == second.group and one.table == two.table:
            if one.table in haiku:
                assert one.id <= two.id, f"promise 8: [{one.id}] before [{two.id}]"
            elif first.shown_times == second.shown_times == 1 and (
                # Of the returns of one reply, each order is an order of appearance: as called, or as returned.
                first.first[0] != second.first[0] or first.first[1] == second.first[1]
            ):
                assert first.first < second.first, f"promise 8: [{two.id}] appeared before [{one.id}]"
    if any(not message.readable for message in history) or any(entry.moot for entry in truth.cited.values()):
        return
    tokens = set(re.findall(r"<\w+\.\w+\.\w+>", text))
    wanted = {doc.token for entry in truth.cited.values() for doc in entry.docs}
    assert tokens <= wanted, f"the capsule holds what nobody cited: {tokens - wanted}"


def _stable(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange, verdict: Verdict) -> None:
    """Promise 7, inside one question: what went up before is how this one starts."""
    start = truth_of(history, player.setup, player.closed).earliest
    for sent in reversed(player.sent):
        size = len(sent.history)
        if (sent.process, sent.tenant) != (player.process, voice.tenant) or not start < size <= len(history):
            continue
        if history[:size] != sent.history:
            continue
        came = _until_last_message(sent.body)
        if body.startswith(came):
            went = _until_last_message(sent.forwarded)
            assert exchange.body.startswith(went), (
                f"promise 7: the bytes before message {size} changed inside a question ({sent.header} before)"
            )
        return


def _until_last_message(body: bytes) -> bytes:
    whole = cut(body)
    return body[: len(body) - len(whole.tail.encode("utf-8", "surrogatepass"))]


async def _elsewhere(player: Player, voice: Voice, history: History, body: bytes, exchange: Exchange) -> None:
    """Promises 7 and 9: another process with the same store sends the same bytes, another tenant sees none of it."""
    kind = len(player.sent) % 4
    if not player.in_process:
        return
    # Where a question was interrupted, this process knows more than its neighbour: which stretches are one question.
    interrupted = truth_of(history, player.setup, player.closed).interrupted
    if kind == 1 and not player.harmed and not voice.names_questions and not interrupted:
        other = player.new_process(player.store.elsewhere())
        again = await other.ask(Asked(body, voice.tenant))
        assert again.body == exchange.body, f"promise 7: another process sends other bytes ({again.header})"
        assert again.header == exchange.header, (again.header, exchange.header)
    elif kind == 2:
        for stranger in ("a stranger", None):
            again = await player.conversations.ask(Asked(body, stranger))
            assert again.body is body, f"promise 9: {stranger or 'nobody'} got a rewrite: {again.header}"


# What a reader sees of a failure.


def transcript(player: Player, history: History, body: bytes, exchange: Exchange) -> str:
    """The story so far, then the request message by message with what became of each."""
    lines = ["tables: " + ", ".join(f"{t.name} ({t.format}, cite={t.cite}, ids={t.ids})" for t in player.setup), ""]
    lines += player.story
    lines += ["", f"the request, and what became of it ({exchange.header}):"]
    try:
        went = list(cut(exchange.body).messages)
    except Exception:
        went = []
    for index, message in enumerate(history):
        there = went.pop(0) if went else ""
        lines.append(f"  {index:3} {message.raw[:700]}")
        if there != message.raw:
            lines.append(f"  >>> {there[:1500]}")
    return "\n".join(lines)


__all__ = ["Broken", "judge", "run"]
