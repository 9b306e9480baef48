"""Other proxies, each with a version, an environment of its own outside of this project, and its own way to be started.

What they are started with beside the provider's address is only what they need to serve a load at all, and to leave
the network alone; everything else is as they come.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import servers
from benchmarks.load.servers import Server
from proxy import __version__

PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evidence-proxy" / "peers"
PACKAGES = {"litellm": "litellm[proxy]==1.108.7", "headroom": "headroom-ai[proxy]==0.42.0"}
#: None of them may reach for the network, or for a model.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HEADROOM_OFFLINE": "1",
    "HEADROOM_TELEMETRY": "off",
    "DO_NOT_TRACK": "1",
}
#: LiteLLM takes no request without its master key; the others pass on what they are given.
KEY = "sk-" + secrets.token_hex(32)


@dataclass(frozen=True)
class Peer:
    """A proxy as it is started for a comparison: `start` takes the provider's address, without a path, and the
    settings that this project's own proxy is to have."""

    name: str
    start: Callable[[str, str], Server]
    version: Callable[[], str]
    how: str = ""
    own: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.version()}" + (f", {self.how}" if self.how else "")


def installed(package: str) -> Path:
    """The programs of a package, which are installed if they are not there. Raises CalledProcessError where they
    cannot be had."""
    place = PLACE / package
    wanted = PACKAGES[package]
    ready = place / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {wanted} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--quiet", wanted], check=True)
        ready.write_text(wanted)
    return place / "bin"


def _made() -> Path:
    return Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))


def _litellm(provider: str, _: str) -> Server:
    port, directory = servers.free_port(), _made()
    file = directory / "config.yaml"
    file.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: openai/m\n      api_base: {provider}/v1\n      api_key: benchmark\n"
    )
    command = [str(installed("litellm") / "litellm"), "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
    environment = {**QUIET, "HOME": str(directory), "LITELLM_MASTER_KEY": KEY}
    return servers.start("LiteLLM", command, port, servers.PROXY_CORE, environment, directory, 180)


def _headroom(*options: str) -> Callable[[str, str], Server]:
    def start(provider: str, _: str) -> Server:
        port, directory = servers.free_port(), _made()
        command = [str(installed("headroom") / "headroom"), "proxy", "--port", str(port), "--no-rate-limit"]
        command += ["--openai-api-url", f"{provider}/v1", *options]
        environment = {**QUIET, "HOME": str(directory)}
        return servers.start("Headroom", command, port, servers.PROXY_CORE, environment, directory, 180)

    return start


def _version_of(package: str) -> Callable[[], str]:
    return lambda: PACKAGES[package].rpartition("=")[2]


def _nginx_version() -> str:
    found = servers.here_nginx()
    said = subprocess.run([found, "-v"], capture_output=True, text=True, check=True).stderr if found else ""
    return "".join(re.findall(r"nginx/(\S+)", said))


def _nginx(provider: str, _: str) -> Server:
    return servers.nginx(provider)


PEERS = {
    "ours": Peer("Evidence Proxy", servers.ours, lambda: __version__, own=True),
    "headroom": Peer("Headroom", _headroom(), _version_of("headroom")),
    "headroom-token": Peer("Headroom", _headroom("--mode", "token"), _version_of("headroom"), "--mode token"),
    "headroom-off": Peer("Headroom", _headroom("--no-optimize"), _version_of("headroom"), "--no-optimize"),
    "litellm": Peer("LiteLLM", _litellm, _version_of("litellm")),
    "nginx": Peer("nginx", _nginx, _nginx_version),
}


def forget() -> None:
    """Remove what was installed."""
    shutil.rmtree(PLACE, ignore_errors=True)
