"""What `explain` and `replay` need before they begin: settings, keys, and the real store where one is to be asked.

Nothing is made on the way: where `serve` would make a key or a directory, they do without.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.commands.rehearsing import Rehearsal
from proxy.evidence.tags import Keys
from proxy.gateway.keeping import Keeping
from proxy.gateway.returns import Returns
from proxy.settings import Settings, SettingsError, load
from proxy.store import Store, open_store
from proxy.store.place import Place
from proxy.store.tag_keys import FILE, tag_keys

_OPENING_TAKES = 60.0


class Stopped(Exception):
    """The command cannot begin. `str()` says why, and what to do."""


@asynccontextmanager
async def rehearsal(
    config: Path | None, data: Path | None, credential_env: str | None, environ: Mapping[str, str]
) -> AsyncIterator[tuple[Rehearsal, Settings]]:
    """A rehearsal by these settings; over the records in `data`, where that is given. Raises Stopped."""
    try:
        settings = load(config, {"store.data_dir": ("--data", data)}, environ)
        if data is not None:
            settings = settings.model_copy(update={"store": settings.store.model_copy(update={"uri": None})})
        keys = _keys(settings, environ)
    except SettingsError as refused:
        raise Stopped(str(refused)) from None
    except OSError as failed:
        raise Stopped(f"the tag keys cannot be read ({failed.strerror or type(failed).__name__})") from None
    if data is None:
        if credential_env is not None:
            raise Stopped("--credential-env says whose records to ask for, and needs --data DIR")
        yield Rehearsal(settings, keys), settings
        return
    whose = _credentials(settings, credential_env, environ)
    _holding(data)
    store = open_store(settings)
    try:
        await store.start()
        await _ready(store)
        returns = Returns(keys, store.contents)
        keeping = Keeping(store.contents, returns)
        yield Rehearsal(settings, keys, store.records, whose, returns, keeping), settings
    finally:
        await store.close()


def _keys(settings: Settings, environ: Mapping[str, str]) -> Keys:
    directory = settings.store.directory
    if settings.tags.key_env is None and (directory is None or not (directory / FILE).exists()):
        return Keys.made()
    return tag_keys(settings, environ)


def _credentials(settings: Settings, credential_env: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What the request's credential may have been: a bare key is sent as `Bearer KEY`, or in a header of its own."""
    if settings.tenant.by == "none":
        return ("none",)
    given = environ.get(credential_env, "").strip() if credential_env is not None else ""
    if not given:
        header = settings.tenant.header or "Authorization"
        raise Stopped(
            f"records are found only under the credential of their requests: export the value of their {header} header "
            "and name the variable with --credential-env NAME"
        )
    return (f"Bearer {given}", given) if settings.tenant.header is None and " " not in given else (given,)


def _holding(data: Path) -> None:
    try:
        if data.is_dir() and Place.of(None, data).holds_store():
            return
    except OSError as failed:
        raise Stopped(f"{data} cannot be read ({failed.strerror or type(failed).__name__})") from None
    raise Stopped(f"{data} holds no records; expected the directory that `serve --data` was given")


async def _ready(store: Store) -> None:
    why = ""
    try:
        async with asyncio.timeout(_OPENING_TAKES):
            while True:
                ready, why = store.ready()
                if ready:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise Stopped(f"the records cannot be opened: {why}") from None
