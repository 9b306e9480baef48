"""Real clients from PyPI and npm, where `make clients` put them: which are there, and how a script of theirs is run.

They live apart from everything else; a test of one that is not installed is skipped and says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "clients"
ENVIRONMENT = Path(os.environ.get("EVIDENCE_PROXY_CLIENTS") or ROOT / ".venv" / "clients")
#: LlamaIndex wants an older openai than the others do.
LLAMA_INDEX = ENVIRONMENT.with_name(f"{ENVIRONMENT.name}-llama-index")
NODE_MODULES = SCRIPTS / "node_modules"
#: What each of them is installed as.
PACKAGES = {
    "openai": "openai",
    "pydantic-ai": "pydantic_ai",
    "openai-agents": "agents",
    "langchain": "langchain_openai",
    "google-adk": "google/adk",
    "llama-index": "llama_index/llms/openai",
}
NODE_PACKAGES = {"openai-node": "openai", "ai-sdk": "ai"}
#: LiteLLM, through which google-adk speaks to the proxy, looks prices up elsewhere unless told not to.
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def is_node(client: str) -> bool:
    return client in NODE_PACKAGES


def here(client: str, variant: str | None = None) -> Any:
    """A parameter for a test: `variant`, or the client's name; skipped where the client is not installed."""
    if is_node(client):
        missing = not ((NODE_MODULES / NODE_PACKAGES[client]).is_dir() and shutil.which("node"))
    else:
        environment = LLAMA_INDEX if client == "llama-index" else ENVIRONMENT
        missing = not any(environment.glob(f"lib/python*/site-packages/{PACKAGES[client]}"))
    reason = f"the client {client} is not installed: run `make clients`"
    return pytest.param(variant or client, marks=pytest.mark.skipif(missing, reason=reason))


async def run(script: str, *arguments: str) -> list[Any]:
    """Run a script of `tests/clients` (`.py` or `.mjs`) to its end; gives the JSON lines that it printed.

    Fails with what it said on stderr if it does not end well. Python scripts may import from this repository.
    """
    interpreter = "node" if script.endswith(".mjs") else str(ENVIRONMENT / "bin" / "python")
    process = await asyncio.create_subprocess_exec(
        *(interpreter, str(SCRIPTS / script), *arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT), **_OFFLINE},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    return [json.loads(line) for line in out.splitlines()]
