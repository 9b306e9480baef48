"""The real proxy as a process of its own, started as anyone starts it: the command, a config file, a data folder."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

# Port 0 takes a free one; the proxy logs which it was.
CONFIG = """\
[server]
host = "127.0.0.1"
port = 0
admin_port = 0

[upstream]
base_url = "{upstream}"

[[evidence]]
name = "handbook"
format = "auto"
tools = ["search"]
cite = "cite"
"""


class ProxyDidNotStart(RuntimeError):
    """The proxy's process ended, or did not say in time where it listens; a note holds the end of what it printed."""


@asynccontextmanager
async def running_proxy(upstream: str, folder: Path) -> AsyncIterator[str]:
    """Start `python -m proxy serve` before `upstream`, with everything it writes under `folder`; gives the base URL.

    Raises `ProxyDidNotStart`.
    """
    config = folder / "demo.toml"
    config.write_text(CONFIG.format(upstream=upstream))
    log = folder / "proxy.log"
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(config), "--data", str(folder / "data")]
    # Settings that someone exported for a proxy of their own would overrule the file.
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("EVIDENCE_PROXY_")}
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env=environment
        )
    try:
        yield await _address(process, log) + "/v1"
    except Exception as error:
        error.add_note(f"The end of what the proxy printed:\n{log.read_text(errors='replace')[-2000:]}")
        raise
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    for _ in range(400):
        if (address := _listening_at(log)) is not None:
            return address
        if process.returncode is not None:
            raise ProxyDidNotStart(f"the proxy ended with code {process.returncode}")
        await asyncio.sleep(0.05)
    raise ProxyDidNotStart("the proxy did not say within 20 seconds where it listens")


def _listening_at(log: Path) -> str | None:
    for line in log.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a line that is still being written, or a warning of a library's
        if isinstance(event, dict) and event.get("event") == "listening":
            return str(event["address"])
    return None
