"""Kills a process that writes and tidies as fast as it can, and holds the store to opening with all it had flushed."""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

from proxy.store import RecordStore
from proxy.store.lance import Lance
from proxy.store.place import Place
from proxy.store.record import Read
from proxy.store.thread import StoreThread

# Says what it has flushed, batch by batch, until it is killed. Payloads follow from numbers, so both sides know them.
WRITER = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from proxy.store import RecordStore, StoredRecord
    from proxy.store.upkeep import Pace

    pace = Pace(
        tidy_after_commits=3, tidy_from_pieces=2, tidy_share=1.0, keep_versions=0.05, index_from_rows=20, tick=0.01
    )

    async def main():
        store = RecordStore(None, Path(sys.argv[1]), read_timeout=20, retention=None, pace=pace)
        await store.start()
        for start in range(int(sys.argv[2]), 10**9, 5):
            for n in range(start, start + 5):
                store.add(StoredRecord(n.to_bytes(32, "big"), bytes(32), bytes(16), b"payload %d" % n))
            await store.flush()
            print(start + 5, flush=True)

    asyncio.run(main())
""")


def write_until_killed(data: Path, start: int, batches: int, rng: random.Random) -> int:
    """Run the writer, kill it somewhere after so many batches, and return what it had flushed by its own word."""
    command = [sys.executable, "-c", WRITER, str(data), str(start)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        flushed = start
        if batches == 0:
            # Somewhere in the making of the store: as soon as its directory appears, or just after.
            while not data.exists() and writer.poll() is None:
                pass
        for _ in range(batches):
            line = writer.stdout.readline()
            assert line, writer.stderr.read().decode()
            flushed = int(line)
        for _ in range(rng.randrange(20_000)):
            pass
        writer.kill()
        for line in writer.stdout:
            if line.endswith(b"\n"):
                flushed = int(line)
    return flushed


async def test_a_store_whose_process_is_killed_opens_with_all_that_was_flushed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    rng = random.Random(20)
    flushed = 0
    for batches in (0, 1, rng.randrange(5, 30), rng.randrange(30, 60)):
        flushed = write_until_killed(data, flushed, batches, rng)
        store = RecordStore(None, data, read_timeout=20, retention=None)
        await store.start()
        keys = [n.to_bytes(32, "big") for n in range(flushed)]
        assert await store.find(keys) == {key: (b"payload %d" % n,) for n, key in enumerate(keys)}
        await store.close()
        assert store.counts()["damaged"] == 0


async def test_a_process_killed_while_it_makes_the_store_leaves_one_that_is_made_by_the_next(tmp_path: Path) -> None:
    """Every state between nothing and a whole store: what `make_room` left, and each table alone."""
    thread = StoreThread()
    for attempt, left in enumerate(([], ["schema"], ["schema", "secret"], ["schema", "secret", "records"])):
        place = Place.of(None, tmp_path / str(attempt))
        place.prepare()
        for table in left:
            place.make_room(table)
        lance = await thread.run(Lance.open(place))
        assert await thread.run(lance.read([bytes(32)], latest=True)) == Read({})
    await thread.stop()
