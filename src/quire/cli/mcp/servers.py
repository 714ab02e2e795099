"""`ToolServers`: the connected servers, their tools and calls of them.

An event loop in a thread keeps the connections; the methods are for the main thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from quire.config.tool_servers import ServerEntry
from quire.errors import ConfigError
from quire.parsers.call_rules import MAX_TOOLS

_START_S = 60.0
"""Time to start a program, which may have to be downloaded first, and to list its tools."""
_CALL_S = 600.0
_MAX_PAGES = 100
_MAX_DEFINITION = 32 * 1024
MAX_RESULT = 20_000
"""Most characters of a result that the model gets."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a server."""

    name: str
    """The name that the model uses: no two tools of a chat share it."""
    own_name: str
    """The name that the server uses."""
    description: str
    schema: dict[str, Any]
    server: ToolServer

    def offer(self) -> dict[str, Any]:
        """The tool as a chat request offers it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(eq=False, slots=True)
class ToolServer:
    """One server and the state of its connection."""

    entry: ServerEntry
    listed: Future[list[Any]] = field(default_factory=Future)
    """The tools, as the server lists them."""
    failure: str | None = None
    """Reason for which it cannot be used."""
    client: Any = None
    scope: Any = None
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=3))

    async def serve(self) -> None:
        """Connect, list the tools, and keep the connection until `scope` is cancelled."""
        import anyio

        with anyio.CancelScope() as self.scope:
            try:
                await self._connect()
            except Exception as error:  # of any package that the transports use
                self.fail(_text_of(error))
        self.fail("the connection was closed")

    def fail(self, why: str) -> None:
        """Note why the server cannot be used; the first reason counts."""
        words = f" ({self.last_words[-1][:300]})" if self.last_words else ""
        self.failure = self.failure or f"{why}{words}"
        if not self.listed.done():
            self.listed.set_exception(ConfigError(self.failure))

    async def _connect(self) -> None:
        import anyio
        from mcp import Client

        from quire.cli.mcp.transport import program_streams, web_streams

        entry = self.entry
        streams = (
            program_streams(entry, self.last_words, self.fail)
            if entry.command
            else web_streams(entry)
        )
        async with Client(streams, cache=None) as client:
            self.client = client
            tools: list[Any] = []
            cursor = None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor or len(tools) > MAX_TOOLS:
                    break
            self.listed.set_result(tools)
            await anyio.sleep_forever()

    async def call(self, tool: Tool, arguments: dict[str, Any]) -> str:
        """The result as text. Raises ConfigError if the server has failed."""
        try:
            result = await self.client.call_tool(
                tool.own_name, arguments, read_timeout_seconds=_CALL_S
            )
        except Exception as error:  # of any package that the transports use
            raise ConfigError(self.failure or _text_of(error)) from None
        return result_text(result)


class ToolServers:
    """All servers of a chat. Use as a context manager: programs end with it."""

    def __init__(self, entries: Iterable[ServerEntry], warn: Callable[[str], object]) -> None:
        """`warn` gets a sentence on each server and tool that cannot be used. Raises ConfigError if
        the package is not installed."""
        try:
            import mcp  # noqa: F401
        except ImportError:
            raise ConfigError(
                "--mcp-config needs the package mcp: pip install 'quire-engine[mcp]'"
            ) from None
        for name in ("mcp", "httpx2"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self.servers = [ToolServer(entry) for entry in entries]
        self.tools: dict[str, Tool] = {}
        self._warn = warn
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="quire-mcp", daemon=True)
        self._ends: list[Future[None]] = []

    def __enter__(self) -> ToolServers:
        self._thread.start()
        try:
            for server in self.servers:
                self._ends.append(asyncio.run_coroutine_threadsafe(server.serve(), self._loop))
            end = time.monotonic() + _START_S
            for server in self.servers:
                self._add_tools(server, max(0.0, end - time.monotonic()))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for server in self.servers:
            self._loop.call_soon_threadsafe(_cancel, server)
        for end in self._ends:
            with suppress(Exception):  # the chat ends whatever a server does
                end.result(timeout=5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _add_tools(self, server: ToolServer, timeout_s: float) -> None:
        try:
            listed = server.listed.result(timeout=timeout_s)
        except FutureTimeoutError:
            server.failure = f"it did not list its tools within {_START_S:g} s"
            self._loop.call_soon_threadsafe(_cancel, server)
        except ConfigError:
            pass
        if server.failure:
            self._warn(f"tools of {server.entry.name} cannot be used: {server.failure}")
            return
        left_out = [one for one in listed if not self._add(one, server)]
        if left_out:
            self._warn(
                f"{len(left_out)} tool(s) of {server.entry.name} are left out, such as "
                f"{left_out[0].name[:80]!r}: a name must have up to 64 letters, digits, _ and -, a "
                f"definition up to {_MAX_DEFINITION:,} characters, and a chat up to {MAX_TOOLS} "
                "tools"
            )

    def _add(self, listed: Any, server: ToolServer) -> bool:
        """Whether the tool can be offered. The second tool of a name has its server's in front."""
        name = listed.name
        if name in self.tools:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", server.entry.name) + "__" + name
        description, schema = listed.description or "", listed.input_schema
        size = len(description) + len(json.dumps(schema))
        is_good = _NAME.fullmatch(name) and name not in self.tools and size <= _MAX_DEFINITION
        if not is_good or len(self.tools) >= MAX_TOOLS:
            return False
        self.tools[name] = Tool(name, listed.name, description, schema, server)
        return True

    def call(
        self, tool: Tool, arguments: dict[str, Any], is_stopped: Callable[[], bool]
    ) -> str | None:
        """The result of a call as text; None if it was stopped. Raises ConfigError if the call
        fails, and removes the tools of a server that has ended."""
        server = tool.server
        if server.failure:
            raise ConfigError(server.failure)
        future = asyncio.run_coroutine_threadsafe(server.call(tool, arguments), self._loop)
        try:
            while not is_stopped():
                try:
                    return future.result(timeout=0.05)
                except FutureTimeoutError:
                    continue
            return None
        finally:
            future.cancel()
            if server.failure:
                self.tools = {k: one for k, one in self.tools.items() if one.server is not server}


def _cancel(server: ToolServer) -> None:
    if server.scope is not None:
        server.scope.cancel()


def _text_of(error: BaseException) -> str:
    """The message of an error, or of the first one in a group of them."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    return str(error)[:500] or type(error).__name__


def result_text(result: Any) -> str:
    """The texts of a result, bounded. Other contents are named in brackets."""
    parts = [_part_text(part) for part in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts) or "(The result is empty.)"
    if result.is_error:
        text = f"The tool reports an error: {text}"
    if len(text) > MAX_RESULT:
        left = len(text) - MAX_RESULT
        text = (
            f"{text[:MAX_RESULT]}\n[The result has {len(text):,} characters; the last {left:,} are "
            "left out here.]"
        )
    return text


def _part_text(part: Any) -> str:
    text = getattr(part, "text", None) or getattr(getattr(part, "resource", None), "text", None)
    if text is not None:
        return str(text)
    if part.type == "resource_link":
        return f"[a link: {part.uri}]"
    return f"[content of the type {part.type}, which is not text]"
