"""What the documentation tells people to type, typed: every command run, every setting loaded, every snippet executed.

Commands stand in `sh` blocks, and run in a folder that looks like the repository's top, with a captured request beside
it, in front of the examples' stand-in for a provider. `sh server` is started and must say that it listens;
`sh not-run` needs what is not here (a container engine, an init system). `make` targets must exist; that they work, CI
shows.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml
from aiohttp import web

from proxy.settings import load
from tests.house.real_clients import ENVIRONMENT, LLAMA_INDEX, NODE_MODULES, SCRIPTS
from tests.house.running import ProxyProcess

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
ENVIRONMENT_OF_TESTS = list(Path(sys.prefix).iterdir())
ENVIRONMENT_OF_CLIENTS = ENVIRONMENT.is_dir()
#: What an operator has there and a test has not.
NOT_HERE = {"docker", "systemctl", "kubectl", "cp", "python3", "/opt/evidence-proxy/bin/pip"}
LANGUAGES = {"", "sh", "sh server", "sh not-run", "toml", "python", "js", "json", "yaml"}
KEY = "a key of the tests, of sixteen letters and more"


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0][:40]}"


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found = []
    for indent, language, text in FENCE.findall(page.read_text()):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        found.append(Block(page, language.strip(), "\n".join(lines)))
    return found


def blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def each(*languages: str) -> list[object]:
    return [pytest.param(block, id=str(block)) for block in blocks(*languages)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_snippet_says_what_it_is(page: Path) -> None:
    text = page.read_text()
    assert {language.strip() for _, language, _ in FENCE.findall(text)} <= LANGUAGES
    outside = FENCE.sub("", text)
    indented = re.findall(r"\n\n    \S[^\n]*", outside)
    assert [one for one in indented if not re.search(r"^\s*(-|\d+\.)", one.strip())] == []


@pytest.mark.parametrize("block", each("toml"))
def test_settings_are_settings(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    text = re.sub(r'(_file = )"[^"]*"', rf'\1"{tmp_path}/a-key"', block.text)
    (tmp_path / "a-key").write_text("a-key-of-the-tests-of-sixteen\n")
    file.write_text(text)
    named = re.findall(r'_env = "(\w+)"', text)
    load(file, environ=dict.fromkeys(named, "a-key-of-the-tests-of-sixteen"))


@pytest.mark.parametrize("block", each("json"))
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", each("yaml"))
def test_yaml_is_yaml(block: Block) -> None:
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", each("python"))
def test_python_snippets_run(block: Block) -> None:
    python = sys.executable
    if re.search(r"\b(pydantic_ai|agents|langchain_openai)\b", block.text):
        python = str(ENVIRONMENT / "bin" / "python")
    elif "llama_index" in block.text:
        python = str(LLAMA_INDEX / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("the client is not installed: run `make clients`")
    env = {**os.environ, "OPENAI_API_KEY": "sk-test", "EVIDENCE_TAG_KEYS": KEY, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-c", f"import os\n{block.text}"], capture_output=True, text=True, env=env, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", each("js"))
def test_node_snippets_run(block: Block) -> None:
    if shutil.which("node") is None or not NODE_MODULES.is_dir():
        pytest.skip("the client is not installed: run `make clients`")
    done = subprocess.run(
        ["node", "--input-type=module", "-e", block.text],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENAI_API_KEY": "sk-test"},
        cwd=SCRIPTS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("block", each("sh", "sh not-run", "sh server"))
def test_what_is_told_to_make_is_there(block: Block) -> None:
    named = re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    assert set(named) <= targets()


@pytest.mark.parametrize("block", each("sh not-run"))
def test_what_is_not_run_needs_what_is_not_here(block: Block) -> None:
    assert {line.split()[0] for line in block.text.splitlines() if not line.startswith("#")} <= NOT_HERE


# Commands.


@dataclass
class Desk:
    """A terminal at the repository's top, with the proxy running and a captured request at hand."""

    folder: Path
    proxy: ProxyProcess
    provider: str

    def typed(self, text: str) -> str:
        """As it is typed here: the addresses are those that are free on this machine."""
        admin = next(line["address"] for line in self.proxy.lines if line["event"] == "admin-listening")
        for said, here in (
            ("http://127.0.0.1:8080", self.proxy.url),
            ("http://127.0.0.1:8081", admin),
            ("http://127.0.0.1:9100/v1", self.provider),
        ):
            text = text.replace(said, here)
        return "\n".join(line for line in text.splitlines() if not line.startswith("make "))

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EVIDENCE_PROXY_")}
        return {
            **clean,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "XDG_DATA_HOME": str(self.folder / "share"),
            "OPENAI_BASE_URL": f"{self.proxy.url}/v1",
            "EVIDENCE_TAG_KEYS": KEY,
            "EVIDENCE_PROXY_UPSTREAM__BASE_URL": self.provider,
            "EVIDENCE_PROXY_SERVER__PORT": "0",
            "EVIDENCE_PROXY_SERVER__ADMIN_PORT": "0",
        }

    async def run(self, text: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", text),
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return await process.wait(), out.decode()


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    runner = web.AppRunner(importlib.import_module("stand_in").app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    provider = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    folder = tmp_path / "top"
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", ".venv"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv").mkdir()
    for path in {*ENVIRONMENT_OF_TESTS, ENVIRONMENT, LLAMA_INDEX}:
        (folder / ".venv" / path.name).symlink_to(path)
    settings = (ROOT / "examples" / "plain.toml").read_text().replace("http://127.0.0.1:9100/v1", provider)
    settings += f'\n[server]\nport = 0\nadmin_port = 0\n[store]\ndata_dir = "{folder}/share/evidence-proxy"\n'
    (folder / "my.toml").write_text(settings)
    request = (ROOT / "examples" / "request.json").read_text()
    (folder / "request.json").write_text(request)
    (folder / "captured.json").write_text(request)
    (folder / "requests.jsonl").write_text(request + "\n")
    (folder / "credential").write_text("Bearer sk-...\n")
    place = tmp_path / "proxy"
    place.mkdir()
    proxy = await ProxyProcess(settings, place, {"EVIDENCE_TAG_KEYS": KEY}).start()
    # A conversation of the credential and the name that the pages use, so that there is something to look at.
    lines = {"Authorization": "Bearer sk-...", "Evidence-Conversation": "conv-7", "Content-Type": "application/json"}
    async with aiohttp.ClientSession() as client:
        url = f"{proxy.url}/v1/chat/completions"
        async with client.post(url, data=request, headers=lines) as reply:
            assert reply.status == 200, await reply.text()
    # Another process writes it.
    while not (folder / "share" / "evidence-proxy" / "records.lance").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    yield Desk(folder, proxy, provider)
    await proxy.stop()
    await runner.cleanup()


def told(page: Path) -> list[Block]:
    """The blocks of a page that are typed here."""
    typed = blocks("sh", "sh server")
    return [block for block in typed if block.page == page and not re.fullmatch(r"(make .*\n?)+", block.text)]


async def test_the_commands_of_the_pages_work(desk: Desk) -> None:
    """Page by page and in order, as a reader types them; a server stays in its own terminal."""
    for block in (block for page in PAGES for block in told(page)):
        if "clients" in block.text and not ENVIRONMENT_OF_CLIENTS:
            continue  # they are not installed: `make clients`
        if block.language == "sh server":
            assert await _listens(desk, block), block
        else:
            code, out = await desk.run(desk.typed(block.text))
            assert code == 0, f"{block.page.name}: {block.text}\n{out}"


async def _listens(desk: Desk, block: Block) -> bool:
    command = desk.typed(block.text)
    process = await asyncio.create_subprocess_shell(
        f"exec {command}{' --port 0' if 'examples/' in command and 'serve' not in command else ''}",
        cwd=desk.folder,
        env={**desk.environment, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if b'"listening"' in line or b"Running on" in line:
                return True
        return False
    finally:
        process.terminate()
        await process.communicate()
