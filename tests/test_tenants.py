"""Promise 9 under attack: no attempt shows a tenant another's chunk, picture or record, through proxy or record API.

`make proofs` makes 10,000 attempts and writes docs/proofs/tenants.md; otherwise a seeded tenth of them.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.gateway.admin import Admin
from proxy.gateway.records_api import RecordsApi
from proxy.settings import ServerSettings, TenantSettings
from tests.conftest import StartHere
from tests.house.client import Seen, ask
from tests.house.provider import Provider, completion, json_reply
from tests.talk import body, says, user
from tests.test_records_api import there
from tests.test_returns_endpoint import PATH
from tests.trespassing import KINDS, Attempt, Trespasser, Victim

ATTEMPTS = 10_000
VICTIMS = 4
TABLE = Path(__file__).parents[1] / "docs" / "proofs" / "tenants.md"
#: Names are fixed here: a search tool's results are evidence by its name, what is tagged proves itself.
EVIDENCE = [{"format": "auto", "tools": ["search"], "cite": "cite"}]


class Town:
    """A proxy with its record API, some tenants that live there, and a judge of what strangers are shown."""

    def __init__(self, url: str, admin: str, provider: Provider) -> None:
        self._url = url
        self._admin = admin
        self._provider = provider
        self.victims = [Victim(number) for number in range(VICTIMS)]

    async def settle(self) -> None:
        """Every victim holds its conversation, all of it on the wire, and asks the record API about it."""
        for victim in self.victims:
            who = ("Authorization", victim.credential)
            given = {"results": [victim.registered], "shape": "text"}
            victim.tagged = (await ask(self._url, given, target=PATH, headers=[who])).json()["content"]
            for at, question in enumerate(victim.questions(), 1):
                victim.history += question
                evidence, _ = await self._sent(victim.history, [who, ("Evidence-Conversation", victim.name)])
                assert evidence.startswith("untouched; reason=nothing-earlier" if at == 1 else "compacted;")
                victim.history.append(says("the answer"))
            page = (
                await there(self._admin, f"/api/questions?conversation={victim.name.replace(' ', '+')}", [who])
            ).json()
            victim.shown, victim.question = page["conversation"], page["questions"][0]["id"]

    async def _sent(self, messages: list[dict[str, Any]], headers: Any) -> tuple[str, bytes]:
        self._provider.reply(json_reply(completion("the answer")))
        seen = await ask(self._url, body(*messages), headers=headers)
        assert seen.status == 200
        return seen.evidence, self._provider.requests.pop().body

    async def shown(self, attempt: Attempt) -> bytes:
        """What an attempt brings before anybody's eyes: what goes to the provider, or what the record API says."""
        if attempt.target is not None:
            seen: Seen = await there(self._admin, attempt.target, _encoded(attempt.headers))
            return seen.body
        assert attempt.messages is not None
        settled = attempt.kind in ("a return that was cut short", "a return's tag on another text")
        if settled:  # its first question is answered first
            await self._sent(attempt.messages[:-2], _encoded(attempt.headers))
        _, forwarded = await self._sent(attempt.messages, _encoded(attempt.headers))
        return forwarded

    def secrets(self) -> dict[str, bytes]:
        """What is a victim's own, each under a name."""
        found = {}
        for victim in self.victims:
            found[f"text {victim.number}"] = victim.secret.encode()
            found[f"title {victim.number}"] = victim.title.encode()
            found[f"picture {victim.number}"] = base64.b64encode(victim.picture)
            found[f"question {victim.number}"] = victim.question.encode()
        return found

    def stolen(self, attempt: Attempt, shown: bytes) -> list[str]:
        """The secrets that an attempt brought to light: those that the trespasser did not bring along."""
        brought = json.dumps(attempt.messages).encode() if attempt.messages is not None else b""
        return [name for name, secret in self.secrets().items() if secret in shown and secret not in brought]


def _encoded(lines: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in lines]


@pytest.fixture
async def town(start_here: StartHere, provider: Provider) -> AsyncIterator[Town]:
    running = await start_here(evidence=EVIDENCE)
    admin = Admin(ServerSettings(admin_port=0))
    RecordsApi(running.store.records, TenantSettings()).register(admin)
    host, port = await admin.start()
    here = Town(running.url, f"http://{host}:{port}", provider)
    await here.settle()
    yield here
    await admin.close()


async def played(town: Town, attempts: int) -> Counter[str]:
    """How many attempts of each kind were made: all of them failed."""
    made: Counter[str] = Counter()
    for seed in range(attempts):
        attempt = Trespasser(seed, town.victims).draw()
        stolen = town.stolen(attempt, await town.shown(attempt))
        assert not stolen, f"seed {seed}, {attempt.kind}: {stolen}"
        made[attempt.kind] += 1
    assert set(made) == set(KINDS)
    return made


@pytest.mark.parametrize("kind", KINDS)
async def test_the_judge_sees_what_the_victim_itself_is_shown(town: Town, kind: str) -> None:
    attempt = Trespasser(1, town.victims, as_victim=True, kind=kind).draw()
    shown = await town.shown(attempt)
    if kind.startswith("the same conversation"):  # all of it stands on its own wire: what came back is a capsule
        assert b"newest first" in shown
    else:
        assert town.stolen(attempt, shown)


async def test_promise_9_of_a_thousand_attempts_none_shows_what_is_anothers(town: Town) -> None:
    await played(town, ATTEMPTS // 10)


@pytest.mark.proofs
async def test_promise_9_of_ten_thousand_attempts_none_shows_what_is_anothers(town: Town) -> None:
    made = await played(town, ATTEMPTS)
    if os.environ.get("EVIDENCE_PROXY_PROOFS") == "full":
        rows = "".join(f"| {kind} | {made[kind]} | 0 |\n" for kind in KINDS)
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(
            "# Tenants\n\n"
            f"{made.total()} attempts of one tenant at what is another's, from the seeds 0 to {ATTEMPTS - 1}, by\n"
            "`make proofs` (tests/trespassing.py): through the proxy and through the record API. One text, title,\n"
            "picture or question of another tenant that is shown fails the run, and this is not written. Each kind\n"
            "of attempt, made with the victim's own credential, does show it.\n\n"
            "| attempt | tries | shown |\n|---|---|---|\n"
            f"{rows}| **all** | **{made.total()}** | **0** |\n"
        )


async def test_promise_9_the_same_conversation_of_two_tenants_has_two_sets_of_records(town: Town) -> None:
    victim = town.victims[0]
    other = [("Authorization", "Bearer sk-other"), ("Evidence-Conversation", victim.name)]
    evidence, sent = await town._sent([*victim.history, user("?")], other)
    assert evidence == "untouched; reason=no-record" and sent == body(*victim.history, user("?"))
