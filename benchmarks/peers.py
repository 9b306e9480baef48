"""Beside other proxies: what of a long conversation reaches the provider, and requests/s.

    python -m benchmarks.peers [--part conversation|speed] [--peers ours,litellm] [--sizes 64KB] [--quick] [--write]

Headroom and LiteLLM's proxy are installed from PyPI into environments of their own (in ~/.cache/evidence-proxy/peers);
nginx is Debian's. They pass requests through as they come, and Headroom also with its optimizing, in both of its modes;
ours compacts each request and records its reply. One proxy runs at a time, on a core of its own.

The conversation (forty questions, one request after another) is judged by what a scripted provider received. The
load's replies are looked at, and the provider counts what came. Figures are kept from call to call, so that it can be
run in pieces; `--write` puts them into docs/peers.md. Ends with an error where the distance is smaller than its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.load import bodies, client, forty, peers, servers
from benchmarks.load.peers import PEERS, Peer
from benchmarks.load.servers import ROOT, Server
from benchmarks.sizes import Step
from tests.house.provider import Provider, Received, json_reply

CHAT = "/v1/chat/completions"
#: Requests/s, at least so many times those of Headroom and LiteLLM, by body.
SIZES = {"2KB": (2_000, 20.0), "64KB": (64_000, 20.0), "1MB": (1_000_000, 10.0), "8MB": (8_000_000, 10.0)}
NO_BOUND = {"ours", "nginx"}
FIGURES = peers.PLACE / "figures.json"
PAGE = ROOT / "docs" / "peers.md"
#: So many bytes of conversations are asked for one after the other before the load goes on to others: what settled a
#: question is not long ago when the next one is asked, as where people talk.
AT_A_TIME = 2_000_000
#: A reply that takes longer is counted as none.
PATIENCE = 60.0
#: What a proxy holds is looked at after so many seconds without load.
REST = 3.0
Figures = dict[str, dict[str, Any]]


# What reaches the provider.


async def converse(peer: Peer, shape: str) -> dict[str, Any]:
    """Lead the conversation through a peer. Gives what reached the provider, or `wrong`: why it did not go on."""
    steps, chunks = forty.conversation(shape)
    provider = await Provider().start()
    server = peer.start(f"http://127.0.0.1:{provider.port}", forty.TABLES[shape])
    try:
        wrong = await _led(server, provider, steps)
        if wrong is not None:
            return {"wrong": wrong}
        told = forty.judged(steps, [one.body for one in _asked(provider)], chunks)
        return {**vars(told), "sent": sum(len(step.body) for step in steps)}
    finally:
        server.stop()
        await asyncio.sleep(0.2)  # so that the provider notices
        await provider.stop()


def _asked(provider: Provider) -> list[Received]:
    """What it received but for questions of the proxy's own, like which models there are."""
    return [one for one in provider.requests if one.method == b"POST"]


async def _led(server: Server, provider: Provider, steps: list[Step]) -> str | None:
    for number, step in enumerate(steps, 1):
        reply, models = json_reply(step.reply), json_reply({"object": "list", "data": []})
        provider.always(lambda received, reply=reply, models=models: reply if received.method == b"POST" else models)
        said = step.reply["choices"][0]["message"]
        # Of a call, its id; of an answer, how it begins: a proxy may write the rest of a reply anew.
        holds = said["tool_calls"][0]["id"] if said.get("tool_calls") else said["content"][:40]
        only = iter([client.request(CHAT, len(step.body), [step.body], peers.KEY)])
        try:
            told = await asyncio.wait_for(client.run(server.url, only, 1, holds.encode()), PATIENCE)
        except (TimeoutError, OSError) as failed:
            return f"request {number}: {failed or 'no reply in time'}"
        if told.wrong:
            return f"request {number}: {told.wrong[0][:200]}"
        if len(_asked(provider)) != number:
            return f"request {number}: the provider received {len(_asked(provider))} requests by then"
    return None


# Requests/s.


def kind_of(name: str) -> bodies.Kind:
    size = SIZES[name][0]
    if size == 8_000_000:
        return bodies.pictures(name)
    questions, results = (1, 3) if size < 9_000 else (4, 10) if size < 500_000 else (40, 10)
    return bodies.text(name, size, questions, results)


def seen(provider: Server) -> dict[str, int]:
    with urllib.request.urlopen(f"{provider.url}/seen", timeout=10) as reply:
        told: dict[str, int] = json.loads(reply.read())
    return told


async def measured(
    server: Server, provider: Server, kind: bodies.Kind, own: bool, seconds: float, run: int
) -> dict[str, float]:
    """One run: requests/s, processor time of each, and the bytes of each that reached the provider. Raises
    RuntimeError where a reply is wrong or missing. Before ours is asked, its conversations' last questions settle."""
    connections = 32 if len(kind.asks) < 500_000 else 8
    at_a_time = connections * (max(4, AT_A_TIME // len(kind.asks) // connections) if connections == 32 else 1)
    first = 1_000_000 * run
    loop = asyncio.get_running_loop()

    async def ask(body: bodies.Body, numbers: range, until: float) -> client.Told:
        def requests() -> Iterator[client.Request]:
            for number in numbers:
                if loop.time() > until:
                    return
                yield client.request(CHAT, len(body), body.pieces(number), peers.KEY)

        try:
            asked = client.run(server.url, requests(), connections, b'"Yes."')
            told = await asyncio.wait_for(asked, until - loop.time() + PATIENCE)
        except TimeoutError:
            raise RuntimeError(f"no reply within {PATIENCE:.0f} s") from None
        if told.wrong:
            raise RuntimeError(f"{len(told.wrong)} of {len(told.each)}: {told.wrong[0][:300]}")
        return told

    count, arrived, taken, used = 0, 0, 0.0, 0.0
    while taken < seconds:
        numbers = range(first, first + at_a_time)
        first += at_a_time
        if own:
            await ask(kind.settles, numbers, loop.time() + PATIENCE)
        before, cpu = seen(provider), server.cpu()
        told = await ask(kind.asks, numbers, loop.time() + seconds - taken)
        after = seen(provider)
        used += server.cpu() - cpu
        taken += told.seconds
        count += len(told.each)
        arrived += after["bytes"] - before["bytes"]
        if after["requests"] - before["requests"] != len(told.each):
            came = after["requests"] - before["requests"]
            raise RuntimeError(f"{len(told.each)} replies, but the provider received {came} requests")
        if own and told.headers != {"Evidence-Proxy: compacted"}:
            raise RuntimeError(f"expected every request to be compacted, but they were {told.headers}")
    return {"rate": count / taken, "cpu": used / count, "bytes": arrived / count, "count": count}


async def speed(peer: Peer, names: list[str], runs: int, seconds: float) -> dict[str, Any]:
    """By size the medians of the runs, or why there are none; and what the peer held in the end."""
    found: dict[str, Any] = {}
    with servers.running(servers.upstream()) as (provider,):
        server = peer.start(provider.url, bodies.CONFIG)
        with servers.running(server):
            for name in names:
                kind = kind_of(name)
                each = []
                try:
                    for run in range(runs + 1):  # the first one warms up
                        warm = seconds if run else min(1.0, seconds)
                        each.append(await measured(server, provider, kind, peer.own, warm, run))
                except (RuntimeError, OSError) as fault:
                    found[name] = {"wrong": str(fault)}
                    continue
                await asyncio.sleep(REST)
                found[name] = {key: statistics.median(one[key] for one in each[1:]) for key in each[0]}
                found[name] |= {"sent": len(kind.asks), "runs": runs, "resident": server.resident() / 1e6}
    return found


# Tables.


def table(rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are of figures."""
    first, *rest = rows
    under = ["---", *["---:"] * (len(first) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [first, under, *rest])


def share(of: list[int]) -> str:
    return f"{of[0] / of[1]:.0%}" if of[1] else "-"


def reached(figures: Figures, shape: str) -> str:
    rows = [["", "bytes", "tokens", "cited", "not cited", "current", "as before"]]
    for name, peer in PEERS.items():
        told = figures.get(name, {}).get(f"conversation, {shape}")
        if told is None:
            continue
        if "wrong" in told:
            rows.append([str(peer), f"broke off: {told['wrong'][:80]}", *[""] * 5])
            continue
        figure = [f"{told['bytes'] / 1e6:.1f} MB", f"{told['tokens'] / 1e6:.2f} M"]
        figure += [share(told[key]) for key in ("cited", "others", "current")]
        rows.append([str(peer), *figure, f"{told['repeated'] / told['bytes']:.0%}"])
    return table(rows)


def speeds(figures: Figures) -> str:
    rows = [["", *(f"{name[:-2]} {name[-2:]}" for name in SIZES), "resident"]]
    for name, peer in PEERS.items():
        told = {size: figures.get(name, {}).get(size) for size in SIZES}
        if not any(told.values()):
            continue
        cells = []
        for one in told.values():
            if one is None or "wrong" in one:
                cells.append("not measured" if one is None else f"failed: {one['wrong'][:60]}")
            else:
                cells.append(f"{one['rate']:,.{0 if one['rate'] >= 100 else 1}f} ({one['cpu'] * 1000:,.1f} ms)")
        held = [one["resident"] for one in told.values() if one is not None and "resident" in one]
        rows.append([str(peer), *cells, f"{max(held):,.0f} MB" if held else "-"])
    return table(rows)


def short(figures: Figures) -> str:
    """The README's table."""
    rows = [["", "sent up", "cited", "not cited", "current", "requests/s", "resident"]]
    for name, peer in PEERS.items():
        told, fast = figures.get(name, {}).get("conversation, json"), figures.get(name, {}).get("64KB")
        if told is None or fast is None or "wrong" in told or "wrong" in fast:
            continue
        kept = [share(told[key]) for key in ("cited", "others", "current")]
        figure = [f"{told['bytes'] / 1e6:.1f} MB", *kept, f"{fast['rate']:,.0f}", f"{fast['resident']:,.0f} MB"]
        rows.append([str(peer), *figure])
    return table(rows)


def missed(figures: Figures) -> list[str]:
    """What is nearer than its bound."""
    told = []
    for size, (_, bound) in SIZES.items():
        ours = figures.get("ours", {}).get(size, {}).get("rate")
        for name, peer in PEERS.items():
            theirs = figures.get(name, {}).get(size, {}).get("rate")
            if name not in NO_BOUND and ours and theirs and ours / theirs < bound:
                told.append(f"{size}: {ours / theirs:.1f} times the requests/s of {peer}; the bound is {bound:g}")
    return told


def write(page: Path, name: str, text: str) -> None:
    """Put a table between its marks on a page."""
    begin, end = f"<!-- {name}: written by python -m benchmarks.peers --write -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"expected {page.name} to hold {begin!r} and {end!r}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


async def main(asked: argparse.Namespace) -> int:
    figures: Figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    names = asked.peers.split(",") if asked.peers else list(PEERS)
    sizes = asked.sizes.split(",") if asked.sizes else list(SIZES)
    for name in names if asked.part != "none" else []:
        peer = PEERS[name]
        into = figures.setdefault(name, {})
        try:
            if asked.part != "speed":
                for shape in forty.TABLES:
                    into[f"conversation, {shape}"] = await converse(peer, shape)
            if asked.part != "conversation":
                into |= await speed(peer, sizes, *((1, 1.0) if asked.quick else (5, 2.0)))
        except (RuntimeError, OSError, subprocess.CalledProcessError) as fault:
            print(f"{peer} could not be started: {fault}", file=sys.stderr)
            continue
        print(f"{peer}: {json.dumps(into, indent=1)}" if asked.verbose else f"{peer}: done", flush=True)
        FIGURES.parent.mkdir(parents=True, exist_ok=True)
        FIGURES.write_text(json.dumps(figures, indent=1))
    parts = {f"conversation, {shape}": reached(figures, shape) for shape in forty.TABLES}
    parts["requests"] = speeds(figures)
    for title, text in parts.items():
        print(f"\n{title}\n{text}")
    if asked.write:
        for title, text in parts.items():
            write(PAGE, title, text)
        write(ROOT / "README.md", "peers", short(figures))
    near = missed(figures)
    print("\n".join(["", *near]) if near else "\nEvery bound holds.")
    return 1 if near else 0


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--part", choices=["conversation", "speed", "none"], help="one of both; none: print what is known"
    )
    options.add_argument("--peers", help=f"some of {','.join(PEERS)}")
    options.add_argument("--sizes", help=f"some of {','.join(SIZES)}")
    options.add_argument("--quick", action="store_true", help="one short run: to see that it works")
    options.add_argument("--verbose", action="store_true", help="every figure")
    options.add_argument("--write", action="store_true", help="into docs/peers.md and README.md")
    given = options.parse_args()
    servers.on_the_loads_core()
    with asyncio.Runner(loop_factory=servers.loop) as runner:
        sys.exit(runner.run(main(given)))
