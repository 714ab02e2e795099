"""The options of every command that builds an engine: those of EngineArgs, and the model.

The model is the first positional word or `--model`. vLLM's options that are not implemented are
parsed here; EngineArgs accepts values without effect and refuses others with the reason.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from quire.config.command_line.options import add_options, flag, read
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count, parse_loose
from quire.config.declaration import common_options, declared
from quire.config.engine_args import EngineArgs
from quire.config.vllm_names import Unsupported, unsupported
from quire.errors import ConfigError

T = TypeVar("T", bound=EngineArgs)

OWN = "Quire"
"""The group of arguments that declare none."""
OTHERS = "vLLM options that do nothing here"
"""The group of vLLM's arguments that are accepted at values without effect."""


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
    add_options(parser, record, title=OWN, skip=skip, defaults=defaults)
    add_unsupported(parser, unsupported())
    groups = {declared(field).group or OWN for field in dataclasses.fields(record)}
    parser.shorten({*groups, OTHERS}, common_options(record))


def engine_args(
    args: argparse.Namespace,
    *,
    record: type[EngineArgs] = EngineArgs,
    skip: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> EngineArgs:
    """The EngineArgs of the command line; `skip`: options that are another record's.

    Raises ConfigError for contradictory options.
    """
    names = [name for name in unsupported() if name not in skip]
    settings = {name: getattr(args, name) for name in names if hasattr(args, name)}
    positional = getattr(args, "model_tag", None)
    named = getattr(args, "model", None)
    if positional is not None and named is not None and positional != named:
        raise ConfigError(f"two models: {positional!r} and --model {named!r}; give one")
    if positional is not None:
        args.model = positional
    return read(record, args, defaults={**(defaults or {}), **settings})


def add_cli_args(
    parser: argparse.ArgumentParser, record: type[EngineArgs], *, only_own: bool = False
) -> None:
    """Declares the options on a parser of a user, whose namespace has all of them, as vLLM's.

    `only_own`: the fields that `record` has beyond `EngineArgs`.
    """
    inherited = {field.name for field in dataclasses.fields(EngineArgs)} if only_own else set()
    add_options(parser, record, title=OWN, skip=inherited, shows_defaults=True)
    if not only_own:
        add_unsupported(parser, unsupported(), shows_defaults=True)


def from_cli_args(record: type[T], args: argparse.Namespace) -> T:
    """The record of the options that a namespace has. Raises ConfigError."""
    names = [field.name for field in dataclasses.fields(record)]
    return record(
        **{name: getattr(args, name) for name in (*names, *unsupported()) if hasattr(args, name)}
    )


def add_unsupported(
    parser: argparse.ArgumentParser,
    entries: Mapping[str, Unsupported],
    *,
    shows_defaults: bool = False,
) -> None:
    """Declares an option for each entry whose name no other option has."""
    groups = (group for group in parser._action_groups if group.title == OTHERS)
    group = next(groups, None) or parser.add_argument_group(OTHERS)
    taken = parser._option_string_actions
    for name, entry in entries.items():
        names = [word for word in (flag(name), entry.short_flag) if word]
        if names[0] in taken or name.startswith("_"):
            continue
        group.add_argument(
            *[word for word in names if word not in taken],
            dest=name,
            default=entry.default if shows_defaults else argparse.SUPPRESS,
            help=_help(entry),
            **_shape(entry),
        )


def _help(entry: Unsupported) -> str:
    kind = "Not supported" if entry.is_refused else "Without effect"
    default = "" if entry.default in (None, "", [], {}) else f" (default: {entry.default})"
    return f"{kind}: {entry.reason}.{default}".replace("%", "%%")


def _shape(entry: Unsupported) -> dict[str, Any]:
    """argparse's keyword arguments."""
    if entry.kind == "switch":
        return {"action": argparse.BooleanOptionalAction}
    shape = {"type": parse_count if entry.kind == "count" else parse_loose, "metavar": "VALUE"}
    return {**shape, "nargs": "+"} if entry.kind == "list" else shape


_MODEL_HELP = "A model directory or a hub id; without one, the bundled demo model."
