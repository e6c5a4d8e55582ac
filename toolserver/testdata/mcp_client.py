"""Lists and calls the tools with the official Python client: URL and token as arguments, an image on stdin."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


async def main(url: str, token: str, image: str) -> None:
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                listed = await session.list_tools()
                print(*(tool.name for tool in listed.tools))
                result = await session.call_tool("region_parse", {"region": "left lung", "images": [image]})
                print(result.content[0].text)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.stdin.read()))
