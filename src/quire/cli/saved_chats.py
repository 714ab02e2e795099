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
    """Whether a file has what `save` writes: pairs of a message and its answer."""
    messages = found.get("messages")
    return (
        isinstance(messages, list)
        and "system_prompt" in found
        and isinstance(found["system_prompt"], str | None)
        and len(messages) % 2 == 0
        and all(_is_message(one, number % 2) for number, one in enumerate(messages))
    )


def _is_message(one: object, is_answer: int) -> bool:
    if not isinstance(one, dict) or one.get("role") != ("user", "assistant")[is_answer]:
        return False
    content = one.get("content")
    if is_answer or isinstance(content, str):
        return isinstance(content, str) and isinstance(one.get("reasoning", ""), str)
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) for part in content)
        and isinstance(content[-1].get("text"), str)
    )
