"""The options that commands over rows share, and the engine that they build."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quire.cli.terminal import quiet_log
from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.env.vllm import server_defaults

if TYPE_CHECKING:
    from quire.cli.in_process import InProcessServer

_DEFAULTS = {"max_num_queued_reqs": 1_000_000, "disable_log_stats": True}
_QUIET = {"ui": False, "disable_fastapi_docs": True, "disable_access_log": True}
_OF_THE_MODEL = (
    "model", "revision", "tokenizer", "chat_template", "dtype", "quantization", "load_format",
    "max_model_len", "seed", "hf_overrides",
)  # fmt: skip
"""Options on which the answers depend."""


def add_row_options(parser: Parser) -> None:
    """Declare the options of the run and of the engine."""
    parser.add_argument("--disable-tqdm", action="store_true", help="Show no progress bar.")
    parser.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_engine_options(parser, record=AsyncEngineArgs, defaults=_DEFAULTS)
    add_unsupported(parser, {})


def facts_of(args: argparse.Namespace) -> dict[str, Any]:
    """The given options on which the answers depend."""
    named = {"model": args.model_tag} if args.model_tag else {}
    given = {name: getattr(args, name) for name in _OF_THE_MODEL if hasattr(args, name)}
    return {name: str(value) for name, value in {**given, **named}.items()}


@contextmanager
def open_server(args: argparse.Namespace) -> Iterator[InProcessServer]:
    """Load the model. Raises ConfigError, ModelError or BackendError."""
    from quire.cli.in_process import InProcessServer
    from quire.server.args import ServerArgs

    if not args.verbose:
        quiet_log()
    wanted = engine_args(args, record=AsyncEngineArgs, defaults=_DEFAULTS)
    settings: dict[str, Any] = {**_QUIET, **server_defaults()}
    server = InProcessServer(wanted, ServerArgs(**settings))
    try:
        yield server
    finally:
        server.close()
