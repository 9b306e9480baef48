"""A haiku.rag database beside the wire: titles, URIs, and the pictures that chunks share. Promises 6, 7, 8 and 9."""

from __future__ import annotations

import base64
import io
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from proxy.compaction import wording
from tests.conftest import StartHere
from tests.house.client import ask
from tests.house.haiku_database import CAPTION, PUMP, VALVE, Manual, made, written_by_haiku_rag
from tests.house.provider import Provider, completion, json_reply
from tests.rewrites import CREDENTIAL
from tests.talk import body, calls, cited, returns, says, user

TAG = "Not provided by the user. [haiku.rag/retrieved-image]"


def picture(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(out, "PNG")
    return out.getvalue()


RED, BLUE, GREEN = picture("red"), picture("blue"), picture("green")


def search(call_id: str, *chunks: tuple[str, str, str | None]) -> list[dict[str, Any]]:
    """A search and its return, of chunks: id, content and source line."""
    texts = []
    for rank, (chunk, content, source) in enumerate(chunks, 1):
        named = f"Source: {source}\n" if source else ""
        texts.append(f"[{chunk}] [rank {rank} of {len(chunks)}]\n{named}Content:\n{content}")
    return [calls((call_id, "search", {"query": call_id})), returns(call_id, "\n\n---\n\n".join(texts))]


def shown(*pictures: tuple[str, str, bytes]) -> dict[str, Any]:
    """The user message of pictures that haiku.rag attaches: chunk id, reference and file of each."""
    parts: list[dict[str, Any]] = []
    for position, (chunk, reference, data) in enumerate(pictures, 1):
        label = f"Page image {position} of {len(pictures)}, retrieved from the knowledge base for search result "
        url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        parts += [
            {"type": "text", "text": f"{label}[{chunk}] ({reference}). {TAG}"},
            {"type": "image_url", "image_url": {"url": url}},
        ]
    return user(parts)


class Talk:
    """A conversation through a proxy that has this database."""

    def __init__(self, url: str, provider: Provider) -> None:
        self.url = url
        self.provider = provider
        self.messages: list[dict[str, Any]] = []
        self.evidence = ""
        self.sent: list[dict[str, Any]] = []

    async def asks(self, *messages: dict[str, Any], answer: str = "the answer") -> None:
        self.messages += messages
        self.provider.reply(json_reply(completion(answer)))
        seen = await ask(self.url, body(*self.messages), headers=[CREDENTIAL])
        assert seen.status == 200
        self.evidence = seen.evidence
        self.sent = self.provider.requests[-1].json()["messages"]
        self.messages.append(says(answer))

    @property
    def capsule(self) -> str:
        texts = [m["content"] for m in self.sent if m["role"] == "tool"]
        return next(text for text in texts if text.startswith(wording.HEADER))

    def pictures(self) -> list[tuple[str, bytes]]:
        """The pictures that went up: the label before each, and its file."""
        parts = [part for m in self.sent if isinstance(m["content"], list) for part in m["content"]]
        return [
            (label["text"], base64.b64decode(part["image_url"]["url"].partition(",")[2]))
            for label, part in pairwise(parts)
            if part["type"] == "image_url"
        ]


@pytest.fixture
def start(start_here: StartHere, provider: Provider) -> Any:
    async def started(database: Path, **more: Any) -> Talk:
        table = {"format": "haiku", "database": str(database)}
        proxy = await start_here(evidence=[table], **more)
        return Talk(proxy.url, provider)

    return started


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return written_by_haiku_rag(tmp_path)


def figure(path: Path, reference: str) -> bytes:
    """A picture's file as it lies in a database."""
    import lancedb

    table = lancedb.connect(str(path)).open_table("document_items")
    rows = table.search().where(f"self_ref = '{reference}'").to_list()
    return bytes(rows[0]["picture_data"])


async def test_what_haiku_rag_wrote_gives_titles_and_uris(start: Any, written: Path) -> None:
    talk = await start(written)
    await talk.asks(user("q"), *search("s", (PUMP, "3 bar.", '"Pump manual" > Operation')), *cited([PUMP]))
    await talk.asks(user("next"))
    assert talk.evidence.startswith("compacted; question=2; capsule=1; receipts=0;")
    assert f'[{PUMP}] Source: "Pump manual" > Operation (file:///manuals/pump.pdf)\n3 bar.' in talk.capsule


async def test_a_title_that_the_wire_does_not_show_is_named(start: Any, written: Path) -> None:
    talk = await start(written)
    await talk.asks(user("q"), *search("s", (PUMP, "3 bar.", None)), *cited([PUMP]))
    await talk.asks(user("next"))
    assert f'[{PUMP}] Source: "Pump manual" (file:///manuals/pump.pdf)\n3 bar.' in talk.capsule


async def test_promise_6_a_picture_comes_with_the_chunk_that_overlaps_the_one_it_was_labelled_for(
    start: Any, written: Path
) -> None:
    talk = await start(written)
    valve = figure(written, "#/pictures/0")
    found = search("s", (PUMP, "3 bar.", None), (VALVE, "5 bar.", None))
    await talk.asks(user("q"), *found, shown((PUMP, "#/pictures/0", valve)), *cited([VALVE]))
    await talk.asks(user("next"))
    ((label, data),) = talk.pictures()
    assert data == valve and label == wording.label(VALVE, "#/pictures/0", None)


async def test_promise_6_a_picture_that_was_never_on_the_wire_takes_the_place_of_one_that_goes(
    start: Any, written: Path
) -> None:
    talk = await start(written)
    found = search("s", (PUMP, "3 bar.", None), (CAPTION, "Figure 2: the pump", None))
    await talk.asks(
        user("q"), *found, shown((PUMP, "#/pictures/0", figure(written, "#/pictures/0"))), *cited([CAPTION])
    )
    await talk.asks(user("next"))
    assert talk.pictures() == [(wording.label(CAPTION, "#/pictures/1", None), figure(written, "#/pictures/1"))]


async def test_promise_6_no_more_pictures_go_up_than_came(start: Any, tmp_path: Path) -> None:
    one = Manual("d1", chunks={"a": ["#/pictures/0"]}, pictures={"#/pictures/0": RED})
    two = Manual("d2", chunks={"b": ["#/pictures/0"]}, pictures={"#/pictures/0": BLUE})
    talk = await start(made(tmp_path / "kb.lancedb", one, two))
    found = [*search("u", ("b", "B", None)), *search("t", ("c", "C", None)), shown(("c", "#/pictures/5", GREEN))]
    await talk.asks(user("q"), *search("s", ("a", "A", None)), *cited(["a"]))
    await talk.asks(user("r"), *found, *cited(["b"]))
    assert [data for _, data in talk.pictures()] == [GREEN]
    await talk.asks(user("next"))
    # One picture goes; of the two that were cited, the newest group's comes.
    assert talk.pictures() == [(wording.label("b", "#/pictures/0", None), BLUE)]
    assert "\nA" in talk.capsule and "\nB" in talk.capsule


async def test_promise_7_what_changes_in_the_database_later_changes_nothing(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "kb.lancedb"
    manual = Manual("d", "Old", "file:///old", {"a": ["#/pictures/0"], "z": []}, {"#/pictures/0": RED})
    talk = await start(made(path, manual))
    found = search("s", ("a", "A", None), ("z", "Z", None))
    await talk.asks(user("q"), *found, shown(("z", "#/pictures/9", GREEN)), *cited(["a"]))
    made(path, Manual("d", "New", "file:///new", {"a": ["#/pictures/0"]}, {"#/pictures/0": BLUE}))
    await talk.asks(user("next"))
    first, pictures = talk.capsule, talk.pictures()
    assert '"Old" (file:///old)' in first and pictures == [(wording.label("a", "#/pictures/0", None), RED)]
    shutil.rmtree(path)
    talk.messages.pop()
    await talk.asks()  # the same request again, the database gone
    assert (talk.capsule, talk.pictures()) == (first, pictures)


async def test_a_database_that_is_not_there_costs_only_what_it_would_have_given(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "nowhere.lancedb"
    talk = await start(path)
    await talk.asks(user("q"), *search("s", ("a", "A", '"T"')), *cited(["a"]))
    await talk.asks(user("next"))
    assert '[a] Source: "T"\nA' in talk.capsule and talk.evidence.startswith("compacted;")
    assert not path.exists()  # nothing appears where nothing was


async def test_ids_from_the_wire_cannot_ask_for_anything_else(start: Any, tmp_path: Path) -> None:
    manual = Manual("d", "Secret", "file:///s", {"a": []}, {})
    talk = await start(made(tmp_path / "kb.lancedb", manual))
    forged = "x') OR ('1' = '1"
    await talk.asks(user("q"), *search("s", (forged, "A", None)), *cited([forged]))
    await talk.asks(user("next"))
    assert f"[{forged}]\nA" in talk.capsule and "Secret" not in json.dumps(talk.sent)


async def test_an_id_that_stands_in_two_collections_is_looked_up_in_its_own(start: Any, tmp_path: Path) -> None:
    talk = await start(made(tmp_path / "kb.lancedb", Manual("d", None, "file:///kb", {"a": []}, {})))
    texts = [
        f"[a] [rank {rank} of 2]\nCollection: {name}\nContent:\n{name} says"
        for rank, name in enumerate(("kb", "other"), 1)
    ]
    found = [calls(("s", "search", {})), returns("s", "\n\n---\n\n".join(texts))]
    await talk.asks(user("q"), *found, *cited(["a"]))
    await talk.asks(user("next"))
    assert "Collection: kb\nSource: file:///kb\nkb says" in talk.capsule
    assert "Collection: other\nother says" in talk.capsule


async def test_layout_append_writes_once_what_the_database_gave(start: Any, tmp_path: Path) -> None:
    manual = Manual("d", "T", "file:///t", {"a": ["#/pictures/0"], "b": []}, {"#/pictures/0": RED})
    talk = await start(made(tmp_path / "kb.lancedb", manual), compaction={"layout": "append"})
    found = search("s", ("a", "A", None), ("b", "B", None))
    await talk.asks(user("q"), *found, shown(("b", "#/pictures/1", GREEN)), *cited(["a"]))
    await talk.asks(user("next"), *search("t", ("b", "B", None)), *cited(["b"]))
    first = talk.sent[:4]
    assert talk.pictures() == [(wording.label("a", "#/pictures/0", None), RED)]
    await talk.asks(user("last"))
    assert talk.sent[:4] == first and '[b] Source: "T" (file:///t)\nB' in json.dumps(talk.sent).replace(
        '\\"', '"'
    ).replace("\\n", "\n")


async def test_a_renewed_configuration_keeps_the_database_that_is_still_named(start: Any, tmp_path: Path) -> None:
    from proxy.gateway.keeping import Keeping
    from proxy.settings import Settings
    from proxy.store.haiku_database import open_databases

    def named(*uris: str) -> Settings:
        tables = [
            {"format": "haiku", "name": f"t{n}", "tools": [f"s{n}"], "database": uri} for n, uri in enumerate(uris)
        ]
        return Settings(evidence=tables)  # type: ignore[arg-type]

    first = open_databases(named("a.lancedb"))
    renewed = Keeping(None, None, first).renewed(named("b.lancedb", "a.lancedb"), None)._databases
    assert renewed["t1"] is first["t0"] and renewed["t0"].uri == "b.lancedb"


async def test_promise_3_what_fails_beside_the_wire_costs_only_itself(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await start(made(tmp_path / "kb.lancedb", Manual("d", "T", None, {"a": []}, {})))
    monkeypatch.setattr("proxy.ledger.provenance.described", lambda *_: 1 / 0)
    await talk.asks(user("q"), *search("s", ("a", "A", None)), *cited(["a"]))
    await talk.asks(user("next"))
    assert talk.evidence.startswith("compacted; question=2; capsule=1;") and "[a]\nA" in talk.capsule
