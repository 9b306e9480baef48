"""The tables of docs/configuration.md, written from the settings models: `make reference`.

For each section of the settings, and each kind of table that may stand there many times, a table of key, default and
meaning goes between two marks of the page; what stands around them is written by hand and stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from proxy.settings import DEFAULTS_BY_FORMAT, EvidenceTable, FieldNames, Settings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
END = "<!-- end of keys -->"


def tables() -> dict[str, str]:
    """Every section's title, as TOML writes it, with its table, in the order of the settings."""
    return {title: _table(model) for title, model in _sections()}


def rewritten(page: str) -> str:
    """The page with the tables that the settings say. `ValueError` names a section that has no place in it."""
    for title, table in tables().items():
        start = f"<!-- keys of {title}, written by `make reference` -->"
        place = re.compile(f"(?<={re.escape(start)}\n).*?(?={re.escape(END)})", re.DOTALL)
        if len(place.findall(page)) != 1:
            raise ValueError(f"docs/configuration.md: expected once, and then {END}: {start}")
        page = place.sub(lambda _, table=table: f"{table}\n", page)  # type: ignore[misc]
    return page


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in Settings.model_fields.items():
        if get_origin(field.annotation) is list:
            (model,) = get_args(field.annotation)
            yield f"[[{name}]]", model
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield f"[{name}]", field.annotation
    yield "[evidence.fields]", FieldNames


def _table(model: type[BaseModel]) -> str:
    rows = [f"| `{key}` | {_default(model, key, field)} | {field.description} |" for key, field in _told(model)]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _told(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    for key, field in model.model_fields.items():
        if not field.description:
            raise ValueError(f"{model.__name__}.{key}: expected a description, which says what the key means")
        yield key, field


def _default(model: type[BaseModel], key: str, field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "unset" in extra:
        return str(extra["unset"])
    if model is EvidenceTable and any(key in defaults for defaults in DEFAULTS_BY_FORMAT.values()):
        return _by_format(key)
    if field.is_required():
        return "(required)"
    return "none" if field.default is None else _toml(field.default)


def _by_format(key: str) -> str:
    """The formats that share a default stand together; those that have none are not named."""
    formats: dict[str, list[str]] = {}
    for name, defaults in DEFAULTS_BY_FORMAT.items():
        if defaults.get(key):
            formats.setdefault(_toml(defaults[key]), []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)}: {value}" for value, names in formats.items())


def _toml(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
