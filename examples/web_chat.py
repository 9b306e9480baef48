"""A small chat backend with a web page: citations and savings appear as they happen.

python examples/web_chat.py            # http://127.0.0.1:8090
"""

from __future__ import annotations

import argparse
import json
import secrets
from dataclasses import asdict
from pathlib import Path

from aiohttp import web
from conversation import Conversation

PAGE = Path(__file__).with_suffix(".html")
conversations: dict[str, Conversation] = {}


async def page(_: web.Request) -> web.StreamResponse:
    return web.FileResponse(PAGE)


async def ask(request: web.Request) -> web.StreamResponse:
    """One question in, events out: a line of JSON each."""
    given = await request.json()
    name = given.get("conversation") or secrets.token_urlsafe(8)
    conversation = conversations.setdefault(name, Conversation())
    reply = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await reply.prepare(request)
    await reply.write(json.dumps({"kind": "Began", "conversation": name}).encode() + b"\n")
    async for event in conversation.ask(given["question"]):
        await reply.write(json.dumps({"kind": type(event).__name__, **asdict(event)}).encode() + b"\n")
    return reply


def app() -> web.Application:
    made = web.Application()
    made.router.add_get("/", page)
    made.router.add_post("/ask", ask)
    return made


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, default=8090)
    web.run_app(app(), host="127.0.0.1", port=options.parse_args().port)
