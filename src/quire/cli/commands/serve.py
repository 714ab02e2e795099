"""Serve a model over HTTP: the OpenAI API, metrics, and a page with a chat and a live view."""

from __future__ import annotations

import argparse
import dataclasses

from quire.config.command_line.engine_options import (
    add_engine_options,
    add_unsupported,
    engine_args,
)
from quire.config.command_line.groups import COMMON
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.env.vllm import server_defaults
from quire.log import unblock_stderr
from quire.server.args import ServerArgs
from quire.server.unsupported_flags import UNSUPPORTED_FLAGS, check_flags

_COMMON = {"served_model_name", "host", "port", "api_key", "tool_call_parser"}
"""Options of the server that the short help has."""
_SHARED = frozenset(field.name for field in dataclasses.fields(ServerArgs))
"""Options of the server; where the engine has one of that name, it is the server's."""


def configure(parser: Parser) -> None:
    """Declares the options: the server's, the engine's, and vLLM's without effect."""
    add_options(parser, ServerArgs, title="Frontend", skip={"middleware"})
    parser.add_argument(
        "--middleware", nargs="+", action="extend", default=argparse.SUPPRESS, metavar="PATH",
        help="Own ASGI middleware by import path; may be given several times.",
    )  # fmt: skip
    add_engine_options(parser, record=AsyncEngineArgs, skip=_SHARED)
    add_unsupported(parser, UNSUPPORTED_FLAGS)
    parser.shorten({"Frontend", "ModelConfig"}, COMMON | _COMMON)


def execute(args: argparse.Namespace) -> int:
    """Serves until a signal; the exit code is the server's."""
    unblock_stderr()
    check_flags(vars(args))
    server_args = read(ServerArgs, args, defaults=server_defaults())
    wanted = engine_args(args, record=AsyncEngineArgs, skip=_SHARED)
    from quire.server.serving import serve

    return serve(wanted, server_args)
