"""Drives PyPI mcp 2.x; README.md describes the commands and events."""

import json
import os
from contextlib import asynccontextmanager
from functools import partial

import mcp_types as types
from common import Questions, main, obey, observe, on_progress, plain, tell
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


@asynccontextmanager
async def connection(target):
    if target.startswith("["):
        command, *args = json.loads(target)
        async with stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ))) as streams:
            yield streams
        return
    async with create_mcp_http_client() as http:
        http.event_hooks["response"].append(observe)
        async with streamable_http_client(target, http_client=http) as streams:
            yield streams


async def heard(message):
    if isinstance(message, Exception):
        tell("trouble", message=repr(message))
    elif message.method != "notifications/progress":
        tell("notification", method=message.method, params=plain(message.params))


async def session(target):
    questions = Questions()

    async def sample(_context, params):
        return types.CreateMessageResult.model_validate(await questions.ask("sampling/createMessage", params))

    async def elicit(_context, params):
        return types.ElicitResult.model_validate(await questions.ask("elicitation/create", params))

    async def roots(_context):
        return types.ListRootsResult.model_validate(await questions.ask("roots/list", None))

    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
    async with Client(connection(target), message_handler=heard, **callbacks) as client:
        tell("connected", capabilities=plain(client.server_capabilities))
        await obey(requests(client), questions)


def requests(client):
    async def call(params, id):
        on_step = partial(on_progress, id)
        limit = params.get("timeout")
        return await client.call_tool(params["name"], params["arguments"], limit, progress_callback=on_step)

    return {
        "tools/call": call,
        "tools/list": lambda params, _id: client.list_tools(cursor=params.get("cursor")),
        "prompts/list": lambda params, _id: client.list_prompts(cursor=params.get("cursor")),
        "prompts/get": lambda params, _id: client.get_prompt(params["name"], params.get("arguments")),
        "resources/list": lambda params, _id: client.list_resources(cursor=params.get("cursor")),
        "resources/templates/list": lambda params, _id: client.list_resource_templates(cursor=params.get("cursor")),
        "resources/read": lambda params, _id: client.read_resource(params["uri"]),
        "resources/subscribe": lambda params, _id: client.subscribe_resource(params["uri"]),
        "resources/unsubscribe": lambda params, _id: client.unsubscribe_resource(params["uri"]),
        "logging/setLevel": lambda params, _id: client.set_logging_level(params["level"]),
        "ping": lambda _params, _id: client.send_ping(),
    }


main(session)
