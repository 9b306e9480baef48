"""A real browser for tests: Debian's Chromium without a window, driven by Playwright (`tests/clients/browser.mjs`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tests.house.real_clients import NODE_MODULES, ROOT, SCRIPTS

CHROMIUM = os.environ.get("EVIDENCE_PROXY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: Where screenshots are kept, to be looked at.
PICTURES = ROOT / "build" / "screenshots"


def missing() -> str | None:
    """What is not here for a test with a browser, or None."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not all((NODE_MODULES / name).is_dir() for name in ("playwright-core", "axe-core")):
        return "playwright-core and axe-core are not installed: run `make clients`"
    if CHROMIUM is None:
        return "chromium is not installed (on Debian: apt-get install chromium)"
    return None


class Browser:
    """One page of one browser. Each command waits for its answer; a fault of the browser's fails the test."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Browser:
        assert CHROMIUM is not None
        self._process = await asyncio.create_subprocess_exec(
            *("node", str(SCRIPTS / "browser.mjs"), CHROMIUM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 26,
        )
        return self

    async def stop(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _do(self, does: str, **given: Any) -> Any:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"does": does, **given}).encode() + b"\n")
        await process.stdin.drain()
        answer = json.loads(await process.stdout.readline() or b'{"fault": "the browser ended"}')
        assert "fault" not in answer, answer["fault"]
        return answer["value"]

    async def open(self, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """A fresh page of this size."""
        await self._do("open", width=width, height=height, dark=dark)

    async def resize(self, width: int, height: int = 900) -> None:
        await self._do("size", width=width, height=height)

    async def goto(self, url: str) -> None:
        await self._do("goto", url=url)

    async def wait(self, selector: str) -> None:
        """Wait until there is such an element."""
        await self._do("wait", selector=selector)

    async def until(self, script: str) -> None:
        """Wait until a script of the page gives something true."""
        await self._do("until", script=script)

    async def evaluate(self, script: str) -> Any:
        return await self._do("evaluate", script=script)

    async def click(self, selector: str) -> None:
        await self._do("click", selector=selector)

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self._do("press", key=key)

    async def texts(self, selector: str) -> list[str]:
        """What each such element shows."""
        return list(
            await self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")
        )

    async def faults(self) -> list[dict[str, Any]]:
        """What axe-core finds."""
        return list(await self._do("check"))

    async def picture(self, name: str, whole: bool = True) -> Path:
        """Keep a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        await self._do("picture", path=str(path), whole=whole)
        return path

    async def seen(self) -> dict[str, Any]:
        """Faults of scripts, addresses elsewhere that were asked for, and dialogs, since the page was opened."""
        return dict(await self._do("seen"))
