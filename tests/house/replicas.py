"""Several proxies on one store, and an S3 server on 127.0.0.1 for them to share it."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.house.client import ask
from tests.house.real_clients import ENVIRONMENT
from tests.house.running import ProxyProcess, scratch

#: What a user of moto's server says: it asks for no real credential.
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_REGION": "us-east-1"}


async def is_ready(process: ProxyProcess, why: str = "", ready: bool = True, within: float = 120.0) -> None:
    """Return when /readyz says this of the store."""
    deadline = time.monotonic() + within
    while True:
        seen = await ask(process.url, target="/readyz", method="GET")
        if (seen.status == 200) == ready and why in seen.body.decode():
            return
        assert time.monotonic() < deadline, seen.body
        await asyncio.sleep(0.05)


class S3Server:
    """Moto's server as a process of its own, with one bucket."""

    bucket = "evidence"

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.url = ""
        self.requests: list[str] = []
        """What was asked of it so far: method and path."""
        self._told = asyncio.Event()

    @staticmethod
    def is_here() -> bool:
        """Whether it is installed; `make clients` does that."""
        return any(ENVIRONMENT.glob("lib/python*/site-packages/moto"))

    async def start(self) -> S3Server:
        self._process = await asyncio.create_subprocess_exec(
            *(str(ENVIRONMENT / "bin" / "python"), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        while not (found := re.search(rb"Running on (http://127\.0\.0\.1:\d+)", await self._process.stderr.readline())):
            assert self._process.returncode is None, "the S3 server ended before it listened"
        self.url = found[1].decode()
        self._reading = asyncio.create_task(self._read())
        await asyncio.to_thread(self._make_bucket)
        return self

    def _make_bucket(self) -> None:
        # Not with our own client: S3 servers read the bucket's name out of the Host header.
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/{self.bucket}", method="PUT")) as seen:
            assert seen.status == 200

    @property
    def environment(self) -> dict[str, str]:
        """What a proxy's environment says of it."""
        return {**_CREDENTIALS, "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true"}

    async def _read(self) -> None:
        assert self._process is not None and self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if found := re.search(rb'"((?:GET|PUT|HEAD|POST|DELETE) \S+) HTTP', line):
                self.requests.append(found[1].decode())
                self._told.set()

    async def has_told_all(self) -> None:
        """Return when `requests` holds all that was answered before this call."""
        mark = f"/{self.bucket}?prefix=mark-{len(self.requests)}"
        await asyncio.to_thread(lambda: urllib.request.urlopen(self.url + mark).close())
        while not any(mark in one for one in self.requests):
            self._told.clear()
            await self._told.wait()
        self.requests = [one for one in self.requests if mark not in one]

    def pause(self) -> None:
        """Answer nobody any more, without closing a connection."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading


class Replicas:
    """Proxies with one store between them, asked at random."""

    def __init__(
        self, upstream: str, uri: str | Path, environment: Mapping[str, str], seed: int, read_timeout_ms: int = 250
    ) -> None:
        self._config = (
            f'[server]\nadmin_port = 0\n[upstream]\nbase_url = "{upstream}"\n[[evidence]]\nformat = "haiku"\n'
            f'[store]\nuri = "{uri}"\nread_timeout_ms = {read_timeout_ms}\n[tags]\nkey_env = "THE_TAG_KEYS"\n'
        )
        self._environment = {**environment, "THE_TAG_KEYS": "5b" * 32}
        self._random = random.Random(seed)
        self.processes: list[ProxyProcess] = []
        self.asked: list[int] = []

    async def start(self, how_many: int) -> Replicas:
        for _ in range(how_many):
            process = ProxyProcess(self._config, scratch(), self._environment)
            self.processes.append(process)
            await process.start()
        self.asked = [0] * how_many
        return self

    async def where(self) -> str:
        """Any of them."""
        which = self._random.randrange(len(self.processes))
        self.asked[which] += 1
        return self.processes[which].url

    async def are_open(self) -> None:
        """Return when each has its store open: the first record of all makes it be made, which takes an import."""
        for process in self.processes:
            await is_ready(process, "is open")

    @property
    def troubles(self) -> list[str]:
        return [str(line) for p in self.processes for line in p.lines if line.get("level") not in (None, "info")]

    async def stop(self) -> None:
        for process in self.processes:
            if process.process is not None:
                await process.stop()
            shutil.rmtree(process.directory, ignore_errors=True)
