"""`quire chat` and `quire complete`: conversations and completions over HTTP."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from quire.cli.conversation.client import Piece, Server, ServerError
from quire.cli.conversation.repl import REASONING, Conversation, Repl, TokenCounts, speed_line
from quire.cli.terminal import StopOnInterrupt, dim, is_interactive, printable, read_line
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count
from quire.parsers.events import Content, Event, Reasoning


def chat_options(parser: Parser) -> None:
    add_server_options(parser, "MESSAGE")
    parser.add_argument("--system-prompt", help="System message before the conversation.")
    parser.add_argument(
        "--reasoning", choices=("on", "off"), help="Whether to reason before the answer."
    )


def chat(args: argparse.Namespace) -> int:
    """Chat with a running server, or send it one message with `-q`."""
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


def complete_options(parser: Parser) -> None:
    add_server_options(parser, "PROMPT")


def complete(args: argparse.Namespace) -> int:
    """Complete text with a running server: one prompt with `-q`, or one per line."""
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


def add_server_options(parser: Parser, quick_metavar: str) -> None:
    """Add the options that both commands share, with vLLM's names."""
    parser.add_argument(
        "--url", default="http://localhost:8000/v1", help="The server's address; /v1 is optional."
    )
    parser.add_argument("--model-name", help="The model (default: the first one listed).")
    parser.add_argument("--api-key", help="Overrides the environment variable OPENAI_API_KEY.")
    parser.add_argument("--max-tokens", type=parse_count, help="Maximum tokens of an answer.")
    parser.add_argument("--temperature", type=float, help="0: always take the likeliest token.")
    parser.add_argument("--stats", action="store_true", help="Show speed after each answer.")
    parser.add_argument(
        "-q", "--quick", metavar=quick_metavar, help="Send only this, print the answer and quit."
    )


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    """The sampling settings given on the command line."""
    names = ("max_tokens", "temperature")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


class RemoteConversation(Conversation):
    """A conversation over `/v1/chat/completions` or `/v1/completions`."""

    def __init__(self, server: Server, model: str, system_prompt: str | None = None) -> None:
        super().__init__(system_prompt)
        self._server = server
        self._model = model
        self.defaults = server.sampling_defaults()

    def stream(self, messages: list[dict[str, Any]]) -> Iterator[Event]:
        """Yields reasoning and answer, as the server separates them."""
        body = {"model": self._model, "messages": messages, **self.sampling()}
        if variables := self.template_variables():
            body["chat_template_kwargs"] = variables
        for piece in self._chat(body):
            if piece.reasoning:
                yield Reasoning(piece.reasoning)
            if piece.text:
                yield Content(piece.text)
            self._count(piece)

    def _chat(self, body: Mapping[str, object]) -> Iterator[Piece]:
        try:
            yield from self._server.stream("/chat/completions", body)
        except ServerError as error:
            if "chat template" not in str(error):
                raise
            raise ServerError(f"{error} `quire complete` works without one.") from None

    def complete(self, prompt: str) -> Iterator[str]:
        """Yields the continuation of a plain text."""
        body = {"model": self._model, "prompt": prompt, **self.sampling()}
        for piece in self._server.stream("/completions", body):
            yield piece.text
            self._count(piece)

    def _count(self, piece: Piece) -> None:
        if piece.usage:
            details = piece.usage.get("prompt_tokens_details") or {}
            self.counts = TokenCounts(
                prompt=int(piece.usage.get("prompt_tokens") or 0),
                cached=int(details.get("cached_tokens") or 0),
                completion=int(piece.usage.get("completion_tokens") or 0),
            )
