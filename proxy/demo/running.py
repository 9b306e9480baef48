"""The real proxy as a process of its own, started as anyone starts it: the command, a config file, a data folder."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

CONFIG = """\
[server]
host = "127.0.0.1"
port = {port}
admin_port = {admin_port}

[upstream]
base_url = "{upstream}"

[[evidence]]
name = "handbook"
format = "auto"
tools = ["search"]
cite = "cite"
"""


class ProxyDidNotStart(RuntimeError):
    """The proxy's process ended, or did not answer in time; a note holds the end of what it printed."""


@asynccontextmanager
async def running_proxy(upstream: str, folder: Path) -> AsyncIterator[str]:
    """Start `python -m proxy serve` before `upstream`, with everything it writes under `folder`; gives the base URL.

    Raises `ProxyDidNotStart`.
    """
    port, admin_port = _free_ports()
    config = folder / "demo.toml"
    config.write_text(CONFIG.format(port=port, admin_port=admin_port, upstream=upstream))
    log = folder / "proxy.log"
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(config), "--data", str(folder / "data")]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, stdin=asyncio.subprocess.DEVNULL
        )
    try:
        await _answering(f"http://127.0.0.1:{port}/healthz", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    except Exception as error:
        error.add_note(f"The end of what the proxy printed:\n{_end(log)}")
        raise
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


async def _answering(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            if process.returncode is not None:
                raise ProxyDidNotStart(f"the proxy ended with code {process.returncode}")
            try:
                async with session.get(url) as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise ProxyDidNotStart(f"the proxy did not answer {url} within 20 seconds")


def _end(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] or "(it printed nothing)"
