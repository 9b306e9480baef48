"""Requests/s beside LiteLLM's proxy and Headroom, which are installed from PyPI into environments of their own.

    python -m benchmarks.peers [--quick]

They pass requests through as they come (Headroom also with its optimizing); ours compacts each and records its reply.
All have one core. Ends with an error where the distance is smaller than its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.load import bodies, client, servers
from benchmarks.load.servers import ROOT, Server

PEERS = ROOT / ".venv" / "peers"
PACKAGES = {"litellm": "litellm[proxy]", "headroom": "headroom-ai[proxy]"}
CHAT = "/v1/chat/completions"
#: Requests/s, at least so many times theirs, by body.
SIZES = (("2 KB", 2_000, 20.0), ("64 KB", 64_000, 20.0), ("1 MB", 1_000_000, 10.0), ("8 MB", 8_000_000, 10.0))
#: None of them may reach for the network, or for a model.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HEADROOM_TELEMETRY": "off",
    "DO_NOT_TRACK": "1",
    "OPENAI_API_KEY": "benchmark",
}


def installed(name: str) -> Path:
    """The environment of a peer, made if there is none. Raises CalledProcessError where it cannot be had."""
    place = PEERS / name
    if not (place / "ready").exists():
        print(f"installing {PACKAGES[name]} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        python = str(place / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", PACKAGES[name]], check=True)
        (place / "ready").touch()
    return place / "bin"


def litellm(behind: str) -> Server:
    port = servers.free_port()
    directory = Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    file = directory / "config.yaml"
    file.write_text(
        "model_list:\n  - model_name: m\n    litellm_params:\n"
        f"      model: openai/m\n      api_base: {behind}/v1\n      api_key: benchmark\n"
    )
    command = [str(installed("litellm") / "litellm"), "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
    return servers.start("LiteLLM", command, port, servers.PROXY_CORE, QUIET, directory, 180)


def headroom(behind: str, *options: str) -> Server:
    port = servers.free_port()
    command = [str(installed("headroom") / "headroom"), "proxy", "--port", str(port), *options]
    directory = Path(tempfile.mkdtemp(prefix="evidence-proxy-bench-"))
    environment = {**QUIET, "OPENAI_TARGET_API_URL": behind, "HOME": str(directory)}
    name = "Headroom" + (" --no-optimize" if options else "")
    return servers.start(name, command, port, servers.PROXY_CORE, environment, directory, 180)


def kind_of(name: str, size: int) -> bodies.Kind:
    return (
        bodies.pictures(name) if size == 8_000_000 else bodies.text(name, size, *((1, 3) if size < 9_000 else (4, 10)))
    )


async def rate(server: Server, kind: bodies.Kind, seconds: float, own: bool, run: int) -> float:
    """Requests/s at 32 connections (8 for bodies of megabytes), measured for about so long."""
    connections = 32 if len(kind.asks) < 500_000 else 8
    first = 10_000_000 * run
    loop = asyncio.get_running_loop()

    async def ask(body: bodies.Body, until: float, most: int) -> client.Told:
        def requests() -> Iterator[client.Request]:
            for number in range(first, first + most):
                if loop.time() > until:
                    return
                yield client.request(CHAT, len(body), body.pieces(number))

        told = await client.run(server.url, requests(), connections)
        if told.wrong:
            raise RuntimeError(f"{server.name}: {told.wrong[0]}")
        return told

    most = 10_000_000
    if own:
        most = len((await ask(kind.settles, loop.time() + seconds, most)).each)
    told = await ask(kind.asks, loop.time() + seconds * 3, most)
    return told.per_second


async def compare(quick: bool) -> int:
    runs, seconds = (1, 1.0) if quick else (5, 2.0)
    missed = []
    starts: list[Callable[[str], Server]] = [
        litellm,
        lambda behind: headroom(behind, "--no-optimize"),
        headroom,
    ]
    with servers.running(servers.upstream()) as (provider,):
        rates: dict[str, dict[str, float]] = {}
        for start in [servers.ours, *starts]:
            try:
                server = start(provider.url)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as fault:
                missed.append(f"a peer could not be started: {fault}")
                continue
            with servers.running(server):
                for name, size, _ in SIZES:
                    try:
                        kind = kind_of(name, size)
                        found = [await rate(server, kind, seconds, server.name == "ours", run) for run in range(runs)]
                        rates.setdefault(server.name, {})[name] = statistics.median(found)
                    except RuntimeError as fault:
                        print(f"{server.name}, {name}: refused ({str(fault)[:160]!r})", file=sys.stderr)
                held = server.resident() / 1e6
                figures = "".join(f"{rates.get(server.name, {}).get(n, float('nan')):>10,.1f}" for n, *_ in SIZES)
                print(f"{server.name:24}{figures}   {held:,.0f} MB resident", flush=True)
        print(f"{'':24}" + "".join(f"{name:>10}" for name, *_ in SIZES) + f"   requests/s, median of {runs}")
        for peer, found in rates.items():
            if peer == "ours":
                continue
            times = {name: rates["ours"][name] / found[name] for name, *_ in SIZES if name in found}
            print(f"{'ours / ' + peer:24}" + "".join(f"{times.get(name, float('nan')):>10.1f}" for name, *_ in SIZES))
            missed += [
                f"{name}: {times[name]:.1f} times {peer}'s requests/s, the bound is {bound:g}"
                for name, _, bound in SIZES
                if name in times and times[name] < bound
            ]
    print("\n".join(["", *missed]) if missed else "\nEvery bound holds.")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests/s beside other proxies.")
    parser.add_argument("--quick", action="store_true", help="one short run: to see that it works")
    asked = parser.parse_args()
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        return runner.run(compare(asked.quick))


if __name__ == "__main__":
    sys.exit(main())
