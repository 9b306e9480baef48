"""`replay` adds up what `explain` says of each request of a log, conversation by conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.commands import bodies
from tests.captures import CAPTURES, HERE
from tests.talk import body, cited, says, searched, user
from tests.test_explain import run

FOUND = json.dumps([{"id": "c1", "text": "The pump runs at 3 bar. " * 9}, {"id": "c2", "text": "Blue. " * 60}])
CONFIG = '[[evidence]]\nname = "kb"\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n'


def conversation(name: str, questions: int = 3) -> list[bytes]:
    """Every request of a conversation that opens with this name."""
    sent: list[dict[str, Any]] = []
    requests = []
    for number in range(questions):
        sent.append(user(f"{name} {number}"))
        requests.append(body(*sent))
        sent += searched(FOUND, f"s{number}")
        requests.append(body(*sent))
        sent += cited(["c1"], call_id=f"k{number}")
        requests.append(body(*sent))
        sent.append(says("It says so."))
    return requests


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "proxy.toml"
    path.write_text(CONFIG)
    return path


def replayed(log: Path, config: Path) -> dict[str, Any]:
    code, out, err = run("replay", str(log), "--config", str(config), "--json")
    assert code == 0, err
    return dict(json.loads(out))


def test_a_log_is_told_apart_into_conversations_and_added_up(tmp_path: Path, config: Path) -> None:
    one, other = conversation("one"), conversation("other", 2)
    log = tmp_path / "log.jsonl"
    mixed = [raw for pair in zip(one, [*other, *[b""] * 3], strict=True) for raw in pair if raw]
    log.write_bytes(b"\n".join(mixed) + b"\n\n")

    told = replayed(log, config)

    assert told["totals"]["requests"] == 15
    assert told["totals"]["conversations"] == 2
    assert told["totals"]["before"] == sum(map(len, one)) + sum(map(len, other))
    first, second = told["conversations"]
    assert (first["opening"], second["opening"]) == ("one 0", "other 0")
    assert first["before"] == [len(raw) for raw in one]
    assert first["outcomes"] == {"no-evidence": 1, "nothing-earlier": 2, "compacted": 6}
    assert told["totals"]["compacted"] == 9
    assert first["after"][-1] < first["before"][-1]


def test_a_conversation_that_opens_like_another_is_one_of_its_own(tmp_path: Path, config: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*conversation("Hi"), *conversation("Hi")]))
    assert [len(one["before"]) for one in replayed(log, config)["conversations"]] == [9, 9]


def test_log_lines_may_carry_the_body_beside_other_things(tmp_path: Path, config: Path) -> None:
    raw = conversation("q")[-1]
    lines = [
        b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":' + raw + b"}",
        b'{"path":"/v1/responses?x=1","request":{"model":"m","input":"hello"}}',
        b'{"body":' + json.dumps(raw.decode()).encode() + b"}",
        b'{"event":"request","ms":3}',
        b"no json",
    ]
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join(lines))

    told = replayed(log, config)

    assert told["totals"]["requests"] == 3
    assert told["totals"]["before"] == 2 * len(raw) + len(b'{"model":"m","input":"hello"}')
    assert told["skipped"] == [f"{log}:4", f"{log}:5"]


def test_a_directory_is_read_in_the_order_in_which_people_number_files(tmp_path: Path, config: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    for number, raw in enumerate(conversation("q", 4), 1):
        (folder / f"B-{number}.json").write_bytes(raw)
    (folder / "meta.json").write_text('{"about": "this log"}')

    told = replayed(folder, config)

    sizes = told["conversations"][0]["before"]
    assert sizes == sorted(sizes)
    assert len(sizes) == 12
    assert told["skipped"] == [str(folder / "meta.json")]


def test_totals_and_a_chart_for_each_conversation_are_printed(tmp_path: Path, config: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"\n".join([*conversation("one"), *conversation("other")]))
    code, out, err = run("replay", str(log), "--config", str(config), "--most", "1")
    assert (code, err) == (0, "")
    assert "18 requests in 2 conversations, 12 of them compacted" in out
    assert "% less" in out
    assert "█" in out
    assert "and 1 smaller ones" in out


@pytest.mark.parametrize(
    ("made", "said"),
    [(None, "no such file or directory"), ("empty", "no .json or .jsonl file stands in this directory")],
)
def test_a_log_that_is_not_there_is_said(tmp_path: Path, made: str | None, said: str) -> None:
    folder = tmp_path / "logs"
    if made is not None:
        folder.mkdir()
    code, _, err = run("replay", str(folder))
    assert code == 2
    assert said in err


def test_a_log_without_any_request_ends_with_1(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"event":"request"}\n')
    code, _, err = run("replay", str(log))
    assert code == 1
    assert "nothing in this log is a request" in err


@pytest.mark.parametrize(
    ("raw", "api"),
    [
        (b'{"messages":[]}', "chat"),
        (b'{"input":[]}', "responses"),
        (b'{"url":"https://x/openai/responses","body":{"messages":[]}}', "responses"),
        (b'{"input":"x","messages":[]}', "chat"),
        (b"[]", None),
        (b'{"body":3}', None),
        (b"", None),
    ],
)
def test_the_api_is_told_by_the_path_or_else_by_what_a_body_holds(raw: bytes, api: str | None) -> None:
    assert bodies.of("x", raw).api == api


@pytest.mark.skipif(not HERE, reason="the captures are kept outside this repository, in ../shared/captures")
def test_the_longest_captured_conversation_shrinks_by_three_quarters(tmp_path: Path) -> None:
    config = tmp_path / "haiku.toml"
    config.write_text('[[evidence]]\nformat = "haiku"\n')
    log = tmp_path / "log"
    log.mkdir()
    for path in (CAPTURES / "haiku" / "s20").glob("B-*.json"):
        (log / path.name).write_bytes(path.read_bytes())
    totals = replayed(log, config)["totals"]
    assert totals["compacted"] == totals["requests"] == 3
    assert totals["after"] < 0.25 * totals["before"]
