"""The wheel and the sdist, installed as anyone installs them: `make dist`.

Both are built, and each is installed into a fresh environment of every supported Python that this machine has; the
installed command must say its version and serve, and a type checker must find the package typed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.11", "3.12", "3.13")


def pythons() -> dict[str, Path]:
    """The supported Pythons of this machine, by version."""
    versions = Path.home() / ".pyenv" / "versions"
    found: dict[str, Path] = {}
    for version in SUPPORTED:
        named = shutil.which(f"python{version}")
        places = [Path(named)] if named else []
        places += sorted(versions.glob(f"{version}.*/bin/python3"))
        works = (one for one in places if said([str(one), "-c", "import sys; print(sys.version)"]).startswith(version))
        if (place := next(works, None)) is not None:
            found[version] = place
    return found


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def built(into: Path) -> list[Path]:
    """The wheel and the sdist."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(into)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    return sorted(into.iterdir())


def installed(archive: Path, python: Path, folder: Path) -> Path:
    """A fresh environment with the archive and what is pinned for it."""
    subprocess.run([str(python), "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "-r", str(ROOT / "requirements.lock")], check=True)
    subprocess.run([*pip, str(archive)], check=True)
    return folder / "bin"


def serves(bin_folder: Path, folder: Path) -> bool:
    """Whether the installed command answers `/healthz`, started away from the repository."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("EVIDENCE_", "PYTHON"))}
    env |= {"EVIDENCE_PROXY_SERVER__PORT": "0", "EVIDENCE_PROXY_SERVER__ADMIN_PORT": "0"}
    process = subprocess.Popen(
        [str(bin_folder / "evidence-proxy"), "serve", "--data", str(folder / "data")],
        cwd=folder,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if '"listening"' in line:
                address = line.partition('"address": "')[2].partition('"')[0]
                with urllib.request.urlopen(f"{address}/healthz", timeout=10) as reply:
                    return bool(reply.status == 200)
        return False
    finally:
        process.terminate()
        process.wait(60)


def main() -> int:
    """0 where everything that could be tried went well."""
    sys.path.insert(0, str(ROOT))
    from proxy import __version__

    faults = 0
    with tempfile.TemporaryDirectory() as made:
        archives = built(Path(made) / "dist")
        have = pythons()
        for version in SUPPORTED:
            if version not in have:
                print(f"Python {version}: not on this machine")
                continue
            for archive in archives:
                folder = Path(made) / f"{version}-{archive.suffix[1:]}"
                where = installed(archive, have[version], folder)
                command = str(where / "evidence-proxy")
                tells = said([command, "--version"]).strip() == f"evidence-proxy {__version__}"
                find = "import proxy, pathlib; print((pathlib.Path(proxy.__file__).parent / 'py.typed').is_file())"
                typed = said([str(where / "python"), "-I", "-c", find]).strip() == "True"
                ok = tells and typed and serves(where, folder)
                print(f"Python {version}, {archive.name}: {'installs, serves' if ok else 'FAILS'}", flush=True)
                faults += not ok
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
