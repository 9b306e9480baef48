"""Tokens are counted as tiktoken counts them, from an installation that has never seen a network, and delay nobody."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from PIL import Image
from tiktoken_ext import openai_public

from proxy.visibility import pictures, vocabularies
from proxy.visibility.counting import Counted, Counting
from proxy.visibility.tokens import Counter, Tokens
from proxy.wire import chat, responses
from proxy.wire.messages import Picture, Request
from tests.captures import ABSENT, CAPTURES, HERE
from tests.conftest import StartHere
from tests.house.client import ask
from tests.house.provider import Provider, completion, json_reply
from tests.house.running import ROOT
from tests.talk import body, calls, returns, says, user
from tests.test_watching import FIRST, KEY, SECOND, TABLE

Encode = Callable[[str], int]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Encode]]:
    """tiktoken's own encodings by its own loader, which checks the digests itself: the files are in its cache."""
    cache = tmp_path_factory.mktemp("cache")
    for name in vocabularies.DIGESTS:
        url = f"https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
        (cache / hashlib.sha1(url.encode()).hexdigest()).write_bytes(vocabularies.unpacked(name))
    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(cache)
    try:
        own = {name: tiktoken.Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]()) for name in vocabularies.DIGESTS}
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before

    def of(name: str) -> Encode:
        return lru_cache(None)(lambda text: len(own[name].encode(text, disallowed_special=())))

    yield of


# Over everything that real programs sent.


def bodies() -> list[Path]:
    return sorted(path for path in CAPTURES.rglob("*.json") if path.name != "meta.json") if HERE else []


def said(body: dict[str, Any]) -> Iterator[str]:
    """Every text of a body's messages, found without the proxy's own reading of it."""
    for item in body.get("messages") or body["input"]:
        kind = item.get("type")
        for content in (item.get("content"), item.get("output")):
            if kind not in (None, "message", "function_call_output"):
                continue
            for part in [content] if isinstance(content, str) else content or ():
                if isinstance(part, str) or "text" in part:
                    yield part if isinstance(part, str) else part["text"]
                else:
                    assert part["type"] in ("image_url", "input_image"), part["type"]
        for call in [*(item.get("tool_calls") or ()), *([item] if kind == "function_call" else ())]:
            function = call.get("function") or call
            yield function["name"]
            yield function["arguments"]


def tiktokens(encode: Encode, raw: bytes) -> int:
    value = json.loads(raw)
    if isinstance(value.get("input"), str):
        return encode(value["input"])
    return sum(map(encode, said(value)))


def request(raw: bytes) -> Request:
    return (chat if b'"messages"' in raw.partition(b"[")[0] or "messages" in json.loads(raw) else responses).cut(raw)


@pytest.mark.skipif(not HERE, reason=ABSENT)
@pytest.mark.parametrize("encoding", sorted(vocabularies.DIGESTS))
def test_every_capture_has_as_many_tokens_as_tiktoken_counts(reference: Callable[[str], Encode], encoding: str) -> None:
    encode, counter = reference(encoding), Counter()
    model = {"o200k_base": "gpt-4o", "cl100k_base": "gpt-4"}[encoding]
    seen = 0
    for path in bodies():
        raw = path.read_bytes()
        read = request(raw)
        asked = Request(api=read.api, body=raw, messages=read.messages, model=model)
        assert counter.of(asked).text == tiktokens(encode, raw), path
        seen += 1
    assert seen > 500


_COUNT = """
import json, socket, sys
from pathlib import Path
installed, packages, listing, unplugged = sys.argv[1:]
sys.path[:0] = [installed, packages]
touched = []
network = ("socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, args: touched.append(event) if event in network else None)
import proxy
from proxy.visibility.tokens import Counter
from proxy.wire import chat, responses
assert Path(proxy.__file__).is_relative_to(installed), proxy.__file__
counter, counts = Counter(), []
for path in Path(listing).read_text().splitlines():
    raw = Path(path).read_bytes()
    counts.append(counter.of((chat if "messages" in json.loads(raw) else responses).cut(raw), "gpt-4o").text)
assert not touched, touched
if unplugged == "yes":
    try:
        socket.create_connection(("192.0.2.1", 443), 1)
    except OSError:
        pass
    else:
        raise SystemExit("there is a network")
print(json.dumps(counts))
"""


def unplugged() -> list[str]:
    """What runs a command in a namespace without a single route; nothing where this machine does not let us."""
    command = ["unshare", "--user", "--map-root-user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        return []
    return command


def own_bodies(folder: Path) -> list[Path]:
    """A conversation of each API, for where the captures are not at hand."""
    chats = body(*SECOND, user("naïve 日本語 👩‍👩‍👧 <|endoftext|>"), model="gpt-4o")
    items = {"model": "gpt-4o", "input": [{"role": "user", "content": [{"type": "input_text", "text": "so it is"}]}]}
    (folder / "chat.json").write_bytes(chats)
    (folder / "responses.json").write_text(json.dumps(items))
    return [folder / "chat.json", folder / "responses.json"]


def test_a_fresh_installation_counts_without_a_network(reference: Callable[[str], Encode], tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, str(ROOT)], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", installed, wheel], check=True)
    paths = own_bodies(tmp_path) + bodies()[::10]
    (tmp_path / "listing").write_text("\n".join(map(str, paths)))
    packages = Path(tiktoken.__file__).parents[1]
    # Without the site's own start, an editable installation of this very package does not get in the way.
    python = [sys.executable, "-I", "-S", "-c", _COUNT]
    namespace = unplugged()
    done = subprocess.run(
        [*namespace, *python, installed, packages, tmp_path / "listing", "yes" if namespace else "no"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    models = [json.loads(path.read_bytes()).get("model") for path in paths]
    expected = [
        tiktokens(reference(vocabularies.chosen(model or "gpt-4o").name), path.read_bytes())
        for model, path in zip(models, paths, strict=True)
    ]
    assert json.loads(done.stdout) == expected


@pytest.mark.proofs
def test_an_environment_of_its_own_counts_without_a_network(reference: Callable[[str], Encode], tmp_path: Path) -> None:
    """The same with nothing shared: a new environment, with what the lock file names and no more."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--require-hashes", "-r", ROOT / "requirements.lock"], check=True)
    subprocess.run([*pip, "install", "hatchling"], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    packages = found.stdout.strip()
    paths = own_bodies(tmp_path) + bodies()
    (tmp_path / "listing").write_text("\n".join(map(str, paths)))
    command = [*unplugged(), python, "-I", "-c", _COUNT, packages, packages, tmp_path / "listing", "yes"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    for path, count in zip(paths, json.loads(done.stdout), strict=True):
        model = json.loads(path.read_bytes()).get("model") or "gpt-4o"
        assert count == tiktokens(reference(vocabularies.chosen(model).name), path.read_bytes()), path


# What is counted.


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "word",
        "<|endoftext|> is text",
        "naïve 日本語 👩‍👩‍👧",
        "\ud800 alone",
        "a" * 5_000,
        "\n" * 300,
        "x y " * 2_000,
    ],
    ids=repr,
)
@pytest.mark.parametrize("encoding", sorted(vocabularies.DIGESTS))
def test_a_text_has_as_many_tokens_as_tiktoken_counts(
    reference: Callable[[str], Encode], text: str, encoding: str
) -> None:
    counter = Counter()
    assert [counter.of_text(text, encoding) for _ in range(2)] == [reference(encoding)(text)] * 2


def test_everything_that_messages_hold_is_counted(reference: Callable[[str], Encode]) -> None:
    encode = reference("o200k_base")
    asked = body(
        user([{"type": "text", "text": "one"}, {"type": "input_audio", "input_audio": {"data": "AA=="}}]),
        calls(("s", "search", '{"q": "two"}')),
        returns("s", "three"),
        says("four"),
        tools=[{"type": "function", "function": {"name": "search", "description": "not counted"}}],
    )
    audio = '{"type": "input_audio", "input_audio": {"data": "AA=="}}'
    expected = sum(map(encode, ["one", audio, "search", '{"q": "two"}', "three", "four"]))
    assert Counter().of(chat.cut(asked)) == Tokens(expected, 0, known=False)


def test_what_was_counted_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    class Encoding:
        def encode_ordinary(self, text: str) -> list[int]:
            counted.append(text)
            return [0] * len(text)

    monkeypatch.setattr(vocabularies, "encoding", lambda name: Encoding())
    counter = Counter()
    long, other = "the same words " * 20, "other words " * 20
    first = counter.of(chat.cut(body(user(long))))
    again = counter.of(chat.cut(body(user(long), says(other))))

    assert counted == [long, other]
    assert (first.text, again.text) == (len(long), len(long) + len(other))


@pytest.mark.parametrize(
    "model, name, known",
    [
        ("gpt-5.1", "o200k_base", True),
        ("gpt-4o-2024-08-06", "o200k_base", True),
        ("openai/gpt-4.1-mini", "o200k_base", True),
        ("o3", "o200k_base", True),
        ("gpt-oss-120b", "o200k_base", True),
        ("GPT-4o", "o200k_base", True),
        ("gpt-4", "cl100k_base", True),
        ("gpt-35-turbo-16k", "cl100k_base", True),
        ("ft:gpt-3.5-turbo:acme", "cl100k_base", True),
        ("claude-opus", "o200k_base", False),
        ("text-davinci-003", "o200k_base", False),
        ("", "o200k_base", False),
        (None, "o200k_base", False),
    ],
)
def test_a_models_name_chooses_its_encoding(model: str | None, name: str, known: bool) -> None:
    assert vocabularies.chosen(model) == (name, known)


def test_a_vocabulary_that_is_not_the_published_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vocabularies.DIGESTS, "cl100k_base", "0" * 64)
    monkeypatch.setattr(vocabularies, "_loaded", {})
    with pytest.raises(vocabularies.BrokenVocabulary, match="not the published one"):
        vocabularies.encoding("cl100k_base")


# Pictures. The sizes are the examples of OpenAI's guide.


@pytest.mark.parametrize(
    "model, size, detail, tokens",
    [
        ("gpt-4o", (1024, 1024), "high", 765),
        ("gpt-4o", (1024, 1024), None, 765),
        ("gpt-4o", (2048, 4096), "high", 1105),
        ("gpt-4o", (4096, 8192), "low", 85),
        ("gpt-4o", (512, 512), "auto", 255),
        ("gpt-4o", (1, 1), None, 255),
        ("gpt-4o-mini", (1024, 1024), "high", 2833 + 4 * 5667),
        ("o3", (1024, 1024), "high", 75 + 4 * 150),
        ("gpt-5.1", (1024, 1024), "high", 70 + 4 * 140),
        ("openai/gpt-4.1-mini", (1024, 1024), None, 1659),
        ("gpt-4.1-mini", (1800, 2400), None, 2353),
        ("o4-mini", (32, 33), None, 4),
        ("gpt-4.1-nano", (100_000, 1), None, 3779),
        ("unheard-of", None, None, 765),
    ],
)
def test_a_picture_counts_by_the_published_rule(
    model: str, size: tuple[int, int] | None, detail: str | None, tokens: int
) -> None:
    assert pictures.tokens(size, model, detail) == tokens


def picture(size: tuple[int, int]) -> str:
    held = io.BytesIO()
    Image.new("L", size).save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


def test_pictures_count_apart_from_text_by_their_size_and_detail() -> None:
    wide = {"type": "image_url", "image_url": {"url": picture((1024, 1024)), "detail": "high"}}
    low = {"type": "image_url", "image_url": {"url": picture((1024, 1024)), "detail": "low"}}
    away = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    counter = Counter()

    def of(*parts: Any) -> int:
        return counter.of(chat.cut(body(user(list(parts)), model="gpt-4o"))).pictures

    assert [of(wide), of(low), of(away), of(broken), of(wide, low)] == [765, 85, 765, 765, 850]
    item = {"role": "user", "content": [{"type": "input_image", "image_url": picture((512, 512)), "detail": "low"}]}
    assert counter.of(responses.cut(json.dumps({"input": [item]}).encode())).pictures == 85


def test_a_picture_that_is_no_picture_has_no_size() -> None:
    assert pictures.size_of("data:image/png;base64,%%%") is None
    assert pictures.size_of("https://x.example/base64,AAAA") is None
    assert pictures.size_of(picture((3, 4))) == (3, 4)
    assert Picture("x").detail is None


# When it is counted.


async def test_counts_come_after_the_reply_from_another_thread(provider: Provider, start_here: StartHere) -> None:
    heard: list[tuple[Counted, int]] = []
    counting = Counting([lambda counted: heard.append((counted, threading.get_ident()))])
    proxy = await start_here(watcher=counting, evidence=[TABLE])
    for text in ("the answer", "more"):
        provider.reply(json_reply(completion(text)))

    await ask(proxy.url, body(*FIRST), headers=KEY)
    await ask(proxy.url, body(*SECOND), headers=KEY)
    await counting.idle()

    counter = Counter()
    (one, told_on), (two, _) = heard
    assert told_on == threading.get_ident()  # listeners are told on the event loop
    assert one.before == one.after == counter.of(chat.cut(body(*FIRST)))
    assert two.before == counter.of(chat.cut(body(*SECOND)))
    assert two.after == counter.of(chat.cut(provider.requests[1].body))
    assert two.after != two.before
    await counting.close()


async def test_under_observe_what_would_have_gone_up_is_counted(provider: Provider, start_here: StartHere) -> None:
    heard: list[Counted] = []
    counting = Counting([heard.append])
    proxy = await start_here(watcher=counting, evidence=[TABLE], compaction={"mode": "observe"})
    for text in ("the answer", "more"):
        provider.reply(json_reply(completion(text)))

    await ask(proxy.url, body(*FIRST), headers=KEY)
    await ask(proxy.url, body(*SECOND), headers=KEY)
    await counting.idle()

    assert heard[1].before == Counter().of(chat.cut(provider.requests[1].body))
    told = heard[1].passed.conversed
    assert told is not None and told.would is not None
    assert heard[1].after == Counter().of(chat.cut(told.would)) != heard[1].before
    await counting.close()


async def test_a_request_does_not_wait_for_its_tokens(
    provider: Provider, start_here: StartHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While counting hangs, replies go out; what has no room goes uncounted, and is known to."""
    go = threading.Event()
    real = vocabularies.encoding

    def slow(name: str) -> Any:
        go.wait(30)
        return real(name)

    monkeypatch.setattr(vocabularies, "encoding", slow)
    monkeypatch.setattr("proxy.visibility.counting._MOST_WAITING", 2)
    heard: list[Counted] = []
    counting = Counting([heard.append])
    proxy = await start_here(watcher=counting, evidence=[TABLE])
    for _ in range(4):
        provider.reply(json_reply(completion("the answer")))
        seen = await ask(proxy.url, body(*FIRST), headers=KEY)
        assert seen.status == 200
    await asyncio.sleep(0.05)

    assert (heard, counting.left_out) == ([], 2)
    go.set()
    await counting.idle()
    assert len(heard) == 2
    await counting.close()


async def test_without_a_vocabulary_nothing_is_missing_but_the_counts(
    provider: Provider, start_here: StartHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabularies, "_loaded", {})
    monkeypatch.setitem(vocabularies.DIGESTS, "o200k_base", "0" * 64)
    heard: list[Counted] = []
    counting = Counting([heard.append])
    proxy = await start_here(watcher=counting, evidence=[TABLE])
    for _ in range(2):
        provider.reply(json_reply(completion("the answer")))
        assert (await ask(proxy.url, body(*FIRST), headers=KEY)).status == 200
        await counting.idle()
    assert heard == []
    await counting.close()


async def test_what_cannot_be_counted_is_known_to_be_left_out(
    provider: Provider, start_here: StartHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("hunter2")

    monkeypatch.setattr(Counter, "of", fails)
    heard: list[Counted] = []
    counting = Counting([heard.append])
    proxy = await start_here(watcher=counting, evidence=[TABLE])
    for sent in (body(*FIRST), b"no json"):
        provider.reply(json_reply(completion("the answer")))
        assert (await ask(proxy.url, sent, headers=KEY)).status == 200
    await counting.idle()
    assert (heard, counting.left_out) == ([], 1)
    await counting.close()
