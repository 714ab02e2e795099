"""`quire run`, `quire chat` and `quire complete`: conversations here and with a server."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire import env
from quire.chat.job import VARIABLES
from quire.cli.commands.library import add_models_dir
from quire.cli.events_of_calls import CallEvents
from quire.cli.http_client import Piece, Server, ServerError
from quire.cli.mcp.servers import ToolServers
from quire.cli.mcp.toolbox import Toolbox
from quire.cli.repl import REASONING, Conversation, Repl, TokenCounts, image_part, speed_line
from quire.cli.terminal import StopOnInterrupt, is_interactive, quiet_log, read_line, say_dim
from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count
from quire.config.model_lookup import aliases
from quire.config.model_lookup.disk.places import Found, found_models
from quire.config.model_lookup.disk.use import options_of
from quire.config.model_lookup.hub import resolve_model
from quire.config.model_lookup.known import is_near, suggestion
from quire.config.model_lookup.settings import messages_of, over_defaults
from quire.config.model_lookup.short_names import meant_by
from quire.config.tool_servers import read_config
from quire.errors import ConfigError, ModelNotFoundError, RequestError, quoted
from quire.log.writer import one_line, say
from quire.parsers.events import Content, Event, Reasoning

if TYPE_CHECKING:
    from quire.cli.local_conversation import LocalConversation


def chat_options(parser: Parser) -> None:
    add_server_options(parser, "MESSAGE")
    parser.add_argument("--system-prompt", help="System message before the conversation.")
    parser.add_argument(
        "--reasoning", choices=("on", "off"), help="Whether to reason before the answer."
    )
    add_tool_options(parser)


def add_tool_options(parser: Any) -> None:
    """Add the options of tools to a parser or a group of one."""
    parser.add_argument(
        "--mcp-config", metavar="FILE", help="Offer tools of the MCP servers in this JSON file."
    )
    parser.add_argument(
        "--allow-tool", action="append", metavar="NAME", default=[],
        help="Run calls of this tool without a question; may recur.",
    )  # fmt: skip


def open_tools(args: argparse.Namespace, stack: ExitStack) -> Toolbox | None:
    """The tools of `--mcp-config`; `stack` ends their servers. Raises ConfigError."""
    if args.mcp_config is None:
        if args.allow_tool:
            raise ConfigError("--allow-tool needs --mcp-config FILE, which names the servers")
        return None

    def warn(text: str) -> None:
        say(one_line(text), file=sys.stderr)

    servers = stack.enter_context(ToolServers(read_config(args.mcp_config), warn))
    return Toolbox(servers, args.allow_tool)


def chat(args: argparse.Namespace) -> int:
    """Chat with a running server, or send it one message with `-q`."""
    with ExitStack() as stack:
        return _chat(args, stack)


def _chat(args: argparse.Namespace, stack: ExitStack) -> int:
    server = Server(args.url, args.api_key)
    model = args.model_name or server.first_model()
    conversation = RemoteConversation(server, model, args.system_prompt)
    conversation.settings.update(settings_of(args))
    conversation.reasoning = REASONING[args.reasoning]
    repl = Repl(conversation, "chat", show_stats=args.stats, toolbox=open_tools(args, stack))
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
        say(f"{model} at {server.url}. Ctrl+D quits.")
    while (line := read_line(prompt)) is not None:
        _complete(conversation, line, args.stats)
    return 0


def _complete(conversation: RemoteConversation, prompt: str, show_stats: bool) -> None:
    begin, first = time.perf_counter(), None
    with StopOnInterrupt() as stop:
        for text in conversation.complete(prompt):
            if text and first is None:
                first = time.perf_counter()
            say(text, end="", flush=True)
            if stop.requested:
                break
    say()
    if show_stats and first is not None:
        say_dim(speed_line(conversation.counts, begin, first, time.perf_counter()))


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
        """Yields reasoning, answer and tool calls, as the server separates them."""
        body = {"model": self._model, "messages": messages, **self.sampling()}
        if self.tools:
            body["tools"] = self.tools
        calls = CallEvents()
        if variables := self.template_variables():
            body[VARIABLES] = variables
        for piece in self._chat(body):
            if piece.reasoning:
                yield Reasoning(piece.reasoning)
            if piece.text:
                yield Content(piece.text)
            yield from calls.events(piece)
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


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")
_ONE_USER = {"max_num_seqs": 16, "disable_log_stats": True}
"""Defaults for one user: few requests need less memory, and log lines would disturb the answer."""


def run_options(parser: Parser) -> None:
    parser.add_argument("words", nargs="*", metavar="MODEL PROMPT", help=_WORDS_HELP)
    group = parser.add_argument_group("answer")
    group.add_argument("--system-prompt", help="System message before the conversation.")
    group.add_argument(
        "--reasoning", choices=("on", "off"), help="Whether to reason before the answer."
    )
    group.add_argument(
        "--image", action="append", metavar="FILE", help="An image of the first message; may recur."
    )
    group.add_argument("--temperature", type=float, help="0: always take the likeliest token.")
    group.add_argument("--top-p", type=float, help="Keep the likeliest tokens up to this share.")
    group.add_argument("--top-k", type=parse_count, help="Keep this many of the likeliest tokens.")
    group.add_argument("--min-p", type=float, help="Drop tokens below this share of the best.")
    group.add_argument("--max-tokens", type=parse_count, help="Maximum tokens of an answer.")
    group.add_argument("--stop", nargs="+", help="Texts that end the answer.")
    group.add_argument("--stats", action="store_true", help="Show speed after each answer.")
    add_tool_options(group)
    group.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_models_dir(group)
    add_engine_options(parser, has_positional=False, defaults=_ONE_USER)


def run(args: argparse.Namespace) -> int:
    """Generate text or chat in this process, without a server: `quire run [MODEL] [PROMPT]`.

    Without a prompt, it starts a conversation at the terminal, or answers the text of a pipe.
    Without a model, it uses the bundled demo model.
    """
    model, prompt = split_words(args.words, getattr(args, "model", None), args.models_dir)
    if model is not None:
        args.model = model
    if not args.verbose:
        quiet_log()
    wanted = engine_args(args, defaults=_ONE_USER)
    options = _options_of(wanted.model, args.models_dir)
    wanted = over_defaults(replace(wanted, model=options.pop("model", wanted.model)), options)
    _check_path(wanted.model or DEMO_MODEL)
    images = [image_part(path) for path in args.image or ()]
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_pipe()
        if not prompt.strip():
            raise RequestError("standard input is empty; give a prompt")
    from quire.cli.local_conversation import LocalConversation

    given = args.system_prompt
    system_prompt = options.get("system_prompt") if given is None else given
    conversation = LocalConversation(wanted, system_prompt)
    conversation.images = images
    conversation.history += messages_of(options.get("first_messages", ()))
    with ExitStack() as stack:
        stack.callback(conversation.close)
        toolbox = open_tools(args, stack)
        if toolbox and not conversation.is_chat:
            raise ConfigError("--mcp-config needs a model with a chat template, which this has not")
        return _talk(conversation, args, prompt, toolbox)


def _check_path(model: str) -> None:
    """Raises ModelNotFoundError for a path that leads nowhere, before a prompt is read from a
    pipe."""
    is_gguf = model.lower().endswith(".gguf") and ":" not in model
    is_path = is_gguf or model.startswith(("/", "./", "../", "~"))
    if is_path and not env.expanded(model).exists():
        resolve_model(model, needs_weights=False)


def _options_of(name: str | None, folders: Sequence[str]) -> dict[str, Any]:
    """Options that an alias, or a model of another program's folder, brings."""
    if name is None:
        return {}
    own = aliases.settings_of(name).options()
    target = aliases.target_of(name) or name
    model = None
    if not os.path.exists(name) and (folders or not is_near(target)):
        found = found_models(folders)
        model = found.find(target)
        is_tagged = ":" in target and "/" not in target
        if model is None and is_tagged and not is_near(target) and meant_by(target) == target:
            meant = suggestion(target, env.hub_cache_dir(), _names_of(found))
            raise ModelNotFoundError(f"the model {quoted(target)} was not found.{meant}")
    return own if model is None else {**options_of(model), **own}


def _read_pipe() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text: {error}; give UTF-8") from None


def _talk(
    conversation: LocalConversation,
    args: argparse.Namespace,
    prompt: str | None,
    toolbox: Toolbox | None,
) -> int:
    given = {name: getattr(args, name) for name in _SAMPLING}
    conversation.settings.update({k: v for k, v in given.items() if v is not None})
    conversation.reasoning = REASONING[args.reasoning]
    if hasattr(args, "seed"):
        conversation.settings["seed"] = args.seed
    model = conversation.engine.model_config
    if model.num_sources:
        from quire.frontend.inputs.refusals import only_hears

        raise ConfigError(only_hears(model))
    repl = Repl(conversation, "run", show_stats=args.stats, toolbox=toolbox)
    name = model.served_model_name[0]
    if prompt is not None:
        if note := _no_template(conversation):
            say(f"{name}: {note}", file=sys.stderr)
        repl.say(prompt)
        return 0
    if not is_interactive():
        raise ConfigError("give a prompt: a conversation needs a terminal as the output")
    return repl.loop(f"{name} is ready. {_no_template(conversation)}/help lists the commands.")


def _no_template(conversation: LocalConversation) -> str:
    """A sentence for a model that cannot chat, with a trailing space; empty for a chat model."""
    if conversation.is_chat:
        return ""
    return (
        "It has no chat template, so it continues your text and ignores earlier messages. "
        "Set a template with --chat-template FILE. "
    )


def split_words(
    words: list[str], model: str | None, folders: Sequence[str] = ()
) -> tuple[str | None, str | None]:
    """The model and the prompt among the positional words; None if one is not given.

    A single word is a model if it looks like one; otherwise it is the prompt. Raises ConfigError
    for too many words, and for a single word that looks like a model name but is not on this
    machine: it may be a mistyped model or a prompt.
    """
    if model is not None:
        if len(words) > 1:
            raise ConfigError(f"too many words: {words[1]!r}; put the prompt in quotes")
        return model, words[0] if words else None
    if len(words) > 2:
        raise ConfigError(f"too many words: {words[2]!r}; put the prompt in quotes")
    if len(words) == 2:
        return words[0], words[1]
    if not words:
        return None, None
    if not _is_name(words[0]):
        return None, words[0]
    _check_known(words[0], folders)
    return words[0], None


def _is_name(word: str) -> bool:
    """Whether a word is an existing path, or has only characters that model names may have."""
    return _NAME.fullmatch(word) is not None or os.path.exists(word)


def _check_known(word: str, folders: Sequence[str]) -> None:
    """Raises ConfigError unless the word is a path, a hub id, a short name, or the name of a local
    model.

    Another word without a slash is not looked up on the hub, because it may be a prompt.
    """
    cache = env.hub_cache_dir()
    if "/" in word or is_near(word) or aliases.target_of(word) or meant_by(word) != word:
        return
    found = found_models(folders)
    if found.find(word) is not None:
        return
    meant = suggestion(word, cache, _names_of(found))
    raise ConfigError(
        f"the model {word!r} was not found. Give a directory, a GGUF file, or a hub id such as "
        f"Qwen/Qwen3-0.6B.{meant} If {word!r} is a prompt, name the model too: "
        f"quire run {DEMO_MODEL} {word}"
    )


def _names_of(found: Found) -> list[str]:
    return [one_line(one.name) for one in found.models]


_NAME = re.compile(r"[\w~.@:/+-]{1,4096}", re.ASCII)
_WORDS_HELP = "A model directory, GGUF file or hub id, a prompt, or both. A single word is used as \
a model, a text with spaces as a prompt."
