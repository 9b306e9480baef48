"""A running proxy: a real process as a user starts it, or the gateway inside the test's own event loop for speed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from proxy.gateway.access import ClientKeys
from proxy.gateway.app import Conversing, Gateway, Readiness, Tagging
from proxy.gateway.watched import Watcher
from proxy.settings import Settings

ROOT = Path(__file__).parents[2]


#: Proxies in tests run beside each other, and beside whatever else runs on this machine.
_OF_ITS_OWN = {"EVIDENCE_PROXY_SERVER__ADMIN_PORT": "0"}


class ProxyProcess:
    """`python -m proxy serve` on a free port, with a TOML file in a directory of its own."""

    def __init__(self, config: str, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.file = directory / "proxy.toml"
        self.file.write_text(config)
        self._environment = dict(environment or {})
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.lines: list[dict[str, Any]] = []
        self._reading: asyncio.Task[None] | None = None
        self._spoke = asyncio.Condition()
        self._ended = False

    async def start(self) -> ProxyProcess:
        """Start it and wait until it says where it listens. Raises `AssertionError` with its words if it ends first."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EVIDENCE_PROXY_")}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "proxy", "serve", "--config", str(self.file), "--port", "0"),
            cwd=ROOT,
            env={**clean, **_OF_ITS_OWN, "XDG_DATA_HOME": str(self.directory / "data"), **self._environment},
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read())
        self.url = (await self.line("listening"))["address"]
        return self

    async def line(self, event: str, number: int = 0) -> dict[str, Any]:
        """The first log line of this event (or of another number), as soon as it is there. `AssertionError` if the
        process ends without it."""

        def found() -> dict[str, Any] | None:
            return next(islice((line for line in self.lines if line["event"] == event), number, None), None)

        async with self._spoke:
            await self._spoke.wait_for(lambda: self._ended or found() is not None)
        line = found()
        assert line is not None, f"the proxy ended without saying {event!r}: {self.lines}"
        return line

    async def _read(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        async for raw in self.process.stderr:
            try:
                line = json.loads(raw)
            except ValueError:
                line = {"event": "text", "text": raw.decode(errors="replace").rstrip()}
            async with self._spoke:
                self.lines.append(line)
                self._spoke.notify_all()
        async with self._spoke:
            self._ended = True
            self._spoke.notify_all()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, wait, and return its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for its end without asking for it, and return its exit code."""
        assert self.process is not None and self._reading is not None
        code = await self.process.wait()
        await self._reading
        return code


class InProcess:
    """The gateway in this event loop, with a conversation and a store that the test chooses."""

    def __init__(
        self,
        settings: Settings,
        conversations: Conversing,
        readiness: Readiness,
        key: str | None,
        tagging: Tagging | None = None,
        watcher: Watcher | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        self.settings = settings
        self.gateway = Gateway(settings, conversations, readiness, key, tagging, watcher, keys)
        self.url = ""
        self.store: Any = None  # the real one, where there is one

    async def start(self) -> InProcess:
        self.url = await self.gateway.start()
        return self

    async def stop(self) -> None:
        await self.gateway.close()


class NoStore:
    """A store that keeps nothing, for tests of HTTP alone."""

    def __init__(self, ready: bool = True) -> None:
        self.is_ready = ready

    def ready(self) -> tuple[bool, str]:
        return (True, "") if self.is_ready else (False, "the store is still opening")


def settings(upstream: str, /, **sections: Any) -> Settings:
    """Settings for a test: a free port, this provider, nothing on disk; `sections` override."""
    given: dict[str, Any] = {"server": {"port": 0}, "upstream": {"base_url": upstream}, "store": {"uri": "memory://"}}
    for name, values in sections.items():
        given[name] = {**given[name], **values} if isinstance(values, dict) and name in given else values
    return Settings(**given)


def scratch() -> Path:
    """A new directory under the system's temporary one."""
    return Path(tempfile.mkdtemp(prefix="evidence-proxy-test-"))
