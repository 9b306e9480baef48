"""The openai library for Python: a loop of its own around two tools. The proxy is nothing but its base URL."""

from __future__ import annotations

import json
from typing import Any

from handbook import API_KEY, BASE_URL, MODEL, QUESTIONS, search
from openai import OpenAI


def tool(name: str, about: str, field: str, kind: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {field: kind}, "required": [field]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS: Any = [
    tool("search", "Search the handbook.", "query", {"type": "string"}),
    tool("cite", "Name what the answer rests on.", "ids", {"type": "array", "items": {"type": "string"}}),
]
client = OpenAI(base_url=BASE_URL, api_key=API_KEY)
messages: list[Any] = [{"role": "system", "content": "Search, then cite, then answer."}]

for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, tools=TOOLS)
        reply = raw.parse().choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        print(f"  Evidence-Proxy: {raw.headers.get('Evidence-Proxy')}")
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            given = json.loads(call.function.arguments)
            result = search(**given) if call.function.name == "search" else f"cited {len(given['ids'])}"
            content = result if isinstance(result, str) else json.dumps(result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    print(f"{question}\n  {reply.content}\n")
