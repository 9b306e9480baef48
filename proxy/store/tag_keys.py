"""The keys that tags are signed with: from the environment, or from a file beside the store, made at first start.

They are not the store's secret: rotating them orphans no record.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from proxy.evidence.tags import Keys
from proxy.settings import Settings, SettingsError

FILE = "tag-keys"


def tag_keys(settings: Settings, environ: Mapping[str, str] | None = None) -> Keys:
    """The tag keys of this proxy: what `tags.key_env` names, else those of the data directory, made if there are none.

    With `memory://` they last as long as the process. Raises SettingsError, which shows no key, and OSError.
    """
    name = settings.tags.key_env
    if name is not None:
        return _named((os.environ if environ is None else environ).get(name, ""))
    uri = settings.store.uri
    if uri == "memory://":
        return Keys.made()
    directory = settings.store.directory
    if directory is None or (uri is not None and "://" in uri and not uri.startswith("file://")):
        raise SettingsError(
            "tags.key_env is missing: with a store that is not a local path every replica must sign with the same key. "
            "Export a key (openssl rand -hex 32 makes one) and name its variable there"
        )
    return _kept(directory / FILE)


def _named(text: str) -> Keys:
    try:
        return Keys.parse(text)
    except ValueError as wrong:
        # Not even the name is repeated: a key pasted there by mistake looks like one.
        raise SettingsError(
            f"tags.key_env names an environment variable without usable keys: {wrong}. Separate several with commas; "
            "the first signs, all verify"
        ) from None


def _kept(file: Path) -> Keys:
    if not file.exists():
        _make(file)
    try:
        return Keys.parse(file.read_bytes().decode())
    except ValueError as wrong:
        raise SettingsError(
            f"{file} holds no usable tag keys: {wrong if not isinstance(wrong, UnicodeError) else 'it is not UTF-8'}. "
            "Expected one key a line; the first signs, all verify. Restore it, or remove it to have a new one made"
        ) from None


def _make(file: Path) -> None:
    """Make the file whole or not at all, for its owner only; where two processes do at once, one of them wins."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".tag-keys-")  # 0600 from the start
    try:
        with os.fdopen(handle, "w") as out:
            out.write(os.urandom(32).hex() + "\n")
            out.flush()
            os.fsync(out.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        Path(draft).unlink()
