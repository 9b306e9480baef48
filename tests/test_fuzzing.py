"""What fuzzing found stays found, and a minute of it finds nothing more.

A minute here is of any bytes for requests and replies; `make proofs` goes on for half an hour. Whole conversations are
fuzzed by hand: each of their verdicts needs somebody who reads it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from tests.fuzzing import FINDS, one, seeds
from tests.house.running import ROOT

ANY_BYTES = ("raw", "events", "replies")
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed (it has no build for this Python)"
)


@pytest.mark.parametrize("find", sorted(FINDS.glob("*.bin")), ids=lambda find: find.stem)
def test_what_fuzzing_found_stays_found(find: Path) -> None:
    one(find.read_bytes())


def test_where_it_begins_nothing_is_wrong() -> None:
    for seed in seeds():
        one(seed)


async def fuzzed(folder: Path, seconds: int, plays: tuple[str, ...], *more: str) -> dict[str, int]:
    """Fuzz for so long in a process of its own. Returns what it counted; AssertionError with its words at a find."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fuzzing", str(folder / "corpus")),
        *(f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", *more),
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "EVIDENCE_PROXY_PLAYS": ",".join(plays)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    text = out.decode(errors="replace")
    assert process.returncode == 0, f"put the input from {folder} into {FINDS}\n{text[-6000:]}"
    counted = {name: int(number) for name, number in re.findall(r"^stat::(\w+):\s+(\d+)", text, re.MULTILINE)}
    return counted | {"covered": int(re.findall(r"cov: (\d+)", text)[-1])}


@needs_atheris
async def test_promises_1_to_4_hold_for_a_minute_of_any_bytes(tmp_path: Path) -> None:
    # The same inputs wherever it runs, as far as that can be had: what is new is for the half hour to find.
    counted = await fuzzed(tmp_path, 50, ANY_BYTES, "-seed=1", "-runs=20000")
    assert counted["number_of_executed_units"] > 500


@needs_atheris
@pytest.mark.proofs
async def test_promises_1_to_4_hold_for_half_an_hour_of_any_bytes(tmp_path: Path) -> None:
    print(f"\nfuzzed {', '.join(ANY_BYTES)}: {await fuzzed(tmp_path, 1800, ANY_BYTES)}")
