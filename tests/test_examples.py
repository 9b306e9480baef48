"""The examples, run as a reader runs them: the stand-in provider, the proxy with their settings, the example."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.conftest import StartProcess
from tests.house.real_clients import ENVIRONMENT, LLAMA_INDEX, SCRIPTS, here
from tests.house.running import ProxyProcess

EXAMPLES = Path(__file__).parents[1] / "examples"
KEYS = "the key that the examples' tools sign with"
THREE_QUESTIONS = ["no-evidence", "nothing-earlier", "nothing-earlier", *["question=2"] * 3, *["question=3"] * 3]
ANSWERS = ("[lens-1]", "[drive-2]", "[paint-3]")


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("EVIDENCE_TAG_KEYS", KEYS)


@pytest.fixture
async def stand_in() -> AsyncIterator[str]:
    runner = web.AppRunner(importlib.import_module("stand_in").app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def proxy_for(settings: str, stand_in: str, start_process: StartProcess) -> ProxyProcess:
    """The proxy with an example's settings file, but for the ports."""
    text = (EXAMPLES / settings).read_text().replace("http://127.0.0.1:9100/v1", stand_in)
    text += '\n[server]\nadmin_port = 0\n[store]\nuri = "memory://"\n'
    return await start_process(text, {"EVIDENCE_TAG_KEYS": KEYS})


async def run(command: list[str], proxy: ProxyProcess) -> str:
    """What an example prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=EXAMPLES.parent,
        env={
            **os.environ,
            "OPENAI_BASE_URL": f"{proxy.url}/v1",
            "PYTHONPATH": str(EXAMPLES.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return out.decode()


async def outcomes(proxy: ProxyProcess) -> list[str]:
    """Of each request of a conversation: the reason why it was untouched, or which question it was compacted in."""
    await proxy.stop()  # what it has to say is said by then
    said = [line["outcome"] for line in proxy.lines if line.get("event") == "request" and line.get("outcome")]
    return [one.split("; ")[1].removeprefix("reason=") for one in said]


@pytest.mark.parametrize(
    "script",
    [
        here("openai", "openai_python.py"),
        here("pydantic-ai", "pydantic_ai_agent.py"),
        here("openai-agents", "openai_agents_sdk.py"),
        here("langchain", "langchain_agent.py"),
        here("llama-index", "llama_index_agent.py"),
        here("openai-node", "openai_node.mjs"),
        here("ai-sdk", "ai_sdk.mjs"),
    ],
)
async def test_each_clients_example_is_compacted_and_answered(
    stand_in: str, start_process: StartProcess, script: str
) -> None:
    proxy = await proxy_for("plain.toml", stand_in, start_process)
    if script.endswith(".mjs"):
        # Node looks for packages beside a script, and these are where the tests' own scripts are.
        copies = [SCRIPTS / f".{os.getpid()}-{name}" for name in ("handbook.mjs", script)]
        copies[0].write_text((EXAMPLES / "handbook.mjs").read_text())
        copies[1].write_text((EXAMPLES / script).read_text().replace("./handbook.mjs", f"./{copies[0].name}"))
        try:
            printed = await run(["node", str(copies[1])], proxy)
        finally:
            for copy in copies:
                copy.unlink()
    else:
        environment = LLAMA_INDEX if script.startswith("llama") else ENVIRONMENT
        printed = await run([str(environment / "bin" / "python"), str(EXAMPLES / script)], proxy)
    assert [answer for answer in ANSWERS if answer in printed] == list(ANSWERS), printed
    assert await outcomes(proxy) == THREE_QUESTIONS


async def test_the_retrieval_agents_tagged_evidence_is_compacted(stand_in: str, start_process: StartProcess) -> None:
    proxy = await proxy_for("tagged.toml", stand_in, start_process)
    printed = await run([sys.executable, str(EXAMPLES / "retrieval_agent.py")], proxy)
    assert await outcomes(proxy) == THREE_QUESTIONS
    assert [line.strip() for line in printed.splitlines() if " cited " in line] == [
        "cited lens-1",
        "cited drive-2",
        "cited paint-3",
    ]


async def test_the_agent_without_a_cite_tool_is_compacted_by_what_the_proxy_asked(
    stand_in: str, start_process: StartProcess
) -> None:
    proxy = await proxy_for("managed.toml", stand_in, start_process)
    printed = await run([sys.executable, str(EXAMPLES / "managed_agent.py")], proxy)
    assert [answer for answer in ANSWERS if answer in printed] == list(ANSWERS), printed
    assert " cited " not in printed, "the client sees no call that it does not know"
    assert await outcomes(proxy) == ["no-evidence", "nothing-earlier", *["question=2"] * 2, *["question=3"] * 2]


async def test_a_single_question_is_left_as_it_is(stand_in: str, start_process: StartProcess) -> None:
    proxy = await proxy_for("tagged.toml", stand_in, start_process)
    printed = await run([sys.executable, str(EXAMPLES / "single_question.py")], proxy)
    assert "[lens-1]" in printed and "compacted" not in printed
    assert await outcomes(proxy) == ["no-evidence", "nothing-earlier", "nothing-earlier"]


async def test_the_mcp_servers_questions_are_conversations_of_their_own(
    stand_in: str, start_process: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    proxy = await proxy_for("tagged.toml", stand_in, start_process)
    server = StdioServerParameters(
        command=sys.executable,
        args=[str(EXAMPLES / "mcp_server.py")],
        env={**os.environ, "OPENAI_BASE_URL": f"{proxy.url}/v1", "PYTHONPATH": str(EXAMPLES.parent)},
    )
    async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        asked = {"question": "How do I clean the lens?"}
        replies = [await session.call_tool("ask_handbook", asked) for _ in range(2)]
    for reply in replies:
        assert "[lens-1]" in reply.content[0].text and "compacted" not in reply.content[0].text
    assert await outcomes(proxy) == ["no-evidence", "nothing-earlier", "nothing-earlier"] * 2


async def test_the_terminal_chat_shows_answers_citations_and_savings(
    stand_in: str, start_process: StartProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from textual.widgets import Input, Static

    proxy = await proxy_for("tagged.toml", stand_in, start_process)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{proxy.url}/v1")
    for name in ("terminal_chat", "conversation", "corpus", "handbook"):
        sys.modules.pop(name, None)
    chat = importlib.import_module("terminal_chat").Chat()
    async with chat.run_test(size=(120, 40)) as pilot:
        for question in importlib.import_module("handbook").QUESTIONS[:2]:
            chat.query_one(Input).value = question
            await pilot.press("enter")  # where the keys go from the start
            await chat.workers.wait_for_complete()
        await pilot.pause()
        saved, cited = (str(chat.query_one(name, Static).render()) for name in ("#saved", "#cited"))
    assert "1. lens-1" in cited and "2. drive-2" in cited
    assert "saved so far: 0 bytes" not in saved and "saved so far: " in saved
    assert await outcomes(proxy) == THREE_QUESTIONS[:6]


async def test_the_web_chats_backend_tells_what_happens(
    stand_in: str, start_process: StartProcess, monkeypatch: pytest.MonkeyPatch, aiohttp_client: Any
) -> None:
    proxy = await proxy_for("tagged.toml", stand_in, start_process)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{proxy.url}/v1")
    for name in ("web_chat", "conversation", "corpus", "handbook"):
        sys.modules.pop(name, None)
    client = await aiohttp_client(importlib.import_module("web_chat").app())
    assert "<form>" in await (await client.get("/")).text()
    conversation = None
    for question, chunk in zip(importlib.import_module("handbook").QUESTIONS[:2], ("lens-1", "drive-2"), strict=True):
        reply = await client.post("/ask", json={"conversation": conversation, "question": question})
        events = [json.loads(line) for line in (await reply.text()).splitlines()]
        conversation = events[0]["conversation"]
        assert [event["ids"] for event in events if event["kind"] == "Cited"] == [[chunk]]
        sent = [event for event in events if event["kind"] == "Sent"]
        assert len(sent) == 3 and all(one["after"] < one["before"] for one in sent) == (chunk == "drive-2")
