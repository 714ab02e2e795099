"""A server of tools in the Model Context Protocol: JSON lines, standard library only.

Its argument is how it misbehaves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
_NAMES = ("add", "environment", "long", "die", "hang", "fail", "red\x1b[31m")


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _result(name: str, arguments: dict[str, Any]) -> str:
    if name == "die":
        os._exit(3)
    if name == "environment":
        return " ".join(os.environ)
    if name == "long":
        return "x" * arguments["a"]
    return "\x1b[2Jno such file" if name == "fail" else str(arguments.get("a", 0) + 1)


def main(mode: str) -> None:
    names = [f"t{number}" for number in range(3000)] if mode == "many" else _NAMES
    if mode == "silent":
        time.sleep(60)
    if mode == "exit":
        sys.exit("\x1b[31mno database")
    if mode == "garbage":
        sys.stdout.buffer.write(b"\x1b[31mhello {\xff\n[]\n")
    for line in sys.stdin:
        message = json.loads(line)
        method, asked = message.get("method"), message.get("params") or {}
        if "id" not in message or asked.get("name") == "hang":
            continue
        if method == "initialize":
            info = {"name": "test", "version": "1"}
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info,
            }  # fmt: skip
        elif method == "tools/list":
            tools = [
                {"name": one, "description": "Adds 1.", "inputSchema": _OBJECT} for one in names
            ]
            result = {"tools": tools}
        elif method == "tools/call":
            text = _result(asked["name"], asked.get("arguments") or {})
            content = [{"type": "text", "text": text}]
            result = {"content": content, "isError": asked["name"] == "fail"}
        else:
            _say(id=message["id"], error={"code": -32601, "message": "Method not found"})
            continue
        _say(id=message["id"], result=result)


main(*sys.argv[1:])
