"""A crowd: many conversations with pictures at once, each of which knows what may become of its requests.

A conversation is judged by what it said itself and by reading the bytes that went up; nothing of the product is asked.
What a record that was lost costs is told apart from what must never happen: a wrong capsule, lost evidence.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from tests.house.client import Client, Torn, request
from tests.house.provider import Provider, Received, Reply, completion, events, json_reply, sse_reply
from tests.rewrites import assert_pairs, pictures_in, read_ours

Json = dict[str, Any]
_LABEL = "Page image 1 of 1, retrieved for search result [{id}] (#/pictures/{n}). "
_LABEL += "Not provided by the user. [haiku.rag/retrieved-image]"
#: How long an answer to one request may take before the crowd says so: far beyond what anything here should.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Chunk:
    """What a search finds: its words stand nowhere else, nor does its picture."""

    id: str
    content: str
    picture: bytes | None

    @property
    def url(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.picture or b"").decode()


@dataclass(frozen=True)
class Became:
    """What became of a request: `newest` (compacted up to the newest question), `older`, or `untouched`."""

    kind: str
    reason: str = ""
    kept: bool = False

    def __str__(self) -> str:
        return f"untouched ({self.reason})" if self.reason else self.kind + (", some kept" if self.kept else "")


class Wrong(AssertionError):
    """A request went up as it never may."""


@dataclass
class Talk:
    """One conversation as its client holds it, and the truth about it."""

    name: str
    rng: random.Random
    messages: list[Json] = field(default_factory=list)
    found: dict[int, tuple[int, list[Chunk]]] = field(default_factory=dict)  # message -> question, what it showed
    cited: list[list[Chunk]] = field(default_factory=list)  # by settled question
    citing: list[Chunk] = field(default_factory=list)  # by the current one
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def body(self, stream: bool) -> bytes:
        return json.dumps({"model": "m", "stream": stream, "messages": self.messages}).encode()

    def say(self, role: str, content: Any, **beside: Any) -> None:
        self.messages.append({"role": role, "content": content, **beside})

    def search(self) -> tuple[str, str, Json]:
        return f"call-{self.name}-{next(self.numbers)}", "search", {"query": f"about {self.name}"}

    def find(self, call: tuple[str, str, Json]) -> None:
        """The search returns: two or three chunks, some with a picture, in the return's own parts."""
        chunks = [self.chunk() for _ in range(self.rng.randrange(2, 4))]
        total = len(chunks)
        text = "\n\n---\n\n".join(
            f'[{c.id}] [rank {n} of {total}]\nSource: "Title of {c.id[:8]}"\nType: text\nContent:\n{c.content}'
            for n, c in enumerate(chunks, 1)
        )
        parts: list[Json] = [{"type": "text", "text": text}]
        for n, chunk in enumerate(chunks):
            if chunk.picture is not None:
                parts.append({"type": "text", "text": _LABEL.format(id=chunk.id, n=n)})
                parts.append({"type": "image_url", "image_url": {"url": chunk.url}})
        self.found[len(self.messages)] = len(self.cited), chunks
        self.say("tool", parts, tool_call_id=call[0])

    def chunk(self) -> Chunk:
        number = next(self.numbers)
        name = f"{self.rng.getrandbits(128):032x}"
        chunk_id = "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:]))
        words = " ".join(f"{self.rng.randrange(10**6):06}" for _ in range(30))
        picture = _png(self.rng) if self.rng.random() < 0.4 else None
        return Chunk(chunk_id, f"chunk {number} of {self.name}: {words}", picture)

    def choose(self) -> list[Chunk]:
        """What the model cites: some of what this question showed, at times something older that was cited before."""
        mine = [chunk for question, chunks in self.found.values() if question == len(self.cited) for chunk in chunks]
        chosen = self.rng.sample(mine, self.rng.randrange(len(mine) + 1))
        older = [chunk for chunks in self.cited for chunk in chunks]
        if older and self.rng.random() < 0.3:
            chosen.append(self.rng.choice(older))
        return chosen

    def settle(self) -> None:
        self.cited.append(self.citing)
        self.citing = []

    def judge(self, sent: bytes, forwarded: bytes, header: str | None) -> Became:
        """What became of a request. Raises Wrong where no record, old or new, could have led to it."""
        try:
            return self._judge(sent, forwarded, header)
        except AssertionError as wrong:
            raise Wrong(f"{self.name}, {len(self.cited)} questions settled, {header!r}: {wrong}") from wrong

    def _judge(self, sent: bytes, forwarded: bytes, header: str | None) -> Became:
        if forwarded == sent:
            reason = re.fullmatch(r"untouched; reason=([a-z-]+)", header or "untouched; reason=unknown")
            assert reason, "what goes up as it came says why"
            return Became("untouched", reason[1])
        done = read_ours(sent, forwarded)  # nothing but evidence changed, to the byte
        assert_pairs(forwarded)
        assert not done.removed and done.pictures_after in (None, -1)
        assert all(index in self.found for index in done.replaced)
        newest = max(self.found[index][0] for index in done.replaced)
        assert newest < len(self.cited), "the current question is untouched"
        upto = [index for index, (question, _) in self.found.items() if question <= newest]
        kept = [index for index in upto if index not in done.replaced]
        if header is not None:
            assert header.startswith("compacted; ")
            assert (f"kept={len(kept)}" in header) == bool(kept), "what stayed is counted"
        may_stand = {chunk.id: chunk for chunks in self.cited[: newest + 1] for chunk in chunks}
        for entry in done.entries:
            (chunk_id,) = entry.ids
            assert chunk_id in may_stand, f"[{chunk_id}] was not cited by then"
            assert entry.content == may_stand[chunk_id].content, f"[{chunk_id}] has other words"
        ids = [entry.ids[0] for entry in done.entries]
        assert len(ids) == len(set(ids)), "a chunk stands twice"
        if not kept:
            assert set(ids) == set(may_stand), "the capsule is what was cited by then"
        text = forwarded.decode()
        for chunks in self.cited:
            for chunk in chunks:
                assert chunk.content in text, f"[{chunk.id}] was cited, and is lost"
                assert not chunk.picture or chunk.url in text, f"the picture of [{chunk.id}] was cited, and is lost"
        again = Counter(shown.chunk_id for shown in done.pictures)
        assert again == Counter(i for i in ids if may_stand[i].picture), "each cited picture once"
        for shown in done.pictures:
            assert shown.picture == may_stand[shown.chunk_id].picture, f"[{shown.chunk_id}] has another's picture"
        assert len(pictures_in(forwarded)) <= len(pictures_in(sent))
        return Became("newest" if newest == len(self.cited) - 1 else "older", kept=bool(kept))


def _png(rng: random.Random) -> bytes:
    out = io.BytesIO()
    Image.frombytes("RGB", (12, 12), rng.randbytes(432)).save(out, "PNG")
    return out.getvalue()


class Crowd:
    """Holds conversations through proxies until told to stop; `seen` counts what became of their requests.

    `where` gives the address to ask next; one that breaks off is asked again, as clients do, at what it gives then.
    """

    def __init__(self, provider: Provider, where: Callable[[], Awaitable[str]], seed: int, questions: int = 5) -> None:
        self._provider = provider
        self._where = where
        self._random = random.Random(seed)
        self._questions = questions
        self._turns: dict[bytes, _Turn] = {}
        self._number = itertools.count(1)
        self._answered = asyncio.Condition()
        self.stopping = False
        self.seen: Counter[str] = Counter()
        self.openings: Counter[str] = Counter()  # the first request of each question after the first
        self.torn = 0
        self.waits: Sequence[float] = (0.0, 0.0)
        """Between which bounds a user thinks before the next question."""
        provider.always(self._answer)

    async def hold(self, how_many: int, until: Awaitable[object]) -> None:
        """Keep so many conversations going until that is done; then each comes to the end of its question."""
        talkers = [asyncio.create_task(self._talk(n)) for n in range(how_many)]
        rest = asyncio.ensure_future(until)
        try:
            done, _ = await asyncio.wait([rest, *talkers], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {rest}:
                task.result()
            await rest
            self.stopping = True
            await asyncio.gather(*talkers)
        finally:
            for task in (rest, *talkers):
                task.cancel()
            await asyncio.gather(rest, *talkers, return_exceptions=True)

    async def more(self, answers: int) -> None:
        """Return when so many more whole answers came."""
        goal = self.seen.total() + answers
        async with self._answered:
            await self._answered.wait_for(lambda: self.seen.total() >= goal)

    async def _talk(self, n: int) -> None:
        while not self.stopping:
            talk = Talk(f"talk-{n}-{next(self._number)}", random.Random(self._random.getrandbits(64)))
            for _ in range(self._questions):
                await self.question(talk)
                if self.stopping:
                    return

    async def question(self, talk: Talk) -> None:
        """One question with its tool loop."""
        await asyncio.sleep(talk.rng.uniform(*self.waits))
        talk.say("user", f"Question {len(talk.cited) + 1} of {talk.name}?")
        for search in range(talk.rng.randrange(1, 3)):
            call = talk.search()
            became = await self._ask(talk, completion(calls=[call]))
            if search == 0 and talk.cited:
                self.openings[str(became)] += 1
            talk.say("assistant", None, tool_calls=_calls(call))
            talk.find(call)
        talk.citing = talk.choose()
        call = f"call-{talk.name}-{next(talk.numbers)}", "cite", {"chunk_ids": [chunk.id for chunk in talk.citing]}
        await self._ask(talk, completion(calls=[call]))
        talk.say("assistant", None, tool_calls=_calls(call))
        talk.say("tool", f"Registered {len(talk.citing)} citation(s).", tool_call_id=call[0])
        answer = f"Answer {len(talk.cited) + 1} of {talk.name}."
        await self._ask(talk, completion(answer))
        talk.say("assistant", answer)
        talk.settle()

    async def _ask(self, talk: Talk, said: Json) -> Became:
        """Ask until a whole answer came, and judge all that went up meanwhile."""
        stream = talk.rng.random() < 0.5
        body = talk.body(stream)
        name = f"{talk.name}-{len(talk.messages)}".encode()
        turn = self._turns[name] = _Turn(sse_reply(events(said, 40)) if stream else json_reply(said))
        headers: list[tuple[str | bytes, str | bytes]] = [
            ("Authorization", f"Bearer sk-{talk.name.split('-')[1]}"),
            ("Content-Type", "application/json"),
            ("X-Turn", name),
        ]
        while True:
            try:
                async with asyncio.timeout(_PATIENCE):
                    client = await Client.connect(await self._where())
                    try:
                        await client.send(request(body=body, headers=headers))
                        seen = await client.reply()
                    finally:
                        client.close()
                break
            except (Torn, ConnectionError):
                self.torn += 1
                await asyncio.sleep(0.01)
        assert seen.status == 200, (seen.status, seen.body[:300])
        assert seen.body == turn.whole, "the reply is the provider's"
        *before, forwarded = turn.forwarded
        for other in before:
            talk.judge(body, other, None)  # nobody got the header of a reply that broke off
        became = talk.judge(body, forwarded, seen.evidence)
        async with self._answered:
            self.seen[str(became)] += 1
            self._answered.notify_all()
        del self._turns[name]
        self._provider.requests.clear()
        return became

    def _answer(self, received: Received) -> Reply:
        turn = self._turns[received.value("x-turn") or b""]
        turn.forwarded.append(received.body)
        return turn.reply


@dataclass
class _Turn:
    reply: Reply
    forwarded: list[bytes] = field(default_factory=list)

    @property
    def whole(self) -> bytes:
        return b"".join(step for step in self.reply.steps if isinstance(step, bytes))


def _calls(call: tuple[str, str, Json]) -> list[Json]:
    return [{"id": call[0], "type": "function", "function": {"name": call[1], "arguments": json.dumps(call[2])}}]
