"""From the configuration's evidence tables to the values that the pure rooms take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from proxy.evidence.tables import FieldNames, Table, Tables
from proxy.evidence.tagged import Proof

if TYPE_CHECKING:
    from proxy.settings import Settings


def tables_of(settings: Settings, proof: Proof) -> Tables:
    """The evidence tables that a configuration names, as values, and that of tagged evidence, which is always there."""
    named = tuple(
        Table(
            name=table.name,
            format=table.format,
            tools=frozenset(table.tools),
            cite=table.cite,
            ids="global" if table.format == "tagged" else table.ids,
            undeclared=table.undeclared,
            proof=proof if table.format == "tagged" else None,
            fields=FieldNames(**{name: tuple(getattr(table.fields, name)) for name in FieldNames.__dataclass_fields__}),
        )
        for table in settings.evidence
    )
    if any(table.proof is not None for table in named):
        return named
    always = Table("tagged", "tagged", frozenset(), "cite", ids="global", undeclared="receipt", proof=proof)
    return (*named, always)


def with_registered(tables: Tables, whole: Mapping[str, str]) -> Tables:
    """These tables for one request of which whole returns are known by their tags."""
    return tuple(
        replace(table, proof=replace(table.proof, registered=whole)) if table.proof is not None else table
        for table in tables
    )
