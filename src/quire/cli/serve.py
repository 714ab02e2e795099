"""Serve a model over HTTP: the OpenAI API, metrics, and a page with a chat and a live view."""

from __future__ import annotations

import argparse
import dataclasses

from quire.cli.engine_options import add_engine_options, engine_args
from quire.cli.options import add_options, read
from quire.cli.parser import Parser
from quire.config.engine_args import AsyncEngineArgs
from quire.server.args import ServerArgs


def configure(parser: Parser) -> None:
    """Declares the options: the server's, then the engine's."""
    add_options(parser, ServerArgs, title="server")
    shared = {field.name for field in dataclasses.fields(ServerArgs)}
    add_engine_options(parser, record=AsyncEngineArgs, skip=shared)


def execute(args: argparse.Namespace) -> int:
    """Serves until a signal; the exit code is the server's."""
    server_args = read(ServerArgs, args)
    wanted = engine_args(args, record=AsyncEngineArgs)
    from quire.server.serving import serve

    return serve(wanted, server_args)
