"""What both Python drivers share; README.md describes the commands and events."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

Request = Callable[[dict[str, Any], int], Awaitable[Any]]


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def plain(value: Any) -> Any:
    """A model of the SDK as the JSON it stands for."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True) if hasattr(value, "model_dump") else value


async def observe(response: Any) -> None:
    """Tells of an HTTP exchange as soon as its head is there."""
    request = response.request
    body = json.loads(request.content) if request.method == "POST" else {}
    session = request.headers.get("mcp-session-id")
    given = response.headers.get("mcp-session-id")
    tell("http", verb=request.method, rpc=body.get("method"), status=response.status_code, session=session, given=given)


class Questions:
    """What the server asks of the client, answered at once or when told to."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"roots/list": {"roots": []}}
        self.open: dict[int, asyncio.Future[Any]] = {}
        self.last = 0

    async def ask(self, method: str, params: Any) -> Any:
        self.last += 1
        key = self.last
        tell("asked", key=key, method=method, params=plain(params))
        if method in self.answers:
            return self.answers[method]
        self.open[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.open[key]
        except asyncio.CancelledError:
            tell("withdrawn", key=key)
            raise

    def answer(self, key: int, result: Any) -> None:
        if not (waiting := self.open[key]).done():
            waiting.set_result(result)


async def obey(requests: dict[str, Request], questions: Questions) -> None:
    """Obeys until told to close or until stdin ends."""
    in_flight: dict[int, asyncio.Task[None]] = {}

    async def carry_out(command: dict[str, Any]) -> None:
        id = command["id"]
        try:
            params = command["params"] | ({"timeout": command["timeout"]} if "timeout" in command else {})
            result = await requests[command["do"]](params, id)
            tell("result", id=id, result=plain(result))
        except Exception as error:
            code = getattr(getattr(error, "error", None), "code", None)
            tell("error", id=id, code=code, message=str(error) or repr(error))

    def begin(command: dict[str, Any]) -> None:
        id = command["id"]
        task = in_flight[id] = asyncio.create_task(carry_out(command))
        # A task that is cancelled before its first step never runs, so it cannot tell.
        unwanted = partial(tell, "error", id=id, code=None, message="no longer wanted")
        task.add_done_callback(lambda ended: unwanted() if ended.cancelled() else None)

    async for line in commands():
        command = json.loads(line)
        match command["do"]:
            case "close":
                return
            case "cancel":
                in_flight[command["id"]].cancel()
            case "answer":
                questions.answer(command["key"], command["result"])
            case "answers":
                questions.answers[command["method"]] = command["result"]
            case _:
                begin(command)


async def commands():
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line


async def on_progress(id: int, progress: float, total: float | None, message: str | None) -> None:
    tell("progress", id=id, progress=progress, total=total, message=message)


def main(session: Callable[[str], Awaitable[None]]) -> None:
    """Runs one session with the target that the last argument names."""
    try:
        asyncio.run(session(sys.argv[-1]))
    except BaseException as error:
        tell("trouble", message=repr(error))
    tell("closed")
