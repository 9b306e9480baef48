"""One JSON object per line on stderr: what happened to a request, and what went wrong in the proxy itself.

No line holds content, credentials or a query. An exception is logged by its type and the lines of code that it came
through, never by its message, since messages quote what they choked on.

The lines of requests wait a moment and are written together: to write each by itself costs more than to make it. They
keep their order, and whatever else is logged comes after those that wait.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from collections import deque
from json.encoder import encode_basestring_ascii as _quoted
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from proxy.gateway.watched import Passed

_LOG = logging.getLogger("proxy")
_ROOT = logging.getLogger()

#: How long a request's line may wait for others, in seconds, and how many may wait.
_MOMENT = 0.02
_MOST_WAITING = 256


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "values", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line.update(_fault(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=True)


def _fault(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return {
        "error": type(error).__name__,
        "at": [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames],
    }


class Lines(logging.StreamHandler[TextIO]):
    """Writes what is logged, each by itself, and the lines of requests together, a moment later."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines())
        self._waiting: deque[str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._second = -1
        self._date = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.write()
        super().emit(record)

    def request(self, passed: Passed) -> None:
        """Take a request's line, on an event loop."""
        self._waiting.append(self._line(passed))
        if len(self._waiting) >= _MOST_WAITING:
            self.write()
        elif (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop = loop
            loop.call_later(_MOMENT, self._due)

    def write(self) -> None:
        """Write the lines that wait."""
        if not self._waiting:
            return
        self.acquire()
        try:
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self.stream.write("".join(lines))
            self.flush()
        except (OSError, ValueError):
            pass  # nobody reads them any more, which is no request's fault
        finally:
            self.release()

    def _due(self) -> None:
        self._loop = None
        self.write()

    def _line(self, passed: Passed) -> str:
        """The very line that `JsonLines` makes of a request, in a tenth of the time."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        came, outcome = passed.arrived, passed.outcome
        theirs = f', "provider_id": {_quoted(passed.provider_id[:128])}' if passed.provider_id is not None else ""
        return (
            f'{{"time": "{self._date}.{int((now - second) * 1000):03d}Z", "level": "info", "event": "request", '
            f'"id": {_quoted(came.id)}, "method": {_quoted(came.method)}, "path": {_quoted(came.path)}, '
            f'"status": {passed.status or "null"}, "outcome": {"null" if outcome is None else _quoted(outcome)}, '
            f'"received": {passed.received}, "sent": {passed.sent}, "ms": {round(passed.took * 1000, 1)}, '
            f'"added_ms": {round(passed.added * 1000, 2)}, "end": {_quoted(passed.end)}{theirs}}}\n'
        )


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send every log of the process through `Lines`. Libraries speak from WARNING on."""
    _ROOT.handlers[:] = [Lines(stream or sys.stderr)]
    _ROOT.setLevel(logging.WARNING)
    _LOG.setLevel(level)


def flush() -> None:
    """Write what waits: at the end of the process, or of an event loop."""
    for handler in _ROOT.handlers:
        if isinstance(handler, Lines):
            handler.write()


def request(passed: Passed) -> None:
    """Write a request's one line, at its end: what of it is nobody's secret.

    `id` is what the client was told as x-request-id, unless the provider sent one of its own: that is `provider_id`.
    """
    if not _LOG.isEnabledFor(logging.INFO):
        return
    handlers = _ROOT.handlers
    if len(handlers) == 1 and isinstance(lines := handlers[0], Lines):
        lines.request(passed)
    else:
        _LOG.info("request", extra={"values": values(passed)})


def values(passed: Passed) -> dict[str, Any]:
    """What a request's line says of it."""
    came = passed.arrived
    told = {
        "id": came.id,
        "method": came.method,
        "path": came.path,
        "status": passed.status or None,
        "outcome": passed.outcome,
        "received": passed.received,
        "sent": passed.sent,
        "ms": round(passed.took * 1000, 1),
        "added_ms": round(passed.added * 1000, 2),
        "end": passed.end,
    }
    return told if passed.provider_id is None else {**told, "provider_id": passed.provider_id[:128]}


def event(name: str, **values: Any) -> None:
    """Write something that the operator wants to know of, like the address that the server listens on."""
    _LOG.info(name, extra={"values": values})


def fault(name: str, error: BaseException, **values: Any) -> None:
    """Write that something of ours failed: the type of the error and where, not what it says."""
    _LOG.error(name, exc_info=(type(error), error, error.__traceback__), extra={"values": values})


def loop_faults(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception handler for the event loop: asyncio's own prints the failed task with all that it holds."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        fault("task-failed", error)
    else:
        _LOG.error("loop", extra={"values": {"said": str(context.get("message", ""))[:200]}})
