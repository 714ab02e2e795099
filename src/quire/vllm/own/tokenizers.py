"""Tokenizers and chat templates, for scripts that do not need an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.chat.template_files import read_chat_template
from quire.config.checkpoint.model_files import read_text
from quire.config.model_lookup.hub import resolve_model
from quire.errors import ConfigError, quoted
from quire.frontend.hf_tokenizer import HFTokenizer

ChatCompletionMessageParam = Mapping[str, Any]
"""Type of a message of a conversation, for annotations."""
_MODES = ("auto", "hf", "fast")


def get_tokenizer(
    tokenizer_name: str | Path,
    *,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    download_dir: str | None = None,
    **unsupported: Any,
) -> HFTokenizer:
    """Return the tokenizer of a model directory or hub id. Code from there is never run.

    Raises ConfigError for an unsupported argument, ModelNotFoundError, CheckpointError.
    """
    del trust_remote_code
    if tokenizer_mode not in _MODES:
        raise ConfigError(
            f"tokenizer_mode={quoted(tokenizer_mode)} is not supported; use {' or '.join(_MODES)}"
        )
    for name in unsupported:
        raise ConfigError(f"{name} is not supported by get_tokenizer; leave it out")
    directory = resolve_model(
        str(tokenizer_name), revision=revision, download_dir=download_dir, needs_weights=False
    )
    return HFTokenizer.from_directory(directory, str(tokenizer_name))


cached_get_tokenizer = lru_cache(get_tokenizer)


def is_mistral_tokenizer(tokenizer: object) -> bool:
    """Return False: every tokenizer, including Mistral's, is read from `tokenizer.json`."""
    del tokenizer
    return False


def load_chat_template(chat_template: str | Path | None, *, is_literal: bool = False) -> str | None:
    """Return the text of a template. `chat_template` is a file's path or the text itself; None
    gives None. `is_literal`: it must be the text. Raises ConfigError.
    """
    if chat_template is None:
        return None
    if isinstance(chat_template, Path):
        return read_text(chat_template)
    return chat_template if is_literal else read_chat_template(chat_template)


def resolve_chat_template(
    tokenizer: Any,
    chat_template: str | None = None,
    tools: Sequence[Any] | None = None,
    *,
    model_config: object = None,
    trust_remote_code: bool = False,
) -> str | None:
    """Return the chat template of a conversation: `chat_template`, which may be the name of one of
    the tokenizer's templates, or the tokenizer's own template, or None if it has none."""
    del model_config, trust_remote_code
    own = tokenizer.chat_template
    templates = {"default": own} if isinstance(own, str) else own or {}
    if chat_template is not None:
        return templates.get(chat_template, chat_template)
    names = ("default",) if tools is None else ("tool_use", "default")
    return next((templates[name] for name in names if name in templates), None)
