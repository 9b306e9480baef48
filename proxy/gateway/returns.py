"""`POST /evidence/v1/returns`: what `proxy.tagging` does, for tools in any language, and what was tagged is kept.

A body of results comes in, ready tool content goes out. The return and its pictures are kept under the caller's tenant,
so that a conversation in which a host cut it short can still be told what it was. Nothing is ever fetched.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from proxy.evidence.pictures import MOST_BYTES, data_url
from proxy.evidence.tags import DIGITS, RETURN_OPENS, Keys
from proxy.gateway import errors
from proxy.gateway.threads import LARGE, aside
from proxy.ledger.aside import registered_name
from proxy.ledger.provenance import RegisteredPicture
from proxy.store import RecordStore, StoredRecord, StoreError, StoreSlow
from proxy.tagging import Picture, Result, Tagged, tag

log = logging.getLogger("evidence_proxy.returns")

MOST_RESULTS = 10_000
MOST_PICTURES = 500
#: How many returns that were cut short are looked up for one request, newest last.
MOST_LOOKED_UP = 64


class _Picture(msgspec.Struct, forbid_unknown_fields=True):
    data: str
    reference: str | None = None
    media_type: str = "image/png"


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    id: str | int
    content: str
    document_id: str | None = None
    title: str | None = None
    uri: str | None = None
    collection: str | None = None
    headings: list[str] = []
    pages: list[int | str] = []
    kind: str | None = None
    pictures: list[_Picture | str] = []


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    results: list[_Result]
    shape: Literal["text", "chat", "responses"] = "chat"


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A return as it was tagged, and its pictures: label, file, media type."""

    text: str
    pictures: tuple[tuple[str, bytes, str], ...] = ()


_decoder = msgspec.json.Decoder(_Asked)
_kept = msgspec.msgpack.Decoder(_Kept)


class Returns:
    """Tags results and keeps what it tagged; one per process."""

    def __init__(self, keys: Keys, contents: RecordStore) -> None:
        self._keys = keys
        self._contents = contents

    async def answer(self, body: bytes, tenant: bytes | None) -> errors.Answer:
        """The answer to a request. Without a tenant, what was tagged is not kept."""
        try:
            done, shape = await aside(len(body) >= LARGE, lambda: self._tagged(body))
        except _Refused as refused:
            return refused.answer
        if tenant is not None and len(done.text) > DIGITS:
            self._keep(done, tenant)
        content: Any = {"text": lambda: done.text, "chat": done.chat, "responses": done.responses}[shape]()
        answer = {
            "content": content,
            "text": done.text,
            "pictures": [{"label": picture.label, "url": picture.url} for picture in done.pictures],
        }
        return errors.Answer(200, json.dumps(answer, ensure_ascii=False).encode())

    def _tagged(self, body: bytes) -> tuple[Tagged, str]:
        try:
            asked = _decoder.decode(body)
        except msgspec.ValidationError as wrong:
            # Its message names types and places, never values.
            raise _Refused(str(wrong)) from None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise _Refused("expected a JSON object in UTF-8") from None
        if len(asked.results) > MOST_RESULTS:
            raise _Refused(f"expected at most {MOST_RESULTS} results in one return, but {len(asked.results)} came")
        pictures = [p for result in asked.results for p in result.pictures if not isinstance(p, str)]
        if len(pictures) > MOST_PICTURES:
            raise _Refused(f"expected at most {MOST_PICTURES} pictures in one return, but {len(pictures)} came")
        if any(len(picture.data) > MOST_BYTES * 4 // 3 + 200 for picture in pictures):
            raise _Refused(f"expected pictures of at most {MOST_BYTES} bytes each")
        try:
            return tag([_result(result) for result in asked.results], self._keys), asked.shape
        except ValueError as wrong:
            raise _Refused(str(wrong)) from None

    def _keep(self, done: Tagged, tenant: bytes) -> None:
        kept = _Kept(done.text, tuple((p.label, p.data, p.media_type) for p in done.pictures))
        payload = msgspec.msgpack.encode(kept)
        name = _tag(done.text)
        self._contents.add(StoredRecord(_key(tenant, name), tenant, registered_name(name), payload))

    async def registered(self, tenant: bytes, tags: Iterable[str]) -> dict[str, str]:
        """The whole returns that this tenant had tagged, by their tags. A store that does not answer knows none."""
        return {name: kept.text for name, kept in (await self._found(tenant, tags)).items()}

    async def pictures(self, tenant: bytes, tags: Iterable[str]) -> list[RegisteredPicture]:
        """The pictures that this tenant registered with these returns."""
        found = await self._found(tenant, tags)
        return [
            RegisteredPicture(label, data_url(data, media_type))
            for kept in found.values()
            for label, data, media_type in kept.pictures
        ]

    async def _found(self, tenant: bytes, tags: Iterable[str]) -> dict[str, _Kept]:
        keys = {_key(tenant, name): name for name in list(tags)[-MOST_LOOKED_UP:]}
        try:
            rows = await self._contents.find(list(keys))
        except (StoreSlow, StoreError):
            rows = self._contents.cached(list(keys))
        found: dict[str, _Kept] = {}
        for key, payloads in rows.items():
            for payload in payloads:
                try:
                    found[keys[key]] = _kept.decode(payload)
                except msgspec.MsgspecError:
                    log.warning("a kept return cannot be read; it counts as not kept")
        return found


def is_registered(name: bytes, payload: bytes) -> bool:
    """Whether a content is a registered return of this name."""
    try:
        return registered_name(_tag(_kept.decode(payload).text)) == name
    except msgspec.MsgspecError:
        return False


class _Refused(Exception):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.answer = errors.shaped(
            400, f"Evidence Proxy could not tag these results: {why}.", "invalid_request_error", "invalid_results"
        )


def _result(given: _Result) -> Result:
    return Result(
        id=str(given.id),
        content=given.content,
        document_id=given.document_id,
        title=given.title,
        uri=given.uri,
        collection=given.collection,
        headings=given.headings,
        pages=given.pages,
        kind=given.kind,
        pictures=[p if isinstance(p, str) else Picture(p.data, p.reference, p.media_type) for p in given.pictures],
    )


def _tag(text: str) -> str:
    start = len(f"{RETURN_OPENS}1 ")
    return text[start : start + DIGITS]


def _key(tenant: bytes, name: str) -> bytes:
    return hashlib.sha256(b"registered return\0" + tenant + name.encode()).digest()
