"""The command line: what a person or an init system starts, and what it says when it cannot.

Nothing heavy is imported before a command needs it: `--help` and `--version` answer at once, and the server listens
within half a second of being started. What only the admin port needs is imported after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from proxy import __version__, heap
from proxy.commands.doctor import doctor
from proxy.commands.explain import explain
from proxy.commands.replay import replay
from proxy.commands.store import store as store_commands

if TYPE_CHECKING:
    from proxy.evidence.tags import Keys
    from proxy.gateway.admin import Admin
    from proxy.settings import ServerSettings, Settings

_REFUSED = 2  # the settings are wrong: starting again will not help
_OWNER_ONLY = 0o077
_FAILED = 1  # something around the proxy is not as it needs it

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An OpenAI-compatible reverse proxy that keeps long retrieval conversations small.",
)

for _command in (explain, replay, doctor):
    app.command()(_command)
app.add_typer(store_commands)


def main() -> None:
    """Run the command line; exits the process."""
    os.umask(_OWNER_ONLY)  # what is written here, of anybody's conversations, nobody else on the machine may read
    # Else pydantic asks every package that is installed beside it for plugins, at each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evidence-proxy {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as in config/default.toml.")] = None,
    host: Annotated[str | None, typer.Option(metavar="H", help="Listen on this address.")] = None,
    port: Annotated[int | None, typer.Option(metavar="P", help="Listen on this port; 0 takes a free one.")] = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="The provider's base URL, like https://api.openai.com/v1.")
    ] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the records in this directory.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Serve with N processes behind one port.")] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine without keys for clients.")
    ] = False,
) -> None:
    """Run the proxy until SIGTERM or SIGINT. SIGHUP: read keys and evidence tables again."""
    gc.disable()  # until it listens: what imports make stays, and to look through it again and again takes a tenth
    from proxy.gateway.access import client_keys
    from proxy.settings import SettingsError, admin_token, load, traces_are_possible

    def read() -> Settings:
        settings = load(
            config,
            {
                "server.host": ("--host", host),
                "server.port": ("--port", port),
                "upstream.base_url": ("--upstream", upstream),
                "store.data_dir": ("--data", data),
                "server.workers": ("--workers", workers),
                "server.allow_anyone": ("--allow-anyone", allow_anyone or None),
            },
        )
        if data is not None and settings.store.uri is not None:
            # The flag is the newer word, whatever the file says of the store.
            settings = settings.model_copy(update={"store": settings.store.model_copy(update={"uri": None})})
        return settings

    try:
        settings = read()
        client_keys(settings)
    except SettingsError as refused:
        _stop(str(refused), _REFUSED)
    from proxy.store.place import was_begun
    from proxy.store.tag_keys import tag_keys

    if settings.store.directory is not None and not was_begun(settings.store.directory):
        _writable(settings.store.directory)
    try:
        keys = tag_keys(settings)
    except SettingsError as refused:
        _stop(str(refused), _REFUSED)
    except OSError as failed:
        _stop(f"the tag keys cannot be kept ({failed.strerror or type(failed).__name__})", _FAILED)
    try:
        token = admin_token(settings)
        traces_are_possible(settings)
    except SettingsError as refused:
        _stop(str(refused), _REFUSED)
    heap.keep_large_buffers()
    # Threads count tokens, read large bodies and fill the inspector beside the loop, which waits this long (by default
    # five milliseconds) for any of them that is busy, whenever bytes have arrived.
    sys.setswitchinterval(0.0005)

    from proxy.visibility import logs

    logs.configure()
    _as_many_files_as_allowed()
    count = settings.server.workers
    if count > 1 and settings.store.directory is None and settings.store.uri == "memory://":
        _stop(
            'store.uri = "memory://" keeps records in one process only, and server.workers asks for several: keep them '
            "in a directory or at an address, or use one worker",
            _REFUSED,
        )
    from proxy.gateway import listening

    try:
        sockets = listening.listeners(settings.server, count)
    except OSError as failed:
        _stop(_not_listening(settings.server, failed), _FAILED)

    def work(number: int, parents_end: int | None) -> int:
        for other in (one for at, own in enumerate(sockets) if at != number for one in own):
            if other not in sockets[number]:
                other.close()
        place = _Place(sockets[number], number if count > 1 else None, parents_end)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            failure = runner.run(_serve(settings, keys, token, place, read))
        if failure is not None:
            _stop(failure, _FAILED)
        return 0

    def stop_listening() -> None:
        for one in (one for own in sockets for one in own):
            one.close()

    try:
        if count == 1:
            work(0, None)
        elif not hasattr(os, "fork"):
            _stop("server.workers needs a system that can fork: use one worker", _REFUSED)
        else:
            import proxy.gateway.app
            import proxy.gateway.conversation  # noqa: F401 - once, before the workers share what was imported
            from proxy.gateway.workers import supervise

            if (code := supervise(count, work, stop_listening)) != 0:
                raise typer.Exit(code)
    finally:
        listening.forget(settings.server)


@dataclass(frozen=True)
class _Place:
    """Where a process serves: its sockets, and as one of several its number and what tells it of the parent's end."""

    listeners: list[socket.socket]
    worker: int | None = None
    parents_end: int | None = None


async def _serve(
    settings: Settings, keys: Keys, token: str | None, place: _Place, read: Callable[[], Settings]
) -> str | None:
    """Serve until a signal comes. Returns why it could not be done, or None after a clean end."""
    import ssl

    from proxy.gateway.access import client_keys
    from proxy.gateway.app import Gateway
    from proxy.gateway.conversation import Conversations
    from proxy.gateway.keeping import Keeping
    from proxy.gateway.renewing import Renewing
    from proxy.gateway.returns import Returns
    from proxy.ledger.aside import names_in
    from proxy.settings import upstream_key
    from proxy.store import open_store
    from proxy.store.haiku_database import open_databases
    from proxy.visibility import logs
    from proxy.visibility.lookout import Lookout

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_faults)
    stopped = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():
            logs.flush()
            signal.signal(number, signal.SIG_DFL)  # asked twice: go at once
            signal.raise_signal(number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows has no such handlers
            loop.add_signal_handler(number, stop, number)
    if place.parents_end is not None:
        loop.add_reader(place.parents_end, stopped.set)

    store = open_store(settings, names_in)
    returns = Returns(keys, store.contents)
    databases = open_databases(settings)
    keeping = Keeping(store.contents, returns, databases)
    conversations = Conversations(settings, store.records, keys, returns, store.held, keeping)
    lookout = Lookout(settings, store, conversations)
    gateway = Gateway(
        settings, conversations, store, upstream_key(settings), returns, lookout.watchers, client_keys(settings)
    )
    lookout.heed(lambda: gateway.on_the_way)
    renewing = Renewing(gateway, conversations, store.contents, settings, keys, read)
    with contextlib.suppress(NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, renewing.renew)
    store.on_erasure(renewing.forget)
    store.on_erasure(lookout.forget)
    admin: Admin | None = None
    worker = {} if place.worker is None else {"worker": place.worker}
    warming: list[asyncio.Task[None]] = []
    try:
        address = await gateway.start(place.listeners)
    except ssl.SSLError as failed:
        return f"upstream.ca_file holds no certificates that can be read ({failed.reason}): expected a PEM file"
    except OSError as failed:
        return f"upstream.ca_file cannot be read ({failed.strerror or type(failed).__name__})"
    try:
        # Requests are served from here on. They need the store at once, and nobody waits for the admin port.
        gc.freeze()
        heap.collect_young_only()
        gc.enable()
        await store.start()
        await asyncio.to_thread(importlib.import_module, "proxy.gateway.admin")
        from proxy.gateway.admin import Admin
        from proxy.gateway.records_api import RecordsApi

        admin = Admin(_own_admin_port(settings.server, place.worker), token)
        lookout.register(admin)
        RecordsApi(store.records, settings.tenant, client_keys(settings), guarded=token is not None).register(admin)
        refused = await _start_admin(admin, settings.server, worker)
        if refused is not None:
            return refused
        gc.freeze()  # what the store and the admin port imported stays, too
        warming += [asyncio.create_task(database.warm()) for database in databases.values()]
        capacity = gateway.capacity
        warming.append(asyncio.create_task(heap.give_back_at_rest(lambda: capacity.bytes, lambda: capacity.passed)))
        warming.append(asyncio.create_task(heap.collect_at_rest(lambda: gateway.running)))
        logs.event("listening", address=address, upstream=gateway.provider, **worker)
        await stopped.wait()
        logs.event("stopping")
    except OSError as failed:
        return f"the store cannot be opened ({failed.strerror or type(failed).__name__})"
    finally:
        for task in warming:
            task.cancel()
        await gateway.close()
        if admin is not None:
            await admin.close()
        await lookout.close()
        await store.close()
        logs.flush()
    return None


def _own_admin_port(server: ServerSettings, worker: int | None) -> ServerSettings:
    """Each worker tells of itself: the first at the admin port, the others at those that follow."""
    if not worker or not server.admin_port:
        return server
    return server.model_copy(update={"admin_port": server.admin_port + worker})


async def _start_admin(admin: Admin, server: ServerSettings, worker: dict[str, int]) -> str | None:
    """Listen on the admin port. Returns why that cannot be done.

    Where nobody chose that port and another process has it (a second proxy on this machine), any free one will do.
    """
    from proxy.visibility import logs

    try:
        host, port = await admin.start()
    except OSError as failed:
        if failed.errno != errno.EADDRINUSE or "admin_port" in server.model_fields_set:
            where = f"{_bracketed(server.admin_host)}:{server.admin_port + worker.get('worker', 0)}"
            return _cannot_listen(where, failed, "server.admin_port", "server.admin_host and server.admin_port")
        host, port = await admin.start(any_port=True)
        logs.event("admin-port-taken", wanted=server.admin_port, instead=port)
    logs.event("admin-listening", address=f"http://{_bracketed(host)}:{port}", **worker)
    return None


def _stop(message: str, code: int) -> NoReturn:
    for line in message.splitlines():
        typer.echo(f"evidence-proxy: {line}", err=True)
    raise typer.Exit(code)


def _writable(directory: Path) -> None:
    """A directory in which nothing was kept yet is told of at once; one in use is read, and written when it can be."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as failed:
        _stop(
            f"the data directory {directory} cannot be written ({failed.strerror or type(failed).__name__}): "
            'give another one with --data DIR, or set store.uri = "memory://" to keep nothing on disk',
            _FAILED,
        )


def _not_listening(server: ServerSettings, failed: OSError) -> str:
    if server.unix_socket is not None:
        return _cannot_listen(str(server.unix_socket), failed, "server.unix_socket", "server.unix_socket")
    return _cannot_listen(f"{_bracketed(server.host)}:{server.port}", failed, "--port P", "server.host and server.port")


def _cannot_listen(where: str, failed: OSError, change: str, check: str) -> str:
    if failed.errno == errno.EADDRINUSE:
        return f"{where} is in use by another process: stop it, or listen elsewhere with {change}"
    if failed.errno in (errno.EACCES, errno.EPERM):
        return f"{where} needs privileges that this process does not have: choose another with {change}"
    return f"cannot listen on {where} ({failed.strerror or type(failed).__name__}): check {check}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _as_many_files_as_allowed() -> None:
    """Each request has two connections, and most systems let a process open 1,024 files unless it asks for more."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
