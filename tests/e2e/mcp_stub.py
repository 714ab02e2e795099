"""A tool server (Model Context Protocol, streamable HTTP) with the behaviour that a test sets."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name: str, description: str = "") -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "description": description, "inputSchema": SCHEMA}


def text(value: str, *, is_error: bool = False) -> dict[str, Any]:
    """A result with one text."""
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


@dataclass
class Behaviour:
    """What the server does; tests change it."""

    pages: list[list[dict[str, Any]]] = field(default_factory=lambda: [[tool("get_weather")]])
    result: dict[str, Any] = field(default_factory=lambda: text("sunny"))
    error: dict[str, Any] | None = None
    status: int = 200
    events: bool = False
    """Replies are server-sent events, after a notification and a request of the server."""
    holds: threading.Event | None = None
    """A call waits for it."""
    seen: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Headers, in lower case, and bodies."""
    sessions: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)

    def calls(self) -> list[dict[str, Any]]:
        """The parameters of the calls."""
        return [body["params"] for _, body in self.seen if body.get("method") == "tools/call"]

    def methods(self) -> list[str]:
        """The methods of all messages; a reply to the server is `reply`."""
        return [body.get("method", "reply") for _, body in self.seen]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: McpStub

    def log_message(self, *args: object) -> None:
        """Tests want no access log."""

    def do_OPTIONS(self) -> None:
        self._send(204, b"")

    def do_DELETE(self) -> None:
        self.server.behaviour.ended.append(self.headers["Mcp-Session-Id"])
        self._send(200, b"")

    def do_POST(self) -> None:
        does = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        does.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
        if body.get("method") == "initialize":
            does.sessions.add(f"s{len(does.sessions)}")
            info = {"name": "stub", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info}
            self._reply(body, result, {"Mcp-Session-Id": max(does.sessions)})
        elif self.headers["Mcp-Session-Id"] not in does.sessions:
            self._send(404, b"no such session")
        elif "id" not in body or "method" not in body:
            self._send(202, b"")
        elif body["method"] == "tools/list":
            page = int(body["params"].get("cursor", 0))
            more = {"nextCursor": str(page + 1)} if page + 1 < len(does.pages) else {}
            self._reply(body, {"tools": does.pages[page], **more})
        else:
            if does.holds is not None:
                does.holds.wait(20)
            if does.status != 200:
                self._send(does.status, b"<b>broken</b>")
            else:
                self._reply(body, does.result)

    def _reply(
        self, asked: dict[str, Any], result: Any, headers: dict[str, str] | None = None
    ) -> None:
        does = self.server.behaviour
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        if does.error is not None and asked["method"] == "tools/call":
            del message["result"]
            message["error"] = does.error
        if not does.events:
            self._send(200, json.dumps(message).encode(), headers)
            return
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "é"}}
        ping = {"jsonrpc": "2.0", "id": asked["id"], "method": "ping"}
        lines = json.dumps(message, indent=1).replace("\n", "\r\ndata: ")
        parts = [f"data: {json.dumps(one)}\r\n\r\n" for one in (log, ping)]
        stream = ": comment\r\n\r\n" + "".join(parts) + f"event: message\r\ndata: {lines}\r\n\r\n"
        self._send(200, stream.encode(), headers, "text/event-stream")

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None,
        kind: str = "application/json",
    ) -> None:  # fmt: skip
        self.send_response(status)
        allowed = "Content-Type, Mcp-Session-Id, MCP-Protocol-Version, Accept"
        cors = {
            "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": allowed,
            "Access-Control-Allow-Methods": "POST, DELETE",
            "Access-Control-Expose-Headers": "Mcp-Session-Id",
        }  # fmt: skip
        for name, value in {**cors, **(headers or {}), "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class McpStub(ThreadingHTTPServer):
    """Use as a context manager; `url` is its address."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = Behaviour()
        self.origin = f"http://127.0.0.1:{self.server_address[1]}"
        self.url = f"{self.origin}/mcp"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def handle_error(self, *args: object) -> None:
        """A browser that closes a connection is no error here."""

    def __enter__(self) -> McpStub:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
