"""Where tag keys come from: the environment, or a file that is made at first start for its owner alone."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proxy.evidence import tags
from proxy.evidence.tags import Broken, Keys
from proxy.settings import Settings, SettingsError, StoreSettings, TagsSettings
from proxy.store.tag_keys import FILE, tag_keys
from proxy.tagging import Result, tag
from tests.conftest import StartProcess

SECRET = "correct horse battery staple"


def at(directory: Path) -> Settings:
    return Settings(store=StoreSettings(data_dir=directory))


def same(one: Keys, other: Keys) -> bool:
    return not isinstance(tags.unseal(tag([Result("c", "x")], one).text, 0, other), Broken)


def test_a_key_is_made_once_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    made = tag_keys(at(tmp_path / "new"))
    file = tmp_path / "new" / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [FILE]
    assert same(made, tag_keys(at(tmp_path / "new")))
    assert same(made, Keys.parse(file.read_text()))  # what an operator gives to the tools


def test_processes_that_start_at_once_come_to_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: tag_keys(at(tmp_path)), range(8))
    assert all(same(first, other) for other in others)


def test_the_environment_comes_first_and_several_keys_are_separated_by_commas(tmp_path: Path) -> None:
    settings = Settings(store=StoreSettings(data_dir=tmp_path), tags=TagsSettings(key_env="TAGS"))
    keys = tag_keys(settings, {"TAGS": f"{SECRET} , another key of these tests"})
    assert same(Keys([SECRET]), keys) and same(Keys(["another key of these tests"]), keys)
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("value", [None, "", " , ", "too short", f"{SECRET},short"])
def test_a_variable_without_usable_keys_is_refused_and_nothing_of_it_is_shown(value: str | None) -> None:
    settings = Settings(tags=TagsSettings(key_env="TAGS_OF_MINE"))
    with pytest.raises(SettingsError) as refused:
        tag_keys(settings, {} if value is None else {"TAGS_OF_MINE": value})
    assert "tags.key_env" in str(refused.value)
    assert SECRET not in str(refused.value) and "TAGS_OF_MINE" not in str(refused.value)


def test_a_damaged_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("short\n")
    with pytest.raises(SettingsError, match="holds no usable tag keys"):
        tag_keys(at(tmp_path))


def test_a_store_that_replicas_share_needs_a_named_key() -> None:
    shared = Settings.model_construct(store=StoreSettings.model_construct(uri="s3://bucket/x"), tags=TagsSettings())
    with pytest.raises(SettingsError, match=r"tags\.key_env is missing: .* every replica must sign with the same key"):
        tag_keys(shared)


def test_with_a_store_in_memory_a_key_lasts_as_long_as_the_process() -> None:
    settings = Settings(store=StoreSettings(uri="memory://"))
    assert not same(tag_keys(settings), tag_keys(settings))


async def test_the_data_directory_is_its_owners_only(start_process: StartProcess) -> None:
    process = await start_process("")
    directory = process.directory / "data" / "evidence-proxy"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "tag-keys").stat().st_mode) == 0o600
