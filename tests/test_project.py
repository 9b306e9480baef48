"""The project itself: what stands where, what is pinned, and what must not be said anywhere."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import proxy
from proxy.compaction.outcome import Reason
from tests.reference import PAGE, rewritten, tables

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = ("proxy", "tests", "config", "benchmarks", "docs", "examples", ".ci")
TEXT = {".py", ".md", ".toml", ".lock", ".yaml", ".yml", ".txt", ""}


def our_files() -> Iterator[Path]:
    """Every text file of the project that people read or write."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in TEXT and path.name != ".git")
    for folder in OURS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield path


@pytest.mark.parametrize(
    "name",
    [
        "pyproject.toml",
        "README.md",
        "Dockerfile",
        "Makefile",
        "LICENSE",
        "CHANGELOG.md",
        "config/default.toml",
        ".ci/run",
    ],
)
def test_the_layout_is_the_one_that_the_readme_shows(name: str) -> None:
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("name", ["proxy", "tests", "config", "benchmarks", "docs", "examples"])
def test_the_folders_are_there(name: str) -> None:
    assert (ROOT / name).is_dir()


@pytest.mark.parametrize("command", ["demo", "test", "check", "proofs", "bench", "lock"])
def test_each_habit_has_its_command(command: str) -> None:
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_ci_runs_the_commands_that_everyone_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"make .*\btest\b", script.read_text())
    assert re.search(r"make .*\bcheck\b", script.read_text())


# Put together here, so that this file does not say them itself.
FORBIDDEN = [
    r"/" + r"work/",
    r"\bpypi\." + r"org",
    r"python" + r"hosted",
    r"registry\." + r"npmjs",
    r"\bissue" + r" #?\d",
]


@pytest.mark.parametrize("words", FORBIDDEN)
def test_nothing_names_the_place_where_it_was_made(words: str) -> None:
    said = [str(path.relative_to(ROOT)) for path in our_files() if re.search(words, path.read_text(errors="replace"))]
    assert said == []


def _pins(lock: str) -> list[Requirement]:
    lines = [line.split("\\")[0].strip() for line in (ROOT / lock).read_text().splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "--hash"))]


def _environment(python: str) -> dict[str, str | AbstractSet[str]]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
    }


def _pinned(lock: str, python: str) -> dict[str, str]:
    """Name to version, as pip on Linux with this Python takes them from the lock file."""
    versions: dict[str, str] = {}
    for pin in _pins(lock):
        if pin.marker is not None and not pin.marker.evaluate(_environment(python)):
            continue
        (only,) = pin.specifier
        assert only.operator == "==", f"{pin} is no exact pin"
        assert canonicalize_name(pin.name) not in versions, f"{pin.name} is pinned twice for Python {python}"
        versions[canonicalize_name(pin.name)] = only.version
    return versions


RUNTIME: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: list[str] = [need for extra in PROJECT["project"]["optional-dependencies"].values() for need in extra]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(
    ("lock", "needs"), [("requirements.lock", RUNTIME), ("requirements-dev.lock", [*RUNTIME, *EXTRAS])]
)
def test_the_lock_file_gives_what_pyproject_asks_for(lock: str, needs: list[str], python: str) -> None:
    versions = _pinned(lock, python)
    for need in map(Requirement, needs):
        if need.marker is not None and not need.marker.evaluate(_environment(python)):
            continue
        version = versions.get(canonicalize_name(need.name))
        assert version is not None, f"{need} is not in {lock}: run make lock"
        assert need.specifier.contains(version), f"{lock} has {need.name} {version}, which is not {need}: run make lock"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_runs_is_pinned_alike_in_both_lock_files(python: str) -> None:
    everything = _pinned("requirements-dev.lock", python)
    assert _pinned("requirements.lock", python).items() <= everything.items()


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_every_pin_has_its_digests_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(_pins(lock))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text
    assert "--index-url" not in text


def test_the_version_is_one_and_the_changelog_opens_with_it() -> None:
    assert PROJECT["project"].get("version", proxy.__version__) == proxy.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == proxy.__version__


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_the_links_between_our_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} points to {target}"


def test_every_path_in_the_readme_s_tree_is_there() -> None:
    tree = (ROOT / "README.md").read_text().partition("## Where things are")[2]
    named = re.findall(r"^(\S+)  ", tree, re.MULTILINE)
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_reference_is_what_the_settings_say() -> None:
    """`make reference` writes it."""
    page = PAGE.read_text()
    assert page == rewritten(page)


def test_the_reference_has_a_table_for_every_section_and_in_their_order() -> None:
    headings = re.findall(r"^## `(\[.*\])`$", PAGE.read_text(), re.MULTILINE)
    assert headings == [title for title in tables() if title != "[evidence.fields]"]


@pytest.mark.parametrize(
    "row",
    [
        "| `port` | `8080` | port to listen on; 0 takes a free one, which the log names |",
        "| `retention_days` | none | forget records that are older; without it they stay |",
        "| `input` | (required) | input tokens |",
        '| `cite` | `haiku`, `tagged`: `"cite"` | the cite tool\'s name;',
        '| `pages` | `["page_numbers", "pages", "page"]` |',
    ],
)
def test_a_row_tells_key_default_and_meaning(row: str) -> None:
    assert any(line.startswith(row) for line in "\n".join(tables().values()).splitlines())


def test_a_page_without_a_section_s_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[tags\]"):
        rewritten(PAGE.read_text().replace("keys of [tags]", "keys of [tag]"))


def test_the_readme_explains_every_reason() -> None:
    table = (ROOT / "README.md").read_text().partition("| `reason` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`(?:,| \|)", table)) == {str(reason) for reason in Reason}
