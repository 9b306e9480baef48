"""Fixtures: a provider, and proxies in front of it. What they are made of stands in tests/house."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from proxy.gateway import seen
from proxy.gateway.access import ClientKeys
from proxy.gateway.app import Conversing
from proxy.gateway.watched import Watcher
from tests.house.keys import KEYS
from tests.house.provider import Provider
from tests.house.running import InProcess, NoStore, ProxyProcess, scratch, settings

# In tests even short conversations are remembered from request to request, as long ones always are.
seen.SHORTEST = 0

#: Start a proxy process with this TOML (the provider's address is filled in for `{upstream}`) and environment.
StartProcess = Callable[..., Awaitable[ProxyProcess]]
#: Start the gateway in the test's event loop: conversations, section overrides.
StartHere = Callable[..., Awaitable[InProcess]]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A scripted provider that is listening."""
    running = await Provider().start()
    yield running
    await running.stop()


@pytest.fixture
async def start_process(provider: Provider) -> AsyncIterator[StartProcess]:
    """Starts real proxy processes in front of `provider`, and ends them by their ids."""
    started: list[ProxyProcess] = []

    async def start(config: str | None = None, environment: Mapping[str, str] | None = None) -> ProxyProcess:
        text = config if config is not None else '[upstream]\nbase_url = "{upstream}"\n'
        process = ProxyProcess(text.replace("{upstream}", provider.url), scratch(), environment)
        started.append(process)
        return await process.start()

    yield start
    for process in started:
        await process.stop()
        shutil.rmtree(process.directory, ignore_errors=True)


@pytest.fixture
async def start_here(provider: Provider) -> AsyncIterator[StartHere]:
    """Starts gateways in the test's event loop in front of `provider`. Without conversations: the real ones."""
    started: list[tuple[InProcess, Any]] = []

    async def start(
        conversations: Conversing | None = None,
        key: str | None = None,
        ready: bool = True,
        watcher: Watcher | None = None,
        keys: ClientKeys | None = None,
        **sections: Any,
    ) -> InProcess:
        chosen = settings(provider.url, **sections)
        store: Any = None
        tagging: Any = None
        if conversations is None:
            from proxy.gateway.conversation import Conversations
            from proxy.gateway.keeping import Keeping
            from proxy.gateway.returns import Returns
            from proxy.ledger.aside import names_in
            from proxy.store import open_store
            from proxy.store.haiku_database import open_databases

            store = open_store(chosen, names_in)
            await store.start()
            tagging = Returns(KEYS, store.contents)
            databases = open_databases(chosen)
            for database in databases.values():
                await database.warm()  # the first one imports LanceDB
            keeping = Keeping(store.contents, tagging, databases)
            conversations = Conversations(chosen, store.records, KEYS, tagging, store.held, keeping)
        running = InProcess(chosen, conversations, store or NoStore(ready), key, tagging, watcher, keys)
        running.store = store
        started.append((running, store))
        return await running.start()

    yield start
    for running, store in started:
        await running.stop()
        if store is not None:
            await store.close()
