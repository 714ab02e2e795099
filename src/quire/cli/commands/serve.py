"""Serve a model over HTTP: the OpenAI API, metrics, and a page with a chat and a live view."""

from __future__ import annotations

import argparse
import dataclasses

from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.errors import ConfigError
from quire.log import unblock_stderr
from quire.server.args import ServerArgs

_ALWAYS_ON = (
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-server-load-tracking",
)
"""Switches of vLLM's server whose feature is always on here; accepted for compatibility."""


def configure(parser: Parser) -> None:
    """Declares the options: the server's, the engine's, and vLLM's without effect."""
    add_options(parser, ServerArgs, title="server")
    shared = {field.name for field in dataclasses.fields(ServerArgs)}
    add_engine_options(parser, record=AsyncEngineArgs, skip=shared)
    for switch in _ALWAYS_ON:
        parser.add_argument(switch, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--disable-uvicorn-access-log", dest="disable_access_log", action="store_true",
        default=argparse.SUPPRESS, help=argparse.SUPPRESS,
    )  # fmt: skip
    parser.add_argument("--api-server-count", "-asc", type=int, default=1, help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    """Serves until a signal; the exit code is the server's."""
    unblock_stderr()
    if args.api_server_count != 1:
        raise ConfigError(
            f"--api-server-count {args.api_server_count} is not supported: one process answers "
            "HTTP; leave it out, or start several servers behind a proxy"
        )
    server_args = read(ServerArgs, args)
    wanted = engine_args(args, record=AsyncEngineArgs)
    from quire.server.serving import serve

    return serve(wanted, server_args)
