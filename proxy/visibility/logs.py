"""One JSON object per line on stderr: what happened to a request, and what went wrong in the proxy itself.

No line holds content, credentials or a query. An exception is logged by its type and the lines of code that it came
through, never by its message, since messages quote what they choked on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from proxy.gateway.watched import Passed

_LOG = logging.getLogger("proxy")


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


def configure(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send every log of the process through `JsonLines`. Libraries speak from WARNING on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(level)


def request(passed: Passed) -> None:
    """Write a request's one line, at its end: what of it is nobody's secret.

    `id` is what the client was told as x-request-id, unless the provider sent one of its own: that is `provider_id`.
    """
    if not _LOG.isEnabledFor(logging.INFO):
        return
    came = passed.arrived
    values = {
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
    if passed.provider_id is not None:
        values["provider_id"] = passed.provider_id[:128]
    _LOG.info("request", extra={"values": values})


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
