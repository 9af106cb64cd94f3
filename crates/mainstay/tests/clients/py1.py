"""Drives PyPI mcp 1.x; README.md describes the commands and events."""

import json
import os
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from common import Questions, main, obey, observe, on_progress, plain, tell
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import AnyUrl


@asynccontextmanager
async def connection(target):
    if target.startswith("["):
        command, *args = json.loads(target)
        async with stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ))) as streams:
            yield streams
        return
    async with create_mcp_http_client() as http:
        http.event_hooks["response"].append(observe)
        async with streamable_http_client(target, http_client=http) as (read, write, _session):
            yield read, write


async def heard(message):
    if isinstance(message, Exception):
        tell("trouble", message=repr(message))
    elif isinstance(message, types.ServerNotification):
        if message.root.method != "notifications/progress":
            tell("notification", method=message.root.method, params=plain(message.root.params))


async def session(target):
    questions = Questions()

    async def sample(_context, params):
        return types.CreateMessageResult.model_validate(await questions.ask("sampling/createMessage", params))

    async def elicit(_context, params):
        return types.ElicitResult.model_validate(await questions.ask("elicitation/create", params))

    async def roots(_context):
        return types.ListRootsResult.model_validate(await questions.ask("roots/list", None))

    async with connection(target) as streams:
        callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
        async with ClientSession(*streams, message_handler=heard, **callbacks) as client:
            hello = await client.initialize()
            tell("connected", capabilities=plain(hello.capabilities))
            await obey(requests(client), questions)


def requests(client):
    def page(params):
        return types.PaginatedRequestParams(cursor=params.get("cursor"))

    async def call(params, id):
        on_step = partial(on_progress, id)
        limit = timedelta(seconds=params["timeout"]) if "timeout" in params else None
        return await client.call_tool(params["name"], params["arguments"], limit, progress_callback=on_step)

    return {
        "tools/call": call,
        "tools/list": lambda params, _id: client.list_tools(params=page(params)),
        "prompts/list": lambda params, _id: client.list_prompts(params=page(params)),
        "prompts/get": lambda params, _id: client.get_prompt(params["name"], params.get("arguments")),
        "resources/list": lambda params, _id: client.list_resources(params=page(params)),
        "resources/templates/list": lambda params, _id: client.list_resource_templates(params=page(params)),
        "resources/read": lambda params, _id: client.read_resource(AnyUrl(params["uri"])),
        "resources/subscribe": lambda params, _id: client.subscribe_resource(AnyUrl(params["uri"])),
        "resources/unsubscribe": lambda params, _id: client.unsubscribe_resource(AnyUrl(params["uri"])),
        "logging/setLevel": lambda params, _id: client.set_logging_level(params["level"]),
        "ping": lambda _params, _id: client.send_ping(),
    }


main(session)
