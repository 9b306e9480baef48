"""Walks the README as a newcomer does, in a fresh clone with a fresh environment: `make newcomer`.

Every command of its `sh` blocks is typed in order, the server is started and stays, the openai snippet is pointed at
it, and what is seen is compared with what the README says. The provider is the examples' stand-in; addresses are the
README's own where they are free. `make newcomer TESTS=no` leaves `make test` out, which takes the longest.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.test_documentation import ROOT, Block, blocks_of

SECONDS_TO_HEALTHZ = 1.0
MEBIBYTES_AT_REST = 150
STARTS = 5
#: What a shell of ours may have set and a newcomer's has not.
NOT_OF_A_NEWCOMER = re.compile(r"EVIDENCE|OPENAI_|PYTHON|VIRTUAL_ENV|MAKE|MFLAGS|PYTEST_")
#: The client of this example is made as the README's snippet says.
EXAMPLE = Path("examples") / "openai_python.py"
#: What the commands under "See before you switch" read.
REQUEST = Path("examples") / "request.json"


def free(port: int = 0) -> int | None:
    """This port, or any with 0, where nothing listens on it."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return None
        return int(one.getsockname()[1])


def answered(url: str) -> tuple[int, str]:
    """Status and text; 0 where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read().decode(errors="replace")
    except urllib.error.HTTPError as refused:
        return refused.code, ""
    except OSError:
        return 0, ""


def answers_in_time(url: str, seconds: float = 60) -> float:
    """How long it took until `url` answered with 200; `TimeoutError` where it never did."""
    begun = time.perf_counter()
    while answered(url)[0] != 200:
        if time.perf_counter() - begun > seconds:
            raise TimeoutError(f"{url} did not answer in {seconds:.0f} s")
        time.sleep(0.005)
    return time.perf_counter() - begun


def mebibytes(process: int) -> float:
    """The resident size of a process and those that it started."""
    place = Path("/proc") / str(process)
    own = int(re.findall(r"^VmRSS:\s+(\d+)", (place / "status").read_text(), re.MULTILINE)[0]) / 1024
    children = (place / "task" / str(process) / "children").read_text().split()
    return own + sum(mebibytes(int(child)) for child in children)


def commands(block: Block) -> list[str]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def shape(header: str) -> str:
    """A header's line with every figure as N."""
    return re.sub(r"\d+", "N", header)


@dataclass
class Walk:
    """A newcomer's terminals: where they stand, what runs in them, and what was seen so far."""

    top: Path
    home: Path
    tests: bool
    python: str | None = None
    seen: list[str] = field(default_factory=list)
    faults: int = 0
    provider: str = ""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = {said: free(said) or free() or said for said in (8080, 8081)}

    def step(self, what: str, holds: bool, seen: str) -> None:
        print(f"{'ok   ' if holds else 'FAULT'}  {what}: {seen}", flush=True)
        self.faults += not holds

    def left(self, what: str, why: str) -> None:
        print(f"left   {what}: {why}", flush=True)

    def here(self, text: str) -> str:
        """The README's addresses as they are on this machine."""
        for said, port in self.ports.items():
            text = text.replace(f"http://127.0.0.1:{said}", f"http://127.0.0.1:{port}")
        return text

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not NOT_OF_A_NEWCOMER.match(name)}
        ours = str(Path(sys.executable).parent)
        clean["PATH"] = ":".join(place for place in clean["PATH"].split(":") if place != ours)
        if self.python is not None:
            clean["PYTHON"] = self.python
        clean |= {"XDG_DATA_HOME": str(self.home), "OPENAI_API_KEY": "sk-of-a-newcomer"}
        for said, key in ((8080, "PORT"), (8081, "ADMIN_PORT")):
            if self.ports[said] != said:
                clean[f"EVIDENCE_PROXY_SERVER__{key}"] = str(self.ports[said])
        return clean

    def run(self, *command: str, environment: dict[str, str] | None = None) -> tuple[int, str, float]:
        """Exit code, everything that it said, and seconds."""
        begun = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=self.top,
            env=environment or self.provided,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, time.perf_counter() - begun

    @property
    def provided(self) -> dict[str, str]:
        """The environment, with the stand-in as the provider from the moment that it runs."""
        return self.environment | ({"EVIDENCE_PROXY_UPSTREAM__BASE_URL": self.provider} if self.running else {})

    def start(self, command: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        log = (self.home / f"terminal-{len(self.running)}").open("ab")
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.top, env=environment, stdout=log, stderr=log
        )
        self.running.append(process)
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        self.running.remove(process)
        process.send_signal(signal.SIGTERM)
        return process.wait(60)

    # What the README has.

    def walk(self) -> None:
        page = self.top / "README.md"
        kinds: dict[str, Callable[[Block], None]] = {
            "sh": self.type_each,
            "sh server": self.serve,
            "toml": self.write_settings,
            "python": self.converse,
            "": self.compare_headers,
        }
        for block in blocks_of(page):
            if (told := kinds.get(block.language)) is not None:
                told(block)
            else:
                self.left(str(block), f"a `{block.language}` block, which tests/test_documentation.py reads or runs")
        text = page.read_text()
        for url in sorted(set(re.findall(r"http://127\.0\.0\.1:8081/\w*", text))):
            status, said = answered(self.here(url))
            expected = "evidence_proxy_" if url.endswith("/metrics") else "<html"
            self.step(url, status == 200 and expected in said, f"status {status}, {len(said)} characters")

    def type_each(self, block: Block) -> None:
        for command in commands(block):
            name = command.partition("#")[0].strip()
            if name == "make test" and not self.tests:
                self.left(name, "not asked for")
                continue
            code, said, seconds = self.run("bash", "-euo", "pipefail", "-c", self.here(command))
            if name == "make demo":
                self.compare_demo(code, said, seconds)
            else:
                last = said.strip().splitlines()[-1][:100] if said.strip() else "(nothing)"
                self.step(name, code == 0, f"ends with {code} after {seconds:.1f} s, and says last: {last}")
                if code != 0:
                    print(said)
        if "make demo" in block.text:
            code, said, _ = self.run("make", "help")
            told = [name for name in ("demo", "test") if f"make {name} " in said]
            self.step(
                "make help", code == 0 and len(told) == 2, f"ends with {code}, lists {said.count('make ')} commands"
            )

    def compare_demo(self, code: int, said: str, seconds: float) -> None:
        rows = [int(number) for number in re.findall(r"^│ +(\d+) │", said, re.MULTILINE)]
        self.step("make demo", code == 0, f"ends with {code} after {seconds:.1f} s, the environment's making included")
        self.step("  its table", rows == list(range(1, 9)), f"{len(rows)} questions")
        self.step("  its check", "Checked on the wire" in said, "what was promised was looked at on the wire")
        if code != 0:
            print(said)

    def write_settings(self, block: Block) -> None:
        (self.top / "my.toml").write_text(block.text + "\n")
        request = (self.top / REQUEST).read_text()
        (self.top / "request.json").write_text(request)
        (self.top / "requests.jsonl").write_text(request)
        self.step("my.toml", True, f"{len(block.text.splitlines())} lines, written as they stand")

    def serve(self, block: Block) -> None:
        """Started a few times, since the machine's other work only ever adds to the time; the last one stays."""
        port = free()
        self.provider = f"http://127.0.0.1:{port}/v1"
        self.start(f".venv/bin/python examples/stand_in.py --port {port}", self.environment)
        health = self.here("http://127.0.0.1:8080/healthz")
        took, sizes = [], []
        for number in range(STARTS):
            process = self.start(block.text, self.provided)
            took.append(answers_in_time(health))
            until = time.monotonic() + 2
            while time.monotonic() < until:
                sizes.append(mebibytes(process.pid))
                time.sleep(0.05)
            if number < STARTS - 1:
                code = self.stop(process)
                self.step("SIGTERM", code == 0, f"the server ends with {code}")
        name = commands(block)[0].partition("#")[0].strip()
        listed = ", ".join(f"{one:.2f}" for one in took)
        self.step(
            name,
            min(took) < SECONDS_TO_HEALTHZ,
            f"/healthz after {listed} s (the quickest under {SECONDS_TO_HEALTHZ} s)",
        )
        size = f"{max(sizes):.0f} MiB before the first conversation (under {MEBIBYTES_AT_REST} MiB)"
        self.step("  its resident size", max(sizes) < MEBIBYTES_AT_REST, size)
        for said, port in self.ports.items():
            if said != port:
                self.left(f"port {said}", f"another process has it; {port} is used")

    def converse(self, block: Block) -> None:
        """The README's snippet makes the client, and an example's loop asks with it."""
        if not re.search(r"^from openai import OpenAI$", block.text, re.MULTILINE):
            self.left(str(block), "needs a client of its own (make clients; tests/test_documentation.py runs it)")
            return
        example = (self.top / EXAMPLE).read_text()
        program, made = re.subn(r"^client = .*$", lambda _: self.here(block.text), example, flags=re.MULTILINE)
        assert made == 1, f"{EXAMPLE} makes its client in another way than this expects"
        environment = self.provided | {"PYTHONPATH": str(self.top / "examples")}
        code, said, seconds = self.run(".venv/bin/python", "-c", program, environment=environment)
        self.seen = re.findall(r"^  (Evidence-Proxy: .*)$", said, re.MULTILINE)
        seen = f"ends with {code} after {seconds:.1f} s, {len(self.seen)} replies with the header"
        self.step("the openai snippet", code == 0 and len(self.seen) > 0, seen)
        if code != 0:
            print(said)

    def compare_headers(self, block: Block) -> None:
        for line in block.text.splitlines():
            if line.startswith("Evidence-Proxy: "):
                alike = [one for one in self.seen if shape(one) == shape(line)]
                self.step(f"the header `{shape(line)}`", bool(alike), f"{len(alike)} such, as {alike[-1:]}")


def main() -> int:
    """0 where everything was as the README says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", action=argparse.BooleanOptionalAction, default=True, help="run make test, too")
    parser.add_argument("--python", help="the interpreter for the new environment, where python3 is not to be it")
    options = parser.parse_args()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        print("what is not committed is not in the clone:\n" + changed, flush=True)
    with tempfile.TemporaryDirectory(prefix="evidence-proxy-newcomer-") as made:
        top, home = Path(made) / "evidence-proxy", Path(made) / "home"
        home.mkdir()
        walk = Walk(top, home, options.tests, options.python)
        cloned = subprocess.run(["git", "clone", "--quiet", str(ROOT), str(top)], check=False).returncode
        walk.step("git clone", cloned == 0 and not (top / ".venv").exists(), "a fresh clone, no environment in it")
        try:
            walk.walk()
        finally:
            for process in list(walk.running):
                walk.stop(process)
            if walk.faults:
                for log in sorted(home.glob("terminal-*")):
                    print(f"--- {log.name}\n{log.read_text()[-2000:]}")
    print(f"{walk.faults or 'no'} fault{'' if walk.faults == 1 else 's'}")
    return int(walk.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
