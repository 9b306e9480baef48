"""The record API on the admin port: a conversation's questions, for their own tenant, as documented. Promise 9."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.commands.explain import conversation_id
from proxy.gateway.admin import Admin
from proxy.gateway.records_api import DOCUMENT, PATH, RecordsApi
from proxy.ledger import records
from proxy.settings import ServerSettings, TenantSettings
from proxy.store import StoreError
from tests.conftest import StartHere
from tests.house.client import Client, Seen, request
from tests.house.provider import Provider
from tests.rewrites import CREDENTIAL
from tests.talk import HAIKU, cited, searched, settled, transcript, user
from tests.test_trimmed import NAMED, TABLE, Host, question

OTHER = ("Authorization", "Bearer sk-test-two")


async def there(url: str, target: str, headers: list[Any]) -> Seen:
    """One request to an admin port, under its own name."""
    client = await Client.connect(url)
    try:
        raw = request("GET", target, headers=headers)
        await client.send(raw.replace(b"Host: proxy.test", b"Host: 127.0.0.1"))
        return await client.reply()
    finally:
        client.close()


@dataclass
class Api:
    """The record API over a proxy's store, and a host that talks through that proxy."""

    url: str
    host: Host
    document: dict[str, Any]

    async def get(self, headers: list[Any] | None = None, **query: Any) -> Seen:
        """One request; what comes back is what the document says."""
        target = f"{PATH}?{urlencode(query)}"
        seen = await there(self.url, target, [CREDENTIAL] if headers is None else headers)
        self.fits(seen)
        return seen

    def fits(self, seen: Seen) -> None:
        """Whether an answer is one that the document describes."""
        answers = self.document["paths"][PATH]["get"]["responses"]
        schema = answers[str(seen.status)]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**schema, "components": self.document["components"]}).validate(seen.json())
        assert seen.value("content-type") == b"application/json"

    async def page(self, **query: Any) -> dict[str, Any]:
        seen = await self.get(**query)
        assert seen.status == 200, seen.body
        found: dict[str, Any] = seen.json()
        return found


Start = Callable[..., Awaitable[Api]]


@pytest.fixture
async def start(start_here: StartHere, provider: Provider) -> AsyncIterator[Start]:
    started: list[Admin] = []

    async def begin(
        *headers: tuple[str, str],
        store: Any = None,
        guarded: bool = False,
        by: str = "",
    ) -> Api:
        running = await start_here(evidence=[TABLE], **({"tenant": {"by": by}} if by else {}))
        admin = Admin(ServerSettings(admin_port=0), "admin-token" if guarded else None)
        tenant = TenantSettings(by=by) if by else TenantSettings()
        RecordsApi(store or running.store.records, tenant, guarded=guarded).register(admin)
        host, port = await admin.start()
        started.append(admin)
        url = f"http://{host}:{port}"
        document = (await there(url, DOCUMENT, [])).json()
        return Api(url, Host(running.url, provider, "chat", *(headers or (NAMED,))), document)

    yield begin
    for admin in started:
        await admin.close()


async def test_a_conversations_questions_are_told_newest_first(start: Start) -> None:
    api = await start()
    await api.host.holds(question(1, "a1"), question(2), question(3, "a1", "a39"))
    page = await api.page(conversation="conv-7")
    assert [(q["number"], q["declaration"]) for q in page["questions"]] == [
        (3, "grounded"),
        (2, "ungrounded"),
        (1, "grounded"),
    ]
    newest = page["questions"][0]
    assert {c["id"]: c["question"] for c in newest["citations"]} == {"a1": 3, "a39": 3}
    assert newest["evidence"] == {"replaced": 3, "kept": 0} and newest["violation"] is None
    assert page["next"] is None and len(page["conversation"]) == 64
    # The id that it shows names the same conversation.
    assert await api.page(conversation=page["conversation"]) == page


async def test_citations_say_where_they_came_from(start: Start) -> None:
    api = await start()
    found = json.dumps([{"id": "c1", "text": "x", "title": "Manual", "url": "https://kb/m", "collection": "kb"}])
    await api.host.holds(question(1, "c1", found=found))
    ((citation,),) = [q["citations"] for q in (await api.page(conversation="conv-7"))["questions"]]
    assert citation == {
        "id": "c1", "table": "auto", "question": 1, "collection": "kb", "source": '"Manual" (https://kb/m)',
        "title": "Manual", "uri": "https://kb/m",
    }  # fmt: skip


async def test_no_content_is_shown(start: Start) -> None:
    api = await start()
    await api.host.holds(question(1, "a1"))
    assert b"A1 is long" not in (await api.get(conversation="conv-7")).body


async def test_pages_hold_every_question_once(start: Start) -> None:
    api = await start()
    await api.host.holds(*(question(number, f"a{number}") for number in range(1, 8)))
    numbers, after = [], {}
    while True:
        page = await api.page(conversation="conv-7", limit=3, **after)
        numbers += [q["number"] for q in page["questions"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert numbers == [7, 6, 5, 4, 3, 2, 1]


async def test_a_conversation_without_a_name_is_called_by_how_it_begins(start: Start) -> None:
    api = await start(("Evidence-Other", "x"))
    await api.host.holds(question(1, "a1"), question(2))
    assert (await api.page(conversation="conv-7"))["questions"] == []
    name = conversation_id(transcript(*question(1, "a1")))  # as `explain` prints it
    assert name is not None
    assert [q["number"] for q in (await api.page(conversation=name))["questions"]] == [2, 1]


async def test_promise_9_another_tenant_sees_nothing_by_any_id(start: Start) -> None:
    api = await start()
    await api.host.holds(question(1, "a1"), question(2))
    page = await api.page(conversation="conv-7", limit=1)
    for query in (
        {"conversation": "conv-7"},
        {"conversation": page["conversation"]},
        {"conversation": page["conversation"], "after": page["next"]},
        {"conversation": page["questions"][0]["id"]},
    ):
        seen = await api.get([OTHER], **query)
        assert seen.status == 200 and seen.json()["questions"] == [] and seen.json()["next"] is None


async def test_without_a_credential_it_asks_whose_records_are_meant(start: Start) -> None:
    api = await start()
    seen = await api.get([], conversation="conv-7")
    assert (seen.status, seen.json()["error"]["code"]) == (401, "tenant_needed")


async def test_the_admin_ports_own_token_is_no_tenant(start: Start) -> None:
    api = await start(guarded=True)
    await api.host.holds(question(1, "a1"))
    token = ("Authorization", "Bearer admin-token")
    assert (await api.get(conversation="conv-7")).status == 401  # a tenant's credential opens no admin port
    assert (await api.get([token], conversation="conv-7")).json()["error"]["code"] == "tenant_needed"
    seen = await api.get([token, ("Evidence-Tenant", CREDENTIAL[1])], conversation="conv-7")
    assert len(seen.json()["questions"]) == 1
    assert (await there(api.url, DOCUMENT, [])).status == 200  # the document is everybody's


@pytest.mark.parametrize("by", ["none", "header:X-Team"])
async def test_tenants_are_told_as_the_proxy_tells_them(start: Start, by: str) -> None:
    api = await start(NAMED, ("X-Team", "blue"), by=by)
    await api.host.holds(question(1, "a1"))
    blue: list[Any] = [("X-Team", "blue")]
    red: list[Any] = [("X-Team", "red")]
    assert len((await api.get(blue, conversation="conv-7")).json()["questions"]) == 1
    assert len((await api.get(red, conversation="conv-7")).json()["questions"]) == (1 if by == "none" else 0)


async def test_a_store_that_does_not_answer_is_said_to(start: Start) -> None:
    class Sick:
        async def newest(self, conversation: bytes, most: int) -> tuple[bytes, ...]:
            raise StoreError("hunter2")

    api = await start(store=Sick())
    seen = await api.get(conversation="x")
    assert (seen.status, seen.json()["error"]["code"]) == (503, "store_unavailable") and b"hunter2" not in seen.body


async def test_records_of_before_are_told_without_sources(start: Start) -> None:
    found = "[c1] [rank 1 of 1]\nContent:\none"
    record = settled(user("q"), *searched(found), *cited(["c1"]), tables=(HAIKU,))
    old = records.encode(msgspec.structs.replace(record, sources=()))

    class Old:
        async def newest(self, conversation: bytes, most: int) -> tuple[bytes, ...]:
            return (b"note1", b"damaged", old)

    api = await start(store=Old())
    (told,) = (await api.page(conversation="x"))["questions"]
    assert [(c["id"], c["source"]) for c in told["citations"]] == [("c1", None)]


async def test_the_document_is_openapi_and_says_what_there_is(start: Start) -> None:
    api = await start()
    assert api.document["openapi"].startswith("3.1") and list(api.document["paths"]) == [PATH]
    operation = api.document["paths"][PATH]["get"]
    assert {p["name"]: p["required"] for p in operation["parameters"]} == {
        "conversation": True,
        "limit": False,
        "after": False,
    }
    for schema in api.document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for parameter in operation["parameters"]:
        jsonschema.Draft202012Validator.check_schema(parameter["schema"])


WRONG: dict[str, dict[str, str]] = {
    "no conversation": {},
    "an empty one": {"conversation": ""},
    "a long one": {"conversation": "x" * 1001},
    "a limit of none": {"conversation": "x", "limit": "0"},
    "too large a limit": {"conversation": "x", "limit": "201"},
    "a limit that is no number": {"conversation": "x", "limit": "1e2"},
    "another kind of digit": {"conversation": "x", "limit": "٣"},
    "a cursor that is none": {"conversation": "x", "after": "../../etc/passwd"},
}


@pytest.mark.parametrize("query", WRONG.values(), ids=WRONG.keys())
async def test_what_the_document_forbids_is_refused(start: Start, query: dict[str, str]) -> None:
    api = await start()
    seen = await api.get(**query)
    assert (seen.status, seen.json()["error"]["code"]) == (400, "invalid_parameter")
    assert seen.json()["error"]["param"] in ("conversation", "limit", "after")


async def test_every_request_is_answered_as_the_document_says(start: Start) -> None:
    api = await start()
    await api.host.holds(question(1, "a1"))
    values = st.text(max_size=60) | st.sampled_from(
        ["conv-7", "1", "-1", "0" * 32, "f" * 64, "%00", "\0", "200", "\ud7ff"]
    )
    asked: list[tuple[dict[str, str], bool]] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(["conversation", "limit", "after", "x"]), values), st.booleans())
    def collect(query: dict[str, str], allowed: bool) -> None:
        asked.append((query, allowed))

    collect()
    parameters = {p["name"]: p for p in api.document["paths"][PATH]["get"]["parameters"]}
    for query, allowed in asked:
        target = f"{PATH}?{urlencode(query, quote_via=quote)}"
        seen = await there(api.url, target, [CREDENTIAL] if allowed else [])
        api.fits(seen)
        assert seen.status in ((200, 400) if allowed else (401,))
        if allowed:
            assert (seen.status == 200) == all(_holds(parameters[name], query.get(name)) for name in parameters), query


def _holds(parameter: dict[str, Any], value: str | None) -> bool:
    """Whether a value is one that the document allows for a parameter."""
    if value is None:
        return not parameter["required"]
    schema = parameter["schema"]
    told: Any = value
    if schema["type"] == "integer":
        if not (value.isascii() and value.isdigit() and len(value) <= 4):
            return False
        told = int(value)
    return jsonschema.Draft202012Validator(schema).is_valid(told)
