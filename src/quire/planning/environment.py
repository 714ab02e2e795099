"""Logging settings of an engine, and checks of environment variables. Called by `gather_facts`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import get_args

from quire import env
from quire.config.engine_args import EngineArgs, LogLevel
from quire.config.vllm_variables import unheard_variables
from quire.errors import ConfigError, quoted
from quire.log import get_logger
from quire.suggest import nearest

logger = get_logger(__name__)

_LOGGING_KEYS = ("log_level", "pylogging_config_file")


def check_environment(args: EngineArgs) -> None:
    """Log once which of vLLM's variables have no effect, and which names are misspelled. Raises
    ConfigError for a refused variable, and, if the arguments ask for that, for an unknown one."""
    unheard = unheard_variables()
    if unheard.unknown and args.fail_on_environ_validation is True:
        raise ConfigError(
            f"unknown environment variables (fail_on_environ_validation): {_shown(unheard.unknown)}"
        )
    if unheard.without_effect:
        _warn("variables of vLLM without effect here: " + ", ".join(unheard.without_effect))
    if unheard.unknown:
        _warn(f"unknown environment variables: {_shown(unheard.unknown)}")
    if misspelled := _misspelled():
        _warn(f"environment variables without effect: {_shown(misspelled)}")


def log_level(args: EngineArgs) -> str | None:
    """Return the requested log level. Raises ConfigError for an unknown one."""
    level: str | None = args.log_level
    if level is None:
        level = _logging_config(args).get("log_level")
    if level is not None and (not isinstance(level, str) or level not in get_args(LogLevel)):
        raise ConfigError(
            f"logging_config: log_level={quoted(level)} is not known; use one of "
            f"{', '.join(get_args(LogLevel))}"
        )
    return level


def log_config_file(args: EngineArgs) -> str | None:
    """Return the file that configures all logging. Raises ConfigError if it is not a path."""
    file: object = args.log_config_file
    if file is None:
        file = _logging_config(args).get("pylogging_config_file")
    if file is not None and not isinstance(file, str):
        raise ConfigError(
            f"logging_config: pylogging_config_file must be a path, got {quoted(file)}"
        )
    return file or env.log_config_file()


def _logging_config(args: EngineArgs) -> dict[str, str]:
    """Return the supported fields. Raises ConfigError for others."""
    neutral = {"formatter": "text", "configure_logging": True}
    given = args.logging_config or {}
    for name, value in given.items():
        if name not in _LOGGING_KEYS and (name not in neutral or value != neutral[name]):
            raise ConfigError(
                f"logging_config: {name}={quoted(value)} is not supported; use "
                f"{' and '.join(_LOGGING_KEYS)}"
            )
    return {key: value for key, value in given.items() if key in _LOGGING_KEYS}


def _misspelled() -> dict[str, str]:
    """Variables that are set and whose names are near those of Quire's own, with these. Others may
    begin with `QUIRE_` too: Kubernetes sets some for a service that is named quire."""
    known = env.OWN_VARIABLES
    unknown = sorted({name for name in os.environ if name.startswith("QUIRE")} - {*known})
    return {name: near for name in unknown if (near := nearest(name, known))}


def _shown(unknown: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"{name} (did you mean {near}?)" if near else name for name, near in unknown.items()
    )


@cache
def _warn(message: str) -> None:
    """Log each message once."""
    logger.warning("%s", message)
