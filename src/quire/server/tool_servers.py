"""The tool servers of the chat page: servers of the Model Context Protocol that browsers call.

This server passes on their names and addresses, and lets the page connect to them. It calls none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from quire.config.tool_servers import ServerEntry, read_config
from quire.log import get_logger

_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")
"""A host that a Content-Security-Policy can name; it has no form for IPv6 addresses."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolServers:
    """The servers of the operator, and whether users may add their own in their browsers."""

    servers: tuple[tuple[str, str], ...] = ()
    """Names and URLs."""
    allows_own: bool = False
    only_terminal: tuple[str, ...] = ()
    """Names of servers that the terminal can use and the page cannot."""

    @property
    def sources(self) -> str:
        """The page may connect to these: the value of the policy's `connect-src`."""
        if self.allows_own:
            return "*"
        return " ".join(dict.fromkeys(["'self'", *(_origin(url) for _, url in self.servers)]))

    def for_page(self) -> dict[str, Any]:
        """The form in which the page reads them."""
        servers = [{"name": name, "url": url} for name, url in self.servers]
        return {
            "servers": servers,
            "allows_own": self.allows_own,
            "only_terminal": list(self.only_terminal),
        }


def read_tool_servers(path: str | None, *, allows_own: bool) -> ToolServers:
    """The servers in the file of `--mcp-config`. A warning names those that the page cannot use.
    Raises ConfigError."""
    entries = [] if path is None else read_config(path)
    problems = {entry.name: _problem(entry) for entry in entries}
    only_terminal = tuple(name for name, problem in problems.items() if problem)
    for name in only_terminal:
        _logger.warning(
            "--mcp-config: only the terminal (quire run, quire chat) can use the server %s, "
            "and the chat page cannot: %s", name, problems[name],
        )  # fmt: skip
    usable = tuple((entry.name, entry.url) for entry in entries if not problems[entry.name])
    return ToolServers(usable, allows_own, only_terminal)


def _problem(entry: ServerEntry) -> str:
    """Reason for which the page cannot call a server; empty: it can."""
    if entry.command:
        return "it is a command; to use it on the page, start it with HTTP and give its url"
    if entry.headers:
        return "every user of the page could read its headers; let a proxy add them"
    parts = urlsplit(entry.url)
    if "@" in parts.netloc:
        return "every user of the page could read the password in its url"
    if not entry.url.isascii() or not _HOST.fullmatch(parts.hostname or "") or "[" in parts.netloc:
        return "its url must be in ASCII, with a host name or an IPv4 address"
    return ""


def _origin(url: str) -> str:
    """Scheme, host and port."""
    parts: SplitResult = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"
