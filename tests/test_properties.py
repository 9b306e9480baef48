"""The promises over conversations that nobody wrote down: generated, played, and judged request by request.

`make test` plays a couple of thousand; `EVIDENCE_PROXY_PROOFS=full` ten times as many. A failure is printed as a
transcript: what was said, and what became of each message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.gateway.conversation import Asked, Conversations
from tests import promises, promises_append
from tests.conversations import SETUPS, Player, Seeded, run, settings_of
from tests.fake_store import FakeStore
from tests.house import client
from tests.house.provider import Break, Provider, Received, Reply, Wait
from tests.house.running import InProcess, NoStore
from tests.house.running import settings as running_settings
from tests.items import ItemPlayer

TIMES = 10 if os.environ.get("EVIDENCE_PROXY_PROOFS") == "full" else 1
PLAYED: dict[str, int] = {}


def examples(number: int) -> settings:
    """How many, always the same ones, and no deadline: a busy machine is no failure."""
    return settings(
        max_examples=number * TIMES,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


TABLE = Path(__file__).parents[1] / "docs" / "proofs" / "properties.md"


@pytest.fixture(scope="module", autouse=True)
def _told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Says how many were played; `make proofs` writes it down, if all promises held."""
    failed = request.session.testsfailed
    yield
    print(f"\nexamples: {sum(PLAYED.values())} ({', '.join(f'{name} {n}' for name, n in PLAYED.items())})")
    if TIMES > 1 and request.session.testsfailed == failed:
        rows = "".join(f"| {name} | {number:,} |\n" for name, number in PLAYED.items())
        TABLE.write_text(
            "# Generated conversations\n\nPlayed and judged by `make proofs` (tests/test_properties.py), the same ones "
            "on every machine; no promise was broken in any.\n\n| property | examples |\n|---|---|\n" + rows
        )


def count(name: str) -> None:
    PLAYED[name] = PLAYED.get(name, 0) + 1


class Drawn:
    """Dice that hypothesis throws: it shrinks a failing conversation to the plainest one that still fails."""

    _numbers: dict[int, st.SearchStrategy[int]] = {}  # noqa: RUF012

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        if n not in self._numbers:
            self._numbers[n] = st.integers(0, n - 1)
        return int(self._draw(self._numbers[n]))

    def __repr__(self) -> str:
        return "(the conversation is told below)"


@st.composite
def dice(draw: st.DrawFn) -> Drawn:
    return Drawn(draw)


#: Each layout with its judge.
LAYOUTS = {"single": promises.judge, "append": promises_append.judge}


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(500)
@given(thrown=dice())
def test_the_promises_hold_in_any_conversation(layout: str, thrown: Drawn) -> None:
    count(f"drawn conversations, {layout}")
    run(Player(thrown, LAYOUTS[layout], layout).play(most=3))


@pytest.mark.parametrize("first", range(0, 1000, 100))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_promises_hold_in_long_conversations(layout: str, first: int) -> None:
    """Seeds instead of hypothesis: longer conversations, and many times as many of them in a second."""
    for seed in range(first * TIMES, (first + 100) * TIMES):
        count(f"long conversations, {layout}")
        run(Player(Seeded(seed), LAYOUTS[layout], layout).play(most=6))


# The same in the Responses API.


@examples(150)
@given(dice())
def test_the_promises_hold_in_the_responses_api(thrown: Drawn) -> None:
    count("drawn conversations in items")
    run(ItemPlayer(thrown, promises.judge).play(most=3))


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_the_promises_hold_in_long_conversations_in_the_responses_api(first: int) -> None:
    for seed in range(first * TIMES, (first + 100) * TIMES):
        count("long conversations in items")
        run(ItemPlayer(Seeded(seed), promises.judge).play(most=6))


# The same over HTTP.


class OverHttp(Player):
    """The same client and provider, with the whole gateway between them."""

    def __init__(self, thrown: Any, upstream: Provider) -> None:
        self.upstream = upstream
        self.open: list[InProcess] = []
        self.asked: list[RemoteExchange] = []
        super().__init__(thrown, promises.judge)
        self.in_process = False

    def new_process(self, store: Any = None) -> Any:
        return Remote(self)

    async def proxy(self) -> InProcess:
        """The gateway of the process that is asked now."""
        while len(self.open) <= self.process:
            chosen = running_settings(self.upstream.url, evidence=list(self.setup))
            conversations = Conversations(self.settings, self.store)  # type: ignore[arg-type]
            self.open.append(await InProcess(chosen, conversations, NoStore(), None).start())
        return self.open[self.process]

    async def close(self) -> None:
        for exchange in self.asked:
            exchange.client.vanish()  # the last questions are never answered
        for proxy in self.open:
            await proxy.stop()


class Remote:
    """What `Conversations` is to the player, at the other end of a socket."""

    def __init__(self, player: OverHttp) -> None:
        self._player = player

    async def ask(self, asked: Asked) -> RemoteExchange:
        url = (await self._player.proxy()).url
        exchange = RemoteExchange()
        self._player.asked.append(exchange)
        came: asyncio.Future[Received] = asyncio.get_running_loop().create_future()

        def answer(received: Received) -> Reply:
            came.set_result(received)
            return Reply(headers=[("Content-Type", "application/json")], steps=exchange.steps)

        self._player.upstream.reply(answer)
        exchange.client = await client.Client.connect(url)
        headers: list[tuple[str | bytes, str | bytes]] = [("Authorization", f"Bearer {asked.credential}")]
        if asked.question_id is not None:
            headers.append(("Evidence-Question", asked.question_id))
        await exchange.client.send(client.request(body=asked.body, headers=headers))
        exchange.seen = await exchange.client.head()
        forwarded = (await came).body
        exchange.body = asked.body if forwarded == asked.body else forwarded
        exchange.header = exchange.seen.evidence
        return exchange


class RemoteExchange:
    """A reply that is still going on: the provider waits until the player says how it goes on."""

    client: client.Client
    seen: client.Seen
    body: bytes
    header: str

    def __init__(self) -> None:
        self._wait = Wait()
        self.steps: list[Any] = [self._wait]  # grows before the provider goes on

    def feed(self, chunk: bytes) -> None:
        self.steps.append(chunk)

    def finished(self) -> bool:
        return False

    async def settle(self) -> None:
        raise AssertionError("the gateway settles by itself")

    async def ended(self, complete: bool) -> None:
        if not complete:
            self.steps.append(Break())
        self._wait.go()
        try:
            relayed = (await self.client.rest(self.seen)).body
            assert relayed == b"".join(step for step in self.steps if isinstance(step, bytes))
            assert complete
        except client.Torn:
            assert not complete
        finally:
            self.client.close()


@examples(40)
@given(dice())
def test_the_promises_hold_over_http(thrown: Drawn) -> None:
    count("over HTTP")

    async def play() -> None:
        upstream = await Provider().start()
        player = OverHttp(thrown, upstream)
        try:
            await player.play(most=2)
        finally:
            await player.close()
            await upstream.stop()

    run(play())


# Whatever comes.

_KEYS = st.sampled_from(
    ("role", "content", "tool_calls", "tool_call_id", "function", "name", "arguments", "id", "type", "text",
     "image_url", "url", "messages", "n", "custom", "input", "function_call", "index", "choices", "delta", "message",
     "finish_reason", "x")
)  # fmt: skip
_WORDS = st.sampled_from(
    ("user", "assistant", "tool", "system", "developer", "function", "search", "cite", "execute_code", "text", "lookup",
     "image_url", "c", "[c1] one", '{"ids": ["c1"]}', '{"chunk_ids": [', "registered", "stop", "\ud800", "\x00", "\r\n",
     "data:image/png;base64,AAAA", "data:;base64,", "Fix the errors and try again.")
)  # fmt: skip
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _WORDS | st.text(max_size=8)
_JSON: st.SearchStrategy[Any] = st.deferred(
    lambda: _SCALARS | st.lists(_JSON, max_size=4) | st.dictionaries(_KEYS, _JSON, max_size=5)
)
_CALL = st.fixed_dictionaries(
    {
        "id": _SCALARS,
        "function": st.fixed_dictionaries({"name": _WORDS, "arguments": _WORDS | _JSON}),
    }
)
_MESSAGE = st.fixed_dictionaries(
    {"role": _WORDS, "content": _JSON},
    optional={"tool_calls": st.lists(_CALL | _JSON, max_size=3) | _JSON, "tool_call_id": _SCALARS, "name": _SCALARS},
)
_BODIES = st.fixed_dictionaries({"messages": st.lists(_MESSAGE | _JSON, max_size=8) | _JSON}, optional={"n": _SCALARS})


async def _whatever(body: bytes, reply: bytes, setup: int) -> None:
    conversations = Conversations(settings_of(SETUPS[setup]), FakeStore())  # type: ignore[arg-type]
    for _ in range(2):
        exchange = await conversations.ask(Asked(body, "anna"))
        if exchange.body is not body:
            json.loads(exchange.body)
            promises.cut(exchange.body)
        for at in range(0, len(reply), 9):
            exchange.feed(reply[at : at + 9])
            exchange.finished()
        await exchange.settle()
        await exchange.settle()
        await exchange.ended(True)


@examples(200)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_make_it_raise(body: bytes, reply: bytes) -> None:
    count("any bytes")
    run(_whatever(body, reply, 0))


@examples(400)
@given(_BODIES | _JSON, _JSON, st.integers(0, len(SETUPS) - 1), st.booleans())
def test_no_json_makes_it_raise(body: Any, reply: Any, setup: int, streamed: bool) -> None:
    count("any JSON")
    said = json.dumps(reply).encode()
    run(_whatever(json.dumps(body).encode(), b"data: " + said + b"\n\n" if streamed else said, setup))


@examples(150)
@given(dice(), st.data())
def test_no_damage_to_a_recorded_conversation_makes_it_raise_or_write_what_is_no_json(thrown: Drawn, data: Any) -> None:
    """A real conversation, and then its next request with some bytes changed, doubled or taken out."""
    count("damaged requests")
    player = Player(thrown, promises.judge)
    run(player.play(most=2))
    sent = player.sent[-1]
    at = data.draw(st.integers(0, len(sent.body)))
    size = data.draw(st.integers(0, 40))
    put = data.draw(st.binary(max_size=4) | st.just(sent.body[at : at + size] * 2))
    body = sent.body[:at] + put + sent.body[at + size :]
    exchange = run(player.conversations.ask(Asked(body, sent.tenant)))
    if exchange.body is not body:
        came, went = promises.cut(body), promises.cut(exchange.body)
        assert (came.head, came.tail) == (went.head, went.tail)
        roles = [json.loads(raw).get("role") for raw in came.messages]
        assert roles.count("tool") == [json.loads(raw).get("role") for raw in went.messages].count("tool")
    run(exchange.ended(False))
