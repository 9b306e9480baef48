"""Evidence Proxy with a probe in its event loop: how late a timer of one millisecond comes.

    python -m benchmarks.load.probed serve ...

On SIGUSR1 it writes what it saw since the last time, as JSON, to the file that PROBE_FILE names, and begins anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from proxy import cli

PAUSE = 0.001


async def probe(late: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PAUSE
        await asyncio.sleep(PAUSE)
        late.append(loop.time() - due)


def main() -> None:
    serve = cli._serve

    async def probed(*given: Any, **named: Any) -> Any:
        late: list[float] = []
        file = Path(os.environ["PROBE_FILE"])

        def tell() -> None:
            whole = file.with_suffix(".part")
            whole.write_text(json.dumps(sorted(late)))
            whole.rename(file)
            late.clear()

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
        task = asyncio.create_task(probe(late))
        try:
            return await serve(*given, **named)
        finally:
            task.cancel()

    cli._serve = probed
    cli.main()


if __name__ == "__main__":
    main()
