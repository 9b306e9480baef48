"""Memory that large bodies took is given back when they are gone, and not before."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from proxy import heap


@pytest.mark.parametrize(
    ("passed", "held", "times"),
    [
        ([0, 0, 0], 0, 0),
        ([100_000, 200_000, 300_000], 0, 0),
        ([50_000_000] * 4, 0, 3),  # at the first look, the second and the fourth: some is let go of later
        ([50_000_000] * 40, 0, 5),
        ([50_000_000, 100_000_000, 150_000_000, 150_000_000], 0, 4),
        ([50_000_000, 100_000_000, 150_000_000], 5_000_000, 0),
    ],
)
async def test_memory_is_given_back_once_enough_passed_and_hardly_any_is_held(
    passed: list[int], held: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "_PAUSE_SECONDS", 0.0)
    looks = iter(passed)
    over = asyncio.Event()
    given = 0

    def give_back() -> None:
        nonlocal given
        given += 1

    def so_far() -> int:
        found = next(looks, None)
        if found is None:
            over.set()
            return passed[-1]
        return found

    task = asyncio.create_task(heap.give_back_at_rest(lambda: held, so_far, give_back))
    await over.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert given == times


def test_a_c_library_that_can_give_back_does() -> None:
    heap.keep_large_buffers()
    trim = heap._trim()
    if trim is not None:
        trim()
