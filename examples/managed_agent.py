"""The same agent without a cite tool: the proxy offers its own, and answers it (run it with managed.toml)."""

from __future__ import annotations

import asyncio

from retrieval_agent import main

asyncio.run(main(cites=False))
