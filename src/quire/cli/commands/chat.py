"""Chat with a running server, or send it one message with `-q`."""

from __future__ import annotations

import argparse
import sys

from quire.cli.conversation.client import Server
from quire.cli.conversation.remote import RemoteConversation, add_server_options, settings_of
from quire.cli.conversation.repl import REASONING, Repl
from quire.cli.terminal import is_interactive, read_line
from quire.config.command_line.parser import Parser


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_server_options(parser, "MESSAGE")
    parser.add_argument("--system-prompt", help="System message before the conversation.")
    parser.add_argument(
        "--reasoning", choices=("on", "off"), help="Whether to reason before the answer."
    )


def execute(args: argparse.Namespace) -> int:
    """Send the message of `-q`, or each line of a pipe, or start a conversation at the terminal."""
    server = Server(args.url, args.api_key)
    model = args.model_name or server.first_model()
    conversation = RemoteConversation(server, model, args.system_prompt)
    conversation.settings.update(settings_of(args))
    conversation.reasoning = REASONING[args.reasoning]
    repl = Repl(conversation, "chat", show_stats=args.stats)
    if args.quick is not None:
        repl.say(args.quick)
        return 0
    if is_interactive():
        return repl.loop(f"{model} at {server.url}. /help lists the commands.")
    while (line := read_line("")) is not None:
        repl.say(line)
    sys.stdout.flush()
    return 0
