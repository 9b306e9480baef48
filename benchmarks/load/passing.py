"""The yardstick: the shortest aiohttp proxy that passes requests through, with uvloop. It reads nothing.

python benchmarks/load/passing.py UPSTREAM PORT
"""

import sys

import aiohttp
import uvloop
from aiohttp import web

HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "trailer", "upgrade"}


class Passing:
    def __init__(self, upstream: str) -> None:
        self.upstream = upstream

    async def start(self, app: web.Application) -> None:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def stop(self, app: web.Application) -> None:
        await self.session.close()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP]
        if request.content_length is not None:
            headers.append(("Content-Length", str(request.content_length)))
        body = request.content if request.can_read_body else None
        async with self.session.request(
            request.method, self.upstream + request.raw_path, headers=headers, data=body, allow_redirects=False
        ) as reply:
            passed = web.StreamResponse(status=reply.status, reason=reply.reason)
            for name, value in reply.headers.items():
                if name.lower() not in HOP:
                    passed.headers.add(name, value)
            if reply.content_length is not None:
                passed.content_length = reply.content_length
            await passed.prepare(request)
            async for chunk in reply.content.iter_any():
                await passed.write(chunk)
            await passed.write_eof()
            return passed


def main(upstream: str, port: str) -> None:
    uvloop.install()
    passing = Passing(upstream)
    app = web.Application(client_max_size=1 << 30)
    app.on_startup.append(passing.start)
    app.on_cleanup.append(passing.stop)
    app.router.add_route("*", "/{path:.*}", passing.handle)
    web.run_app(app, host="127.0.0.1", port=int(port), access_log=None, print=None, backlog=1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
