"""Requests that passed, as a watcher hears of them, in any number: a few conversations, told again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from proxy.commands.rehearsing import Rehearsal
from proxy.gateway.watched import Arrived, Conversed, Passed
from proxy.settings import Settings
from proxy.wire.messages import Usage
from tests.house.keys import KEYS
from tests.talk import body, cited, says, searched, user

EVIDENCE = [{"name": "kb", "format": "auto", "tools": ["search"], "cite": "cite"}]


async def told(questions: int = 4, conversations: int = 5) -> list[list[Conversed]]:
    """What the rooms made of each request of some conversations."""
    made = []
    for name in range(conversations):
        rooms, sent, requests = Rehearsal(Settings(evidence=EVIDENCE), KEYS), [], []  # type: ignore[arg-type]
        for number in range(questions):
            ids = [f"c{name}-{number}-{n}" for n in range(5)]
            found = json.dumps([{"id": one, "text": f"What stands in {one}. " * 20} for one in ids])
            for more in (
                [user(f"conversation {name}, question {number}")],
                searched(found, f"s{number}"),
                cited(ids[:1], call_id=f"k{number}"),
            ):
                sent += more
                requests.append((await rooms.decide(body(*sent), "chat")).conversed)
            sent.append(says("It says so."))
        made.append(requests)
    return made


def passing(conversations: list[list[Conversed]], number: int) -> Iterator[Passed]:
    """So many requests, one conversation after another; each round of them is another tenant's."""
    serial = 0
    while True:
        for one in conversations:
            tenant = serial.to_bytes(32, "big")
            for told in one:
                if serial == number:
                    return
                conversed = replace(told, tenant=tenant, usage=Usage(1000, 400, 20))
                yield passed(serial, conversed)
                serial += 1


def passed(serial: int, conversed: Conversed) -> Passed:
    """A request at its end."""
    arrived = Arrived(f"id-{serial}", 1_760_000_000_000_000_000 + serial, 0, "POST", "/v1/chat/completions", "chat")
    return Passed(
        arrived=arrived,
        status=200,
        end="complete",
        took=0.5,
        asked=200,
        outcome=conversed.outcome.header(),
        received=len(conversed.came),
        forwarded=len(conversed.went),
        sent=100,
        added=0.001,
        waited=0.4,
        conversed=conversed,
    )
