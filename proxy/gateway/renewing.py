"""What SIGHUP does: keys and evidence tables are read again, and requests from then on are served with them.

All of it changes at once, or, where something is wrong with it, nothing does. What else changed in the settings takes a
restart, and is named.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.evidence.tags import Keys
from proxy.gateway.access import client_keys
from proxy.gateway.app import Gateway, Serving
from proxy.gateway.conversation import Conversations
from proxy.gateway.returns import Returns
from proxy.settings import Settings, SettingsError, upstream_key
from proxy.store import RecordStore
from proxy.store.tag_keys import tag_keys
from proxy.visibility import logs

#: What is read again; the evidence tables are a section of their own.
_READ_AGAIN = frozenset(
    {"server.keys_env", "server.keys_file", "upstream.api_key_env", "upstream.api_key_file", "tags.key_env"}
)


class Renewing:
    """Reads again for one gateway. `read` gives the settings as they stand now."""

    def __init__(
        self,
        gateway: Gateway,
        conversations: Conversations,
        contents: RecordStore,
        settings: Settings,
        keys: Keys,
        read: Callable[[], Settings],
    ) -> None:
        self._gateway = gateway
        self._conversations = conversations
        self._contents = contents
        self._began_with = settings
        self._keys = keys
        self._read = read

    def forget(self) -> None:
        """Something was erased from the store: those who serve now forget it, too."""
        self._conversations.forget()

    def renew(self) -> None:
        """Read again and serve with it from now on; where that cannot be, say why and go on as before."""
        try:
            settings = self._read()
            in_memory = settings.tags.key_env is None and settings.store.uri == "memory://"
            keys = self._keys if in_memory else tag_keys(settings)
            clients, api_key = client_keys(settings), upstream_key(settings)
        except SettingsError as refused:
            logs.event("reload-refused", why=str(refused).splitlines())
            return
        except OSError as failed:
            logs.event("reload-refused", why=[f"the tag keys cannot be read ({type(failed).__name__})"])
            return
        returns = Returns(keys, self._contents)
        self._conversations = self._conversations.renewed(settings, keys, returns)
        self._gateway.renew(Serving(self._conversations, returns, api_key, clients))
        self._keys = keys
        logs.event("reloaded", need_a_restart=_others(self._began_with, settings))


def _others(before: Settings, now: Settings) -> list[str]:
    """The keys that changed and are not read again."""
    changed = []
    for section in type(before).model_fields:
        old, new = getattr(before, section), getattr(now, section)
        if section != "evidence" and old != new:
            changed += [f"{section}.{key}" for key in type(old).model_fields if getattr(old, key) != getattr(new, key)]
    return [key for key in changed if key not in _READ_AGAIN]
