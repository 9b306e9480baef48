"""The demo, run as anyone runs it, and judged by the figures that it writes; and its judge, on made-up rows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.demo.handbook import BY_ID, PASSAGES, Handbook
from proxy.demo.pictures import png_of
from proxy.demo.rows import Request, Row
from proxy.demo.script import QUESTIONS
from proxy.demo.verdict import faults

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """One run of the demo: the finished process and what it wrote to `--json FILE`."""
    file = tmp_path_factory.mktemp("demo") / "demo.json"
    command = [sys.executable, "-m", "proxy.demo", "--json", str(file)]
    # The limit is for a demo that hangs, not for a slow one.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert file.is_file(), done.stdout + done.stderr
    return done, json.loads(file.read_text())


def test_the_demo_ends_well_and_found_no_fault(ran: tuple[subprocess.CompletedProcess[str], dict[str, Any]]) -> None:
    done, figures = ran
    assert figures["faults"] == []
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_says_that_its_provider_is_scripted(
    ran: tuple[subprocess.CompletedProcess[str], dict[str, Any]],
) -> None:
    done, figures = ran
    assert "The provider is scripted" in done.stdout
    assert figures["provider"] == "scripted"
    assert done.stdout.rstrip().splitlines()[-1].endswith('base_url="http://127.0.0.1:8080/v1".')


def test_all_eight_questions_are_answered_and_cite_what_the_script_says(
    ran: tuple[subprocess.CompletedProcess[str], dict[str, Any]],
) -> None:
    rows = ran[1]["questions"]
    assert [row["question"] for row in rows] == [question.text for question in QUESTIONS]
    assert [row["cited"] for row in rows] == [question.cites for question in QUESTIONS]
    assert [row["answer"] for row in rows] == [q.answer.format_map(q.rests_on) for q in QUESTIONS]


def test_from_the_second_question_on_every_request_is_compacted_and_smaller(
    ran: tuple[subprocess.CompletedProcess[str], dict[str, Any]],
) -> None:
    first, *others = ran[1]["questions"]
    assert {request["outcome"] for request in first["requests"]} == {"untouched"}
    assert {request["reason"] for request in first["requests"]} == {"no-evidence", "nothing-earlier"}
    for row in others:
        for request in row["requests"]:
            assert request["outcome"] == "compacted"
            assert request["after"] < request["before"]
            assert request["tokens_after"] < request["tokens_before"]


def test_the_capsule_holds_what_was_cited_before_and_does_not_change_within_a_question(
    ran: tuple[subprocess.CompletedProcess[str], dict[str, Any]],
) -> None:
    cited: list[str] = []
    for row in ran[1]["questions"]:
        assert {request["capsule"] for request in row["requests"]} == {len(set(cited))}
        assert len({request["receipts"] for request in row["requests"]}) == 1
        cited += row["cited"]


def test_every_scripted_answer_rests_on_words_of_the_handbook() -> None:
    for question in QUESTIONS:
        for chunk, words in question.rests_on.items():
            assert words in BY_ID[chunk].text


def test_the_search_finds_what_the_script_cites(tmp_path: Path) -> None:
    handbook = Handbook.laid_out_in(tmp_path)
    found: set[str] = set()
    for question in QUESTIONS:
        found |= {p.id for queries in question.searches for query in queries for p in handbook.search(query)}
        assert found.issuperset(question.cites)


def test_pictures_are_drawn_for_the_passages_that_have_one_and_no_others() -> None:
    drawn = [passage.id for passage in PASSAGES if passage.picture]
    assert all(png_of(name).startswith(b"\x89PNG") for name in drawn)
    with pytest.raises(KeyError):
        png_of("log-1")


# The judge must be able to find the demo wanting.

_SEARCHED = BY_ID["drive-2"].text


def _body(earlier: str, question: str = "Second?") -> bytes:
    messages = [
        {"role": "user", "content": "First?"},
        {"role": "tool", "tool_call_id": "1", "content": earlier},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": question},
    ]
    return json.dumps({"messages": messages}).encode()


def _rows(received: bytes, header: str | None = None) -> list[Row]:
    first = Request(_body("", "First?"), _body("", "First?"), 1, 1, "untouched; reason=nothing-earlier")
    sent = _body('{"results": []}')
    said = header or f"compacted; question=2; capsule=1; receipts=0; before={len(sent)}; after={len(received)}"
    row = Row(1, "First?", "One.", [], [], ["drive-2"], [first])
    return [
        row,
        replace(row, number=2, question="Second?", answer="Two.", requests=[Request(sent, received, 1, 1, said)]),
    ]


def _found(received: bytes, header: str | None = None) -> list[str]:
    return faults(_rows(received, header), ["One.", "Two."])


def test_the_judge_is_content_with_a_capsule_that_holds_the_cited_passage() -> None:
    assert _found(_body(f"[drive-2]\n{_SEARCHED}")) == []


@pytest.mark.parametrize(
    ("received", "header", "fault"),
    [
        (_body("nothing"), None, "stands 0 times"),
        (_body(_SEARCHED * 2), None, "stands 2 times"),
        (_body(_SEARCHED), "compacted; before=1; after=2", "the header says"),
        (_body(_SEARCHED), "untouched; reason=no-record", "expected compaction"),
        (_body(_SEARCHED)[:-2] + b', {"role": "user", "content": "more"}]}', None, "current question was changed"),
    ],
)
def test_the_judge_sees(received: bytes, header: str | None, fault: str) -> None:
    assert any(fault in said for said in _found(received, header))


def test_the_judge_sees_that_no_proxy_was_there() -> None:
    rows = [
        replace(row, requests=[replace(one, header=None) for one in row.requests]) for row in _rows(_body(_SEARCHED))
    ]
    assert "no request was compacted" in faults(rows, ["One.", "Two."])
