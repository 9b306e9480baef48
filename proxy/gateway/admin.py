"""The admin port: a second server, for the people who run the proxy, apart from what clients talk to.

Here lives who may ask there, and nothing of what is answered: rooms register their routes before it starts. On a
loopback address everybody on this machine may ask, so what is kept out is the machine's own browser when another site
steers it: by a name that was pointed at this address (its Host is not ours), or by a request from a page of its own
(Origin, Sec-Fetch-Site). On any other address a token says who may ask, for everything but what is public.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from proxy.gateway import errors
from proxy.settings import ServerSettings, is_loopback
from proxy.visibility import logs

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MOST_BYTES = 1 << 20

#: On every answer: nothing from elsewhere, no inline script or style, no framing, no copy kept.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Admin:
    """One per process. `token` must be there where the address is not loopback's; the settings see to that."""

    def __init__(self, server: ServerSettings, token: str | None = None) -> None:
        self._host = server.admin_host
        self._port = server.admin_port
        self._token = token
        self._public: set[str] = set()
        self._app = web.Application(middlewares=[self._guard], client_max_size=_MOST_BYTES)
        self._runner: web.AppRunner | None = None

    def route(self, method: str, path: str, handler: Handler, public: bool = False) -> None:
        """Answer requests to `path` (aiohttp's patterns) with `handler`; only before `start`.

        `public`: without the token, and under any Host where a token guards the rest (a scraper knows neither).
        """
        self._app.router.add_route(method, path, handler)
        if public:
            self._public.add(path)

    async def start(self, any_port: bool = False) -> tuple[str, int]:
        """Listen; returns the address. Raises `OSError` if it cannot be had. `any_port` takes a free one instead."""
        if self._runner is None:
            self._runner = web.AppRunner(
                self._app, access_log=None, handle_signals=False, handler_cancellation=True, shutdown_timeout=0.1
            )
            await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0 if any_port else self._port).start()
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def close(self) -> None:
        """Stop listening; what is still being answered is ended."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = self._refusal(request)
        try:
            answer = refused if refused is not None else await handler(request)
        except web.HTTPException as given:
            answer = _said(given.status, given.reason, "invalid_request_error", "not_served_here")
            answer.headers.update({k: v for k, v in given.headers.items() if k.lower() == "allow"})
        except ConnectionError:
            raise
        except Exception as fault:
            logs.fault("admin-request-failed", fault)
            answer = _answered(errors.internal())
        if not answer.prepared:
            guarded(answer)
        return answer

    def _refusal(self, request: web.Request) -> web.Response | None:
        public = request.match_info.route.resource is not None and (
            request.match_info.route.resource.canonical in self._public
        )
        if not (public and self._token is not None) and is_loopback(self._host) and not _is_this_machine(request.host):
            return _said(
                421,
                "The admin port of Evidence Proxy answers only under its own address: use 127.0.0.1 or localhost, "
                "also through a tunnel. (Another site's name may have been pointed here.)",
                "invalid_request_error",
                "unknown_host",
            )
        if not _from_our_own_page(request):
            return _said(
                403,
                "The admin port of Evidence Proxy answers no request that another site's page makes. Open it directly.",
                "invalid_request_error",
                "cross_site",
            )
        if self._token is not None and not public and not _shows(request, self._token):
            refused = _said(
                401,
                "This needs the token that server.admin_token_env names: as Authorization: Bearer TOKEN, or in a "
                "browser as the password, with any user name.",
                "authentication_error",
                "admin_token_needed",
            )
            refused.headers["WWW-Authenticate"] = 'Basic realm="Evidence Proxy", charset="UTF-8"'
            return refused
        return None


def guarded(answer: web.StreamResponse) -> web.StreamResponse:
    """An answer with the headers that all have. A room that streams calls it before it prepares its answer."""
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers["Server"] = "evidence-proxy"
    return answer


def _is_this_machine(host: str) -> bool:
    """A Host that no other site can claim: an address cannot be pointed elsewhere, and localhost is nobody else's."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost":
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _from_our_own_page(request: web.Request) -> bool:
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    origin = request.headers.get("Origin")
    # Only the authority counts: behind a tunnel or a TLS terminator the scheme is not ours to know.
    return origin is None or urlsplit(origin).netloc.lower() == request.host.lower() != ""


def _shows(request: web.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            _, _, given = base64.b64decode(given.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())


def _said(status: int, message: str, kind: str, code: str) -> web.Response:
    return _answered(errors.shaped(status, message, kind, code))


def _answered(answer: errors.Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, content_type="application/json")
