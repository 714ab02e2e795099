"""`EngineArgs` and `AsyncEngineArgs` as users have them: the records, with vLLM's methods.

Inside, everything takes the records. These add the ways from a command line and to a configuration,
which lie above them.
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
"""vLLM's usage contexts, and Quire's words for whose defaults are taken."""


class EngineArgs(engine_args.EngineArgs):
    """The arguments of one engine."""

    @staticmethod
    def add_cli_args(parser: P) -> P:
        """Declares an option for each argument, at its default; returns the parser."""
        add_cli_args(parser, engine_args.EngineArgs)
        return parser

    @classmethod
    def from_cli_args(cls: type[Self], args: argparse.Namespace) -> Self:
        """The arguments among those of a command line. Raises ConfigError."""
        return from_cli_args(cls, args)

    def create_engine_config(
        self, usage_context: object = None, headless: bool = False
    ) -> EngineConfig:
        """Everything settled: what an engine is made from. Loads no weights.

        `usage_context`: whose defaults are taken, by vLLM's names. Raises ConfigError, ModelError
        or BackendError.
        """
        context = usage_context.value if isinstance(usage_context, Enum) else usage_context
        if not isinstance(context, (str, type(None))) or context not in _USAGES:
            raise ConfigError(
                f"usage_context={quoted(usage_context)} is not known; use LLM_CLASS or "
                "OPENAI_API_SERVER, or leave it out"
            )
        if headless:
            raise ConfigError("headless=True is not supported: there is one process")
        from quire.planning.plan import build_engine_config

        return build_engine_config(self, _USAGES[context])


class AsyncEngineArgs(EngineArgs, engine_args.AsyncEngineArgs):
    """What `AsyncLLMEngine` takes."""

    @staticmethod
    def add_cli_args(parser: P, async_args_only: bool = False) -> P:
        """Declares an option for each argument, or for those that `EngineArgs` lacks."""
        add_cli_args(parser, engine_args.AsyncEngineArgs, only_own=async_args_only)
        return parser
