"""The options of every command that builds an engine: those of EngineArgs, and the model.

The model is the first positional word or `--model`. vLLM's options that are not implemented are
parsed here; EngineArgs accepts values without effect and refuses others with the reason.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from typing import Any

from quire.cli.options import SHORT_FLAGS, add_options, flag, read
from quire.cli.parser import Parser
from quire.config.engine_args import EngineArgs
from quire.config.unsupported import UNSUPPORTED
from quire.errors import ConfigError


def add_engine_options(
    parser: Parser,
    *,
    record: type[EngineArgs] = EngineArgs,
    has_positional: bool = True,
    skip: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Declares the options, and `--config`. `defaults`: this command's own defaults."""
    if has_positional:
        parser.add_argument("model_tag", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    parser.add_config_option()
    add_options(parser, record, title="engine", skip=skip, defaults=defaults)
    known = parser.flags()
    for name, entry in UNSUPPORTED.items():
        if flag(name) in known:
            continue
        names = [flag(name)] + ([SHORT_FLAGS[name]] if name in SHORT_FLAGS else [])
        is_switch = bool(entry.neutral) and isinstance(entry.neutral[0], bool)
        shape: dict[str, Any] = (
            {"action": argparse.BooleanOptionalAction} if is_switch else {"type": _loose}
        )
        parser.add_argument(
            *names, dest=name, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **shape
        )


def engine_args(
    args: argparse.Namespace,
    *,
    record: type[EngineArgs] = EngineArgs,
    defaults: Mapping[str, Any] | None = None,
) -> EngineArgs:
    """The EngineArgs of the command line. Raises ConfigError for contradictory options."""
    settings = {name: getattr(args, name) for name in UNSUPPORTED if hasattr(args, name)}
    positional = getattr(args, "model_tag", None)
    named = getattr(args, "model", None)
    if positional and named and positional != named:
        raise ConfigError(f"two models: {positional!r} and --model {named!r}; give one")
    if positional:
        args.model = positional
    return read(record, args, defaults={**(defaults or {}), **settings})


def _loose(text: str) -> Any:
    """A value of unknown type: JSON if it is valid JSON, otherwise text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_MODEL_HELP = "A model directory or a hub id; without one, the bundled demo model."
