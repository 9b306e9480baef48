"""`evidence-proxy doctor`: is everything as the proxy needs it, and what is to be done where it is not?

Each check looks at one thing and says what it found; one that does not pass says what to do. Nothing is made, written
or changed, and the provider is asked for nothing but its list of models.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import errno
import json
import os
import shutil
import socket
import ssl
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from proxy.evidence.tags import Keys
    from proxy.settings import Settings

Status = Literal["ok", "warn", "fail", "skipped"]

_ASKING_TAKES = 10.0
_OPENING_TAKES = 30.0
_SKEW_WARNS, _SKEW_FAILS = 30.0, 300.0
_LITTLE_DISK, _NO_DISK = 1 << 30, 64 << 20
#: A credential that lives shorter is renewed while conversations go on.
_SHORT_LIVED = 7 * 86_400
#: No proxy of this version ran before: an older clock was never set.
_BEFORE_ANY_CLOCK = 1_735_689_600
#: Where clients of this machine keep what they send as their credential.
_CREDENTIALS = ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and what to do about it."""

    name: str
    status: Status
    found: str
    todo: str = ""


def doctor(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings, as `serve` takes them.")] = None,
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="The provider's base URL.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The directory of the records.")] = None,
    credential_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="An environment variable with a credential that clients send."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the provider.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check configuration, provider, store, keys, clock and tags, and say what to do. Ends with 1 if a check fails."""
    from proxy.commands.printing import console

    checks = asyncio.run(examine(config, upstream, data, credential_env, offline, os.environ))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        _print(checks, console())
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


async def examine(
    config: Path | None,
    upstream: str | None,
    data: Path | None,
    credential_env: str | None,
    offline: bool,
    environ: Mapping[str, str],
) -> list[Check]:
    """All checks, in the order in which they are to be read. Those that need settings are left out without any."""
    from proxy.settings import SettingsError, load

    flags = {"upstream.base_url": ("--upstream", upstream), "store.data_dir": ("--data", data)}
    try:
        settings = load(config, flags, environ)
    except SettingsError as refused:
        return [
            Check("configuration", "fail", line, "correct the value that is named; docs/configuration.md has every key")
            for line in str(refused).splitlines()
        ]
    if data is not None and settings.store.uri is not None:
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"uri": None})})
    checks = [_configuration(settings, config), *_evidence(settings), *_exposure(settings, environ)]
    checks += [await _port(settings.server.host, settings.server.port, "port")]
    checks += [await _port(settings.server.admin_host, settings.server.admin_port, "admin port")]
    asked, date = (None, None) if offline else await _ask(settings, environ)
    checks.append(asked or Check("upstream", "skipped", "not asked (--offline)"))
    checks.append(_clock(date, time.time()))
    directory = _directory(settings)
    checks += directory
    if all(check.status != "fail" for check in directory):
        checks.append(await _store(settings))
    keys, found = _tag_keys(settings, environ)
    checks += [_key(settings, environ), found, _tags(keys)]
    checks += _credentials(settings, environ, credential_env, time.time())
    return checks


def _print(checks: list[Check], console: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from proxy.commands.printing import plain

    colours = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for check in checks:
        said = Text(plain(check.found))
        if check.todo:
            said.append(f"\n→ {plain(check.todo)}", style=colours[check.status])
        table.add_row(Text(check.status, style=colours[check.status]), check.name, said)
    console.print(table)
    counted = {status: sum(check.status == status for check in checks) for status in colours}
    console.print(", ".join(f"{number} {status}" for status, number in counted.items() if number))


# Configuration.


def _configuration(settings: Settings, config: Path | None) -> Check:
    place = str(config) if config is not None else "defaults and environment"
    mode, layout = settings.compaction.mode, settings.compaction.layout
    found = f"{place}: compaction {mode}, layout {layout}, policy {settings.policy.mode}"
    if mode == "off":
        return Check("configuration", "warn", found, 'nothing is compacted; set compaction.mode to "on" or "observe"')
    if mode == "observe":
        todo = 'requests go up as they came; set compaction.mode to "on" once the figures convince you'
        return Check("configuration", "warn", found, todo)
    return Check("configuration", "ok", found)


def _evidence(settings: Settings) -> list[Check]:
    named = [table for table in settings.evidence if table.format != "tagged"]
    if not named:
        todo = (
            "name the tools whose results are evidence in an [[evidence]] table: `evidence-proxy explain FILE` on a "
            "captured request prints the one that fits. Nothing to do if your tools tag what they return (docs/tags.md)"
        )
        return [Check("evidence", "warn", "no [[evidence]] table: only tagged results are recognised", todo)]
    checks = []
    for table in named:
        found = (
            f"{table.name}: results of {', '.join(table.tools)} ({table.format}), cited by {table.cite or 'nothing'}"
        )
        if table.cite is None:
            todo = 'nothing of this table is ever compacted; set its `cite` to your cite tool\'s name, or to "inline"'
            checks.append(Check("evidence", "warn", found, todo))
        else:
            checks.append(Check("evidence", "ok", found))
    return checks


def _exposure(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Who can reach what."""
    from proxy.settings import SettingsError, admin_token, is_loopback

    server, tenant = settings.server, settings.tenant.by
    checks = []
    try:
        token = admin_token(settings, environ)
    except SettingsError as refused:
        checks.append(
            Check("access", "fail", str(refused), "set the token, or listen on 127.0.0.1: the server refuses")
        )
    else:
        guarded = "guarded by a token" if token is not None else "this machine only"
        checks.append(Check("access", "ok", f"the admin port listens on {server.admin_host}, {guarded}"))
    if tenant == "none" and not is_loopback(server.host):
        found = f"everybody who reaches {server.host} is one tenant (tenant.by = none): records are shared by all"
        todo = 'keep tenant.by at "authorization", or name a header that your gateway sets: "header:NAME"'
        checks.append(Check("tenants", "warn", found, todo))
    else:
        checks.append(Check("tenants", "ok", f"told apart by {tenant}"))
    return checks


async def _port(host: str, port: int, name: str) -> Check:
    """Whether a server could listen there now; a proxy that does already is well, too."""
    where = f"{host}:{port}"
    if port == 0:
        return Check(name, "ok", f"{host}, any free port")
    loop = asyncio.get_running_loop()
    try:
        family, _, _, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as failed:
        if failed.errno == errno.EADDRINUSE:
            if await _is_proxy(host, port):
                return Check(name, "ok", f"{where}: a proxy is running there")
            todo = "stop the process that listens there, or set another port (server.port, server.admin_port)"
            return Check(name, "fail", f"{where} is in use by another process", todo)
        todo = "give an address of this machine, and a port above 1023 unless the process may have lower ones"
        return Check(name, "fail", f"{where} cannot be listened on ({failed.strerror or type(failed).__name__})", todo)
    return Check(name, "ok", f"{where} is free")


async def _is_proxy(host: str, port: int) -> bool:
    """Whether what listens there answers as this program does."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1" if host in ("0.0.0.0", "::") else host, port)
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return b'{"status": "ok"}' in answer or b"server: evidence-proxy" in answer.lower()
    return False


# The provider, and the time.


async def _ask(settings: Settings, environ: Mapping[str, str]) -> tuple[Check, str | None]:
    """Ask the provider for its models. Returns what came of it, and the date that it gave."""
    import aiohttp

    from proxy.settings import is_loopback, upstream_key

    base = settings.upstream.base_url
    parts = urlsplit(base)
    host = parts.hostname or ""
    if parts.path.rstrip("/").endswith(("/chat/completions", "/responses")):
        todo = "give the base URL alone, like https://api.openai.com/v1: the rest comes from the clients' paths"
        return Check("upstream", "fail", f"{base} is the address of one endpoint", todo), None
    key = upstream_key(settings, environ)
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    timeout = aiohttp.ClientTimeout(total=_ASKING_TAKES)
    began = time.monotonic()
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{base}/models", headers=headers, allow_redirects=False) as reply,
        ):
            status, date = reply.status, reply.headers.get("Date")
    except (aiohttp.ClientError, OSError, TimeoutError) as failed:
        return Check("upstream", "fail", f"{base}: {_said(failed)}", _about(failed, host)), None
    took = f"in {(time.monotonic() - began) * 1000:.0f} ms"
    if parts.scheme == "http" and not is_loopback(host):
        todo = "credentials and conversations travel in the clear; use https:// unless the network between is yours"
        return Check("upstream", "warn", f"{base} answers {status} {took}, without encryption", todo), date
    if status in (401, 403) and key is not None:
        todo = "the provider refuses the key that upstream.api_key_env names: renew it, or check which project it is of"
        return Check("upstream", "fail", f"{base}/models answers {status} {took}", todo), date
    if status >= 500:
        todo = "the provider is reachable and not well; see its status page"
        return Check("upstream", "warn", f"{base}/models answers {status} {took}", todo), date
    if 300 <= status < 400:
        todo = "set upstream.base_url to the address that it redirects to: redirects are passed to clients as they are"
        return Check("upstream", "warn", f"{base}/models answers {status} {took}: a redirect", todo), date
    beside = {
        401: ", asking for a credential, which clients bring",
        404: "; it lists no models there, which not every provider does",
    }
    return Check("upstream", "ok", f"{base} answers {status} {took}{beside.get(status, '')}"), date


def _said(failed: BaseException) -> str:
    if isinstance(failed, TimeoutError):
        return f"no answer within {_ASKING_TAKES:.0f} seconds"
    reason = getattr(failed, "os_error", None) or failed
    number = getattr(reason, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else type(reason).__name__


def _about(failed: BaseException, host: str) -> str:
    """What to do about a provider that could not be asked."""
    import aiohttp

    if isinstance(failed, aiohttp.ClientConnectorDNSError):
        return f"no address is known for {host}: check the spelling in upstream.base_url, and this machine's DNS"
    if isinstance(failed, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
        return f"the certificate of {host} is not trusted here: check the address, the clock, and the installed roots"
    if isinstance(failed, TimeoutError):
        return f"a firewall may swallow connections to {host}: check that this machine may reach it"
    return f"nothing accepts connections there: check upstream.base_url, and that {host} is up and reachable from here"


def _clock(date: str | None, now: float) -> Check:
    todo = "set this machine's clock (NTP): certificates, tokens, and the retention of records go by it"
    if now < _BEFORE_ANY_CLOCK:
        return Check("clock", "fail", time.strftime("it says %Y-%m-%d", time.gmtime(now)), todo)
    try:
        told = parsedate_to_datetime(date).timestamp() if date is not None else None
    except (TypeError, ValueError):
        told = None
    if told is None:
        return Check("clock", "skipped", "nobody to compare it with: the provider did not say what time it is")
    apart = now - told
    found = f"{abs(apart):.0f} seconds {'ahead of' if apart > 0 else 'behind'} the provider's"
    if abs(apart) > _SKEW_WARNS:
        return Check("clock", "fail" if abs(apart) > _SKEW_FAILS else "warn", found, todo)
    return Check("clock", "ok", found if abs(apart) >= 2 else "agrees with the provider's")


# The store.


def _directory(settings: Settings) -> list[Check]:
    directory = settings.store.directory
    if settings.store.uri == "memory://":
        todo = "records are gone after a restart, and conversations pass untouched until they settle again; set a path"
        return [Check("store", "warn", 'store.uri is "memory://"', todo)]
    if directory is None:
        return [Check("store", "ok", "kept elsewhere, by an address")]
    made = directory if directory.exists() else next((p for p in directory.parents if p.exists()), Path("/"))
    if not made.is_dir() or not os.access(made, os.W_OK | os.X_OK):
        todo = f"let this user write to {made}, or name another directory (--data, store.data_dir)"
        return [Check("store", "fail", f"{directory} cannot be written", todo)]
    checks = []
    if directory.exists() and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        found = f"{directory} may be read by other users of this machine"
        checks.append(Check("store", "warn", found, f"chmod 700 {directory}: it holds the keys of tags, too"))
    free = shutil.disk_usage(made).free
    if free < _LITTLE_DISK:
        todo = "free some space: a full disk costs records, and with them compaction"
        found = f"{free / 2**20:,.0f} MB are free on the disk of {made}"
        checks.append(Check("store", "fail" if free < _NO_DISK else "warn", found, todo))
    return checks or [Check("store", "ok", f"{directory}, {free / 2**30:,.1f} GB free")]


async def _store(settings: Settings) -> Check:
    """Whether the records can be opened, as far as that can be told without writing."""
    from proxy.store import open_store

    directory = settings.store.directory
    if settings.store.uri == "memory://":
        return Check("records", "skipped", "nothing is kept on disk")
    if directory is not None and not directory.exists():
        return Check("records", "ok", f"none yet; {directory} is made at the first start")
    store = open_store(settings)
    try:
        await store.start()
        why = "they could not be opened in time"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_TAKES):
                while True:
                    ready, why = store.ready()
                    if ready:
                        return Check("records", "ok", "they can be opened")
                    await asyncio.sleep(0.05)
        todo = "restore the directory from a backup, or move it away: a lost store costs compaction, never evidence"
        return Check("records", "fail", why, todo)
    except Exception as failed:
        todo = "see the message; moving the directory away makes the proxy begin anew"
        return Check("records", "fail", f"they cannot be opened ({type(failed).__name__}: {failed})", todo)
    finally:
        await store.close()


# Keys, tags, credentials.


def _key(settings: Settings, environ: Mapping[str, str]) -> Check:
    from proxy.settings import upstream_key

    key = upstream_key(settings, environ)  # `load` has refused an empty one
    if key is None:
        return Check("provider's key", "ok", "none here: the clients' own credentials are passed on")
    return Check("provider's key", "ok", f"set, {len(key)} characters; it replaces what clients send")


def _tag_keys(settings: Settings, environ: Mapping[str, str]) -> tuple[Keys | None, Check]:
    """The keys that tags are signed with, where there are any without making them."""
    from proxy.settings import SettingsError
    from proxy.store.tag_keys import FILE, tag_keys

    directory = settings.store.directory
    file = directory / FILE if directory is not None else None
    if settings.tags.key_env is None and settings.store.uri == "memory://":
        todo = "tags of an earlier run are plain text after a restart; name a variable with keys in tags.key_env"
        return None, Check("tag keys", "warn", "made anew at each start, since nothing is kept on disk", todo)
    if settings.tags.key_env is None and file is not None and not file.exists():
        return None, Check("tag keys", "ok", f"none yet; they are made at the first start, in {file}")
    try:
        keys = tag_keys(settings, environ)
    except SettingsError as refused:
        return None, Check("tag keys", "fail", str(refused), "set usable keys; openssl rand -hex 32 makes one")
    except OSError as failed:
        todo = f"let this user read {file}, and nobody else"
        return None, Check("tag keys", "fail", f"{file} cannot be read ({failed.strerror})", todo)
    if settings.tags.key_env is None and file is not None and stat.S_IMODE(file.stat().st_mode) & 0o077:
        found = f"{file} may be read by other users: who has it can forge evidence"
        return keys, Check("tag keys", "warn", found, f"chmod 600 {file}, and think of a new key")
    where = "from the environment" if settings.tags.key_env is not None else f"in {file}"
    return keys, Check("tag keys", "ok", f"usable, {where}")


def _tags(keys: Keys | None) -> Check:
    """Sign something and see that it is known again."""
    from proxy.evidence import tagged
    from proxy.evidence.tags import Keys
    from proxy.tagging import Result, tag
    from proxy.wire.messages import Text

    keys = keys or Keys.made()
    sealed = tag([Result("probe", "Nothing but a probe.")], keys).text
    if tagged.is_ours(tagged.Proof(keys), (Text(sealed),)):
        return Check("tags", "ok", "a probe was signed and known again")
    return Check("tags", "fail", "a probe that was just signed is not known again", "report this as a fault, please")


@dataclass(frozen=True, slots=True)
class Token:
    """A JSON Web Token, as far as it says how long it lives. Its signature is nobody's business here."""

    expires: float | None
    issued: float | None


def read_token(credential: str) -> Token | None:
    """The token that a credential is (with or without "Bearer"), or None. Source: RFC 7519."""
    pieces = credential.strip().removeprefix("Bearer ").strip().split(".")
    if len(pieces) != 3:
        return None
    try:
        head, claims = (json.loads(base64.urlsafe_b64decode(piece + "=" * (-len(piece) % 4))) for piece in pieces[:2])
    except (ValueError, binascii.Error):
        return None
    if not isinstance(head, dict) or "alg" not in head or not isinstance(claims, dict):
        return None
    times = [claims.get(name) for name in ("exp", "iat")]
    expires, issued = (float(t) if isinstance(t, int | float) and not isinstance(t, bool) else None for t in times)
    return Token(expires, issued)


def _credentials(settings: Settings, environ: Mapping[str, str], named: str | None, now: float) -> list[Check]:
    """Whether credentials last as long as conversations do: records belong to one, and a new one finds none."""
    checks = []
    own = settings.upstream.api_key_env
    token = read_token(environ[own]) if own is not None and own in environ else None
    if token is not None and token.expires is not None:
        found = f"the provider's key is a token that {_ends(token.expires, now)}"
        todo = "it is read once, at start: restart the proxy before, or let clients bring their own credentials"
        checks.append(Check("credentials", "fail" if token.expires <= now else "warn", found, todo))
    if settings.tenant.by != "authorization":
        checks.append(Check("credentials", "ok", f"tenants are told apart by {settings.tenant.by}, not by credentials"))
        return checks
    if named is not None and not environ.get(named, "").strip():
        todo = "export a credential there as a client sends it, or leave --credential-env out"
        return [*checks, Check("credentials", "fail", "the variable that --credential-env names is empty", todo)]
    seen = [environ[name] for name in ([named] if named is not None else _CREDENTIALS) if environ.get(name)]
    if not seen:
        found = "no client's credential at hand; --credential-env NAME looks at one"
        return [*checks, Check("credentials", "skipped", found)]
    tokens = [token for credential in seen if (token := read_token(credential)) is not None]
    short = [token for token in tokens if token.expires is None or _lives(token, now) < _SHORT_LIVED]
    if not short:
        return [*checks, Check("credentials", "ok", "what clients of this machine send does not change by itself")]
    ends = short[0].expires
    found = "clients send JSON Web Tokens" + (f"; this one {_ends(ends, now)}" if ends is not None else "")
    todo = (
        "each renewed token is a new tenant, whose conversations pass untouched (no-record) until they settle again: "
        'let your gateway set a header that names the user, and set tenant.by to "header:NAME"'
    )
    return [*checks, Check("credentials", "warn", found, todo)]


def _lives(token: Token, now: float) -> float:
    assert token.expires is not None
    return token.expires - (token.issued if token.issued is not None else now)


def _ends(expires: float, now: float) -> str:
    minutes = (expires - now) / 60
    if minutes <= 0:
        return f"expired {-minutes:,.0f} minutes ago"
    return f"expires in {minutes:,.0f} minutes" if minutes < 120 else f"expires in {minutes / 60:,.0f} hours"
