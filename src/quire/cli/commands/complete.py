"""Complete text with a running server: one prompt with `-q`, or one per line."""

from __future__ import annotations

import argparse
import time

from quire.cli.conversation.client import Server
from quire.cli.conversation.remote import RemoteConversation, add_server_options, settings_of
from quire.cli.conversation.repl import speed_line
from quire.cli.terminal import StopOnInterrupt, dim, is_interactive, printable, read_line
from quire.config.command_line.parser import Parser


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_server_options(parser, "PROMPT")


def execute(args: argparse.Namespace) -> int:
    """Complete the prompt of `-q`, or every line of the input."""
    server = Server(args.url, args.api_key)
    model = args.model_name or server.first_model()
    conversation = RemoteConversation(server, model)
    conversation.settings.update(settings_of(args))
    if args.quick is not None:
        _complete(conversation, args.quick, args.stats)
        return 0
    prompt = "> " if is_interactive() else ""
    if prompt:
        print(f"{model} at {server.url}. Ctrl+D quits.")
    while (line := read_line(prompt)) is not None:
        _complete(conversation, line, args.stats)
    return 0


def _complete(conversation: RemoteConversation, prompt: str, show_stats: bool) -> None:
    begin, first = time.perf_counter(), None
    with StopOnInterrupt() as stop:
        for text in conversation.complete(prompt):
            if text and first is None:
                first = time.perf_counter()
            print(printable(text), end="", flush=True)
            if stop.requested:
                break
    print()
    if show_stats and first is not None:
        print(dim(speed_line(conversation.counts, begin, first, time.perf_counter())))
