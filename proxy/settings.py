"""What can be set, where a value came from, and what is said when it is wrong.

Here live the settings models (frozen, nothing unknown accepted) and `load`, which reads them from flags, environment,
a TOML file and defaults, in this order of precedence. Nothing here opens a socket or touches the data directory.
A refusal is written for the person who typed the value: which key, what came, what is allowed, and where it stands.
"""

from __future__ import annotations

import difflib
import importlib.util
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from annotated_types import Ge, Le
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from proxy.evidence import tables
from proxy.ledger.questions import CONTINUATION_PREFIXES

ENV_PREFIX = "EVIDENCE_PROXY_"

_REMOTE_STORES = ("s3", "gs", "az", "db")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_FIELDS = tables.FieldNames()

Port = Annotated[int, Field(ge=0, le=65535)]
#: A time limit; 0 is none.
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class SettingsError(Exception):
    """The settings were refused. `str()` is what to print: one line per wrong value, nothing secret."""


class Section(BaseModel):
    """One table of the settings file. Strict, so that `port = true` is a mistake and not port 1.

    A key's description is its meaning in docs/configuration.md, which `make reference` writes; `unset` is what is said
    there where the default is no value but follows from something else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class ServerSettings(Section):
    """Where the proxy listens, how much it takes on at once, how long it waits for clients. 0 seconds: for ever."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: Port = Field(default=8080, description="port to listen on; 0 takes a free one, which the log names")
    admin_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address of the admin port; any other than this machine's own needs `admin_token_env`",
    )
    admin_port: Port = Field(
        default=8081,
        description=(
            "port of `/metrics` and the inspector; 0 takes a free one, which the log names. Where nothing sets it "
            "and another process has 8081, a free one is taken, too"
        ),
    )
    admin_token_env: str | None = Field(
        default=None,
        description=(
            "the *name* of an environment variable with a token of at least 16 characters, which everything on the "
            "admin port but `/metrics` then needs: `Authorization: Bearer TOKEN`, or in a browser as the password"
        ),
    )
    unix_socket: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        description="listen on this unix socket instead of `host` and `port`",
    )
    workers: int = Field(default=1, ge=1, le=256, description="processes that share the port; also `--workers`")
    keys_env: str | None = Field(
        default=None,
        description=(
            "the *name* of an environment variable with the keys that clients must show ([how they are "
            "written](gateway.md#who-may-use-it))"
        ),
    )
    keys_file: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        description="a file with them instead, read again on SIGHUP",
    )
    allow_anyone: bool = Field(
        default=False,
        description="listen beyond this machine without such keys; also `--allow-anyone`",
    )
    max_body_bytes: int = Field(
        default=67_108_864,
        ge=1024,
        description=(
            "larger bodies of conversations are answered with 413, measured as they come and after decompression"
        ),
    )
    max_header_bytes: int = Field(
        default=65_536,
        ge=1024,
        description="a larger request line with its headers is answered with 431",
    )
    max_requests: int = Field(
        default=4096,
        ge=1,
        description="requests that are at the provider at once; more are answered with 503 and `Retry-After`",
    )
    max_bytes_in_flight: int = Field(
        default=1_073_741_824,
        ge=1024,
        description="bytes of request bodies held at once; more are answered with 503 and `Retry-After`",
    )
    header_seconds: Seconds = Field(default=30, description="from the first byte of a request's head to its last")
    body_seconds: Seconds = Field(
        default=60,
        description="without a byte of a request's body, or in all where it comes slower than 500 bytes a second",
    )
    send_seconds: Seconds = Field(default=300, description="the same for a client that does not take its reply")
    keep_alive_seconds: Seconds = Field(default=75, description="an open connection without a request")
    comment_seconds: Seconds = Field(
        default=0,
        description="write a comment into an event stream when the provider was silent for so long; 0: never",
    )
    drain_seconds: Seconds = Field(default=30, description="how long streams may go on after SIGTERM")

    @model_validator(mode="after")
    def _one_request_fits(self) -> ServerSettings:
        if self.max_bytes_in_flight < self.max_body_bytes:
            raise ValueError(
                f"max_bytes_in_flight = {self.max_bytes_in_flight}: expected at least max_body_bytes "
                f"({self.max_body_bytes}), or the largest request could never be served"
            )
        return self

    @model_validator(mode="after")
    def _one_place_for_keys(self) -> ServerSettings:
        if self.keys_env is not None and self.keys_file is not None:
            raise ValueError("keys_file: expected keys_env or keys_file, not both")
        return self

    @field_validator("admin_token_env", "keys_env")
    @classmethod
    def _a_variable_name(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE_NAME.fullmatch(value):
            raise ValueError(
                "expected the *name* of an environment variable (letters, digits, underscores) that holds the secret"
            )
        return value


class UpstreamSettings(Section):
    """Whom the proxy asks. `base_url` carries no credentials and no query; it is kept without a trailing slash."""

    base_url: str = Field(
        default="https://api.openai.com/v1",
        description="the provider; a leading `/v1` of a request's path is replaced by this path",
    )
    api_key_env: str | None = Field(
        default=None,
        description=(
            "the *name* of an environment variable with the provider's key; without it the client's `Authorization` "
            "is passed on"
        ),
    )
    api_key_file: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        description="a file with that key instead, read again on SIGHUP",
    )
    ca_file: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        description="certificates (PEM) to trust beside the system's; there is no way to switch the check off",
    )
    connect_seconds: Seconds = Field(default=15, description="for a connection to the provider")
    first_byte_seconds: Seconds = Field(
        default=1200,
        description="from the end of the request to the head of the reply",
    )
    idle_seconds: Seconds = Field(
        default=600,
        description="for the next bytes of a reply, or for the provider to take the next bytes of an upload",
    )

    @model_validator(mode="after")
    def _one_place_for_the_key(self) -> UpstreamSettings:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("api_key_file: expected api_key_env or api_key_file, not both")
        return self

    @field_validator("base_url")
    @classmethod
    def _a_plain_address(cls, value: str) -> str:
        expected = 'expected an address like "https://api.openai.com/v1"'
        if any(ord(c) <= 32 or ord(c) == 127 for c in value):
            raise ValueError(f"{expected}, without spaces or control characters")
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018 - reading it is what checks it
        except ValueError as wrong:
            raise ValueError(f"{expected}; this is no address: {wrong}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{expected}, with http:// or https:// and a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"{expected}, without credentials: name their variable in upstream.api_key_env")
        if "?" in value or "#" in value:
            raise ValueError(f"{expected}, without a query or fragment: clients send their own query")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _a_variable_name(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE_NAME.fullmatch(value):
            raise ValueError(
                "expected the *name* of an environment variable (letters, digits, underscores) that holds the key"
            )
        return value


class CompactionSettings(Section):
    """Whether and how earlier evidence is replaced."""

    mode: Literal["on", "observe", "off"] = Field(
        default="on",
        description='`"observe"` decides and records everything but changes nothing; `"off"` only forwards',
    )
    layout: Literal["single", "append"] = Field(
        default="single",
        description=(
            'one capsule, on the newest earlier result; `"append"`: each question\'s newest result keeps what was '
            "cited there first, so that the provider's prompt cache holds ([which one costs less](costs.md)). Either "
            "reads the records of the other"
        ),
    )
    strict: bool = Field(
        default=False,
        description=(
            "refuse with 422 where evidence of answered questions cannot be compacted for want of a record, of "
            "content, or of the store"
        ),
    )


class PolicySettings(Section):
    """Whether answers must declare what grounds them; what counts as the end of a question, and what continues one."""

    mode: Literal["off", "record", "enforce"] = Field(
        default="off",
        description=(
            '`"record"`: decide for every answer whether it must [declare what grounds it](policy.md), count and '
            'record it, and change no reply. `"enforce"`: hold an answer that would end undeclared, and ask the '
            "model once"
        ),
    )
    redirect_timeout_ms: int = Field(
        default=30_000,
        ge=1,
        description="how long that question to the model may take; after it the answer goes out as it is",
    )
    keep_alive_ms: int = Field(
        default=1_000,
        ge=1,
        description="how often a client that waits for a held stream is sent a comment line",
    )
    output_tools: Names = Field(
        default=("final_result",),
        description="tools whose call is the answer itself, as frameworks do for structured output",
    )
    continuation_prefixes: Names = Field(
        default=CONTINUATION_PREFIXES,
        description=(
            "how a user message begins that asks for a correction and does not open a question; `{n}` is any number, "
            "and a text in brackets may stand anywhere"
        ),
    )
    managed_rounds: int = Field(
        default=3,
        ge=1,
        le=20,
        description='with `cite = "managed"`: how many requests beside the client\'s own one reply may take',
    )
    managed_tokens: int = Field(default=8000, ge=0, description="about how many tokens these may add to the request")


class StoreSettings(Section):
    """Where records are kept, and for how long."""

    uri: str | None = Field(
        default=None,
        description=(
            "a local path in place of `data_dir`; an address that several replicas share: `s3://`, `gs://`, `az://` "
            'or `db://` (see [the store](store.md)); or `"memory://"`, which keeps nothing on disk'
        ),
    )
    data_dir: Annotated[Path, Field(strict=False)] | None = Field(
        default=None,
        json_schema_extra={"unset": "`~/.local/share/evidence-proxy`"},
        description="where the records are kept (`$XDG_DATA_HOME` is respected); also `--data`",
    )
    retention_days: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="forget records that are older; without it they stay",
    )
    read_timeout_ms: int = Field(
        default=250,
        ge=1,
        description="how long a request waits for its records before it goes up untouched (`store-slow`)",
    )
    records_cache_bytes: int = Field(
        default=16_777_216,
        ge=0,
        description="what a process holds of the records that it wrote or read; as much again of those that it decoded",
    )
    contents_cache_bytes: int = Field(
        default=16_777_216,
        ge=0,
        description="what it holds of what tools registered: texts and pictures",
    )
    queue_bytes: int = Field(
        default=67_108_864,
        ge=65_536,
        description=(
            "what may wait to be written while the store is slow or broken, for each of its tables; past that the "
            "oldest is shed and counted"
        ),
    )
    close_grace_ms: int = Field(default=20_000, ge=0, description="how long SIGTERM waits for what is not written yet")

    @field_validator("uri")
    @classmethod
    def _a_place(cls, value: str | None) -> str | None:
        expected = 'expected "memory://", a local path, or an address like "s3://bucket/path" (gs://, az://, db://)'
        if value is None or value == "memory://":
            return value
        if not value.strip():
            raise ValueError(expected)
        scheme, found, _ = value.partition("://")
        if not found:
            return value
        if scheme not in _REMOTE_STORES:
            raise ValueError(expected)
        try:
            parts = urlsplit(value)
        except ValueError:
            raise ValueError(expected) from None
        if not parts.hostname or any(ord(c) <= 32 or ord(c) == 127 for c in value):
            raise ValueError(f"{expected}, with a name after {scheme}:// and without spaces")
        if parts.username is not None or parts.password is not None or "?" in value or "#" in value:
            raise ValueError(
                f"{expected}, without credentials or options: those come from the environment or the platform"
            )
        return value

    @property
    def address(self) -> str | None:
        """Where the tables lie if it is no local directory: an address, or `memory://`; None for a local one."""
        return self.uri if self.uri is not None and "://" in self.uri else None

    @property
    def directory(self) -> Path | None:
        """The local directory of the tables, or None when they lie elsewhere or in memory only."""
        if self.address is not None:
            return None
        if self.uri is not None:
            return Path(self.uri).expanduser()
        if self.data_dir is not None:
            return self.data_dir.expanduser()
        home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
        return Path(home).expanduser() / "evidence-proxy"


class TenantSettings(Section):
    """Who a request belongs to."""

    by: str = Field(
        default="authorization",
        description=(
            "whose records these are: the request's credential (`Authorization`, `api-key`, `x-api-key`); "
            '`"header:NAME"`, a header that your own gateway sets; `"none"`, everyone is one'
        ),
    )

    @field_validator("by")
    @classmethod
    def _a_known_source(cls, value: str) -> str:
        if value in ("authorization", "none"):
            return value
        kind, found, name = value.partition(":")
        if kind == "header" and found and _HEADER_NAME.fullmatch(name):
            return value
        raise ValueError('expected "authorization", "none" or "header:NAME" with the name of a request header')

    @property
    def header(self) -> str | None:
        """The header that `by = "header:NAME"` names, in lower case; None for the other sources."""
        kind, found, name = self.by.partition(":")
        return name.lower() if found and kind == "header" else None


class TagsSettings(Section):
    """With which keys tags are signed. Without `key_env` a key is made and kept in the data directory."""

    key_env: str | None = Field(
        default=None,
        description=(
            "the *name* of an environment variable that holds the keys of [tags](tags.md), with commas between; the "
            "first signs, all verify. Without it a key is made at first start and kept in the file `tag-keys` of the "
            "data directory"
        ),
    )

    @field_validator("key_env")
    @classmethod
    def _a_variable_name(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE_NAME.fullmatch(value):
            raise ValueError(
                "expected the *name* of an environment variable (letters, digits, underscores) that holds the keys"
            )
        return value


class InspectorSettings(Section):
    """What the inspector on the admin port shows and remembers. It writes nothing to disk."""

    content: bool = Field(
        default=False,
        description="`true` also shows what messages hold; without it sizes, ids and digests",
    )
    requests: int = Field(default=5000, ge=10, le=100_000, description="how many of the newest requests are listed")
    memory_bytes: int = Field(
        default=67_108_864,
        ge=1_048_576,
        description=(
            "how much their accounts and contents may take, compressed; the ones looked at longest ago go first"
        ),
    )


class FieldNames(Section):
    """Under which names `auto` looks for the parts of a chunk, the first that is there wins."""

    id: Names = Field(default=_FIELDS.id, description="what it is cited by")
    content: Names = Field(default=_FIELDS.content, description="its text")
    title: Names = Field(default=_FIELDS.title, description="the title of its document")
    uri: Names = Field(default=_FIELDS.uri, description="where its document is")
    collection: Names = Field(default=_FIELDS.collection, description="the collection of its document")
    headings: Names = Field(default=_FIELDS.headings, description="the headings above it")
    pages: Names = Field(default=_FIELDS.pages, description="the pages that it stands on")


class TracesSettings(Section):
    """Whether requests are traced. Everything else about it is said by OpenTelemetry's own variables."""

    enabled: bool = Field(
        default=False,
        description=(
            'trace requests with OpenTelemetry; needs `pip install "evidence-proxy[traces]"` '
            "([metrics.md](metrics.md#traces))"
        ),
    )


Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PriceRow(Section):
    """One `[[prices]]` table: what a million tokens of some models cost, in whatever currency."""

    model: str = Field(min_length=1, description='the models\' name, `*` stands for anything: `"gpt-5*"`')
    input: Price = Field(description="input tokens")
    cached_input: Price | None = Field(
        default=None,
        json_schema_extra={"unset": "as `input`"},
        description="input tokens that the provider says its cache gave",
    )
    output: Price = Field(default=0, description="output tokens")


#: What a key of an `[[evidence]]` table is where it is left out, for each format.
DEFAULTS_BY_FORMAT: dict[str, dict[str, Any]] = {
    "haiku": {"tools": ("search", "execute_code"), "cite": "cite", "undeclared": "receipt"},
    "auto": {"undeclared": "keep"},
    "tagged": {"tools": (), "cite": "cite", "undeclared": "receipt"},
}


class EvidenceTable(Section):
    """One `[[evidence]]` table: what to recognise as evidence, and how it is cited."""

    format: Literal["haiku", "auto", "tagged"] = Field(
        description=(
            '`"auto"`: JSON, or text with `[id]` at the start of a line; `"haiku"`: haiku.rag\'s text; `"tagged"`: '
            "what a [tag](tags.md) proves"
        ),
    )
    name: str = Field(
        default="",
        min_length=1,
        json_schema_extra={"unset": "the format"},
        description="tells tables apart",
    )
    tools: Names = Field(
        default=(),
        validate_default=True,
        description="whose results are evidence; required for `auto`, none for `tagged`",
    )
    cite: str | None = Field(
        default=None,
        description=(
            'the cite tool\'s name; `"inline"`: ids in brackets in the answer; `"managed"`: [the proxy\'s own '
            "tool](policy.md), for agents that have none; without it nothing of this table is compacted"
        ),
    )
    ids: Literal["global", "local", "auto"] = Field(
        default="auto",
        description=(
            '`"global"`: an id means one chunk everywhere; `"local"`: only together with its content; `"auto"`: ids '
            "of digits are local"
        ),
    )
    undeclared: Literal["keep", "receipt"] = Field(
        default="keep",
        description="what becomes of the evidence of a question that was answered without citing",
    )
    database: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "for `haiku`: a haiku.rag database (a path, or an address of LanceDB's), read for titles, URIs and "
            "pictures of what was cited: [how](haiku-database.md)"
        ),
    )
    fields: FieldNames = Field(
        default=FieldNames(),
        json_schema_extra={"unset": "see below"},
        description="under which JSON keys `auto` finds the parts of a chunk",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_format(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        kind = given.get("format")
        if not isinstance(kind, str) or kind not in DEFAULTS_BY_FORMAT:
            # The wrong format is the one thing to say; without these two the reader would hear of more faults.
            return {"name": "?", "tools": ("?",), **given}
        return {
            "name": kind,
            **DEFAULTS_BY_FORMAT[kind],
            **{k: v for k, v in given.items() if v is not None or k == "cite"},
        }

    @field_validator("tools")
    @classmethod
    def _at_least_one(cls, tools: tuple[str, ...], told: ValidationInfo) -> tuple[str, ...]:
        if told.data.get("format") == "tagged":
            if tools:
                raise ValueError("expected none: the tag itself tells what is evidence, whichever tool it comes from")
            return ()
        if not tools or not all(tools):
            raise ValueError('expected the name of at least one tool whose returns are evidence, like ["search"]')
        return tuple(dict.fromkeys(tools))

    @field_validator("cite")
    @classmethod
    def _a_way_to_cite(cls, cite: str | None) -> str | None:
        if cite is not None and not cite.strip():
            raise ValueError('expected the name of a cite tool, "inline" or "managed"; leave the key out for none')
        return cite

    @model_validator(mode="after")
    def _fields_are_read(self) -> EvidenceTable:
        if self.format != "auto" and "fields" in self.model_fields_set:
            raise ValueError('fields is read by format = "auto" only; remove it from this table')
        return self

    @model_validator(mode="after")
    def _a_database_is_haiku_rags(self) -> EvidenceTable:
        if self.database is not None and self.format != "haiku":
            raise ValueError('database is read by format = "haiku" only; remove it from this table')
        if self.database is not None and "://" in self.database and "@" in self.database.split("://", 1)[1]:
            raise ValueError("database must not carry credentials; they come from the environment or the platform")
        return self

    @model_validator(mode="after")
    def _tagged_ids_are_global(self) -> EvidenceTable:
        if self.format == "tagged" and self.ids == "local":
            raise ValueError('ids of tagged evidence are "global"; remove it from this table')
        return self


class Settings(BaseModel):
    """All settings. `Settings()` is the defaults and reads nothing; `load` reads file, environment and flags."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    server: ServerSettings = Field(default_factory=ServerSettings)
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings)
    compaction: CompactionSettings = Field(default_factory=CompactionSettings)
    policy: PolicySettings = Field(default_factory=PolicySettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    tenant: TenantSettings = Field(default_factory=TenantSettings)
    tags: TagsSettings = Field(default_factory=TagsSettings)
    inspector: InspectorSettings = Field(default_factory=InspectorSettings)
    traces: TracesSettings = Field(default_factory=TracesSettings)
    prices: list[PriceRow] = Field(default_factory=list)
    evidence: list[EvidenceTable] = Field(default_factory=list)

    @field_validator("evidence")
    @classmethod
    def _tables_apart(cls, tables: list[EvidenceTable]) -> list[EvidenceTable]:
        owner: dict[str, str] = {}
        for table in tables:
            if (table.name == "tagged") != (table.format == "tagged"):
                raise ValueError(
                    f'the table "{table.name}" has the format "{table.format}": the name "tagged" belongs to the '
                    'format "tagged", of which there is one table'
                )
            if any(table.name == other.name for other in tables if other is not table):
                raise ValueError(f'two tables are called "{table.name}"; give each [[evidence]] its own name')
            for tool in table.tools:
                if tool in owner:
                    raise ValueError(
                        f'tools: "{tool}" stands in the tables "{owner[tool]}" and "{table.name}"; '
                        "a tool belongs to one table"
                    )
                owner[tool] = table.name
        return tables


Key = tuple[str | int, ...]

# A credential is easily typed into these by mistake, so what came is not always repeated.
_UNSHOWN = frozenset(
    {
        ("upstream", "base_url"),
        ("upstream", "api_key_env"),
        ("tags", "key_env"),
        ("server", "admin_token_env"),
        ("server", "keys_env"),
        ("store", "uri"),
    }
)


@dataclass(frozen=True)
class _Source:
    """Values from one place. `where` names the place of a key as its writer knows it."""

    values: dict[str, Any]
    place: str
    named: Mapping[Key, str]

    def where(self, key: Key) -> str | None:
        """The place of `key` if this source gave it (or a table around it), else None."""
        at: Any = self.values
        for part in key:
            if isinstance(at, Mapping) and part in at:
                at = at[str(part)]
            elif isinstance(at, list) and isinstance(part, int) and part < len(at):
                at = at[part]
            elif isinstance(at, (Mapping, list)) and at is not self.values and len(key) > 2:
                break  # a key that is missing from a table which this source gave
            else:
                return None
        return next((self.named[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.named), self.place)


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings from flags (dotted key -> value), `EVIDENCE_PROXY_*` variables, the file, and defaults.

    `flags` may give a key as `(flag, value)`, so that a refusal names the flag. Raises `SettingsError` for a file that
    is missing or not TOML, an unknown key, a wrong value, or an `upstream.api_key_env` whose variable is empty.
    """
    environ = os.environ if environ is None else environ
    sources = [_from_flags(flags or {}), _from_environment(environ), _from_file(file)]

    given: dict[str, Any] = {}
    for source in sources:
        given = _under(given, source.values)
    try:
        settings = Settings.model_validate(given)
    except ValidationError as refused:
        raise SettingsError("\n".join(_explain(error, sources) for error in _faults(refused))) from None
    try:
        upstream_key(settings, environ)
    except SettingsError as empty:
        key = ("upstream", "api_key_env")
        place = next((place for source in sources if (place := source.where(key)) is not None), "settings")
        raise SettingsError(f"{place}: {empty}") from None
    return settings


def _under(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, tables within tables; where both give a value, that of `first`."""
    both = {**second, **first}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            both[key] = _under(first[key], second[key])
    return both


def upstream_key(settings: Settings, environ: Mapping[str, str] | None = None) -> str | None:
    """The key that `upstream.api_key_env` or `upstream.api_key_file` names, or None when none is named.

    Raises `SettingsError` when the variable is unset, empty or cannot stand in a header, and when the file cannot be
    read; the key is never shown.
    """
    name, file = settings.upstream.api_key_env, settings.upstream.api_key_file
    if name is None and file is None:
        return None
    if file is not None:
        try:
            key = file.expanduser().read_text().strip()
        except (OSError, UnicodeError) as failed:
            raise SettingsError(
                f"upstream.api_key_file = {json.dumps(str(file))} cannot be read ({type(failed).__name__}): "
                "expected a file that holds the key and nothing else"
            ) from None
    else:
        key = (os.environ if environ is None else environ).get(name or "", "").strip()
    if not key and file is None:
        # Not even the name is repeated: a key pasted there by mistake looks like one.
        raise SettingsError(
            "upstream.api_key_env names an environment variable that is unset or empty: "
            "export the key there, or remove the setting to pass the clients' own Authorization through"
        )
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        holder = "the file" if file is not None else "the variable"
        setting = "upstream.api_key_file" if file is not None else "upstream.api_key_env"
        raise SettingsError(
            f"{holder} that {setting} names holds something that cannot stand in a header: "
            "expected a key of printable ASCII characters without spaces"
        )
    return key


def admin_token(settings: Settings, environ: Mapping[str, str] | None = None) -> str | None:
    """The token that `server.admin_token_env` names, or None when none is named.

    Raises `SettingsError` when its variable is unset or too short to keep anybody out, and when the admin port would
    listen beyond this machine without one.
    """
    server = settings.server
    if server.admin_token_env is None:
        if is_loopback(server.admin_host):
            return None
        raise SettingsError(
            f"server.admin_host = {json.dumps(server.admin_host)} listens beyond this machine, and "
            "server.admin_token_env is missing: export a token (openssl rand -hex 32 makes one) and name its variable "
            "there, or listen on 127.0.0.1"
        )
    token = (os.environ if environ is None else environ).get(server.admin_token_env, "").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            "server.admin_token_env names an environment variable that is unset, or holds no token: expected at least "
            "16 printable ASCII characters without spaces (openssl rand -hex 32 makes one)"
        )
    return token


def traces_are_possible(settings: Settings) -> None:
    """Raises `SettingsError` where traces are wanted, and what makes them is not installed."""
    if not settings.traces.enabled:
        return
    try:
        for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
            if importlib.util.find_spec(module) is None:
                raise ModuleNotFoundError(name=module)
    except ModuleNotFoundError:
        raise SettingsError(
            'traces.enabled needs OpenTelemetry: pip install "evidence-proxy[traces]", or set it to false'
        ) from None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name other than `localhost` may be anything."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _from_flags(flags: Mapping[str, Any]) -> _Source:
    values: dict[str, Any] = {}
    named: dict[Key, str] = {}
    for dotted, given in flags.items():
        flag, value = given if isinstance(given, tuple) else (dotted, given)
        if value is None:
            continue
        section, _, key = dotted.partition(".")
        values.setdefault(section, {})[key] = value
        named[(section, key)] = flag
    return _Source(values, "flags", named)


def _from_environment(environ: Mapping[str, str]) -> _Source:
    values: dict[str, Any] = {}
    named: dict[Key, str] = {}
    name_keys = ("UPSTREAM__API_KEY_ENV", "TAGS__KEY_ENV", "SERVER__ADMIN_TOKEN_ENV")
    hold_keys = {environ.get(f"{ENV_PREFIX}{name}") for name in name_keys}
    for variable, text in sorted(environ.items()):
        if not variable.upper().startswith(ENV_PREFIX) or variable in hold_keys:
            continue
        section, delimited, key = variable[len(ENV_PREFIX) :].lower().partition("__")
        if not delimited:
            if section in Settings.model_fields:
                values[section] = _typed(text, _field((section,)))
                named[(section,)] = variable
            continue  # a name without `__` is no key: hosts keep variables of their own under this prefix
        table = values.setdefault(section, {})
        if isinstance(table, dict):
            table[key] = _typed(text, _field((section, key)))
            named[(section, key)] = variable
            named.setdefault((section,), variable)
    return _Source(values, "environment", named)


def _typed(text: str, field: FieldInfo | None) -> Any:
    """An environment variable is text; give it the type that its field expects, or leave it for the refusal."""
    if field is None:
        return text
    kinds = _alternatives(field.annotation)
    if bool in kinds:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    for number in (int, float):
        if number in kinds:
            try:
                return number(text)
            except ValueError:
                return text
    if any(get_origin(kind) in (tuple, list) for kind in kinds):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _from_file(file: Path | None) -> _Source:
    if file is None:
        return _Source({}, "defaults", {})
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        raise SettingsError(f"{file}: no such file; --config expects a TOML file") from None
    except UnicodeDecodeError as wrong:
        raise SettingsError(f"{file}: not UTF-8 at byte {wrong.start}; --config expects a TOML file") from None
    except OSError as wrong:
        raise SettingsError(f"{file}: cannot be read ({wrong.strerror or type(wrong).__name__})") from None
    try:
        return _Source(tomllib.loads(text), str(file), {})
    except tomllib.TOMLDecodeError as wrong:
        raise SettingsError(f"{file}: not TOML: {wrong}") from None


def _faults(refused: ValidationError) -> list[ErrorDetails]:
    return refused.errors(include_url=False)


def _explain(error: ErrorDetails, sources: Sequence[_Source]) -> str:
    """One line: place, key, what came, what is allowed."""
    key: Key = error["loc"]
    plain = tuple(str(part) for part in key if not isinstance(part, int))
    place = next((place for source in sources if (place := source.where(key)) is not None), "settings")
    shown = _dotted(key)
    if error["type"] == "extra_forbidden":
        return f"{place}: unknown key {shown}; {_neighbours(key)}"
    if error["type"] == "missing":
        return f"{place}: {shown} is missing: expected {_expected(_field(plain))}"
    if error["type"] == "value_error":
        said = str(error["ctx"]["error"])
        if said.startswith(("fields ", "ids ", "tools: ", "max_bytes_in_flight ", "keys_file: ", "api_key_file: ")):
            return f"{place}: {shown}.{said}"
        if said.startswith(("two tables ", "the table ")):
            return f"{place}: {shown}: {said}"
    else:
        said = f"expected {_expected(_field(plain))}"
    if plain[:2] in _UNSHOWN and _may_be_a_credential(plain, error["input"]):
        return f"{place}: {shown} (not shown, since it may hold a credential): {said}"
    return f"{place}: {shown} = {_came(error['input'])}: {said}"


def _may_be_a_credential(plain: tuple[str, ...], value: Any) -> bool:
    names_a_secret = plain[-1].endswith(("key_env", "keys_env", "token_env"))
    return isinstance(value, str) and (names_a_secret or "@" in value or "?" in value)


def _dotted(key: Key) -> str:
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _came(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _neighbours(key: Key) -> str:
    parent = tuple(str(part) for part in key[:-1] if not isinstance(part, int))
    model = _model(parent)
    known = list(model.model_fields) if model is not None else []
    near = difflib.get_close_matches(str(key[-1]), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}expected one of {', '.join(known)}"


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for part in get_args(annotation) for kind in _alternatives(part))
    return (annotation,)


def _model(path: Sequence[str]) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            return None
        inner = [arg for kind in _alternatives(field.annotation) for arg in (get_args(kind) or (kind,))]
        models = [kind for kind in inner if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not models:
            return None
        model = models[0]
    return model


def _field(path: Sequence[str]) -> FieldInfo | None:
    model = _model(path[:-1])
    return model.model_fields.get(path[-1]) if model is not None else None


def _expected(field: FieldInfo | None) -> str:
    """The allowed values in words, read off the field itself, so that no second list can go stale."""
    if field is None:
        return "a table"
    words: list[str] = []
    for kind in _alternatives(field.annotation):
        if kind is NoneType:
            continue
        if get_origin(kind) is Literal:
            words += [json.dumps(value) for value in get_args(kind)]
        elif kind is bool:
            words.append("true or false")
        elif kind in (int, float):
            words.append(_bounds(field, "a whole number" if kind is int else "a number"))
        elif get_origin(kind) is tuple:
            words.append('a list of texts, like ["a", "b"]')
        elif get_origin(kind) is list:
            words.append("a list of tables")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            words.append(f"a table with the keys {', '.join(kind.model_fields)}")
        elif kind is Path:
            words.append("the path of a directory")
        else:
            words.append("a text that is not empty")
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _bounds(field: FieldInfo, number: str) -> str:
    limits = list(field.metadata)
    for part in get_args(field.annotation):
        if get_origin(part) is Annotated:
            limits += [m for arg in get_args(part)[1:] for m in (arg.metadata if isinstance(arg, FieldInfo) else [arg])]
    low = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    high = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    if low is not None and high is not None:
        return f"{number} from {low} to {high}"
    return f"{number} of at least {low}" if low is not None else number
