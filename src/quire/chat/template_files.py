"""Reads chat templates, from a checkpoint or an option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import (
    read_json_object,
    read_optional_json_object,
    read_text,
)
from quire.errors import CheckpointError, ConfigError, quoted
from quire.units import MiB, format_bytes

MAX_TEMPLATE_BYTES = 1 * MiB
_MAX_TEMPLATES = 64
"""Most templates of one model. Published models have up to four."""


def read_chat_template(given: str) -> str:
    """The `chat_template` option: the path of a file, or the template itself.

    Raises ConfigError for what is neither, and CheckpointError for a file that cannot be used.
    """
    if any(mark in given for mark in "{}\n"):
        if len(given) > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"chat_template is longer than {format_bytes(MAX_TEMPLATE_BYTES)}")
        return given
    try:
        path = Path(given).expanduser()
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, `~` without a home
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"chat_template={quoted(given)} cannot be read: {reason}") from None
    if not is_file:
        raise ConfigError(
            f"chat_template={quoted(given)} is neither a file nor a Jinja template, which has "
            "{{ }} or {% %} in it"
        )
    return read_text(path, max_bytes=MAX_TEMPLATE_BYTES)


def read_templates(directory: Path) -> dict[str, str]:
    """A checkpoint's templates by name; empty if it has none.

    Order of precedence: template files, tokenizer_config.json, chat_template.json. Raises
    CheckpointError.
    """
    paths = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    main = directory / "chat_template.jinja"
    if main.is_file():
        paths = {"default": main, **paths}
    _check_number(len(paths), directory)
    if paths:
        return {name: read_text(path, max_bytes=MAX_TEMPLATE_BYTES) for name, path in paths.items()}
    config = directory / "tokenizer_config.json"
    value = read_optional_json_object(config).get("chat_template")
    if value is None and (directory / "chat_template.json").is_file():
        config = directory / "chat_template.json"
        value = read_json_object(config).get("chat_template")
    return _named(value, config)


def _named(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        pairs: list[tuple[Any, Any]] = [("default", value)]
    elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = [(None, None)]
    _check_number(len(pairs), path)
    for name, source in pairs:
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(f"{path}: chat_template is neither a text nor texts by name")
        if len(source) > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{path}: chat_template {name!r:.50} is too long")
    return dict(pairs)


def _check_number(count: int, path: Path) -> None:
    if count > _MAX_TEMPLATES:
        raise CheckpointError(f"{path}: {count} chat templates; at most {_MAX_TEMPLATES} are read")
