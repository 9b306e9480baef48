"""What passed is told in order, in a quiet moment; never too late, never more than may wait, and never lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.compaction.outcome import Reason, Untouched
from proxy.gateway.watched import Arrived, Conversed, Passed
from proxy.visibility import later
from proxy.visibility.later import Later
from tests.house.watching import Listening

ARRIVED = Arrived("id", 0, 0, "POST", "/v1/chat/completions", "chat")
PASSED = Passed(ARRIVED, 200, "complete", 0.1)


def passed(number: int, size: int = 0) -> Passed:
    told = Conversed(b"x" * size, b"", Untouched(Reason.NO_EVIDENCE))
    return replace(PASSED, sent=number, conversed=told)


def numbers(heard: Listening) -> list[int]:
    return [one.sent for one in heard.heard]


async def test_arrivals_are_told_at_once_and_what_passed_in_order_when_it_is_quiet() -> None:
    heard = Listening(lines=[(b"traceparent", b"x")])
    told = Later(heard)
    assert told.arrived(ARRIVED) == [(b"traceparent", b"x")]
    for number in range(20):
        told.passed(passed(number))
    await asyncio.sleep(0)
    assert (len(heard.arrivals), heard.heard) == (1, [])
    await heard.told(20)
    assert numbers(heard) == list(range(20))


async def test_whoever_wants_to_see_it_sees_all_of_it() -> None:
    heard = Listening()
    told = Later(heard)
    for number in range(5):
        told.passed(passed(number))
    told.flush()
    assert numbers(heard) == [0, 1, 2, 3, 4]
    told.passed(passed(5))
    told.close()
    assert numbers(heard)[-1] == 5


async def test_under_a_steady_load_nothing_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "_QUIET", 3600.0)
    monkeypatch.setattr(later, "_LONGEST", 0.01)
    heard = Listening()
    told = Later(heard)
    told.passed(passed(1))
    told._look()  # as its timer does, which in this test would only come in an hour
    await heard.told(1)
    assert numbers(heard) == [1]


@pytest.mark.parametrize("size, left", [(0, 3), (400, 2)])
async def test_no_more_waits_than_may(monkeypatch: pytest.MonkeyPatch, size: int, left: int) -> None:
    monkeypatch.setattr(later, "_MOST", 3)
    monkeypatch.setattr(later, "_MOST_BYTES", 1000)
    heard = Listening()
    told = Later(heard)
    for number in range(10):
        told.passed(passed(number, size))
    assert numbers(heard) == list(range(10 - left))
    told.close()
    assert numbers(heard) == list(range(10))
