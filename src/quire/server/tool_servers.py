"""The tool servers of the chat page: servers of the Model Context Protocol that browsers call.

This server passes on their names and addresses, and lets the page connect to them. It calls none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from quire.config.checkpoint.model_files import read_json_object
from quire.errors import CheckpointError, ConfigError, quoted

MAX_SERVERS: Final = 20
_MAX_NAME_CHARS = 100
_MAX_FILE_BYTES = 1 << 20
_TYPES = (None, "http", "streamable-http", "streamableHttp")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
"""What a Content-Security-Policy can name; it has no form for IPv6 addresses."""
_EXAMPLE = '{"mcpServers": {"files": {"url": "http://localhost:8931/mcp"}}}'


@dataclass(frozen=True, slots=True)
class ToolServers:
    """The servers of the operator, and whether users may add their own in their browsers."""

    servers: tuple[tuple[str, str], ...] = ()
    """Names and URLs."""
    allows_own: bool = False

    @property
    def sources(self) -> str:
        """The page may connect to these: the value of the policy's `connect-src`."""
        if self.allows_own:
            return "*"
        return " ".join(dict.fromkeys(["'self'", *(_origin(url) for _, url in self.servers)]))

    def for_page(self) -> dict[str, Any]:
        """The form in which the page reads them."""
        servers = [{"name": name, "url": url} for name, url in self.servers]
        return {"servers": servers, "allows_own": self.allows_own}


def read_tool_servers(path: str | None, *, allows_own: bool) -> ToolServers:
    """The servers in a file of the usual form, `mcpServers`. Raises ConfigError."""
    if path is None:
        return ToolServers((), allows_own)
    try:
        servers = read_json_object(Path(path), max_bytes=_MAX_FILE_BYTES).get("mcpServers")
    except CheckpointError as error:
        raise ConfigError(f"mcp_config: {error}") from None
    if not isinstance(servers, dict) or not servers or len(servers) > MAX_SERVERS:
        raise ConfigError(
            f"mcp_config: mcpServers must be an object with 1 to {MAX_SERVERS} servers, "
            f"such as {_EXAMPLE}"
        )
    return ToolServers(tuple((name, _url(name, one)) for name, one in servers.items()), allows_own)


def _url(name: str, server: Any) -> str:
    def refuse(what: str) -> NoReturn:
        raise ConfigError(f"mcp_config: server {quoted(name)}: {what}")

    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        refuse(f"the name must be printable text of at most {_MAX_NAME_CHARS} characters")
    if not isinstance(server, dict):
        refuse(f"must be an object with url, such as {_EXAMPLE}")
    if "command" in server:
        refuse(
            "the page calls servers by HTTP and starts no command; start the server with its "
            "streamable HTTP transport, and give its url"
        )
    if "headers" in server:
        refuse(
            "headers cannot be used: browsers would send them, so every user of the page could "
            "read them; put a proxy that adds them in front of the server, and give its url"
        )
    if unknown := sorted(server.keys() - {"url", "type"}):
        refuse(f"{quoted(unknown[0])} is unknown; url and type are read")
    if server.get("type") not in _TYPES:
        refuse(f'type must be "http" (streamable HTTP), got {quoted(server["type"])}')
    url = server.get("url")
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        refuse("url must be a URL in ASCII, such as http://localhost:8931/mcp")
    try:
        _origin(url)
    except ValueError as error:
        refuse(f"url {error}, such as http://localhost:8931/mcp")
    return url


def _origin(url: str) -> str:
    """Scheme, host and port. Raises ValueError for what a policy cannot name."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must have no user name or password: every user of the page would see it")
    if not _HOST.fullmatch(parts.hostname or "") or "[" in parts.netloc:
        raise ValueError("must have a host name or an IPv4 address")
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"
