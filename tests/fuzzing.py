"""Coverage-guided fuzzing of everything that reads a client's or a provider's bytes, and the judges of what comes out.

    python -m tests.fuzzing CORPUS [-max_total_time=60 and other options of libFuzzer]

needs atheris, and grows CORPUS, a directory. An input's first byte says what it is played as (`PLAYS`; those that
EVIDENCE_PROXY_PLAYS names, or all); `one` plays and judges it, without atheris too, so that a find becomes a test by
being put into tests/vectors/fuzzing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    import atheris  # type: ignore[import-not-found]

    instrumented: Any = atheris.instrument_imports(include=["proxy"], enable_loader_override=False)
else:
    instrumented = contextlib.nullcontext()

with instrumented:
    from proxy.gateway.conversation import Asked, Conversations, Exchange
    from proxy.settings import EvidenceTable
    from proxy.wire import chat, responses
    from proxy.wire.events import EventReader
    from tests import promises, promises_append
    from tests.conversations import Player, Seeded, run, settings_of, stream_of
    from tests.fake_store import FakeStore
    from tests.items import ItemPlayer
    from tests.talk import body, calls, cited, returns, says, searched, user

FINDS = Path(__file__).parent / "vectors" / "fuzzing"

#: Between the parts of an input: a byte that no UTF-8 text holds.
CUT = b"\xfe"
SECONDS_PER_MEGABYTE = 1.0
_MOST_EVENT_BYTES = 1 << 20


class Bytes:
    """Dice whose throws are an input's bytes; after its end every throw is the dullest one."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def below(self, n: int) -> int:
        thrown = next(self._left, 0)
        return (thrown if n <= 256 else thrown << 8 | next(self._left, 0)) % n


# Whole conversations, each request judged by all promises.


def conversation(data: bytes) -> None:
    run(Player(Bytes(data), promises.judge).play(most=3))


def conversation_in_append(data: bytes) -> None:
    run(Player(Bytes(data), promises_append.judge, "append").play(most=3))


def conversation_in_items(data: bytes) -> None:
    run(ItemPlayer(Bytes(data), promises.judge).play(most=3))


# Any bytes for requests and replies, judged by what holds of any.


def raw(data: bytes) -> None:
    """Byte 0: API, layout, setup. Then requests and replies in turns."""
    choice = data[0] if data else 0
    api, layout = ("chat", "responses")[choice & 1], ("single", "append")[choice >> 1 & 1]
    setup = _TABLES[(choice >> 2) % len(_TABLES)]
    parts = data[1:].split(CUT)[:8]
    with _in_time(len(data)):
        run(_raw(parts, api, Conversations(settings_of(setup, layout), FakeStore()), choice))  # type: ignore[arg-type]


_TABLES: tuple[tuple[EvidenceTable, ...], ...] = (
    (EvidenceTable(format="auto", tools=("search",), cite="cite"),),
    (EvidenceTable(format="haiku"),),
    (EvidenceTable(format="auto", tools=("search",), cite="inline", undeclared="receipt"),),
    (EvidenceTable(format="auto", tools=("search",), cite="cite", ids="local"), EvidenceTable(format="tagged")),
)


async def _raw(parts: list[bytes], api: str, conversations: Conversations, choice: int) -> None:
    settled = False
    for at in range(0, len(parts), 2):
        exchange = await conversations.ask(Asked(parts[at], "anna", api=api))
        _judge(parts[at], exchange, "messages" if api == "chat" else "input", settled)
        reply = parts[at + 1] if at + 1 < len(parts) else b""
        size = max(1, len(reply) // (1 + choice % 5))
        for start in range(0, len(reply), size):
            exchange.feed(reply[start : start + size])
            if exchange.finished():
                await exchange.settle()
                settled = True
        await exchange.ended(True)
        settled = settled or bool(reply)


def _judge(came: bytes, exchange: Exchange, member: str, settled: bool) -> None:
    if exchange.body is came:
        assert exchange.header.startswith("untouched; reason="), exchange.header
        return
    assert exchange.header.startswith("compacted; question="), exchange.header
    assert settled, "promise 3: something was replaced that no settled question accounts for"
    before, after = promises.cut(_text(came), member), promises.cut(_text(exchange.body), member)
    assert (before.head, before.tail) == (after.head, after.tail), "promise 1: the body around the messages changed"
    old, new = _told(before.messages), _told(after.messages)
    assert [_pairing(value) for _, value in old] == [_pairing(value) for _, value in new], "promise 4: pairs broke"
    for (text, value), (other, changed) in zip(old, new, strict=True):
        if text != other:
            assert _is_return(value), "promise 1: a message that is no return changed"
            assert _beside_content(value) == _beside_content(changed), "promise 1: more than a content changed"
    words = [text for text in before.messages if _is_plain_user(text)]
    went = iter(after.messages)
    assert all(any(text == other for other in went) for text in words), "promise 1: a user's words changed"
    last = max((at for at, text in enumerate(before.messages) if _is_plain_user(text)), default=0)
    tail = before.messages[last:]
    assert after.messages[len(after.messages) - len(tail) :] == tail, "promise 2: the current question changed"


def _text(body: bytes) -> bytes:
    """A body whose bytes are no UTF-8 outside of what is ours: they pass, and are compared as what they are."""
    return body.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")


def _told(messages: tuple[str, ...]) -> list[tuple[str, Any]]:
    values = [(text, json.loads(text)) for text in messages]
    return [(text, value) for text, value in values if not (isinstance(value, dict) and value.get("role") == "user")]


def _is_plain_user(text: str) -> bool:
    value = json.loads(text)
    return isinstance(value, dict) and value.get("role") == "user" and "image" not in text


def _is_return(value: Any) -> bool:
    return isinstance(value, dict) and (
        value.get("role") in ("tool", "function") or str(value.get("type", "")).endswith("_output")
        or str(value.get("type", "")).endswith("_call")
    )  # fmt: skip


def _pairing(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return json.dumps([value.get(key) for key in ("role", "type", "tool_call_id", "call_id", "tool_calls", "id")])


def _beside_content(value: dict[str, Any]) -> Any:
    return {key: kept for key, kept in value.items() if key not in ("content", "output", "results")}


# Replies.


def events(data: bytes) -> None:
    """An event stream gives the same events however it is cut, and those that the standard says."""
    cuts = 1 + (data[0] if data else 0) % 17
    stream = data[1:]
    with _in_time(len(data)):
        whole = _events(stream, max(1, len(stream)))
        assert _events(stream, cuts) == whole
    assert whole == _by_the_book(stream)


def _events(stream: bytes, size: int) -> list[bytes]:
    reader = EventReader(_MOST_EVENT_BYTES)
    found = [event for at in range(0, len(stream), size) for event in reader.feed(stream[at : at + size])]
    return [*found, *reader.close()]


def _by_the_book(stream: bytes) -> list[bytes]:
    """HTML standard, 9.2.6, as it is written; but an event at the end of the stream counts without its blank line."""
    lines = re.split(rb"\r\n|\n|\r", stream.removeprefix(b"\xef\xbb\xbf"))
    found: list[bytes] = []
    held: list[bytes] = []
    for line in [*lines, b""]:
        if line == b"" and held:
            found.append(b"\n".join(held))
            held = []
        name, _, value = line.partition(b":")
        if name == b"data" and b":" in line:
            held.append(value.removeprefix(b" "))
    return found


def replies(data: bytes) -> None:
    """A reply means the same however it is cut, and nothing that it says is an error."""
    choice = data[0] if data else 0
    api: Any = (chat, responses)[choice & 1]
    stream = data[1:]
    request = api.cut(_REQUESTS[choice & 1])
    said = []
    with _in_time(len(data)):
        for size in (max(1, len(stream)), 1 + choice % 23):
            reader = api.reader(request)
            for at in range(0, len(stream), size):
                reader.feed(stream[at : at + size])
                reader.finished()
            reader.close(True)
            said.append((reader.finished(), reader.replies(), reader.continued_by(), reader.usage()))
    assert repr(said[0]) == repr(said[1])


_REQUESTS = (body(user("q")), json.dumps({"input": [user("q")]}).encode())

PLAYS: tuple[Callable[[bytes], None], ...] = (
    raw,
    events,
    replies,
    conversation,
    conversation_in_append,
    conversation_in_items,
)


def one(data: bytes, plays: Sequence[Callable[[bytes], None]] = PLAYS) -> None:
    """Play one input and judge it. Raises where something is wrong. Of what it is played as, only `plays` are."""
    if data and (play := PLAYS[data[0] % len(PLAYS)]) in plays:
        play(data[1:])


@contextlib.contextmanager
def _in_time(size: int) -> Iterator[None]:
    since = time.process_time()
    yield
    took = time.process_time() - since
    assert took <= SECONDS_PER_MEGABYTE * max(1.0, size / 1e6), f"{took:.1f} s for {size} bytes"


def seeds() -> Iterator[bytes]:
    """Where fuzzing begins: plain conversations as bytes, replies of both APIs, and dice."""
    search = "[c1] one\nfirst\n\n[c2] two\nsecond"
    asked: list[Any] = [user("first?"), *searched(search), *cited(["c1"])]
    answered = [*asked, says("It is one."), user("second?")]
    answer = json.dumps({"choices": [{"index": 0, "message": says("It is one."), "finish_reason": "stop"}]}).encode()
    streamed = stream_of([{"index": 0, "message": says("It is one."), "finish_reason": "stop"}])
    more = [*answered, *searched(json.dumps([{"id": "d1", "content": "third"}]), "t"), *cited(["d1"], call_id="d")]
    code = [user("q"), calls(("x", "execute_code", {"code": "print(1)"})), returns("x", "1")]
    for setup in range(len(_TABLES)):
        for reply in (answer, streamed):
            yield _input(raw, setup << 2, body(*asked), reply, body(*answered), reply, body(*more))
        yield _input(raw, setup << 2 | 2, body(*asked), answer, body(*answered), answer, body(*more))
    yield _input(raw, 0, body(*code), answer)
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is one."}]}
    items = [
        user("first?"),
        {"type": "function_call", "call_id": "s", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "s", "output": search},
        {"type": "function_call", "call_id": "c", "name": "cite", "arguments": '{"ids": ["c1"]}'},
        {"type": "function_call_output", "call_id": "c", "output": "registered"},
    ]
    whole = json.dumps({"id": "r", "status": "completed", "output": [item]}).encode()
    later = json.dumps({"input": [*items, item, user("second?")]}).encode()
    for setup in range(len(_TABLES)):
        yield _input(raw, setup << 2 | 1, json.dumps({"input": items}).encode(), whole, later, whole)
    for stream in (streamed, answer, whole, b"\xef\xbb\xbfdata: 1\r\n: c\r\rdata:2\rdata\nid: 4\n\ndata: 3"):
        yield _input(events, 7, stream)
        yield _input(replies, 8, stream)
        yield _input(replies, 9, stream)
    for seed in range(60):
        dice = Seeded(seed)
        thrown = bytes(dice.below(256) for _ in range(400))
        yield bytes([3 + seed % 3]) + thrown


def _input(play: Callable[[bytes], None], choice: int, *parts: bytes) -> bytes:
    return bytes([PLAYS.index(play), choice]) + CUT.join(parts)


def main(arguments: list[str]) -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    named = os.environ.get("EVIDENCE_PROXY_PLAYS", "").split(",")
    plays = [play for play in PLAYS if play.__name__ in named] or list(PLAYS)
    for number, seed in enumerate(seed for seed in seeds() if PLAYS[seed[0]] in plays):
        (folder / f"seed-{number:03}").write_bytes(seed)
    words = folder.parent / "words"
    words.write_text("".join(f'"{word}"\n' for word in _WORDS.split()))
    options = [f"-dict={words}", "-max_len=20000", "-timeout=120", "-rss_limit_mb=4096", "-print_final_stats=1"]
    atheris.Setup([arguments[0], str(folder), *options, *arguments[2:]], lambda data: one(data, plays))
    atheris.Fuzz()


_WORDS = (
    "role content tool_calls tool_call_id function arguments messages input assistant tool user finish_reason stop "
    "choices delta data: [DONE] registered image_url search cite function_call_output output_text response.completed "
    "results chunk_id rank [evidence null execute_code data:image/png;base64, previous_response_id item_reference "
    "reasoning custom True"
)

if __name__ == "__main__":
    main(sys.argv)
