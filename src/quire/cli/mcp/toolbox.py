"""`Toolbox`: carries out the model's tool calls, those that the user confirms."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from typing import Any

from quire.cli.mcp.servers import MAX_RESULT, Tool, ToolServers
from quire.cli.terminal import ask, is_interactive, say_dim
from quire.errors import ConfigError
from quire.log.writer import one_line, say
from quire.parsers.events import ToolCall
from quire.suggest import did_you_mean

MAX_ROUNDS = 10
"""Most times in one answer that the model gets results of tools."""
_MAX_CALLS = 16
"""Most calls of one round that are carried out."""
_SHOWN = 200
"""Characters of a result that the user sees."""


class StoppedError(Exception):
    """The user stopped the answer instead of confirming a call."""


class Toolbox:
    """The tools of a chat, and which of them run without a question."""

    def __init__(self, servers: ToolServers, allowed: Collection[str]) -> None:
        """Raises ConfigError if no server has a tool of an allowed name."""
        self._servers = servers
        self._allowed = set(allowed)
        unknown = [name for name in allowed if name not in servers.tools]
        if unknown and not any(server.failure for server in servers.servers):
            raise ConfigError(
                f"--allow-tool {unknown[0]!r}: no server has this tool"
                f"{did_you_mean(unknown[0], servers.tools)}; the tools are: "
                + ", ".join(servers.tools)
            )

    def offers(self) -> list[dict[str, Any]]:
        """The tools as a chat request offers them."""
        return [tool.offer() for tool in self._servers.tools.values()]

    def listing(self) -> str:
        """The text of `/tools`."""
        lines = []
        for server in self._servers.servers:
            state = f"cannot be used: {server.failure}" if server.failure else "connected"
            lines.append(f"{server.entry.name}: {state}")
            for tool in self._servers.tools.values():
                if tool.server is server:
                    words = " ".join(tool.description.split())[:80]
                    mark = " (runs without a question)" if tool.name in self._allowed else ""
                    lines.append(f"  {tool.name}{mark}  {words}")
        return "\n".join(map(one_line, lines)) or "the file names no server"

    def results(
        self, calls: list[ToolCall], is_stopped: Callable[[], bool]
    ) -> tuple[list[dict[str, Any]], bool]:
        """Messages with the results of these calls, in order, and whether the user has stopped the
        answer. Then no further call runs; the messages say so."""
        results, has_stopped = [], False
        for index, call in enumerate(calls):
            has_stopped = has_stopped or is_stopped()
            text = "The user stopped the answer, so this call was not carried out."
            if not has_stopped and index >= _MAX_CALLS:
                text = f"Only {_MAX_CALLS} calls at a time are carried out."
            elif not has_stopped:
                try:
                    text = self._result(call, is_stopped)
                except StoppedError:
                    has_stopped = True
            results.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return results, has_stopped

    def _result(self, call: ToolCall, is_stopped: Callable[[], bool]) -> str:
        tool = self._servers.tools.get(call.name)
        if tool is None:
            _note(f"[the model called {call.name}, which is not a tool of this chat]")
            return f"There is no tool {call.name!r}."
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            _note(f"[the model called {tool.name} with wrong arguments: {call.arguments[:200]}]")
            return "The arguments must be a JSON object."
        _note(
            f"[{tool.server.entry.name}: {tool.name} {json.dumps(arguments, ensure_ascii=False)}]"
        )
        if not self._is_allowed(tool):
            return "The user did not allow this call."
        return self._run(tool, arguments, is_stopped)

    def _is_allowed(self, tool: Tool) -> bool:
        """Whether the call may run; at a terminal the user decides. Raises StoppedError."""
        if tool.name in self._allowed:
            return True
        if not is_interactive():
            _note(f"[not carried out; --allow-tool {tool.name} allows it]")
            return False
        while True:
            answer = ask("Run this tool? [y]es, [a]lways in this chat, [n]o: ")
            if answer is None:
                raise StoppedError
            answer = answer.strip().lower()
            if answer in ("a", "always"):
                self._allowed.add(tool.name)
            if answer in ("y", "yes", "a", "always"):
                return True
            if answer in ("n", "no", ""):
                return False

    def _run(self, tool: Tool, arguments: dict[str, Any], is_stopped: Callable[[], bool]) -> str:
        try:
            text = self._servers.call(tool, arguments, is_stopped)
        except ConfigError as error:
            _note(f"[{tool.name} failed: {error}]")
            return f"The call failed: {error}"[:MAX_RESULT]
        if text is None:
            raise StoppedError
        rest = f" ... ({len(text):,} characters)" if len(text) > _SHOWN else ""
        _note(f"[{tool.name} gave: {text[:_SHOWN]}{rest}]")
        return text


def _note(text: str) -> None:
    """Show the user what happens; a pipe's output has the answer alone."""
    if is_interactive():
        say_dim(one_line(text))
    else:
        say(one_line(text), file=sys.stderr)
