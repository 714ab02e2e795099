"""Reads the file of `--mcp-config`: the servers of tools, in the form that MCP clients share.

The terminal and the chat page read it. Fields of other programs are ignored, such as their lists of
tools that run without a question.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from quire.config.checkpoint.model_files import read_json_object
from quire.errors import CheckpointError, ConfigError, quoted

_MAX_BYTES = 1024 * 1024
_MAX_SERVERS = 32
_MAX_NAME_CHARS = 100
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
_EXAMPLE = '{"mcpServers": {"files": {"command": "my-server", "args": ["/data"]}}}'


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server: a program with `command`, or a web address with `url`."""

    name: str
    command: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def environment(self) -> dict[str, str]:
        """The environment of the program: few variables of this process, and those of the file."""
        own = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {**own, **self.env}


def read_config(path: str) -> list[ServerEntry]:
    """The servers of a file that are not disabled. Raises ConfigError."""
    try:
        found = read_json_object(Path(os.path.expanduser(path)), max_bytes=_MAX_BYTES)
    except CheckpointError as error:
        raise ConfigError(f"--mcp-config: {error}") from None
    servers = found.get("mcpServers")
    if not isinstance(servers, dict) or len(servers) > _MAX_SERVERS:
        raise ConfigError(
            f"--mcp-config: {path} must be a JSON object whose field mcpServers has up to "
            f"{_MAX_SERVERS} servers by name, such as {_EXAMPLE}"
        )
    entries = [(name, one) for name, one in servers.items() if not _is_disabled(one)]
    return [_entry(name, one, f"{path}: mcpServers.{name[:200]}") for name, one in entries]


def _is_disabled(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("disabled") is True


def _entry(name: str, found: Any, place: str) -> ServerEntry:
    if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        raise ConfigError(
            f"{quoted(place)}: a name must be printable text of at most {_MAX_NAME_CHARS} "
            'characters, such as "files"'
        )
    if not isinstance(found, dict) or ("command" in found) == ("url" in found):
        raise ConfigError(f"{place} must be an object with either a command or a url")
    kind = found.get("type", "stdio" if "command" in found else "http")
    kinds = ("stdio",) if "command" in found else ("http", "streamable-http", "streamableHttp")
    if kind not in kinds:
        raise ConfigError(f"{place}.type must be {kinds[0]}, got {quoted(kind)}")
    for key in ("command", "url", "cwd"):
        if key in found and not _is_text(found[key]):
            raise ConfigError(f"{place}.{key} must be a string, got {quoted(found[key])}")
    args = found.get("args", [])
    if not isinstance(args, list) or not all(
        isinstance(one, str) and _is_safe(one) for one in args
    ):
        raise ConfigError(f'{place}.args must be a list of strings, such as ["--root", "/data"]')
    url = found.get("url", "")
    if "url" in found:
        _check_url(url, place)
    return ServerEntry(
        name,
        found.get("command", ""),
        args,
        _texts(found.get("env", {}), f"{place}.env"),
        found.get("cwd"),
        url,
        _texts(found.get("headers", {}), f"{place}.headers"),
    )


def _check_url(url: str, place: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(character <= " " for character in url):
        raise ConfigError(f"{place}.url must be like http://localhost:3000/mcp, got {quoted(url)}")


def _texts(found: Any, place: str) -> dict[str, str]:
    """Names and values. The error does not show the values, which may be keys."""
    if not isinstance(found, dict) or not all(
        _is_text(name) and "=" not in name and isinstance(value, str) and _is_safe(value)
        for name, value in found.items()
    ):
        raise ConfigError(f'{place} must be an object of strings, such as {{"NAME": "value"}}')
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and _is_safe(value)


def _is_safe(text: str) -> bool:
    """Whether a text can be an argument of a program: it has no zero byte and is valid UTF-8."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
