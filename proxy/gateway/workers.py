"""Several processes behind one port, and the parent that starts them, starts again one that ended, and stops them.

The parent serves nothing: it has no event loop and no threads, so that it can fork whenever it must. Each worker is a
whole proxy; what they share is the port, the tag keys and the store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from proxy.visibility import logs

_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
# A worker that ended so soon after its start would end again: not all of them are started without a pause.
_SOON_SECONDS = 5.0
_PAUSE_SECONDS = 1.0

#: What a worker does: it is given its number and a file descriptor that comes to its end when the parent does, and
#: returns its exit code.
Work = Callable[[int, int], int]


@dataclass
class _Crew:
    """Who is there. `started` and `due` are by number, `due` says when a worker is to be started again."""

    alive: dict[int, int] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    stopping: bool = False
    code: int = 0


def supervise(count: int, work: Work, stop_listening: Callable[[], None]) -> int:
    """Run `work` in `count` processes until SIGTERM or SIGINT; returns the exit code.

    SIGHUP is passed on. On SIGTERM `stop_listening` closes the sockets of the parent: nobody connects where no worker
    accepts any more, and the workers are told to stop; a second signal ends them at once. A worker that fails at its
    very start, before any other has lived, ends all: it has said why.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parents_end, ours = os.pipe()
    os.set_inheritable(parents_end, True)
    crew = _Crew()
    for number in range(count):
        _start(crew, number, work, parents_end, ours)
    while crew.alive or (crew.due and not crew.stopping):
        _obey(crew, _next_signal(crew), stop_listening)
        now = time.monotonic()
        for number in [number for number, due in crew.due.items() if due <= now and not crew.stopping]:
            del crew.due[number]
            _start(crew, number, work, parents_end, ours)
    return crew.code


def _next_signal(crew: _Crew) -> int | None:
    if not crew.due:
        return signal.sigwait(_SIGNALS)
    told = signal.sigtimedwait(_SIGNALS, max(0.0, min(crew.due.values()) - time.monotonic()))
    return told.si_signo if told is not None else None


def _obey(crew: _Crew, number: int | None, stop_listening: Callable[[], None]) -> None:
    if number == signal.SIGCHLD:
        _reap(crew)
    elif number == signal.SIGHUP:
        _tell(crew, signal.SIGHUP)
    elif number is not None:
        if not crew.stopping:
            crew.stopping = True
            stop_listening()
        _tell(crew, signal.SIGTERM)


def _tell(crew: _Crew, number: signal.Signals) -> None:
    for pid in crew.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _reap(crew: _Crew) -> None:
    for pid in list(crew.alive):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            continue
        number = crew.alive.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if crew.stopping:
            crew.code = crew.code or max(code, 0)
            continue
        now = time.monotonic()
        soon = now - crew.started[number] < _SOON_SECONDS
        if soon and code > 0 and all(now - since < _SOON_SECONDS for since in crew.started.values()):
            crew.stopping, crew.code = True, code
            _tell(crew, signal.SIGTERM)
            continue
        logs.event("worker-ended", worker=number, code=code)
        crew.due[number] = now + (_PAUSE_SECONDS if soon else 0.0)


def _start(crew: _Crew, number: int, work: Work, parents_end: int, ours: int) -> None:
    crew.started[number] = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _work(number, work, parents_end)
    crew.alive[pid] = number


def _work(number: int, work: Work, parents_end: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)  # a terminal's Ctrl-C is the parent's to pass on, once
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = work(number, parents_end)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as fault:
        logs.fault("worker-failed", fault, worker=number)
    finally:
        os._exit(code)
