"""Other tools' evidence by their public contracts: each result as that contract writes it, read by `auto`.

ChatGPT connectors: https://platform.openai.com/docs/mcp (search and fetch). LangChain: langchain_core's Document.
LlamaIndex: llama_index.core.schema.NodeWithScore. MCP: the specification's CallToolResult, 2025-06-18.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.evidence import auto
from proxy.evidence.tables import FieldNames

SEARCH = {
    "results": [
        {"id": "doc-1", "title": "Pump manual", "url": "https://kb.example/pump"},
        {"id": "doc-2", "title": "Valve manual", "url": "https://kb.example/valve", "text": "A valve."},
    ]
}
FETCH = {
    "id": "doc-1",
    "title": "Pump manual",
    "text": "The pump runs at 3 bar.",
    "url": "https://kb.example/pump",
    "metadata": {"source": "vector_store"},
}
LANGCHAIN = [
    {
        "id": "lc-1",
        "metadata": {"source": "https://kb.example/pump", "page": 3, "title": "Pump manual"},
        "page_content": "It's the pump's \"manual\".\nLine two.",
        "type": "Document",
    }
]
LANGCHAIN_REPR = (
    "[Document(id='lc-1', metadata={'source': 'https://kb.example/pump', 'page': 3, 'title': 'Pump manual'}, "
    "page_content='It\\'s the pump\\'s \"manual\".\\nLine two.'), "
    "Document(id='lc-2', metadata={'when': datetime.datetime(2026, 1, 1, 0, 0)}, page_content='Second <a: b>')]"
)
NODE = {
    "node": {
        "id_": "node-1",
        "embedding": None,
        "metadata": {"title": "Pump manual", "page": 3},
        "excluded_embed_metadata_keys": [],
        "relationships": {"1": {"node_id": "doc-1", "node_type": "4", "metadata": {}, "hash": "ab"}},
        "text": "The pump runs at 3 bar.",
        "mimetype": "text/plain",
        "start_char_idx": 0,
        "class_name": "TextNode",
    },
    "score": 0.87,
    "class_name": "NodeWithScore",
}
NODE_REPR = (
    "[NodeWithScore(node=TextNode(id_='node-1', embedding=None, metadata={'title': 'Pump manual', 'page': 3}, "
    "excluded_embed_metadata_keys=[], relationships={<NodeRelationship.SOURCE: '1'>: RelatedNodeInfo(node_id='doc-1', "
    "node_type=<ObjectType.DOCUMENT: '4'>, metadata={}, hash='ab')}, text='The pump runs at 3 bar.', "
    "mimetype='text/plain', start_char_idx=0), score=0.87)]"
)
LINKED = "file:///kb/pump.md"
MCP = {
    "content": [
        {"type": "text", "text": json.dumps(SEARCH)},
        {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": LINKED, "name": "Pump manual", "mimeType": "text/markdown"},
        {
            "type": "resource",
            "resource": {"uri": "file:///kb/seal.md", "mimeType": "text/plain", "text": "Seals last."},
        },
    ],
    "structuredContent": SEARCH,
    "isError": False,
}


def read(text: str) -> list[tuple[str, str, str | None]]:
    return [(chunk.id, chunk.content, chunk.source) for chunk in auto.read(text, FieldNames())]


READ: dict[str, tuple[str, list[tuple[str, str, str | None]]]] = {
    "a connector's search": (
        json.dumps(SEARCH),
        [
            ("doc-1", "", '"Pump manual" (https://kb.example/pump)'),
            ("doc-2", "A valve.", '"Valve manual" (https://kb.example/valve)'),
        ],
    ),
    "a connector's fetch": (
        json.dumps(FETCH),
        [("doc-1", "The pump runs at 3 bar.", '"Pump manual" (https://kb.example/pump)')],
    ),
    "LangChain documents": (
        json.dumps(LANGCHAIN),
        [("lc-1", "It's the pump's \"manual\".\nLine two.", '"Pump manual" (https://kb.example/pump), p. 3')],
    ),
    "the repr of LangChain documents": (
        LANGCHAIN_REPR,
        [
            ("lc-1", "It's the pump's \"manual\".\nLine two.", '"Pump manual" (https://kb.example/pump), p. 3'),
            ("lc-2", "Second <a: b>", None),
        ],
    ),
    "one LangChain document": (
        "Document(id='lc-3', metadata={}, page_content='Alone.')",
        [("lc-3", "Alone.", None)],
    ),
    "LlamaIndex nodes": (json.dumps([NODE]), [("node-1", "The pump runs at 3 bar.", '"Pump manual", p. 3')]),
    "the repr of LlamaIndex nodes": (NODE_REPR, [("node-1", "The pump runs at 3 bar.", '"Pump manual", p. 3')]),
}


@pytest.mark.parametrize(("text", "chunks"), READ.values(), ids=READ.keys())
def test_results_of_a_public_contract_are_read(text: str, chunks: list[Any]) -> None:
    assert read(text) == chunks
    assert read(json.dumps({"result": text})) == chunks


def test_an_mcp_result_is_read_with_its_links_resources_and_structured_content() -> None:
    found = read(json.dumps(MCP))
    assert {chunk[0] for chunk in found} == {"doc-1", "doc-2", LINKED, "file:///kb/seal.md"}
    assert ("file:///kb/seal.md", "Seals last.", "file:///kb/seal.md") in found
    # The structured content says the same as the text beside it; when it is cited, one of equal contents is kept.
    assert [chunk for chunk in found if chunk[0] == "doc-2"] == [READ["a connector's search"][1][1]] * 2


@pytest.mark.parametrize(
    "text", ["f(x=__import__('os').system('true'))", "[exit(code=1)]", "D(id=None, page_content=open('x'))"]
)
def test_nothing_that_a_repr_names_is_ever_called(text: str) -> None:
    assert read(text) == []
