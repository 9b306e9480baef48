"""What becomes of memory: that of large bodies is kept while there is work, and given back when it is over; the garbage
collector goes through all that the process remembers when nobody waits for it.

Only glibc is told anything of buffers; elsewhere that does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: How often it is looked whether anything may be given back, and how many bytes must have passed for it to be worth it.
_PAUSE_SECONDS = 2.0
_WORTH_IT = 8 * 1024 * 1024
#: It is given back again after as many looks as these: what waits to be watched, or for the garbage collector, goes a
#: while after its requests.
_LOOKS = frozenset({1, 2, 4, 8, 16})
#: With more than this in flight, what is free will be wanted again at once.
_AT_REST = 1024 * 1024

#: The collector's full passes never come by themselves. After so many of the middle generation's one is worth it, and
#: under a load without a pause one is made after so many seconds all the same.
_NEVER = 2**31 - 1
_WORTH_COLLECTING = 10
_COLLECTED_AT_LATEST = 600.0


def keep_large_buffers() -> None:
    """glibc gives every buffer over 128 KB pages of its own and returns them when it is freed; for bodies of megabytes
    that costs more than all the work on them."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 26)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 27)
        # LanceDB's many threads would each keep a heap of their own, full of holes: a third of what is resident.
        libc.mallopt(_M_ARENA_MAX, 1)


async def give_back_at_rest(
    held: Callable[[], int], passed: Callable[[], int], give_back: Callable[[], None] | None = None
) -> None:
    """For ever: once enough bytes have `passed`, and hardly any are `held` any more, return what is free to the system.

    Without this a process stays as large as its largest body made it.
    """
    give_back = give_back or _trim()
    if give_back is None:
        return
    before, looks = 0, max(_LOOKS)
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        now = passed()
        if held() > _AT_REST:
            continue
        if now - before >= _WORTH_IT:
            before, looks = now, 0
        looks += 1
        if looks in _LOOKS:
            await asyncio.to_thread(give_back)


def collect_young_only() -> None:
    """Leave full passes of the garbage collector to `collect_at_rest`. The young generations' go on as ever, and find
    what requests leave: hardly anything that hangs in circles lives longer.

    A full pass walks through every conversation that is remembered, which takes tenths of a second, and Python makes
    one whenever a quarter of them is new: under load every few seconds, while all requests and streams wait.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)


async def collect_at_rest(underway: Callable[[], int]) -> None:
    """For ever: a full pass of the garbage collector once enough has changed and no request is `underway`. What it
    finds until then, circles that outlived their request, is bounded by the time that there may be no such moment."""
    loop = asyncio.get_running_loop()
    before = loop.time()
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        if gc.get_count()[2] < _WORTH_COLLECTING:
            continue
        if not underway() or loop.time() - before >= _COLLECTED_AT_LATEST:
            gc.collect()
            before = loop.time()


def _trim() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)
