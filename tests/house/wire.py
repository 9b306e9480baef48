"""Both ends of the wire as bytes: what a client sends, what reaches the provider, what it answers, what comes back.

Nothing is parsed here. A case is an `Exchange` of exact bytes; the provider records to the byte, and the client does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Stands in expected bytes for the provider's host and port, which are known only when it runs.
HOST = b"(the provider)"
#: A test that waits for longer than this waits for bytes that do not come; what came until then is compared.
_ENOUGH = 20.0


@dataclass(frozen=True)
class Exchange:
    """One exchange on a connection of the client's. Each piece of `sends` and `answers` is written by itself."""

    sends: Sequence[bytes]
    #: What must reach the provider, exactly; b"" if nothing may.
    arrives: bytes
    answers: Sequence[bytes]
    #: What must come back, exactly.
    receives: bytes
    #: Whether the provider ends its connection after its answer, and whether the client's must end, too.
    provider_ends: bool = False
    ends: bool = False
    #: Write the answer before the request has come whole.
    early: bool = False


class RawProvider:
    """Listens on 127.0.0.1 and plays its side of exchanges, in order, whichever connection they come on."""

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.connections = 0
        self._script: deque[Exchange] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> RawProvider:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def host(self) -> bytes:
        assert self._server is not None
        return b"127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{self.host.decode()}/v1"

    def play(self, *exchanges: Exchange) -> None:
        self._script.extend(exchange for exchange in exchanges if exchange.arrives)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while not reader.at_eof():
                first = await reader.read(1)
                if not first:
                    break
                played = self._script.popleft() if self._script else None
                wanted = len(played.arrives.replace(HOST, self.host)) if played is not None else 1 << 20
                if played is not None and played.early:
                    await _write(writer, played.answers)
                self.arrived.append(first + await _collected(reader, wanted - 1))
                if played is not None and not played.early:
                    await _write(writer, played.answers)
                if played is not None and played.provider_ends:
                    break
        except ConnectionError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


async def play(url: str, provider: RawProvider, exchanges: Sequence[Exchange]) -> None:
    """Play exchanges, one after the other, on one connection to the proxy, and compare every byte."""
    provider.play(*exchanges)
    target = url.partition("//")[2]
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 26)
    try:
        for number, exchange in enumerate(exchanges):
            seen = len(provider.arrived)
            await _write(writer, exchange.sends)
            came = await _collected(reader, len(exchange.receives))
            assert came == exchange.receives, (
                f"exchange {number}: what came back: {_first_difference(came, exchange.receives)}"
            )
            expected = [exchange.arrives.replace(HOST, provider.host)] if exchange.arrives else []
            got, wanted = b"".join(provider.arrived[seen:]), b"".join(expected)
            assert got == wanted, f"exchange {number}: what reached the provider: {_first_difference(got, wanted)}"
            if exchange.ends:
                assert await _collected(reader, 1) == b"", "the connection must end here"
    finally:
        writer.close()


async def _write(writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> None:
    for number, piece in enumerate(pieces):
        if number:
            await asyncio.sleep(0.002)  # so that the other side reads this piece by itself
        writer.write(piece)
        await writer.drain()


async def _collected(reader: asyncio.StreamReader, size: int) -> bytes:
    """So many bytes, or what came of them until the end or for long enough."""
    came = bytearray()
    try:
        async with asyncio.timeout(_ENOUGH):
            while len(came) < size and (piece := await reader.read(size - len(came))):
                came += piece
    except (TimeoutError, ConnectionError):
        pass
    return bytes(came)


def _first_difference(came: bytes, expected: bytes) -> str:
    at = next(
        (at for at, (a, b) in enumerate(zip(came, expected, strict=False)) if a != b), min(len(came), len(expected))
    )
    return f"at byte {at}, {came[max(0, at - 40) : at + 80]!r} instead of {expected[max(0, at - 40) : at + 80]!r}"
