"""The command line: what a person or an init system starts, and what it says when it cannot.

Nothing heavy is imported before a command needs it: `--help` and `--version` answer at once, and the server listens
within a second of being started.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from proxy import __version__
from proxy.commands.doctor import doctor
from proxy.commands.explain import explain
from proxy.commands.replay import replay

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


def main() -> None:
    """Run the command line; exits the process."""
    os.umask(_OWNER_ONLY)  # what is written here, of anybody's conversations, nobody else on the machine may read
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
) -> None:
    """Run the proxy until SIGTERM or SIGINT."""
    from proxy.settings import SettingsError, admin_token, load

    try:
        settings = load(
            config,
            {
                "server.host": ("--host", host),
                "server.port": ("--port", port),
                "upstream.base_url": ("--upstream", upstream),
                "store.data_dir": ("--data", data),
            },
        )
    except SettingsError as refused:
        _stop(str(refused), _REFUSED)
    if data is not None and settings.store.uri is not None:
        # The flag is the newer word, whatever the file says of the store.
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"uri": None})})
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
    except SettingsError as refused:
        _stop(str(refused), _REFUSED)
    _keep_large_buffers_on_the_heap()

    from proxy.visibility import logs

    logs.configure()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        failure = runner.run(_serve(settings, keys, token))
    if failure is not None:
        _stop(failure, _FAILED)


async def _serve(settings: Settings, keys: Keys, token: str | None) -> str | None:
    """Serve until a signal comes. Returns why it could not be done, or None after a clean end."""
    from proxy.gateway.admin import Admin
    from proxy.gateway.app import Gateway
    from proxy.gateway.conversation import Conversations
    from proxy.gateway.keeping import Keeping
    from proxy.gateway.returns import Returns
    from proxy.settings import upstream_key
    from proxy.store import open_store
    from proxy.store.haiku_database import open_databases
    from proxy.visibility import logs
    from proxy.visibility.watching import Watchers

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_faults)
    stopped = asyncio.Event()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():
            signal.signal(number, signal.SIG_DFL)  # asked twice: go at once
            signal.raise_signal(number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows has no such handlers
            loop.add_signal_handler(number, stop, number)

    store = open_store(settings)
    returns = Returns(keys, store.contents)
    databases = open_databases(settings)
    keeping = Keeping(store.contents, returns, databases)
    conversations = Conversations(settings, store.records, keys, returns, store.held, keeping)
    watchers = Watchers([])
    gateway = Gateway(settings, conversations, store, upstream_key(settings), returns, watchers)
    admin = Admin(settings.server, token)
    warming: list[asyncio.Task[None]] = []
    try:
        host, port = await gateway.start()
    except OSError as failed:
        return _not_listening(settings.server.host, settings.server.port, failed, "--port P")
    try:
        refused = await _start_admin(admin, settings.server)
        if refused is not None:
            return refused
        await store.start()
        warming += [asyncio.create_task(database.warm()) for database in databases.values()]
        logs.event("listening", address=f"http://{_bracketed(host)}:{port}", upstream=gateway.provider)
        await stopped.wait()
        logs.event("stopping")
    except OSError as failed:
        return f"the store cannot be opened ({failed.strerror or type(failed).__name__})"
    finally:
        for task in warming:
            task.cancel()
        await gateway.close()
        await admin.close()
        await store.close()
    return None


async def _start_admin(admin: Admin, server: ServerSettings) -> str | None:
    """Listen on the admin port. Returns why that cannot be done.

    Where nobody chose that port and another process has it (a second proxy on this machine), any free one will do.
    """
    from proxy.visibility import logs

    try:
        host, port = await admin.start()
    except OSError as failed:
        if failed.errno != errno.EADDRINUSE or "admin_port" in server.model_fields_set:
            return _not_listening(server.admin_host, server.admin_port, failed, "server.admin_port", "admin_")
        host, port = await admin.start(any_port=True)
        logs.event("admin-port-taken", wanted=server.admin_port, instead=port)
    logs.event("admin-listening", address=f"http://{_bracketed(host)}:{port}")
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


def _not_listening(host: str, port: int, failed: OSError, change: str, of: str = "") -> str:
    where = f"{_bracketed(host)}:{port}"
    if failed.errno == errno.EADDRINUSE:
        return f"{where} is in use by another process: stop it, or listen elsewhere with {change}"
    if failed.errno in (errno.EACCES, errno.EPERM):
        return f"{where} needs privileges that this process does not have: choose a port above 1023 with {change}"
    why = failed.strerror or type(failed).__name__
    return f"cannot listen on {where} ({why}): check server.{of}host and server.{of}port"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def _keep_large_buffers_on_the_heap() -> None:
    """glibc gives every buffer over 128 KB pages of its own and returns them when it is freed; for bodies of megabytes
    that costs more than all the work on them."""
    if sys.platform != "linux":
        return
    m_trim_threshold, m_mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 26)
        libc.mallopt(m_trim_threshold, 1 << 27)
