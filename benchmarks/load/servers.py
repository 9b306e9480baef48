"""The processes that are compared: started on a core, measured through /proc, ended by their ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.load.bodies import CONFIG

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: The proxy has one core for itself; load and upstream share the other.
PROXY_CORE, LOAD_CORE = 0, 1
#: So many tenths of a second without work are rest.
_IDLE_FOR = 10

_NGINX = """
worker_processes 1;
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_buffer_size 16m;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    keepalive_requests 100000000;
    {server}
}}
"""
_PASSES = (
    "upstream provider {{ server 127.0.0.1:{upstream}; keepalive 64; }}"
    "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://provider; proxy_http_version 1.1;"
    ' proxy_set_header Connection ""; }} }}'
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def here_nginx() -> str | None:
    """nginx, as Debian's package `nginx-light` brings it."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@dataclass
class Server:
    """A running server: its address and its process; what its whole tree used and holds."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    directory: Path
    log: IO[bytes] | None = field(default=None, repr=False)

    def _tree(self) -> list[int]:
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
        return found

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        ticks = 0
        for pid in self._tree():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident(self) -> int:
        """Bytes of memory, shared pages counted once."""
        total = 0
        for pid in self._tree():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                    if line.startswith("VmRSS:"):
                        total += int(line.split()[1]) * 1024
        return total

    def sockets(self) -> int:
        """How many sockets it has open."""
        with contextlib.suppress(OSError):
            names = [str(one.readlink()) for one in Path(f"/proc/{self.process.pid}/fd").iterdir()]
            return sum(name.startswith("socket:") for name in names)
        return 0

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError):  # what it started and left behind
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def said(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-3000:]


def surroundings() -> dict[str, str]:
    """The environment of what is measured: no settings of this shell's, and compiled modules are kept, as they are
    where one is installed. Otherwise each process would compile LanceDB's thousand anew, in its first seconds."""
    left_out = ("EVIDENCE_PROXY_", "PYTHONDONTWRITEBYTECODE")
    return {key: value for key, value in os.environ.items() if not key.startswith(left_out)}


def start(name: str, command: Sequence[str], port: int, core: int, environment: dict[str, str] | None = None,
          directory: Path | None = None, patience: float = 60.0) -> Server:  # fmt: skip
    """Start a server on a core and wait until it listens. Raises RuntimeError with its words if it does not."""
    directory = directory or Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    log = (directory / "log").open("wb")
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        cwd=ROOT,
        env={**surroundings(), **(environment or {})},
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core % (os.cpu_count() or 1)}),
    )
    server = Server(name, f"http://127.0.0.1:{port}", process, directory, log)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server
        time.sleep(0.05)
    said = server.said()
    server.stop()
    raise RuntimeError(f"{name} did not start to listen:\n{said}")


def upstream() -> Server:
    """A provider that answers at once."""
    port = free_port()
    return start("provider", [sys.executable, str(HERE / "provider.py"), str(port)], port, LOAD_CORE)


def nginx(behind: str) -> Server:
    """nginx as a proxy. Raises RuntimeError where it is not installed."""
    found = here_nginx()
    if found is None:
        raise RuntimeError("nginx is not installed (Debian: apt-get install nginx-light)")
    port = free_port()
    directory = Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    file = directory / "nginx.conf"
    server = _PASSES.format(port=port, upstream=behind.rpartition(":")[2])
    file.write_text(_NGINX.format(directory=directory, server=server))
    return start("nginx", [found, "-c", str(file), "-p", str(directory)], port, PROXY_CORE, directory=directory)


def passing(behind: str) -> Server:
    port = free_port()
    command = [sys.executable, str(HERE / "passing.py"), behind, str(port)]
    return start("aiohttp", command, port, PROXY_CORE)


def ours(behind: str, config: str = CONFIG, module: str = "proxy", directory: Path | None = None) -> Server:
    """Evidence Proxy as a user starts it, with a store on disk."""
    port = free_port()
    directory = directory or Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    file = directory / "proxy.toml"
    file.write_text(f'[server]\nadmin_port = 0\n[upstream]\nbase_url = "{behind}/v1"\n{config}')
    command = [sys.executable, "-m", module, "serve", "--config", str(file), "--port", str(port)]
    environment = {"PROBE_FILE": str(directory / "probe.json")}
    return start("ours", [*command, "--data", str(directory / "data")], port, PROXY_CORE, environment, directory)


def probed(behind: str) -> tuple[Server, Path]:
    """The same with a probe in its loop, and the file to which that writes."""
    directory = Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    return ours(behind, module="benchmarks.load.probed", directory=directory), directory / "probe.json"


async def at_rest(server: Server, patience: float = 60.0) -> None:
    """Wait until it has nothing more to do: modules are imported, the store is open, what passed was looked at.
    Raises RuntimeError if it goes on for longer than `patience` seconds."""
    until, idle, before = time.monotonic() + patience, 0, server.cpu()
    while idle < _IDLE_FOR:
        if time.monotonic() > until:
            raise RuntimeError(f"{server.name}: expected it to come to rest, but it is busy after {patience:.0f} s")
        await asyncio.sleep(0.1)
        now = server.cpu()
        idle = idle + 1 if now - before < 0.02 else 0
        before = now


@contextlib.contextmanager
def running(*started: Server) -> Iterator[tuple[Server, ...]]:
    """Ends them in the end, whatever happens."""
    try:
        yield started
    finally:
        for server in started:
            server.stop()


def on_the_loads_core() -> None:
    """Keep this process, which makes the load, off the proxy's core."""
    os.sched_setaffinity(0, {LOAD_CORE % (os.cpu_count() or 1)})


def loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()
