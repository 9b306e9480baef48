"""Who may use the proxy: clients' keys of its own, and what each of them stands for. Nothing here shows a key.

Without such keys everybody who reaches the proxy may use it, with the provider's credentials that they bring.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from proxy.gateway import headers
from proxy.settings import Settings, SettingsError, TenantSettings, is_loopback


@dataclass(frozen=True)
class Grant:
    """What a key stands for: a tenant of its own, and a key for the provider, where it names them."""

    tenant: str | None = None
    upstream_key: str | None = None


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    tenant: str | None = None
    upstream_key: str | None = None


_entries = msgspec.json.Decoder(list[_Entry | str])


class ClientKeys:
    """The keys that open the proxy. Only their digests are kept."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = tuple((_digest(key.encode()), grant) for key, grant in grants.items())

    @classmethod
    def parse(cls, text: str) -> ClientKeys:
        """Keys with commas or line ends between, or a JSON list of `{"key": ..., "tenant": ..., "upstream_key": ...}`.

        Raises ValueError, which quotes nothing of the text.
        """
        grants: dict[str, Grant] = {}
        for entry in _written(text):
            if not _fits_a_header(entry.key) or not _fits_a_header(entry.upstream_key or "x"):
                raise ValueError("a key holds spaces or characters that cannot stand in a header")
            if entry.tenant == "":
                raise ValueError("a tenant has an empty name")
            if entry.key in grants:
                raise ValueError("one key stands there twice")
            grants[entry.key] = Grant(entry.tenant, entry.upstream_key)
        if not grants:
            raise ValueError("there is no key in it")
        return cls(grants)

    def grant(self, lines: headers.Headers) -> Grant | None:
        """What the credentials of a request stand for; None if none of them is one of these keys.

        Every key is compared, in constant time, whichever fits: how long it takes tells nothing about a key.
        """
        found: Grant | None = None
        for shown in headers.credentials(lines):
            digest = _digest(shown)
            for known, grant in self._grants:
                if hmac.compare_digest(digest, known):
                    found = grant
        return found


def whose(named: headers.Named, tenant: TenantSettings, grant: Grant | None) -> str | None:
    """What stands for a request's tenant: the one that a key of ours names, else what the settings say, or None."""
    if grant is not None and grant.tenant is not None:
        return f"\0tenant {grant.tenant}"  # no header's value begins so
    return headers.credential(named, tenant.by, tenant.header)


def client_keys(settings: Settings, environ: Mapping[str, str] | None = None) -> ClientKeys | None:
    """The keys that `server.keys_env` or `server.keys_file` name, or None where anybody may use the proxy.

    Raises SettingsError for a variable or file without usable keys, and for an address beyond this machine without keys
    where `server.allow_anyone` does not say that this is meant.
    """
    server = settings.server
    where, text = None, None
    if server.keys_env is not None:
        where = "server.keys_env names an environment variable"
        text = (os.environ if environ is None else environ).get(server.keys_env, "")
    elif server.keys_file is not None:
        where = f"server.keys_file = {json.dumps(str(server.keys_file))} names a file"
        try:
            text = Path(server.keys_file).expanduser().read_text()
        except (OSError, UnicodeError) as failed:
            raise SettingsError(f"{where} that cannot be read ({type(failed).__name__})") from None
    if text is not None:
        try:
            return ClientKeys.parse(text)
        except ValueError as wrong:
            # Not even the variable's name is repeated: a key pasted there by mistake looks like one.
            raise SettingsError(
                f"{where} without usable keys: {wrong}. Separate keys with commas, or write a JSON list of "
                '{"key": ..., "tenant": ..., "upstream_key": ...}'
            ) from None
    if server.unix_socket is None and not is_loopback(server.host) and not server.allow_anyone:
        raise SettingsError(
            f"server.host = {json.dumps(server.host)} listens beyond this machine, and everybody who reaches it could "
            "use the proxy: name the clients' keys in server.keys_env, or say with --allow-anyone (or "
            "server.allow_anyone = true) that something else keeps others out"
        )
    return None


def _written(text: str) -> list[_Entry]:
    text = text.strip()
    if not text.startswith("["):
        return [_Entry(key.strip()) for line in text.splitlines() for key in line.split(",") if key.strip()]
    try:
        read: list[Any] = _entries.decode(text)
    except msgspec.ValidationError:
        raise ValueError("it is JSON, but no such list") from None  # what is wrong may be a key, so it is not quoted
    except msgspec.MsgspecError:
        raise ValueError("it is no JSON") from None
    return [entry if isinstance(entry, _Entry) else _Entry(entry) for entry in read]


def _fits_a_header(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and " " not in key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
