"""A client of PyPI mcp 1.x or 2.x that calls without a pause, in one session as long as that lives.

Arguments: the server's URL, and how many milliseconds each call takes. Prints the SDK's version, then one line for
each event: `session` when one is open, `answer`, and `error` or `lost` with the reason.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from importlib.metadata import version

import mcp
from mcp.client.streamable_http import streamable_http_client

CALL_LIMIT = 10


def report(*words):
    print(*words, flush=True)


@asynccontextmanager
async def open_session(url):
    if hasattr(mcp, "Client"):
        async with mcp.Client(streamable_http_client(url)) as client:
            yield client
        return
    async with streamable_http_client(url) as (read, write, _), mcp.ClientSession(read, write) as client:
        await client.initialize()
        yield client


async def call(client, milliseconds):
    tool, arguments = ("sleep", {"ms": milliseconds}) if milliseconds else ("echo", {"text": "x"})
    async with asyncio.timeout(CALL_LIMIT):
        await client.call_tool(tool, arguments)


async def use(client, milliseconds):
    """Returns when the session is lost: two calls in a row failed."""
    failed = None
    while True:
        try:
            await call(client, milliseconds)
            failed = None
            report("answer")
        except Exception as error:
            if failed is not None:
                raise failed from error
            failed = error
            report("error", repr(error))


async def main(url, milliseconds):
    report(version("mcp"))
    while True:
        try:
            async with open_session(url) as client:
                report("session")
                await use(client, milliseconds)
        except Exception as error:
            report("lost", repr(error))


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
