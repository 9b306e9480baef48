"""Plays what a client does when things go wrong, and prints what became of each: a line of JSON.

    python behaving.py BASE_URL

The model's name says what the provider will do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from openai import APIError, AsyncOpenAI

SAID: Any = [{"role": "user", "content": "hi"}]
ASKED = ("fine", "busy twice", "broken twice", "wrong", "unknown", "always busy", "gone")


async def outcome(work: Any) -> Any:
    try:
        return await work
    except APIError as error:
        return [type(error).__name__, getattr(error, "status_code", None)]
    except Exception as error:
        return [type(error).__name__, None]


async def text(client: AsyncOpenAI, model: str) -> Any:
    return (await client.chat.completions.create(model=model, messages=SAID)).choices[0].message.content


async def stream(client: AsyncOpenAI, model: str, most: int | None = None) -> Any:
    pieces: list[str] = []
    async with await client.chat.completions.create(model=model, messages=SAID, stream=True) as chunks:
        async for chunk in chunks:
            pieces.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
            if most is not None and len(pieces) == most:
                break
    return "".join(pieces)


async def main(base_url: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="sk-test", max_retries=2) as client:
        told = {model: await outcome(text(client, model)) for model in ASKED}
        hasty = client.with_options(timeout=1.0)
        told["silent"] = await outcome(text(hasty, "silent"))
        told["silent inside"] = await outcome(stream(hasty, "silent inside"))
        told["streamed"] = await outcome(stream(client, "streamed"))
        told["an error inside"] = await outcome(stream(client, "an error inside"))
        told["broken off"] = await outcome(stream(client, "broken off"))
        told["left"] = await outcome(stream(client, "left", most=2))
        print(json.dumps(told))


asyncio.run(main(sys.argv[1]))
