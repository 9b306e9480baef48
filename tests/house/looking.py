"""A whole proxy in this event loop with everything that watches it, and its admin port: what `serve` puts together."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from proxy.gateway.admin import Admin
from proxy.gateway.conversation import Conversations
from proxy.gateway.returns import Returns
from proxy.store import open_store
from proxy.visibility.lookout import Lookout
from tests.house.client import Seen, ask
from tests.house.keys import KEYS
from tests.house.running import InProcess, settings

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


class Watched:
    """`url` is where clients ask, `admin` the admin port."""

    def __init__(self, upstream: str, **sections: Any) -> None:
        self.settings = settings(upstream, **sections)
        self.store = open_store(self.settings)
        returns = Returns(KEYS, self.store.contents)
        conversations = Conversations(self.settings, self.store.records, KEYS, returns, self.store.held)
        self.lookout = Lookout(self.settings, self.store, conversations)
        self._proxy = InProcess(self.settings, conversations, self.store, None, returns, self.lookout.watchers)
        self._admin = Admin(self.settings.server)
        self.url = self.admin = ""

    async def start(self) -> Watched:
        await self.store.start()
        self.url = (await self._proxy.start()).url
        self.lookout.register(self._admin)
        host, port = await self._admin.start(any_port=True)
        self.admin = f"http://{host}:{port}"
        return self

    async def stop(self) -> None:
        await self._proxy.stop()
        await self._admin.close()
        await self.lookout.close()
        await self.store.close()

    async def show(self, path: str) -> Seen:
        """What the admin port answers."""
        return await ask(self.admin, method="GET", target=path, host=self.admin.removeprefix("http://"))

    async def scrape(self) -> Samples:
        """`/metrics`, as a scraper reads it: by series, then by labels."""
        await self.lookout.idle()
        found: Samples = {}
        for family in text_string_to_metric_families((await self.show("/metrics")).body.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return found


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    return sum(value for found, value in samples.get(name, {}).items() if labels.items() <= dict(found).items())
