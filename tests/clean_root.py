"""The Dockerfile's steps in a clean root file system, for machines without a container engine: `make container`.

A minimal Debian is made with debootstrap, and every instruction of the Dockerfile is carried out in it by chroot, as it
stands there. Then the final image's command is started: as its user, with everything but `/data` and `/tmp` read-only,
and what the image promises is looked at. Needs root, and debootstrap from Debian's packages.

What this does not show: the base image (its Python is 3.12, Debian's here is another), layers and their caching, and
whatever an engine adds (health checks on its clock, capabilities, networks).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
SUITE = "bookworm"
NEEDED = "python3,python3-venv,ca-certificates,libstdc++6"


@dataclass
class Stage:
    """One stage of the Dockerfile, as a folder."""

    root: Path
    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    said: dict[str, str] = field(default_factory=dict)

    def run(self, command: list[str]) -> None:
        told = {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self.env}
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        subprocess.run(["chroot", str(self.root), "/bin/sh", "-c", inside], env=told, check=True)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The Dockerfile's instructions, continued lines joined, comments gone."""
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        joined += line.rstrip("\\").strip() + " " if line.endswith("\\") else line.strip()
        if not line.endswith("\\"):
            word, _, rest = joined.partition(" ")
            yield word.upper(), rest
            joined = ""


def built(base: Path, work: Path) -> Stage:
    """Carry the Dockerfile out; gives its last stage."""
    stages: list[Stage] = []
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        print(f"  {word} {rest[:100]}", flush=True)
        if word == "FROM":
            words = rest.split()
            root = work / f"stage{len(stages)}"
            subprocess.run(["cp", "-a", str(base), str(root)], check=True)
            stages.append(Stage(root, words[2] if len(words) == 3 else None))
            continue
        stage = stages[-1]
        if word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                path = stage.env.get("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
                stage.env[name] = value.replace("$PATH", path)
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "RUN":
            stage.run(["/bin/sh", "-c", rest])
        elif word == "COPY":
            copy(rest.split(), stage, stages)
        elif word == "USER":
            stage.user = rest
        elif word in ("ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL", "VOLUME", "EXPOSE"):
            stage.said[word] = rest
        else:
            raise SystemExit(f"{word}: this script does not know the instruction; teach it")
    return stages[-1]


def copy(words: list[str], stage: Stage, stages: list[Stage]) -> None:
    source = ROOT
    if words[0].startswith("--from="):
        name = words.pop(0).partition("=")[2]
        source = next(other.root for other in stages if other.name == name)
    *what, target = words
    into = stage.root / (Path(stage.folder) / target).as_posix().lstrip("/")
    for one in what:
        origin = source / one.lstrip("/")
        if origin.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(origin, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            place = into / origin.name if target.endswith("/") else into
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origin, place)


def debian(work: Path) -> Path:
    root = work / "debian"
    command = ["debootstrap", "--variant=minbase", f"--include={NEEDED}", SUITE, str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # The base image has a `python`; and pip finds here what it finds outside.
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for known in ("etc/resolv.conf", "etc/pip.conf", "etc/hosts"):
        if (Path("/") / known).exists():
            shutil.copy(Path("/") / known, root / known)
    bundle = os.environ.get("PIP_CERT")
    if bundle and Path(bundle).is_file():
        shutil.copy(bundle, root / bundle.lstrip("/"))
    return root


def started(stage: Stage) -> subprocess.Popen[bytes]:
    """The final image's own command: as its user, the root read-only, `/data` and `/tmp` writable."""
    command = json.loads(stage.said["ENTRYPOINT"]) + json.loads(stage.said["CMD"])
    root = shlex.quote(str(stage.root))
    user = f"$(chroot {root} id -u {stage.user}):$(chroot {root} id -g {stage.user})"
    script = (
        f"mount --bind {root} {root} && mount --bind {root}/data {root}/data && mount -t tmpfs none {root}/tmp"
        f" && mount -o remount,bind,ro {root}"
        f" && exec chroot --userspec={user} {root} {shlex.join(command)}"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("EVIDENCE_", "PIP_", "PYTHON"))}
    return subprocess.Popen(["unshare", "--mount", "/bin/sh", "-ec", script], env={**env, **stage.env})


class Provider(BaseHTTPRequestHandler):
    """Answers everything with an answer that cites, and keeps what it was sent."""

    bodies: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


ANSWER = "It opens at nine [doc-1]."
RESULTS = {f"doc-{number}": f"What result {number} says. " * 40 for number in (1, 2, 3)}
SEARCH = {"id": "s1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
FIRST: list[dict[str, Any]] = [
    {"role": "user", "content": "When does it open?"},
    {"role": "assistant", "content": None, "tool_calls": [SEARCH]},
    {
        "role": "tool",
        "tool_call_id": "s1",
        "content": json.dumps([{"id": name, "content": text} for name, text in RESULTS.items()]),
    },
]
SECOND = [*FIRST, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "And when does it close?"}]


def conversed(stage: Stage) -> list[str]:
    """A question, the container's end and another start, and the next question, which must be compacted."""
    shutil.copy(ROOT / "config" / "auto.toml", stage.root / "etc" / "evidence-proxy.toml")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stage.env["EVIDENCE_PROXY_UPSTREAM__BASE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
    said = []
    for messages in (FIRST, SECOND):
        process = started(stage)
        try:
            healthy(stage, process)
            body = json.dumps({"model": "m", "messages": messages}).encode()
            headers = {"Content-Type": "application/json", "Authorization": "Bearer somebody"}
            asked = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", body, headers)
            with urllib.request.urlopen(asked, timeout=30) as reply:
                said.append(reply.headers["Evidence-Proxy"])
                reply.read()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    server.shutdown()
    sent = Provider.bodies[-1]
    kept = [name for name, text in RESULTS.items() if text in sent]
    print(f"a conversation over two starts: {said}; what was cited stands in it: {kept}")
    well = said[1].startswith("compacted") and kept == ["doc-1"]
    return [] if well else [f"a conversation over two starts: {said}, with {kept}"]


def look(stage: Stage) -> list[str]:
    """What the image promises and does not keep."""
    faults = []
    venv = stage.root / "opt/evidence-proxy"
    tools = ["bin/pip", "bin/hatchling", "bin/gcc"]
    faults += [f"{tool} is in the image" for tool in tools if (venv / tool).exists()]
    faults += ["a compiler is in the image"] if shutil.which("gcc", path=str(stage.root / "usr/bin")) else []
    process = started(stage)
    try:
        faults += asked(stage, process)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    faults += [f"SIGTERM: it ended with {code}"] if code != 0 else []
    return faults + conversed(stage)


def healthy(stage: Stage, process: subprocess.Popen[bytes]) -> bool:
    """Whether its own health check says so within half a minute."""
    health = json.loads(stage.said["HEALTHCHECK"].partition("CMD ")[2])
    path = stage.env["PATH"]
    began = time.monotonic()
    while time.monotonic() - began < 30 and process.poll() is None:
        checked = subprocess.run(
            ["chroot", str(stage.root), *health], env={"PATH": path}, stderr=subprocess.DEVNULL, check=False
        )
        if checked.returncode == 0:
            return True
        time.sleep(0.2)
    return False


def asked(stage: Stage, process: subprocess.Popen[bytes]) -> list[str]:
    faults = []
    faults += ["its own health check fails"] if not healthy(stage, process) else []
    with urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=20) as reply:
        faults += [f"/readyz says {reply.status}"] if reply.status != 200 else []
    status = Path(f"/proc/{process.pid}/status").read_text()
    ids = {line.split()[1] for line in status.splitlines() if line.startswith(("Uid:", "Gid:"))}
    faults += [f"it runs as {ids}"] if "0" in ids else []
    if not any((stage.root / "data").iterdir()):
        faults.append("it keeps nothing in its volume")
    return faults


def main() -> int:
    """0 where every step and every look went well."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("this needs root, and debootstrap from Debian's packages")
        return 2
    with tempfile.TemporaryDirectory(prefix="clean-root-") as made:
        work = Path(made)
        print("a clean Debian ...", flush=True)
        base = debian(work)
        final = built(base, work)
        venv = final.root / "opt/evidence-proxy"
        size = sum(path.lstat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink())
        faults = look(final)
        print(f"the virtual environment in the image: {size / 1e6:.0f} MB")
    for fault in faults:
        print(f"not as promised: {fault}")
    print("the image's steps do what the Dockerfile says" if not faults else f"{len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
