"""Memory that large bodies took is given back when they are gone, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

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


@pytest.mark.parametrize(
    ("underway", "passes", "at_latest", "full"),
    [
        (0, 0, 600.0, 0),  # nothing has changed
        (0, 10, 600.0, 1),
        (3, 10, 600.0, 0),  # somebody waits
        (3, 10, 0.0, 1),  # and has for too long
    ],
)
async def test_full_passes_of_the_garbage_collector_wait_for_a_moment_without_requests(
    underway: int, passes: int, at_latest: float, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(heap, "_COLLECTED_AT_LATEST", at_latest)
    looked, made = 0, 0
    over = asyncio.Event()

    class Collector:
        @staticmethod
        def get_count() -> tuple[int, int, int]:
            nonlocal looked
            looked += 1
            if looked == 5:
                over.set()
            return 0, 0, 0 if made else passes

        @staticmethod
        def collect() -> None:
            nonlocal made
            made += 1

    monkeypatch.setattr(heap, "gc", Collector)
    task = asyncio.create_task(heap.collect_at_rest(lambda: underway))
    await over.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert made == full


def test_what_hangs_in_circles_and_dies_young_is_found_without_full_passes() -> None:
    class Circle:
        def __init__(self) -> None:
            self.itself = self

    before = gc.get_threshold()
    gc.collect()
    full = gc.get_stats()[2]["collections"]
    first = Circle()
    gone = weakref.ref(first)
    try:
        heap.collect_young_only()
        del first
        kept = [[number] for number in range(300_000)]
    finally:
        gc.set_threshold(*before)
    assert gone() is None
    assert gc.get_stats()[2]["collections"] == full
    assert len(kept) == 300_000


def test_a_c_library_that_can_give_back_does() -> None:
    heap.keep_large_buffers()
    trim = heap._trim()
    if trim is not None:
        trim()
