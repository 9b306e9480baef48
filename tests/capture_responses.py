"""Records what pydantic-ai sends in the Responses API for haiku.rag's captured chat conversations.

    python tests/capture_responses.py CAPTURES

CAPTURES is the folder with `haiku/`. Each captured chat body is read back into the library's own message objects,
which its `OpenAIResponsesModel` then sends to a provider on this machine; the bodies go to
`tests/captures_responses/`, a line each. It needs what `tests/clients/requirements.txt` names.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from pydantic_ai import BinaryContent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

OUT = Path(__file__).parent / "captures_responses"
#: s20 is 120 requests of up to 700 KB, which say nothing in this shape that its chat form does not say.
LEFT_OUT = {"s20"}

_bodies: list[bytes] = []
_ANSWER = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-4.1",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "ok", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}


class _Provider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        _bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.dumps(_ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


def user_content(content: Any) -> Any:
    """A user message's content as the library holds it: text, and pictures as their bytes."""
    if isinstance(content, str):
        return content
    held: list[Any] = []
    for part in content:
        if part["type"] == "text":
            held.append(part["text"])
        else:
            held.append(BinaryContent.from_data_uri(part["image_url"]["url"]))
    return held


def messages_of(chat: list[dict[str, Any]]) -> list[ModelMessage]:
    """The library's messages of a chat conversation. Long instructions are cut to their first line."""
    instructions = "\n\n".join(m["content"].split("\n")[0] for m in chat if m["role"] == "system")
    messages: list[ModelMessage] = []
    names: dict[str, str] = {}
    parts: list[Any] = []

    def request() -> None:
        if parts:
            messages.append(ModelRequest(parts=list(parts), instructions=instructions))
            parts.clear()

    for message in chat:
        if message["role"] == "user":
            parts.append(UserPromptPart(user_content(message["content"])))
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            parts.append(ToolReturnPart(names[call_id], message["content"], tool_call_id=call_id))
        elif message["role"] == "assistant":
            request()
            said: list[Any] = [TextPart(message["content"])] if message.get("content") else []
            for call in message.get("tool_calls") or ():
                function = call["function"]
                names[call["id"]] = function["name"]
                said.append(ToolCallPart(function["name"], function["arguments"], tool_call_id=call["id"]))
            messages.append(ModelResponse(parts=said))
    request()
    return messages


async def capture(model: OpenAIResponsesModel, body: bytes) -> bytes:
    """What the library sends instead of this chat body."""
    chat = json.loads(body)
    tools = [
        ToolDefinition(
            name=tool["function"]["name"],
            description=(tool["function"].get("description") or "").split("\n")[0],
            parameters_json_schema=tool["function"]["parameters"],
        )
        for tool in chat.get("tools") or ()
    ]
    await model.request(messages_of(chat["messages"]), None, ModelRequestParameters(function_tools=tools))
    return _bodies.pop()


async def main(captures: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    provider = OpenAIProvider(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="sk-test")
    model = OpenAIResponsesModel("gpt-4.1", provider=provider)
    for folder in sorted((captures / "haiku").iterdir()):
        meta = json.loads((folder / "meta.json").read_bytes())
        if meta["options"]["api"] != "chat" or meta["options"]["policy"] or folder.name in LEFT_OUT:
            continue
        for arm in ("B", "A"):
            runs = meta["arms"][arm]["runs"]
            seen: set[int] = set()
            firsts = [
                run["requests"][0]
                for run in runs
                if run["requests"] and not (run["question"] in seen or seen.add(run["question"]))
            ]
            lines = []
            numbers = sorted(int(m[1]) for f in folder.iterdir() if (m := re.fullmatch(rf"{arm}-(\d+)\.json", f.name)))
            for number in numbers:
                wanted = arm == "B" or number in firsts or number == numbers[-1]
                lines.append(await capture(model, (folder / f"{arm}-{number}.json").read_bytes()) if wanted else b"")
            assert all(b"\n" not in line for line in lines)
            (OUT / f"{folder.name}-{arm}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
            print(folder.name, arm, len(lines), sum(map(len, lines)))
    server.shutdown()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
