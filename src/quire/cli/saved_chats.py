"""Conversations in files: `/save NAME` and `/load NAME` of `quire run` and `quire chat`.

A file has the system prompt and the messages, and nothing of the server, the model or the keys.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire import env
from quire.errors import ConfigError, RequestError
from quire.files import write_text

_NAME = re.compile(r"\w[\w.-]{0,63}", re.ASCII)
_MAX_BYTES = 64 * 1024 * 1024


def save(name: str, system_prompt: str | None, history: list[dict[str, Any]]) -> Path:
    """Write a conversation, in place of an earlier one with this name. Raises RequestError."""
    path = _path_of(name)
    text = json.dumps({"system_prompt": system_prompt, "messages": history}, indent=1)
    if len(text) > _MAX_BYTES:
        raise RequestError(
            f"the conversation takes {len(text):,} bytes; at most {_MAX_BYTES:,} can be saved"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        write_text(path, text + "\n")
    except (OSError, ConfigError) as error:
        raise RequestError(f"the conversation cannot be saved: {error}") from None
    return path


def load(name: str) -> tuple[str | None, list[dict[str, Any]]]:
    """The system prompt and the messages. Raises RequestError."""
    path = _path_of(name)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        have = f"saved are {', '.join(names)}" if (names := saved_names()) else "none is saved"
        raise RequestError(f"no conversation has the name {name}; {have}") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    try:
        found = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not _is_conversation(found):
        raise RequestError(f"{path} must be a file that /save wrote, of at most {_MAX_BYTES} bytes")
    return found["system_prompt"], found["messages"]


def saved_names() -> list[str]:
    """The names of all saved conversations, sorted."""
    with suppress(OSError):
        return sorted(path.stem for path in _directory().glob("*.json"))
    return []


def _directory() -> Path:
    return env.data_dir() / "chats"


def _path_of(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise RequestError(
            "a name of a conversation must have up to 64 letters, digits and ._-, and not begin "
            f"with a dot, got {name[:100]!r}; try holiday"
        )
    return _directory() / f"{name}.json"


def _is_conversation(found: dict[str, Any]) -> bool:
    """Whether a file has what `save` writes: each message with its answer, and between them rounds
    of tool calls and their results."""
    messages = found.get("messages")
    if not isinstance(messages, list) or not isinstance(found.get("system_prompt", 0), str | None):
        return False
    kinds = [_kind_of(one) for one in messages]
    return None not in kinds and _PAIRS.fullmatch("".join(filter(None, kinds))) is not None


_PAIRS = re.compile("(?:u(?:ct+)*a)*")
"""Messages of the user, calls of tools, their results, and answers."""


def _kind_of(one: Any) -> str | None:
    """The letter of a message in `_PAIRS`; None if it is not valid."""
    role = one.get("role") if isinstance(one, dict) else None
    if role == "user":
        return "u" if _is_users(one) else None
    is_text = isinstance(one, dict) and isinstance(one.get("content"), str)
    if not is_text or not isinstance(one.get("reasoning", ""), str):
        return None
    if role == "tool":
        return "t" if isinstance(one.get("tool_call_id"), str) else None
    if role != "assistant" or "tool_calls" not in one:
        return "a" if role == "assistant" else None
    calls = one["tool_calls"]
    return "c" if isinstance(calls, list) and calls and all(map(_is_call, calls)) else None


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(call.get("id"), str):
        return False
    return all(isinstance(function.get(name), str) for name in ("name", "arguments"))


def _is_users(one: dict[str, Any]) -> bool:
    content = one.get("content")
    if isinstance(content, str):
        return True
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) for part in content)
        and isinstance(content[-1].get("text"), str)
    )
