"""Writes the database in kb-0.101.1.tar.xz with haiku.rag itself. Not run by the tests: it needs Python 3.12 and

    pip install haiku.rag-slim==0.101.1
    python tests/haiku_database/make.py kb.lancedb && tar -cJf tests/haiku_database/kb-0.101.1.tar.xz kb.lancedb

One document with two figures: the first is shown by two chunks that overlap, the second only by its caption.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import base64
import io
import sys
from pathlib import Path

from docling_core.types.doc import DocItemLabel
from docling_core.types.doc.document import DoclingDocument, ImageRef, Size
from haiku.rag.client import HaikuRAG
from haiku.rag.config import AppConfig
from haiku.rag.store.models import Chunk
from PIL import Image


def figure(colour: tuple[int, int, int]) -> ImageRef:
    out = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(out, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return ImageRef(mimetype="image/png", dpi=72, size=Size(width=64, height=48), uri=uri)


def manual() -> DoclingDocument:
    written = DoclingDocument(name="pump")
    written.add_title(text="Pump manual")
    written.add_text(label=DocItemLabel.TEXT, text="The pump runs at 3 bar.")
    written.add_text(label=DocItemLabel.CAPTION, text="Figure 1: the valve")
    written.add_picture(image=figure((255, 0, 0)))
    written.add_text(label=DocItemLabel.TEXT, text="The valve opens at 5 bar.")
    written.add_picture(image=figure((0, 0, 255)))
    written.add_text(label=DocItemLabel.CAPTION, text="Figure 2: the pump")
    return written


def chunk(content: str, refs: list[str], order: int) -> Chunk:
    return Chunk(content=content, metadata={"doc_item_refs": refs}, order=order, embedding=[0.1] * 4)


async def main(path: Path) -> None:
    config = AppConfig()
    config.embeddings.model.vector_dim = 4
    async with HaikuRAG(path, config=config, create=True) as rag:
        chunks = [
            chunk("The pump runs at 3 bar.\nFigure 1", ["#/texts/1", "#/texts/2", "#/pictures/0"], 0),
            chunk("Figure 1. The valve opens at 5 bar.", ["#/pictures/0", "#/texts/3"], 1),
            chunk("Figure 2: the pump", ["#/texts/4"], 2),
        ]
        await rag.import_document(manual(), chunks, uri="file:///manuals/pump.pdf", title="Pump manual")


asyncio.run(main(Path(sys.argv[1])))
