"""The handbook in a LanceDB table, whose search returns tagged evidence with its pictures."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from proxy.demo.handbook import Handbook, Passage
from proxy.demo.pictures import png_of
from proxy.tagging import Keys, Picture, Result, Tagged, tag


@cache
def _handbook() -> Handbook:
    return Handbook.laid_out_in(Path(tempfile.mkdtemp(prefix="handbook-")))


def search(query: str) -> list[Result]:
    """The passages that fit a query best, the best one first."""
    return [
        Result(p.id, p.text, document_id=p.url, title=p.title, uri=p.url, pictures=_pictures(p))
        for p in _handbook().search(query, limit=4)
    ]


def as_evidence(results: list[Result]) -> Tagged:
    """What a tool returns of them. The tag proves that it is evidence, whichever tool returns it."""
    return tag(results, Keys.parse(os.environ["EVIDENCE_TAG_KEYS"]))


def _pictures(passage: Passage) -> list[Picture | str]:
    return [Picture(png_of(passage.id), reference="drawing")] if passage.picture else []
