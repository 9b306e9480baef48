"""An MCP server whose one tool asks the handbook. Each call is a conversation of its own, so nothing is changed in it.

python examples/mcp_server.py          # speaks MCP on standard input and output
"""

from __future__ import annotations

from conversation import Conversation, Said, Sent
from mcp.server.mcpserver import MCPServer

server = MCPServer("handbook")


@server.tool()
async def ask_handbook(question: str) -> str:
    """Ask the keeper's handbook; the answer ends with what the proxy said of the requests behind it."""
    answer, headers = "", []
    async for event in Conversation().ask(question):
        if isinstance(event, Sent):
            headers.append(event.header)
        elif isinstance(event, Said):
            answer += event.text
    return f"{answer}\n\n{'; '.join(dict.fromkeys(headers))}"


if __name__ == "__main__":
    server.run()
