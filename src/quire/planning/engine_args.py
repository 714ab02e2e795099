"""Public `EngineArgs` and `AsyncEngineArgs`: the plain records plus vLLM's methods.

The rest of Quire uses the plain records. The methods here parse a command line and build a
configuration, which are modules of higher layers.
"""

from __future__ import annotations

import argparse
from enum import Enum
from typing import TypeVar

from quire.config import EngineConfig, engine_args
from quire.config.command_line.engine_options import add_cli_args, from_cli_args
from quire.config.resolve import Usage
from quire.errors import ConfigError, quoted

P = TypeVar("P", bound=argparse.ArgumentParser)
Self = TypeVar("Self", bound="EngineArgs")

_USAGES: dict[object, Usage] = {
    None: "llm", "llm": "llm", "server": "server",
    "UNKNOWN_CONTEXT": "llm", "LLM_CLASS": "llm", "ENGINE_CONTEXT": "llm",
    "API_SERVER": "server", "OPENAI_API_SERVER": "server", "OPENAI_BATCH_RUNNER": "server",
}  # fmt: skip
"""Maps vLLM's usage contexts to Quire's names of the default sets."""


class EngineArgs(engine_args.EngineArgs):
    """Arguments of one engine."""

    @staticmethod
    def add_cli_args(parser: P) -> P:
        """Add an option for each argument, with its default. Returns the parser."""
        add_cli_args(parser, engine_args.EngineArgs)
        return parser

    @classmethod
    def from_cli_args(cls: type[Self], args: argparse.Namespace) -> Self:
        """Build the arguments from a parsed command line. Raises ConfigError."""
        return from_cli_args(cls, args)

    def create_engine_config(
        self, usage_context: object = None, headless: bool = False
    ) -> EngineConfig:
        """Resolve all settings of an engine. Does not load weights.

        `usage_context`: selects the defaults, by vLLM's names. Raises ConfigError, ModelError or
        BackendError.
        """
        context = usage_context.value if isinstance(usage_context, Enum) else usage_context
        if not isinstance(context, (str, type(None))) or context not in _USAGES:
            raise ConfigError(
                f"usage_context={quoted(usage_context)} is not known; use LLM_CLASS or "
                "OPENAI_API_SERVER, or leave it out"
            )
        if headless:
            raise ConfigError(
                "headless=True is not supported: Quire has no multi-node mode; leave headless out"
            )
        from quire.planning.plan import build_engine_config

        return build_engine_config(self, _USAGES[context])


class AsyncEngineArgs(EngineArgs, engine_args.AsyncEngineArgs):
    """Arguments of `AsyncLLMEngine`."""

    @staticmethod
    def add_cli_args(parser: P, async_args_only: bool = False) -> P:
        """Add an option for each argument, or only for those that `EngineArgs` lacks."""
        add_cli_args(parser, engine_args.AsyncEngineArgs, only_own=async_args_only)
        return parser
