"""Threads beside the loop work in quiet moments, under a load for a share of their time, and at once if wanted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from proxy.gateway.watched import Arrived, Passed
from proxy.visibility import leisure
from proxy.visibility.leisure import Leisure, Turn

ARRIVED = Arrived("id", 0, 0, "POST", "/v1/chat/completions", "chat")
PASSED = Passed(ARRIVED, 200, "complete", 0.1)


@dataclass
class Time:
    """A clock that waiting moves on; `worked` is how long the thread that asks has worked."""

    now: float = 100.0
    worked: float = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    time = Time()

    class Clock:
        monotonic = staticmethod(lambda: time.now)
        thread_time = staticmethod(lambda: time.worked)

    def wait(self: Leisure, seconds: float, since: float) -> None:
        assert seconds > 0
        time.now += seconds

    monkeypatch.setattr(leisure, "time", Clock)
    monkeypatch.setattr(leisure, "_clock_of_this_thread", lambda: lambda: 0.0)
    monkeypatch.setattr(Leisure, "wait", wait)
    yield time


def waits(turn: Turn, clock: Time, since: float, works: float = 0.0, takes: float | None = None) -> float:
    """How long a turn waits before a piece of work that takes so much processor time, and so long."""
    before = clock.now
    with turn.since(since):
        waited = clock.now - before
        clock.worked += works
        clock.now += works if takes is None else takes
    return waited


def test_what_nobody_stirs_is_worked_on_at_once(clock: Time) -> None:
    turn = Leisure().turn()
    assert waits(turn, clock, clock.now, works=5) == 0
    assert waits(turn, clock, clock.now) == 0


def test_work_waits_until_nothing_comes_or_goes_for_a_moment(clock: Time) -> None:
    found = Leisure()
    turn = found.turn()
    found.arrived(ARRIVED)
    assert waits(turn, clock, clock.now) == pytest.approx(leisure.QUIET)
    found.passed(PASSED)
    assert waits(turn, clock, clock.now) == pytest.approx(leisure.QUIET)


def test_work_waits_while_a_request_is_on_its_way_however_long_that_takes(clock: Time) -> None:
    found = Leisure()
    turn = found.turn()
    found.arrived(ARRIVED)
    sent = clock.now + 0.4
    found.on_the_way = lambda: int(clock.now < sent)
    assert waits(turn, clock, clock.now) == pytest.approx(0.4, abs=leisure.QUIET)


def test_what_is_due_lets_requests_go_first_but_not_for_ever(clock: Time) -> None:
    found = Leisure()
    turn = found.turn()
    found.on_the_way = lambda: 1
    since = clock.now
    assert waits(turn, clock, since, works=0.01) == pytest.approx(leisure.LONGEST + leisure.YIELDS)
    for _ in range(20):
        assert waits(turn, clock, since, works=0.01) == pytest.approx(0.04 + leisure.YIELDS)


class Steady(Leisure):
    """Something comes all the time."""

    def quiet_since(self) -> float:
        return leisure.time.monotonic() + leisure.QUIET


def test_under_a_steady_load_work_waits_a_second_and_then_takes_a_share_of_the_time(clock: Time) -> None:
    found = Steady()
    turn = found.turn()
    since = clock.now
    assert waits(turn, clock, since, works=0.01) == pytest.approx(leisure.LONGEST)
    for _ in range(20):
        assert waits(turn, clock, since, works=0.01) == pytest.approx(0.04)


@pytest.mark.parametrize("share, rest", [(0.0, 4), (0.3, 4), (0.45, 19.9), (0.6, 99), (1.0, 99)])
def test_the_busier_the_event_loop_is_the_longer_its_threads_rest(clock: Time, share: float, rest: float) -> None:
    found = Steady()
    found.seconds_wanted = lambda: share * clock.now
    turn = found.turn()
    since = clock.now
    waits(turn, clock, since, works=0.001, takes=0.2)
    assert waits(turn, clock, since, works=60, takes=0) == pytest.approx(0.001 * rest, rel=0.01)
    assert waits(turn, clock, since) == pytest.approx(20.0)  # never so long that nothing more would be done


def test_one_thread_at_a_time_works_unless_somebody_waits_to_see_it(clock: Time) -> None:
    found = Leisure()
    one, other = found.turn(), found.turn()
    with one.since(clock.now):
        later = threading.Timer(0.1, found.hurry)
        clock.now += 1
        later.start()
        with other.since(0.0):
            assert clock.now > 101, "it waited for the other one"
    later.join()
    assert waits(other, clock, clock.now) == 0, "and what was taken is given back"


def test_what_somebody_wants_to_see_waits_no_longer_and_what_comes_later_does(clock: Time) -> None:
    found = Steady()
    turn = found.turn()
    since = clock.now
    found.hurry()
    assert waits(turn, clock, since) == 0
    assert waits(turn, clock, since + 0.001) > 0


async def test_a_thread_that_waits_is_woken_by_whoever_is_in_a_hurry() -> None:
    found = Steady()
    since = time.monotonic() + 3600
    waiting = threading.Thread(target=found.turn().since(since).__enter__, daemon=True)
    waiting.start()
    found._hurried = since + 1  # as `hurry` would in an hour
    await asyncio.to_thread(found.wait, 0.01, since)
    with found._changed:
        found._changed.notify_all()
    await asyncio.to_thread(waiting.join, 10)
    assert not waiting.is_alive()


async def test_other_threads_are_told_how_much_the_event_loop_works() -> None:
    found = Leisure()
    before = await asyncio.to_thread(found.seconds_wanted)
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    assert await asyncio.to_thread(found.seconds_wanted) - before >= 0.09
