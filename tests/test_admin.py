"""The admin port answers this machine's people, and nobody's page: not under a borrowed name, not across sites."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from proxy.gateway.admin import HEADERS, Admin
from proxy.settings import ServerSettings
from tests.conftest import StartProcess
from tests.house.client import Seen, ask
from tests.house.running import ROOT
from tests.test_cli import one_line, run

TOKEN = "a-token-of-these-tests"

Start = Callable[..., Awaitable["Asking"]]


class Asking:
    """An admin port with one room that is public and one that is not, and what it answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.handled: list[str] = []

    async def ask(self, path: str = "/private", method: str = "GET", host: str = "", **lines: str) -> Seen:
        given: list[tuple[str | bytes, str | bytes]] = [(k.replace("_", "-"), v) for k, v in lines.items()]
        own = f"127.0.0.1:{self.port}"
        return await ask(f"http://{own}", method=method, target=path, headers=given, host=host or own)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[Admin] = []

    async def start(token: str | None = None, host: str = "127.0.0.1") -> Asking:
        admin = Admin(ServerSettings(admin_host=host, admin_port=0), token)
        running.append(admin)
        asking = Asking(0)

        async def answer(came: web.Request) -> web.Response:
            asking.handled.append(came.path)
            return web.Response(text="said")

        async def fail(came: web.Request) -> web.Response:
            raise RuntimeError("hunter2")

        admin.route("GET", "/private", answer)
        admin.route("POST", "/private", answer)
        admin.route("GET", "/public", answer, public=True)
        admin.route("GET", "/fails", fail)
        _, asking.port = await admin.start()
        return asking

    yield start
    for admin in running:
        await admin.close()


async def test_every_answer_forbids_what_is_not_its_own(start: Start) -> None:
    admin = await start()
    for path, status in [("/private", 200), ("/public", 200), ("/nowhere", 404), ("/fails", 500)]:
        seen = await admin.ask(path)
        assert seen.status == status
        for name, value in HEADERS.items():
            assert seen.values(name) == [value.encode()]
        assert seen.values("server") == [b"evidence-proxy"]
        assert b"hunter2" not in seen.body
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "localhost", "[::1]:9000", "127.8.0.1"])
async def test_this_machine_is_answered_under_each_of_its_names(start: Start, host: str) -> None:
    admin = await start()
    assert (await admin.ask(host=host.format(port=admin.port))).status == 200


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:{port}", "127.0.0.1.attacker.example", "localhost.attacker.example"]
)
@pytest.mark.parametrize("path", ["/private", "/public"])
async def test_a_name_that_was_pointed_here_is_not_answered(start: Start, host: str, path: str) -> None:
    admin = await start()
    seen = await admin.ask(path, host=host.format(port=admin.port))
    assert (seen.status, seen.json()["error"]["code"], admin.handled) == (421, "unknown_host", [])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "lines",
    [
        {"Origin": "https://attacker.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
async def test_another_sites_page_gets_nothing_and_changes_nothing(
    start: Start, method: str, lines: dict[str, str]
) -> None:
    admin = await start()
    seen = await admin.ask(method=method, **lines)
    assert (seen.status, seen.json()["error"]["code"], admin.handled) == (403, "cross_site", [])


async def test_our_own_page_and_a_program_are_answered(start: Start) -> None:
    admin = await start()
    own = f"http://127.0.0.1:{admin.port}"
    assert (await admin.ask(method="POST", Origin=own, Sec_Fetch_Site="same-origin")).status == 200
    assert (await admin.ask(Sec_Fetch_Site="none")).status == 200
    assert (await admin.ask()).status == 200


async def test_with_a_token_only_its_holder_is_answered_but_for_what_is_public(start: Start) -> None:
    admin = await start(TOKEN, host="0.0.0.0")
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()

    for good in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
        assert (await admin.ask(host="proxy.internal:8081", Authorization=good)).status == 200
    assert (await admin.ask("/public", host="proxy.internal:8081")).status == 200

    admin.handled.clear()
    wrong = base64.b64encode(b"anyone:else").decode()
    for bad in ("", f"Bearer {TOKEN}x", "Bearer", f"Basic {wrong}", "Basic %", TOKEN, f"Digest {TOKEN}"):
        seen = await admin.ask(host="proxy.internal:8081", Authorization=bad)
        assert (seen.status, seen.json()["error"]["code"]) == (401, "admin_token_needed")
        assert (seen.value("www-authenticate") or b"").startswith(b"Basic ")
        assert TOKEN.encode() not in seen.body
    assert (await admin.ask("/nowhere", host="proxy.internal:8081")).status == 401
    assert admin.handled == []


async def test_a_token_does_not_open_the_door_to_other_sites(start: Start) -> None:
    admin = await start(TOKEN, host="0.0.0.0")
    seen = await admin.ask(Authorization=f"Bearer {TOKEN}", Origin="https://attacker.example")
    assert (seen.status, admin.handled) == (403, [])


async def test_a_started_proxy_says_where_its_admin_port_is(start_process: StartProcess) -> None:
    running = await start_process()
    address = (await running.line("admin-listening"))["address"]
    admin = Asking(int(address.rpartition(":")[2]))
    assert address.startswith("http://127.0.0.1:")
    assert (await admin.ask("/nowhere")).status == 404


async def test_an_admin_port_that_is_in_use_is_refused_in_one_line() -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    code, _, err = await run(
        "serve", "--port", "0", EVIDENCE_PROXY_SERVER__ADMIN_PORT=str(port), EVIDENCE_PROXY_STORE__URI="memory://"
    )
    taken.close()
    assert code == 1
    assert one_line(err) == (
        f"evidence-proxy: 127.0.0.1:{port} is in use by another process: stop it, or listen elsewhere with "
        "server.admin_port"
    )


async def test_beyond_this_machine_it_does_not_start_without_a_token() -> None:
    code, _, err = await run("serve", "--port", "0", EVIDENCE_PROXY_SERVER__ADMIN_HOST="0.0.0.0")
    assert code == 2
    assert one_line(err).startswith('evidence-proxy: server.admin_host = "0.0.0.0" listens beyond this machine')


def test_the_default_port_is_the_documented_one() -> None:
    assert f"admin_port = {ServerSettings().admin_port} " in (ROOT / "config" / "default.toml").read_text()
