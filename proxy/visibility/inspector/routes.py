"""What the inspector's page asks, and what it gets: its own files, JSON, and a stream of events.

The files are read once, from beside this module; no path of a request ever names a file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from proxy.gateway.admin import HEADERS, guarded
from proxy.visibility.inspector.recorder import Inspector
from proxy.wire.messages import Message, OtherPart, Picture, Text

_PAGE = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MOST_ROWS = 500
#: How much of one text is sent at once; a page asks for the rest where somebody wants to read it.
_MOST_TEXT = 100_000
_LARGEST_PICTURE = 12_000_000
#: Pictures that a browser draws and that cannot hold a script or an address. SVG can.
_DRAWN = ("data:image/png;", "data:image/jpeg;", "data:image/jpg;", "data:image/gif;", "data:image/webp;")
_STILL_HERE = 15.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Routes(Protocol):
    """Where routes are registered."""

    def route(self, method: str, path: str, handler: Handler) -> None: ...


def register(routes: Routes, inspector: Inspector) -> None:
    """Put the inspector's routes on the admin port."""
    rooms = _Rooms(inspector)
    routes.route("GET", "/", rooms.page)
    routes.route("GET", "/inspector/page/{name}", rooms.file)
    routes.route("GET", "/inspector/events", rooms.events)
    routes.route("GET", "/inspector/state", rooms.state)
    routes.route("GET", "/inspector/requests", rooms.requests)
    routes.route("GET", "/inspector/requests/{serial:[0-9]{1,15}}", rooms.request)
    routes.route("GET", "/inspector/requests/{serial:[0-9]{1,15}}/lines/{line:[0-9]{1,9}}", rooms.line)
    routes.route("GET", "/inspector/conversations/{name:[0-9a-f]{1,64}}", rooms.conversation)


class _Rooms:
    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._files = {
            file.name: (file.read_bytes(), _KINDS[file.suffix]) for file in _PAGE.iterdir() if file.suffix in _KINDS
        }
        policy = HEADERS["Content-Security-Policy"]
        # Without content there is no picture to draw, and nothing that may look like one.
        self._policy = policy if inspector.content else policy.replace("img-src 'self' data:", "img-src 'self'")

    async def page(self, request: web.Request) -> web.StreamResponse:
        return self._file("index.html")

    async def file(self, request: web.Request) -> web.StreamResponse:
        return self._file(request.match_info["name"])

    def _file(self, name: str) -> web.StreamResponse:
        if name not in self._files:
            raise web.HTTPNotFound
        body, kind = self._files[name]
        answer = web.Response(body=body, content_type=kind, charset="utf-8")
        answer.headers["Content-Security-Policy"] = self._policy
        return answer

    async def state(self, request: web.Request) -> web.StreamResponse:
        return _json(self._inspector.state())

    async def requests(self, request: web.Request) -> web.StreamResponse:
        await self._inspector.caught_up()
        most = min(_number(request, "most", 100), _MOST_ROWS)
        before = _number(request, "before", -1)
        rows = self._inspector.newest(most, before if before >= 0 else None)
        return _json({"requests": rows, "state": self._inspector.state()})

    async def conversation(self, request: web.Request) -> web.StreamResponse:
        await self._inspector.caught_up()
        return _json(self._inspector.conversation(request.match_info["name"]))

    async def request(self, request: web.Request) -> web.StreamResponse:
        await self._inspector.caught_up()
        return _json(self._inspector.request(int(request.match_info["serial"])))

    async def line(self, request: web.Request) -> web.StreamResponse:
        """One message's content: all parts, a long text from a place on."""
        went = request.query.get("side") == "went"
        part, at = _number(request, "part", -1), _number(request, "from", 0)
        serial, number = int(request.match_info["serial"]), int(request.match_info["line"])
        messages = await self._inspector.line(serial, number, went)
        if messages is None:
            return _json(None)
        parts = [shown for message in messages for shown in _shown(message)]
        if 0 <= part < len(parts):
            parts = [_cut(parts[part], at)]
        return _json({"parts": [_cut(one, 0) if part < 0 else one for one in parts]})

    async def events(self, request: web.Request) -> web.StreamResponse:
        """A stream of what happens, until the page goes."""
        listener = self._inspector.listen()
        if listener is None:
            return web.json_response({"error": {"message": "too many pages are open; close one"}}, status=503)
        try:
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await guarded(answer).prepare(request)
            await answer.write(_event(("state", self._inspector.state())))
            while True:
                try:
                    async with asyncio.timeout(_STILL_HERE):
                        event = await listener.hear()
                except TimeoutError:
                    event = ("state", self._inspector.state())
                await answer.write(_event(event))
        finally:
            self._inspector.leave(listener)


def _event(event: tuple[str, Any]) -> bytes:
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _json(value: Any) -> web.Response:
    if value is None:
        said = "not kept (any more): the inspector remembers the newest requests only, and content where it is on"
        return web.json_response({"error": {"message": said}}, status=404)
    return web.Response(body=json.dumps(value).encode(), content_type="application/json")


def _number(request: web.Request, name: str, otherwise: int) -> int:
    given = request.query.get(name, "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else otherwise


def _shown(message: Message) -> list[dict[str, Any]]:
    """What a message holds, as values that a page shows as text or as a picture, and as nothing else."""
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append({"kind": "text", "text": part.text})
        elif isinstance(part, Picture):
            drawn = part.url.lower().startswith(_DRAWN) and len(part.url) <= _LARGEST_PICTURE
            where = part.url if not part.url.startswith("data:") else part.url.partition(",")[0]
            parts.append({"kind": "picture", "url": part.url if drawn else None, "where": where[:2000],
                          "size": len(part.url)})  # fmt: skip
        elif isinstance(part, OtherPart):
            parts.append({"kind": "other", "text": json.dumps(part.value, ensure_ascii=False, indent=1)})
    parts += [{"kind": "call", "name": call.name, "text": call.arguments} for call in message.calls]
    return parts


def _cut(part: dict[str, Any], at: int) -> dict[str, Any]:
    text = part.get("text")
    if not isinstance(text, str):
        return part
    return {**part, "text": text[at : at + _MOST_TEXT], "from": at, "length": len(text)}
