"""What the C library does with the memory of large bodies: kept while there is work, given back when it is over.

Only glibc is told anything; elsewhere all of this does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
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


def _trim() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return lambda: trim(0)
