"""What takes long is done in a thread, so that the streams that are open beside it never wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

#: From this size on a body that is new is read in a thread. Python runs one thread at a time, and hands over between
#: them every half millisecond; to go to a thread and back takes about a fifth of one. 256 KB of a conversation that was
#: never seen take two milliseconds to read, and as long again when it settles: as much as a stream may be held up by.
LARGE: Final = 256 * 1024


async def aside(large: bool, work: Callable[[], Result]) -> Result:
    """What `work` gives, done in a thread if what it works on is `large`."""
    return await asyncio.to_thread(work) if large else work()
