"""What happens to a running proxy when its store does not do what it should: requests keep flowing, /readyz tells.

Promise 3: a store that is full, read-only, damaged, hanging or gone costs compaction, and when it works again, so does
the proxy, without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.house.crowd import Crowd, Talk
from tests.house.provider import Provider
from tests.house.replicas import Replicas, S3Server, is_ready

#: What a request may become that another replica's record would be needed for.
EXCUSED = {"untouched (store-slow)", "untouched (store-error)"}


@contextlib.contextmanager
def small_disk(where: Path, size: str = "3m") -> Iterator[None]:
    """A file system of its own; skips the test where one may not be mounted."""
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(where)]
    if not (sys.platform == "linux" and shutil.which("mount") and os.geteuid() == 0):
        pytest.skip("needs Linux, and a user who may mount a tmpfs")
    if (done := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"a tmpfs may not be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def remount(where: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(where)], check=True)


@contextlib.asynccontextmanager
async def proxies(provider: Provider, uri: object, number: int = 1, **environment: str) -> AsyncIterator[Replicas]:
    replicas = Replicas(provider.url, str(uri), environment, seed=1)
    try:
        yield await replicas.start(number)
    finally:
        await replicas.stop()


async def talked(crowd: Crowd, questions: int, seed: int = 1) -> Talk:
    """A conversation that has come so far."""
    talk = Talk(f"talk-{seed}-{next(crowd._number)}", random.Random(seed))
    for _ in range(questions):
        await crowd.question(talk)
    return talk


async def until_newest(crowd: Crowd, talk: Talk) -> None:
    """Ask question after question until one is compacted up to the newest."""
    for _ in range(60):
        before = crowd.openings["newest"]
        await crowd.question(talk)
        if crowd.openings["newest"] > before:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"never compacted again: {crowd.openings}")


async def test_a_disk_that_fills_up_stops_no_request_and_when_there_is_room_again_everything_is_written(
    provider: Provider, tmp_path: Path
) -> None:
    data = tmp_path / "disk"
    with small_disk(data):
        async with proxies(provider, data) as running:
            crowd = Crowd(provider, running.where, seed=1)
            talk = await talked(crowd, 2)
            await running.are_open()
            ballast = data / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            for _ in range(4):
                await crowd.question(talk)
            (process,) = running.processes
            await is_ready(process, "No space left", ready=False)
            ballast.unlink()
            await is_ready(process)
            await crowd.question(talk)
        # What was written in the end is there for the next process.
        async with proxies(provider, data) as running:
            await running.are_open()
            crowd = Crowd(provider, running.where, seed=2)
            await crowd.question(talk)
            assert crowd.openings == {"newest": 1}


async def test_a_disk_that_is_full_before_the_first_record_stops_no_request(provider: Provider, tmp_path: Path) -> None:
    data = tmp_path / "disk"
    with small_disk(data, "64k"):
        async with proxies(provider, data) as running:
            crowd = Crowd(provider, running.where, seed=1)
            (data / "ballast").write_bytes(bytes(60 * 1024))
            talk = await talked(crowd, 3)
            await is_ready(running.processes[0], "No space left", ready=False)
            assert crowd.openings == {"newest": 2}, "this process knows what it was told"
            remount(data, "size=3m")
            await is_ready(running.processes[0], "is open")
            await crowd.question(talk)


async def test_a_data_directory_that_becomes_read_only_stops_no_request_not_even_a_restart(
    provider: Provider, tmp_path: Path
) -> None:
    data = tmp_path / "disk"
    with small_disk(data):
        async with proxies(provider, data) as running:
            crowd = Crowd(provider, running.where, seed=1)
            talk = await talked(crowd, 2)
            await running.are_open()
        remount(data, "ro")
        async with proxies(provider, data) as running:
            (process,) = running.processes
            crowd = Crowd(provider, running.where, seed=2)
            await crowd.question(talk)
            assert crowd.openings == {"newest": 1}, "what lies there is read"
            await is_ready(process, str(data), ready=False)
            await crowd.question(talk)
            remount(data, "rw")
            await is_ready(process)
            await crowd.question(talk)
        async with proxies(provider, data) as running:
            await running.are_open()
            crowd = Crowd(provider, running.where, seed=3)
            await crowd.question(talk)
            assert crowd.openings == {"newest": 1}


def _cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:30])


def _scramble(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(random.Random(len(content)).randbytes(len(content)))


DAMAGES: dict[str, Callable[[Path], None]] = {"cut short": _cut_short, "scrambled": _scramble, "removed": Path.unlink}
#: Each part in one way; `make proofs` tries all.
QUICKLY = {
    ("records.lance/data", "cut short"),
    ("records.lance/_versions", "removed"),
    ("secret.lance", "scrambled"),
    ("schema.lance", "removed"),
}


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        pytest.param(part, damage, marks=() if (part, damage) in QUICKLY else pytest.mark.proofs)
        for part in sorted({part for part, _ in QUICKLY})
        for damage in DAMAGES
    ],
)
async def test_damaged_tables_stop_no_request_and_are_read_again_once_they_are_put_back(
    provider: Provider, tmp_path: Path, a_store: Path, a_talk: Talk, part: str, damage: str
) -> None:
    data, talk = a_store, a_talk
    files = {file: file.read_bytes() for file in (data / part).rglob("*") if file.is_file()}
    for file in files:
        DAMAGES[damage](file)
    async with proxies(provider, data) as running:
        (process,) = running.processes
        crowd = Crowd(provider, running.where, seed=2)
        await crowd.question(talk)
        (became,) = crowd.openings
        assert became in EXCUSED, became
        await is_ready(process, str(data), ready=False)
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        await is_ready(process)
        await until_newest(crowd, talk)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Talk]:
    """A store with a conversation in it, made once."""
    data = tmp_path_factory.mktemp("recorded") / "data"

    async def record() -> Talk:
        provider = await Provider().start()
        async with proxies(provider, data) as running:
            talk = await talked(Crowd(provider, running.where, seed=1), 2)
        await provider.stop()
        return talk

    return data, asyncio.run(record())


@pytest.fixture
def a_store(recorded: tuple[Path, Talk], tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded[0], tmp_path / "data"))


@pytest.fixture
def a_talk(recorded: tuple[Path, Talk]) -> Talk:
    talk = recorded[1]
    return Talk(talk.name, random.Random(7), list(talk.messages), dict(talk.found), list(talk.cited))


async def test_a_store_that_hangs_delays_no_request_for_long_and_is_told_of_until_it_answers_again(
    provider: Provider,
) -> None:
    if not S3Server.is_here():
        pytest.skip("no S3 server is installed: run `make clients`")
    s3 = await S3Server().start()
    try:
        async with proxies(provider, f"s3://{s3.bucket}/a", 2, **s3.environment) as running:
            first, second = running.processes
            here = Crowd(provider, lambda: _at(first.url), seed=1)
            talk = await talked(here, 2)
            await running.are_open()
            s3.pause()
            there = Crowd(provider, lambda: _at(second.url), seed=2)
            await there.question(talk)
            assert set(there.openings) == {"untouched (store-slow)"}
            await is_ready(second, "s3://evidence/a", ready=False)
            assert b"nothing" not in b"".join(str(line).encode() for line in second.lines), "no credential is told"
            s3.go_on()
            await is_ready(second)
            await is_ready(first)
            await until_newest(there, talk)
    finally:
        s3.go_on()
        await s3.stop()


async def test_a_store_that_is_gone_and_comes_back_empty_is_begun_anew(provider: Provider) -> None:
    if not S3Server.is_here():
        pytest.skip("no S3 server is installed: run `make clients`")
    s3 = await S3Server().start()
    port = int(s3.url.rsplit(":", 1)[1])
    try:
        async with proxies(provider, f"s3://{s3.bucket}/a", 2, **s3.environment) as running:
            first, second = running.processes
            here = Crowd(provider, lambda: _at(first.url), seed=1)
            talk = await talked(here, 2)
            await running.are_open()
            await s3.stop()
            there = Crowd(provider, lambda: _at(second.url), seed=2)
            await there.question(talk)
            assert set(there.openings) <= EXCUSED, there.openings
            await is_ready(second, ready=False)
            s3 = await S3Server(port).start()
            await is_ready(second)
            await until_newest(there, talk)
    finally:
        await s3.stop()


async def _at(url: str) -> str:
    return url


async def test_sigterm_writes_what_waits_and_what_is_written_is_its_owners_only(
    provider: Provider, tmp_path: Path
) -> None:
    data = tmp_path / "made" / "data"
    async with proxies(provider, data) as running:
        crowd = Crowd(provider, running.where, seed=1)
        talk = await talked(crowd, 1)
        assert await running.processes[0].stop(signal.SIGTERM) == 0
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [data, *data.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*") if path.is_file()} == {0o600}
    async with proxies(provider, data) as running:
        await running.are_open()
        crowd = Crowd(provider, running.where, seed=2)
        await crowd.question(talk)
        assert crowd.openings == {"newest": 1}
