"""`explain` says beforehand what the proxy then does: the same bytes, for every captured conversation."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.commands.rehearsing import Rehearsal
from proxy.compaction.account import Fate
from proxy.settings import Settings
from tests.captures import client, clients, each, scenario, scenarios
from tests.conftest import StartHere, StartProcess
from tests.house.client import ask
from tests.house.keys import KEYS
from tests.house.provider import Provider, completion, json_reply
from tests.rewrites import drive, read_ours
from tests.talk import body, calls, cited, returns, says, searched, user
from tests.test_client_captures import EVIDENCE, POLICY
from tests.test_responses_captures import CARRIED, answered

HAIKU = [{"name": "kb", "format": "haiku", "tools": ["search", "execute_code"]}]
KB = {"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}
FOUND = json.dumps([{"id": "c1", "text": "The pump runs at 3 bar."}, {"id": "c2", "text": "Blue."}])
TALK = [user("q1"), *searched(FOUND), *cited(["c1"]), says("a1"), user("q2")]

#: Bodies that are kept for the last question alone: what went before was never sent to the running proxy.
HALF = {"s20"}


@pytest.mark.parametrize("layout", ["single", "append"])
@pytest.mark.parametrize("name", each([name for name in scenarios("chat", policy=False) if name not in HALF]))
async def test_what_is_explained_is_what_a_running_proxy_sends(
    start_here: StartHere, provider: Provider, name: str, layout: str
) -> None:
    proxy = await start_here(evidence=HAIKU, compaction={"layout": layout})
    turns = await drive(proxy.url, provider, scenario(name).conversation("B"))
    settings = Settings(evidence=HAIKU, compaction={"layout": layout})  # type: ignore[arg-type]

    for turn in turns:
        done = await Rehearsal(settings, KEYS).decide(turn.sent, "chat")
        told = done.conversed
        if "no-record" in turn.evidence:
            continue  # a question that broke off: its reply stands in the next request, and nobody saw it end
        assert told.outcome.header() == turn.evidence
        assert told.went == turn.forwarded
        if told.went != told.came and layout == "single":
            rewrite = read_ours(told.came, told.went)
            assert done.account is not None
            fates = {line.index: line.fate for line in done.account.lines if line.span is not None}
            assert [index for index, fate in fates.items() if fate is Fate.RECEIPT] == rewrite.receipts
            assert [index for index, fate in fates.items() if fate is Fate.REMOVED] == rewrite.removed
            assert sum(line.after for line in done.account.lines) < len(told.went)


@pytest.mark.parametrize("name", each(CARRIED))
async def test_what_is_explained_of_a_response_is_what_a_running_proxy_sends(
    start_here: StartHere, provider: Provider, name: str
) -> None:
    proxy = await start_here(evidence=EVIDENCE, policy=POLICY)
    turns = await drive(proxy.url, provider, answered(client(name)), target="/v1/responses")
    settings = Settings(evidence=EVIDENCE, policy=POLICY)  # type: ignore[arg-type]

    compacted = 0
    for turn in turns:
        told = (await Rehearsal(settings, KEYS).decide(turn.sent, "responses")).conversed
        if turn.evidence.startswith("compacted"):
            compacted += 1
            assert told.went == turn.forwarded
    assert compacted


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_the_table_that_is_suggested_recognises_the_evidence(api: str) -> None:
    from proxy.commands.explain import toml
    from proxy.ledger import suggesting

    names = [name for name in clients(api) if not any(word in name for word in ("_prev", "_conv", "smol", "_track"))]
    if not names:
        pytest.skip("the captures are not at hand: they are kept outside this repository, in ../shared/captures")
    recognised = 0
    for name in names:
        raw = client(name)[-1]
        bare = await Rehearsal(Settings(), KEYS).decide(raw, api)
        assert bare.conversed.transcript is not None
        for one in suggesting.suggestions(bare.conversed.transcript, bare.conversed.evidence):
            table = tomllib.loads(toml(one))["evidence"]
            done = await Rehearsal(Settings(evidence=table), KEYS).decide(raw, api)
            assert done.conversed.evidence, name
            assert one.cite == "cite", name
            recognised += 1
    assert recognised > 10


def suggested(*messages: dict[str, Any]) -> list[Any]:
    from proxy.ledger import suggesting
    from tests.talk import transcript

    return suggesting.suggestions(transcript(*messages), {})


def test_fields_with_names_of_their_own_are_named_in_the_suggestion() -> None:
    from proxy.commands.explain import toml

    rows = [{"passage_key": f"p{n}", "passage": f"A passage that is long enough to be one, number {n}."} for n in "12"]
    (one,) = suggested(user("q"), *searched(json.dumps({"hits": rows})), *cited(["p1"]), says("a"))

    table = tomllib.loads(toml(one))["evidence"][0]
    assert table["fields"] == {"id": ["passage_key"], "content": ["passage"]}
    assert (one.chunks, one.cite) == (2, "cite")


def test_ids_in_the_answer_suggest_inline() -> None:
    (one,) = suggested(user("q"), *searched(FOUND), says("At 3 bar [c1]."))
    assert one.cite == "inline"


def test_a_tool_that_fetches_by_id_is_evidence_and_no_cite_tool() -> None:
    fetched = [calls(("f", "fetch", {"ids": ["c1"]})), returns("f", FOUND)]
    (one,) = suggested(user("q"), *searched(FOUND), *fetched, *cited(["c2"]), says("a"))
    assert (one.tools, one.cite) == (("search", "fetch"), "cite")


@pytest.mark.parametrize(
    "answer", ["Sunny, 21 degrees.", '{"id": 7, "name": "Ann"}', '{"ok": true}', "error: no such city", "[]", ""]
)
def test_what_is_no_evidence_is_not_suggested(answer: str) -> None:
    assert suggested(user("q"), *searched(answer), says("a"), user("r")) == []


def test_a_tool_s_name_cannot_break_out_of_the_suggestion() -> None:
    from proxy.commands.explain import toml

    name = 'x"]\n[server]\nhost = "evil\x7f'
    (one,) = suggested(user("q"), calls(("s", name, {})), returns("s", FOUND), *cited(["c1"]), says("a"))
    parsed = tomllib.loads(toml(one))
    assert list(parsed) == ["evidence"]
    assert parsed["evidence"][0]["tools"] == [name]


# The command.


def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
    """`evidence-proxy ...` in this process: exit code, standard output, standard error."""
    done = CliRunner().invoke(app, list(arguments), env=environ)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A captured request."""
    path = tmp_path / "request.json"
    path.write_bytes(body(*TALK))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "proxy.toml"
    path.write_text('[[evidence]]\nname = "kb"\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n')
    return path


def test_explain_tells_every_message_as_a_table_and_leaves_nothing_behind(
    file: Path, config: Path, tmp_path: Path
) -> None:
    code, out, err = run("explain", str(file), "--config", str(config), XDG_DATA_HOME=str(tmp_path / "data"))

    assert (code, err) == (0, "")
    assert "compacted; question=2; capsule=1; receipts=0" in out
    assert "carrier" in out
    assert "question 1: c1" in out
    assert not (tmp_path / "data").exists()


def test_explain_prints_json_that_says_what_the_table_says_and_no_content(file: Path, config: Path) -> None:
    code, out, _ = run("explain", str(file), "--config", str(config), "--json")

    assert code == 0
    told = json.loads(out)
    assert (told["outcome"], told["assumes_records"], told["before"]) == ("compacted", True, len(body(*TALK)))
    assert [message["fate"] for message in told["messages"]] == [
        "same",
        "same",
        "carrier",
        "same",
        "same",
        "same",
        "same",
    ]
    assert told["messages"][2]["capsule"] == [
        {"question": 1, "chunks": [{"ids": ["c1"], "source": None, "collection": None, "message": 2}]}
    ]
    assert told["questions"][0]["declaration"] == "grounded"
    assert "The pump runs" not in out


def test_explain_diff_shows_what_stood_there_and_what_does(file: Path, config: Path) -> None:
    _, out, _ = run("explain", str(file), "--config", str(config), "--diff")
    assert "-[{" in out
    assert "+The pump runs at 3 bar." in out


def test_explain_reads_standard_input_and_says_where_a_file_is_missing(tmp_path: Path) -> None:
    code, _, err = run("explain", str(tmp_path / "none.json"))
    assert code == 2
    assert "none.json: cannot be read" in err
    code, _, err = run("explain", str(tmp_path))
    assert code == 2
    assert "is a directory" in err


def test_explain_of_what_is_no_request_says_so(tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(b"\xff\x00 no json")
    code, out, err = run("explain", str(path))
    assert (code, err) == (0, "")
    assert "not-json" in out


def test_nothing_of_a_request_can_move_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\u202egnp.exe\x9b31m"
    rows = json.dumps([{"id": f"c1{evil}", "text": evil}, {"id": "c2", "text": "x" * 90}])
    path = tmp_path / "evil.json"
    path.write_bytes(
        body(user(evil), calls(("s", f"search{evil}", {})), returns("s", rows), *cited(["c2"]), says(evil), user(evil))
    )
    config = tmp_path / "c.toml"
    name = json.dumps(f"search{evil}")
    config.write_text(f'[[evidence]]\nformat = "auto"\ncite = "cite"\ntools = [{name}]\n'.replace("\x7f", "\\u007f"))
    for extra in ([], ["--diff"], ["--config", str(config), "--diff"]):
        code, out, err = run("explain", str(path), *extra)
        assert code == 0, err
        assert not any(c in out + err for c in "\x1b\x07\x9b\u202e")
        assert "[red]x[/red]" in out or "--diff" not in extra


async def test_with_data_the_records_of_a_real_store_are_asked_and_nothing_is_assumed(
    provider: Provider, start_process: StartProcess, file: Path
) -> None:
    config = (
        '[server]\nport = 0\nadmin_port = 0\n[upstream]\nbase_url = "{upstream}"\n'
        '[[evidence]]\nname = "kb"\nformat = "auto"\ntools = ["search"]\ncite = "cite"\n'
    )
    proxy = await start_process(config)
    provider.reply(json_reply(completion("a1")))
    await ask(proxy.url, body(*TALK[:-2]), headers=[("Authorization", "Bearer sk-one")])
    await proxy.stop()
    data = str(proxy.directory / "data" / "evidence-proxy")
    before = everything_in(data)

    async def explain(key: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(
            run,
            *("explain", str(file), "--json", "--config", str(proxy.file), "--data", data),
            *("--credential-env", "WHO"),
            WHO=key,
        )

    code, out, err = await explain("sk-one")
    assert code == 0, err
    assert json.loads(out)["outcome"] == "compacted"
    assert json.loads(out)["assumes_records"] is False
    code, out, err = await explain("sk-another")
    assert code == 0, err
    assert json.loads(out)["reason"] == "no-record"
    code, _, err = await asyncio.to_thread(run, "explain", str(file), "--data", data)
    assert code == 2
    assert "--credential-env" in err
    assert everything_in(data) == before


async def test_a_question_that_was_answered_by_an_output_tool_is_explained_too() -> None:
    ended = [
        user("q1"),
        *searched(FOUND),
        *cited(["c1"]),
        calls(("f", "final_result", {"answer": "3 bar"})),
        returns("f", "Final result processed."),
        user("q2"),
    ]
    done = await Rehearsal(Settings(evidence=[KB]), KEYS).decide(body(*ended), "chat")  # type: ignore[list-item]
    assert done.conversed.outcome.header().startswith("compacted; question=2; capsule=1")


def everything_in(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*"))
