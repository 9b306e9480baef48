"""What the walk through the README would see of a README that is not true; the walk itself is `make newcomer`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.newcomer import Walk, commands, free
from tests.test_documentation import ROOT, Block, blocks_of

HEADERS = next(block for block in blocks_of(ROOT / "README.md") if block.text.startswith("Evidence-Proxy: "))
COMPACTED = "Evidence-Proxy: compacted; question=2; capsule=1; receipts=1; before=9975; after=6220"
UNTOUCHED = "Evidence-Proxy: untouched; reason=nothing-earlier"


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    return Walk(tmp_path, tmp_path, tests=False)


def row(number: int) -> str:
    return f"│ {number} │ a question │\n"


@pytest.mark.parametrize(
    ("seen", "faults"),
    [
        ([COMPACTED, UNTOUCHED], 0),
        ([UNTOUCHED], 1),
        ([COMPACTED.replace("receipts", "lines"), UNTOUCHED], 1),
        ([], 2),
    ],
)
def test_a_header_of_another_shape_is_a_fault(walk: Walk, seen: list[str], faults: int) -> None:
    walk.seen = seen
    walk.compare_headers(HEADERS)
    assert walk.faults == faults


@pytest.mark.parametrize(
    ("code", "rows", "closing", "faults"),
    [(0, 8, "Checked on the wire: ...", 0), (1, 8, "Not as promised:", 2), (0, 7, "Checked on the wire: ...", 1)],
)
def test_a_demo_that_is_not_as_told_is_a_fault(walk: Walk, code: int, rows: int, closing: str, faults: int) -> None:
    walk.compare_demo(code, "".join(row(number) for number in range(1, rows + 1)) + closing, 1.0)
    assert walk.faults == faults


def test_a_command_that_fails_is_a_fault(walk: Walk) -> None:
    walk.type_each(Block(Path("README.md"), "sh", "true\nfalse    # never\n"))
    assert walk.faults == 1


def test_commands_are_typed_one_by_one() -> None:
    block = Block(Path("README.md"), "sh", "# first\nmake a \\\n  b\n\nmake c   # why")
    assert commands(block) == ["make a    b", "make c   # why"]


def test_a_taken_port_is_not_used(walk: Walk) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert free(taken) is None
    walk.ports = {8080: taken, 8081: 8081}
    assert walk.environment["EVIDENCE_PROXY_SERVER__PORT"] == str(taken)
    assert "EVIDENCE_PROXY_SERVER__ADMIN_PORT" not in walk.environment
    assert walk.here("http://127.0.0.1:8080/v1") == f"http://127.0.0.1:{taken}/v1"
