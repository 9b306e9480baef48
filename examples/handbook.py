"""What the client examples search: passages of a handbook, by their words. Put your own retrieval in its place."""

from __future__ import annotations

import os
import re
from typing import Any

from proxy.demo.handbook import PASSAGES

QUESTIONS = (
    "How do I clean the lens, and what must never touch it?",
    "The rotation has slowed a little. What do I check first?",
    "How many coats does the gallery railing get?",
)
#: Where the examples send their requests: the proxy. `OPENAI_BASE_URL` says otherwise, as it does for the libraries.
BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
API_KEY = os.environ.get("OPENAI_API_KEY", "sk-example")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4.1-mini")


def search(query: str) -> list[dict[str, Any]]:
    """The passages that share the most words with a query, as plain records, as most tools return them."""
    asked = set(_words(query))
    ranked = sorted(PASSAGES, key=lambda p: -len(asked & set(_words(p.title + " " + p.text))))
    return [{"id": p.id, "title": p.title, "url": p.url, "text": p.text} for p in ranked[:4]]


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if len(word) > 3]
