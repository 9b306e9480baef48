"""What the C library keeps of memory that was given back to it, and how to make it let go.

Merging a table reads all of it. glibc keeps what that took for the next time, which may be an hour away, so that the
process would seem to grow with its store.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys


def give_back() -> None:
    """Return what is free to the system, where the C library can do that. It takes milliseconds: not on the loop."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
