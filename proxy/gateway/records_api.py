"""`GET /api/questions` on the admin port: what was written down of one conversation's questions, for its own tenant.

A conversation's digest binds its tenant, so that an id which is another's leads nowhere; whose a request is says the
credential that it carries, as for the proxy itself. Ids and sources only: contents are never shown here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from aiohttp import web

from proxy import __version__
from proxy.gateway import headers
from proxy.gateway.access import ClientKeys, whose
from proxy.gateway.conversation import tenant_digest
from proxy.gateway.keeping import conversation_digest, ids_called
from proxy.ledger import records
from proxy.ledger.records import Declaration, Record
from proxy.settings import TenantSettings
from proxy.store import StoreError, StoreSlow

PATH = "/api/questions"
DOCUMENT = "/api/openapi.json"
WHOSE = "Evidence-Tenant"

_DEFAULT_LIMIT = 50
_MOST = 200
_LONGEST_ID = 1_000
_AT_FIRST = 256


class Citation(msgspec.Struct, frozen=True):
    """A chunk that the question cited. `source` is the line that the model saw, `question` the newest that cited it."""

    id: str
    table: str
    question: int
    collection: str | None = None
    source: str | None = None
    title: str | None = None
    uri: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """What became of the evidence up to the question: how many results are replaced from then on, and how many stay."""

    replaced: int
    kept: int


class Question(msgspec.Struct, frozen=True):
    """A question that settled. `number` counts those of the conversation, from 1.

    `asked` is whether the model was asked what grounds its answer, `violation` why that stayed undeclared.
    """

    id: str
    number: int
    declaration: Declaration
    citations: list[Citation]
    evidence: Evidence
    asked: bool = False
    violation: str | None = None


class Page(msgspec.Struct, frozen=True):
    """A conversation's questions, newest first. `next` is where the next page goes on; null on the last one."""

    conversation: str
    questions: list[Question]
    next: str | None = None


class Fault(msgspec.Struct, frozen=True):
    """Why a request was refused, and what to do."""

    message: str
    type: str
    code: str
    param: str | None = None


class Failed(msgspec.Struct, frozen=True):
    """An error, in OpenAI's shape."""

    error: Fault


class Records(Protocol):
    """Where the records are."""

    async def newest(self, conversation: bytes, most: int) -> tuple[bytes, ...]: ...


class Routes(Protocol):
    """The admin port."""

    def route(self, method: str, path: str, handler: Any, public: bool = False) -> None: ...


class RecordsApi:
    """Answers for one store. With `guarded`, the admin port keeps `Authorization` to itself."""

    def __init__(
        self, store: Records, tenant: TenantSettings, keys: ClientKeys | None = None, guarded: bool = False
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._keys = keys
        self._guarded = guarded

    def register(self, admin: Routes) -> None:
        """Answer on the admin port."""
        admin.route("GET", PATH, self.questions)
        admin.route("GET", DOCUMENT, self.document, public=True)

    async def document(self, _: web.Request) -> web.Response:
        """This API's OpenAPI document."""
        return web.Response(body=json.dumps(openapi(), indent=1).encode(), content_type="application/json")

    async def questions(self, request: web.Request) -> web.Response:
        """One page of a conversation's questions."""
        credential = self._credential(request.raw_headers)
        if credential is None:
            header = self._tenant.header or "Authorization"
            return _failed(
                401,
                "authentication_error",
                "tenant_needed",
                f"Whose records? Send the value of the {header} header that the conversation's requests carry, in "
                f"{WHOSE} or in the header itself.",
            )
        try:
            conversation, limit, after = _asked(request.query)
        except _Wrong as wrong:
            return _failed(400, "invalid_request_error", "invalid_parameter", str(wrong), wrong.parameter)
        tenant = tenant_digest(credential)
        try:
            pages = [await self._page(tenant, one, limit, after) for one in ids_called(conversation)]
        except (StoreError, StoreSlow):
            return _failed(
                503, "server_error", "store_unavailable", "The record store does not answer: /readyz says why."
            )
        page = next((page for page in pages if page.questions), pages[-1])
        return web.Response(body=msgspec.json.encode(page), content_type="application/json")

    def _credential(self, lines: headers.Headers) -> str | None:
        named = headers.value(lines, headers.TENANT)
        if named is not None:
            lines = (((self._tenant.header or "authorization").encode(), named.encode("latin-1", "replace")),)
        elif self._guarded:
            lines = tuple(line for line in lines if line[0].lower() != b"authorization")
        grant = self._keys.grant(lines) if self._keys is not None else None
        return whose(headers.by_name(lines), self._tenant, grant)

    async def _page(self, tenant: bytes, conversation: bytes, limit: int, after: str | None) -> Page:
        """The page after a question's id; all that there are is looked at only where nothing less holds it."""
        most = max(_AT_FIRST, limit + 1)
        while True:
            payloads = await self._store.newest(conversation_digest(tenant, conversation), most)
            found = [(_id(record), record) for one in payloads if (record := records.decode(one)) is not None]
            start = next((at + 1 for at, (name, _) in enumerate(found) if name == after), None if after else 0)
            enough = start is not None and len(found) > start + limit
            if enough or len(payloads) < most:
                break
            most *= 8
        shown = found[start : start + limit] if start is not None else []
        more = start is not None and len(found) > start + limit
        return Page(conversation.hex(), [_question(*one) for one in shown], shown[-1][0] if more else None)


class _Wrong(Exception):
    def __init__(self, parameter: str, why: str) -> None:
        super().__init__(why)
        self.parameter = parameter


def _asked(query: Mapping[str, str]) -> tuple[str, int, str | None]:
    """What a request asks for: the conversation, how many questions, and after which. Raises _Wrong."""
    conversation = query.get("conversation", "")
    if not conversation or len(conversation) > _LONGEST_ID:
        raise _Wrong(
            "conversation",
            f"Expected conversation: an Evidence-Conversation id, or the id that this API shows; 1 to {_LONGEST_ID} "
            "characters.",
        )
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= _MOST):
        raise _Wrong("limit", f"Expected limit to be a whole number from 1 to {_MOST}.")
    after = query.get("after")
    if after is not None and not (len(after) == 32 and set(after) <= set("0123456789abcdef")):
        raise _Wrong("after", "Expected after to be the next of an earlier page: 32 hexadecimal digits.")
    return conversation, int(limit), after


def _id(record: Record) -> str:
    return records.digest(record).hex()


def _question(name: str, record: Record) -> Question:
    verdict = record.verdict
    return Question(
        id=name,
        number=record.ordinal,
        declaration=record.declaration,
        citations=_citations(record),
        evidence=Evidence(replaced=len(record.replaced), kept=len(record.kept)),
        asked=verdict.asked if verdict is not None else False,
        violation=verdict.violation if verdict is not None else None,
    )


def _citations(record: Record) -> list[Citation]:
    """What this question cited; a record from before sources were written down says only ids and collections."""
    sources = {(one.table, one.collection, one.id): one for one in record.sources}
    cited = []
    for entry in record.cited:
        if entry.group == record.ordinal:
            known = sources.get((entry.table, entry.collection, entry.id))
            told = (known.source, known.title, known.uri) if known is not None else (None, entry.title, entry.uri)
            cited.append(Citation(entry.id, entry.table, entry.group, entry.collection, *told))
    return cited


def _failed(status: int, kind: str, code: str, message: str, parameter: str | None = None) -> web.Response:
    body = msgspec.json.encode(Failed(Fault(message, kind, code, parameter)))
    return web.Response(status=status, body=body, content_type="application/json")


def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document; its schemas are those of the values that are sent."""
    (page, failed), components = msgspec.json.schema_components(
        (Page, Failed), ref_template="#/components/schemas/{name}"
    )

    def answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": description, "content": {"application/json": {"schema": schema}}}

    def parameter(name: str, description: str, schema: dict[str, Any], required: bool = False) -> dict[str, Any]:
        return {"name": name, "in": "query", "description": description, "required": required, "schema": schema}

    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Evidence Proxy: records",
            "version": __version__,
            "description": "What was written down of a conversation's questions, for the tenant that they belong to.",
        },
        "paths": {
            PATH: {
                "get": {
                    "operationId": "listQuestions",
                    "summary": "A conversation's questions: declarations, citations and violations, newest first",
                    "parameters": [
                        parameter(
                            "conversation",
                            "The Evidence-Conversation id, or the id that this API shows",
                            {"type": "string", "minLength": 1, "maxLength": _LONGEST_ID},
                            required=True,
                        ),
                        parameter(
                            "limit",
                            "How many questions a page holds",
                            {"type": "integer", "minimum": 1, "maximum": _MOST, "default": _DEFAULT_LIMIT},
                        ),
                        parameter(
                            "after", "The `next` of the page before", {"type": "string", "pattern": "^[0-9a-f]{32}$"}
                        ),
                    ],
                    "security": [{"tenant": []}, {"authorization": []}],
                    "responses": {
                        "200": answer("A page of questions", page),
                        "400": answer("A parameter is missing or wrong", failed),
                        "401": answer("Nothing says whose records are meant, or the admin token is missing", failed),
                        "503": answer("The record store does not answer", failed),
                    },
                }
            }
        },
        "components": {
            "schemas": components,
            "securitySchemes": {
                "tenant": {"type": "apiKey", "in": "header", "name": WHOSE},
                "authorization": {"type": "apiKey", "in": "header", "name": "Authorization"},
            },
        },
    }
