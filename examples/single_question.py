"""One question and no history: there is nothing earlier, so the request goes up as the very bytes that were sent."""

from __future__ import annotations

import asyncio

from conversation import Conversation, Said, Sent
from handbook import QUESTIONS


async def main() -> None:
    async for event in Conversation().ask(QUESTIONS[0]):
        if isinstance(event, Sent):
            print(f"  Evidence-Proxy: {event.header}")
        elif isinstance(event, Said):
            print(f"{QUESTIONS[0]}\n  {event.text}")


asyncio.run(main())
