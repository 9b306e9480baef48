"""A retrieval agent over LanceDB with tagged evidence and pictures, and a cite tool of its own."""

from __future__ import annotations

import asyncio

from conversation import Cited, Conversation, Said, Searched, Sent
from handbook import QUESTIONS


async def main(cites: bool) -> None:
    conversation = Conversation(cites)
    for question in QUESTIONS:
        print(question)
        answer = ""
        async for event in conversation.ask(question):
            if isinstance(event, Sent):
                print(f"  sent {event.before:>7,} bytes, the provider got {event.after:>7,} ({event.header})")
            elif isinstance(event, Searched):
                print(f"  found {', '.join(event.ids)}")
            elif isinstance(event, Cited):
                print(f"  cited {', '.join(event.ids)}")
            elif isinstance(event, Said):
                answer += event.text
        print(f"  {answer}\n")


if __name__ == "__main__":
    asyncio.run(main(cites=True))
