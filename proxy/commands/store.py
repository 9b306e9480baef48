"""`evidence-proxy store ...`: look after what the proxy keeps. Servers may run meanwhile, any number of them."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from proxy.ledger.transcript import Transcript
    from proxy.settings import Settings
    from proxy.store.lance import Lance
    from proxy.store.place import Place
    from proxy.store.record import StoredRow

T = TypeVar("T")

_REFUSED = 2
_FAILED = 1
#: Two looks of a reader are half a second apart; nobody works on a version that is older than this.
_READERS_ARE_GONE_AFTER = 1.5

store = typer.Typer(
    name="store",
    no_args_is_help=True,
    help="Look after the records: what there is, whether it is whole, moving it, and erasing people's data.",
)

Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as `serve` takes them.")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="The directory that `serve --data` was given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Stopped(Exception):
    """The command cannot go on. `str()` says why, and what to do."""


@store.command()
def stats(config: Config = None, data: Data = None, as_json: AsJson = False) -> None:
    """Say what the store holds: rows, tenants, conversations, ages and bytes of each table."""
    found = _run(_stats(config, data))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.table import Table

    shown = Table("table", "rows", "tenants", "conversations", "content", "oldest", "newest", "damaged", box=None)
    for name, one in found["tables"].items():
        shown.add_row(
            name,
            f"{one['rows']:,}",
            f"{one['tenants']:,}",
            f"{one['conversations']:,}",
            _size(one["payload_bytes"]),
            one["oldest"] or "-",
            one["newest"] or "-",
            f"{one['damaged']:,}",
        )
    console = _console()
    console.print(shown)
    on_disk = found["disk_bytes"]
    console.print(f"{found['place']}: layout {found['schema']}" + (f", {_size(on_disk)} on disk" if on_disk else ""))


@store.command()
def verify(config: Config = None, data: Data = None, as_json: AsJson = False) -> None:
    """Hash every row and every content again, and name what is damaged. Exits with 1 if anything is."""
    looked, damaged = _run(_verified(config, data))
    if as_json:
        typer.echo(json.dumps({"rows": looked, "damaged": [vars(one) for one in damaged]}, indent=2))
    else:
        for one in damaged:
            typer.echo(f"{one.table} {one.key} of {one.created}: {one.why}")
        typer.echo(f"{looked:,} rows looked at, {len(damaged):,} damaged")
    if damaged:
        raise typer.Exit(_FAILED)


@store.command()
def prune(
    config: Config = None,
    data: Data = None,
    older_than: Annotated[
        int | None, typer.Option(metavar="DAYS", min=1, help="Forget older records; default: store.retention_days.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Delete records past their retention and contents that no record names, and give the disk space back."""
    days, records, contents = _run(_pruned(config, data, older_than, dry_run))
    would = "would be " if dry_run else ""
    if days is None:
        typer.echo("records are kept for ever (store.retention_days is not set)")
    else:
        typer.echo(f"{records:,} records older than {days} days {would}deleted")
    typer.echo(f"{contents:,} contents that no record names {would}deleted")


@store.command("export")
def export_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the archive.")],
    config: Config = None,
    data: Data = None,
) -> None:
    """Write the whole store to one file, the store's secret with it: keep it as private as the store."""
    rows, damaged = _run(_exported(file, config, data))
    typer.echo(f"{rows:,} rows written to {file}" + (f"; {damaged:,} damaged ones left out" if damaged else ""))


@store.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that `store export` wrote.")],
    config: Config = None,
    data: Data = None,
) -> None:
    """Bring an archive's rows into a store: an empty place, or the store that it was written from."""
    written, there = _run(_imported(file, config, data))
    typer.echo(f"{written:,} rows written, {there:,} were there already")


@store.command()
def erase(
    config: Config = None,
    data: Data = None,
    credential_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the tenant's credential.")
    ] = None,
    credential_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the tenant's credential, or - for stdin.")
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(metavar="ID", help="One conversation: its Evidence-Conversation id, or that of the record API."),
    ] = None,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One conversation: any request of it, as a client sent it.")
    ] = None,
    whole_tenant: Annotated[
        bool, typer.Option("--whole-tenant", help="Everything of this tenant, in all its conversations.")
    ] = False,
) -> None:
    """Erase one conversation, or everything of one tenant: records, contents, pictures and held answers.

    Whose it is says the credential that its requests came with: the value of their header, never given on the command
    line, where other users of the machine could read it.
    """
    erased = _run(_erased(config, data, credential_env, credential_file, conversation, request, whole_tenant))
    typer.echo(", ".join(f"{count:,} rows of {table}" for table, count in erased.items()) + " erased")


# What the commands do.


async def _stats(config: Path | None, data: Path | None) -> dict[str, Any]:
    from proxy.store.lance import SCHEMA_VERSION

    place, _ = _place(config, data)
    tables: dict[str, Any] = {}
    async with _opened(place) as shelves:
        for name, lance in shelves.items():
            seen = _Seen()
            with _progress(f"Reading {name}", await lance.count()) as advanced:
                async for rows in lance.rows():
                    seen.add(rows)
                    advanced(len(rows))
            tables[name] = seen.said()
    return {
        "place": place.shown,
        "schema": SCHEMA_VERSION,
        "disk_bytes": _disk_bytes(place),
        "tables": tables,
    }


class _Seen:
    """What `stats` counts of a table."""

    def __init__(self) -> None:
        self.rows = self.damaged = self.payload_bytes = 0
        self.tenants: set[bytes] = set()
        self.conversations: set[bytes] = set()
        self.ages: list[int] = []

    def add(self, rows: list[StoredRow]) -> None:
        self.rows += len(rows)
        self.damaged += sum(not row.intact for row in rows)
        self.payload_bytes += sum(len(row.payload) for row in rows)
        self.tenants.update(row.tenant for row in rows)
        self.conversations.update(row.conversation for row in rows if row.conversation is not None)
        ages = [*self.ages, *(row.created for row in rows)]
        self.ages = [min(ages), max(ages)] if ages else []

    def said(self) -> dict[str, Any]:
        oldest, newest = map(_moment, self.ages) if self.ages else (None, None)
        return {
            "rows": self.rows,
            "damaged": self.damaged,
            "tenants": len(self.tenants),
            "conversations": len(self.conversations),
            "payload_bytes": self.payload_bytes,
            "oldest": oldest,
            "newest": newest,
        }


@dataclass(frozen=True)
class Damaged:
    """A row that is not what was written. `key` is as it lies in the store."""

    table: str
    key: str
    created: str
    why: str


async def _verified(config: Path | None, data: Path | None) -> tuple[int, list[Damaged]]:
    from proxy.ledger import aside, records
    from proxy.store.place import CONTENTS, RECORDS

    place, _ = _place(config, data)
    damaged: list[Damaged] = []
    needed: dict[tuple[bytes, bytes], StoredRow] = {}
    there: set[tuple[bytes, bytes]] = set()
    looked = 0
    async with _opened(place) as shelves:
        for name, lance in shelves.items():
            with _progress(f"Hashing {name}", await lance.count()) as advanced:
                async for rows in lance.rows(at_once=100):
                    for row in rows:
                        why = _fault(name, row)
                        if why is not None:
                            damaged.append(_damaged(name, row, why))
                        elif name == RECORDS and (record := records.decode(row.payload)) is not None:
                            needed.update(dict.fromkeys(((row.tenant, n) for n in aside.needed(record)), row))
                        elif name == CONTENTS:
                            there.add((row.tenant, row.reply))
                    looked += len(rows)
                    advanced(len(rows))
    missing = {row.key: row for name, row in needed.items() if name not in there}
    damaged += [_damaged(RECORDS, row, "it needs a content that is not there") for row in missing.values()]
    return looked, damaged


def _fault(table: str, row: StoredRow) -> str | None:
    """What is wrong with a row, if anything."""
    from proxy.gateway.returns import is_registered
    from proxy.ledger import aside, notes, records
    from proxy.store.place import CONTENTS, RECORDS

    if not row.intact:
        return "its seal does not fit: it was damaged, or moved"
    if table == RECORDS and not notes.is_note(row.payload) and records.decode(row.payload) is None:
        return "it is no record that this version reads"
    if table == CONTENTS:
        fits = aside.is_as_named(row.reply, row.payload)
        fits = is_registered(row.reply, row.payload) if fits is None else fits
        return None if fits else "its content, hashed again, is not what its name says"
    return None


def _damaged(table: str, row: StoredRow, why: str) -> Damaged:
    return Damaged(table, row.key.hex()[:16], _moment(row.created), why)


async def _pruned(
    config: Path | None, data: Path | None, older_than: int | None, dry_run: bool
) -> tuple[int | None, int, int]:
    from proxy.ledger.aside import names_in
    from proxy.store import collecting
    from proxy.store.place import CONTENTS, RECORDS

    place, settings = _place(config, data)
    days = older_than or settings.store.retention_days
    async with _opened(place) as shelves:
        records, contents = shelves[RECORDS], shelves[CONTENTS]
        gone = 0
        if days is not None:
            before = _now() - days * 86_400_000_000
            gone = await (records.count_before(before) if dry_run else records.forget_before(before))
        with _progress("Reading what records name", await records.count()) as advanced:
            names = await collecting.named(records, names_in, advanced)
        before = _now() - int(collecting.GRACE.total_seconds() * 1e6)
        with _progress("Looking for what nothing names", await contents.count()) as advanced:
            keys = await collecting.unnamed(contents, names, before, advanced)
        if not dry_run:
            if keys:
                await contents.forget_keys(keys)
            await _tidied(shelves)
    return days, gone, len(keys)


async def _exported(file: Path, config: Path | None, data: Path | None) -> tuple[int, int]:
    from proxy.store import archive

    place, _ = _place(config, data)
    damaged = 0
    async with _opened(place) as shelves:
        secret = next(iter(shelves.values())).secret
        out = archive.Writing(file, secret)
        try:
            for name, lance in shelves.items():
                with _progress(f"Writing {name}", await lance.count()) as advanced:
                    damaged += await archive.take_out(lance, name, out, advanced)
            out.end()
        except BaseException:
            out.give_up()
            raise
    return out.rows, damaged


async def _imported(file: Path, config: Path | None, data: Path | None) -> tuple[int, int]:
    from proxy.store import archive
    from proxy.store.place import SHELVES

    place, _ = _place(config, data, must_be_there=False)
    opened = archive.Reading(file)
    written = there = 0
    async with _opened(place, opened) as shelves:
        if next(iter(shelves.values())).secret != opened.secret:
            raise Stopped(
                f"{place.shown} holds a store with another secret, which could never find these rows: import into an "
                "empty place, or into the store that the archive was written from"
            )
        for name in SHELVES:
            rows = (one.row for one in opened if one.table == name)
            count = sum(one.table == name for one in opened)
            with _progress(f"Writing {name}", count) as advanced:
                done, known = await archive.put_in(shelves[name], rows, advanced)
            written, there = written + done, there + known
    return written, there


async def _erased(
    config: Path | None,
    data: Path | None,
    credential_env: str | None,
    credential_file: str | None,
    conversation: str | None,
    request: Path | None,
    whole_tenant: bool,
) -> dict[str, int]:
    if sum((conversation is not None, request is not None, whole_tenant)) != 1:
        raise Stopped("say what to erase: --conversation ID, --request FILE, or --whole-tenant")
    place, settings = _place(config, data)
    tenants = _tenants(settings, credential_env, credential_file)
    erased: dict[str, int] = {}
    async with _opened(place) as shelves:
        for tenant in tenants:
            if whole_tenant:
                some = {name: await lance.erase(tenant) for name, lance in shelves.items()}
            else:
                some = await _erase_conversation(shelves, tenant, conversation, request)
            erased = {name: erased.get(name, 0) + count for name, count in some.items()}
        await _tidied(shelves)
    return erased


async def _erase_conversation(
    shelves: dict[str, Lance], tenant: bytes, conversation: str | None, request: Path | None
) -> dict[str, int]:
    """Erase one conversation of a tenant, with what was registered for it alone; how many rows of each table."""
    from proxy.gateway.conversation import keyed
    from proxy.gateway.keeping import Conversation, conversation_digest, ids_called
    from proxy.ledger.aside import names_in
    from proxy.store.place import CONTENTS, RECORDS

    secret = shelves[RECORDS].secret
    keys: set[bytes] = set()
    if request is not None:
        shown = _transcript(request)
        digests = list(Conversation.of(tenant, None, shown).digests)
        keys = {secret.key(keyed(tenant, key)) for key in (shown.key, *(step.key for step in shown.replies))}
    else:
        digests = [conversation_digest(tenant, one) for one in ids_called(conversation or "")]
    of = {secret.conversation(digest) for digest in digests}
    of_tenant = secret.tenant(tenant)
    mine: list[tuple[bytes, bytes | None, frozenset[bytes]]] = []
    with _progress("Reading whose is what", await shelves[RECORDS].count()) as advanced:
        async for rows in shelves[RECORDS].rows():
            own = (row for row in rows if row.tenant == of_tenant)
            mine += [(row.key, row.conversation, frozenset(names_in(row.payload) or ())) for row in own]
            advanced(len(rows))
    # A host that names its conversations had them written down under the name, which a request's body does not show.
    of |= {named for key, named, _ in mine if key in keys and named is not None}
    gone = {name for key, named, names in mine if named in of or key in keys for name in names}
    gone -= {name for key, named, names in mine if named not in of and key not in keys for name in names}
    registered: set[bytes] = set()
    async for rows in shelves[CONTENTS].rows(at_once=100):
        lone = (row for row in rows if row.tenant == of_tenant and row.conversation is None)
        registered.update(row.key for row in lone if row.reply in gone)
    erased = {name: await lance.erase_rows(conversations=sorted(of)) for name, lance in shelves.items()}
    erased[RECORDS] += await shelves[RECORDS].erase_rows(keys=sorted(keys))
    erased[CONTENTS] += await shelves[CONTENTS].erase_rows(keys=sorted(registered))
    return erased


def _transcript(request: Path) -> Transcript:
    from proxy.commands import bodies
    from proxy.ledger import transcript
    from proxy.wire import chat, responses
    from proxy.wire.messages import NotJson

    try:
        body = bodies.one(str(request))
        return transcript.read((responses if body.api == "responses" else chat).cut(body.raw))
    except (bodies.NoFile, NotJson) as unread:
        raise Stopped(f"{request} cannot be read as a request of either API: {unread}") from None


def _tenants(settings: Settings, credential_env: str | None, credential_file: str | None) -> list[bytes]:
    """What a credential may stand for: a bare key is sent as `Bearer KEY`, or in a header of its own."""
    from proxy.gateway.conversation import tenant_digest

    if settings.tenant.by == "none":
        return [tenant_digest("none")]
    if (credential_env is None) == (credential_file is None):
        raise Stopped("whose is it? Give the requests' credential by --credential-env NAME or --credential-file FILE")
    if credential_env is not None:
        given = os.environ.get(credential_env, "").strip()
    else:
        given = typer.get_text_stream("stdin").readline().strip() if credential_file == "-" else _text(credential_file)
    if not given:
        raise Stopped("the credential is empty: expected the value of the header that the requests came with")
    bare = settings.tenant.header is None and " " not in given
    return [tenant_digest(one) for one in ([f"Bearer {given}", given] if bare else [given])]


# What they share.


def _run(work: Coroutine[Any, Any, T]) -> T:
    from proxy.settings import SettingsError
    from proxy.store.archive import ArchiveError
    from proxy.store.record import StoreError

    try:
        return asyncio.run(work)
    except (Stopped, SettingsError) as refused:
        _stop(str(refused), _REFUSED)
    except (StoreError, ArchiveError) as failed:
        _stop(str(failed), _FAILED)
    except OSError as failed:
        _stop(f"{failed.filename or 'a file'}: {failed.strerror or type(failed).__name__}", _FAILED)


def _stop(message: str, code: int) -> NoReturn:
    for line in message.splitlines():
        typer.echo(f"evidence-proxy: {line}", err=True)
    raise typer.Exit(code)


def _place(config: Path | None, data: Path | None, must_be_there: bool = True) -> tuple[Place, Settings]:
    """Where the store lies, by the settings."""
    from proxy.settings import load
    from proxy.store.place import Place

    settings = load(config, {"store.data_dir": ("--data", data)})
    if data is not None:
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"uri": None})})
    place = Place.of(settings.store.address, settings.store.directory or Path())
    if place.in_memory:
        raise Stopped("store.uri is memory://: nothing is kept outside the process that serves")
    if must_be_there and not place.holds_secret():
        raise Stopped(f"{place.shown} holds no store; expected the directory that `serve --data` was given")
    return place, settings


@asynccontextmanager
async def _opened(place: Place, archive: Any = None) -> AsyncIterator[dict[str, Lance]]:
    """The tables of a store, by name; one that is begun gets the secret of an archive."""
    from dataclasses import replace

    from proxy.store.lance import Lance
    from proxy.store.place import SHELVES

    shelves: dict[str, Lance] = {}
    try:
        for name in SHELVES:
            secret = archive.secret if archive is not None else None
            shelves[name] = await Lance.open(replace(place, table=name), secret)
        yield shelves
    finally:
        for lance in shelves.values():
            await lance.close()


async def _tidied(shelves: dict[str, Lance]) -> None:
    """Remove every version but the last, and so what was deleted, from the disk; who reads moves on first."""
    import warnings

    keep = timedelta(seconds=_READERS_ARE_GONE_AFTER / 2)
    with _progress("Giving the space back", 2 * len(shelves)) as advanced, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # what the first one merges is old enough to go by the second
            await asyncio.sleep(_READERS_ARE_GONE_AFTER)
            for lance in shelves.values():
                await lance.tidy(keep=keep, index_from_rows=5_000)
                advanced(1)


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, where that is a terminal; call what is given with each step's size."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda step: bars.advance(task, step)


def _console() -> Any:
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False)


def _now() -> int:
    return time.time_ns() // 1000


def _moment(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def _disk_bytes(place: Place) -> int | None:
    if place.directory is None:
        return None
    return sum(file.stat().st_size for file in place.directory.rglob("*.lance/**/*") if file.is_file())


def _text(file: str | None) -> str:
    return Path(file or "").read_text().strip()
