"""Generate text or chat in this process, without a server: `quire run [MODEL] [PROMPT]`.

Without a prompt, it starts a conversation at the terminal, or answers the text of a pipe. Without a
model, it uses the bundled demo model.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quire import env
from quire.cli.conversation.repl import REASONING, Repl, image_part
from quire.cli.terminal import is_interactive, quiet_log
from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count
from quire.config.places.aliases import target_of
from quire.config.places.known import is_cached, suggestion
from quire.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from quire.cli.conversation.local import LocalConversation

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")
_ONE_USER = {"max_num_seqs": 16, "disable_log_stats": True}
"""Defaults for one user: few requests need less memory, and log lines would disturb the answer."""


def configure(parser: Parser) -> None:
    """Declare the options."""
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
    group.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_engine_options(parser, has_positional=False, defaults=_ONE_USER)


def execute(args: argparse.Namespace) -> int:
    """Give one answer, or hold a conversation. Returns 0 unless something failed."""
    model, prompt = split_words(args.words, getattr(args, "model", None))
    if model is not None:
        args.model = model
    if prompt is None and not sys.stdin.isatty():
        prompt = _read_pipe()
        if not prompt.strip():
            raise RequestError("standard input is empty; give a prompt")
    if not args.verbose:
        quiet_log()
    from quire.cli.conversation.local import LocalConversation

    conversation = LocalConversation(engine_args(args, defaults=_ONE_USER), args.system_prompt)
    try:
        return _talk(conversation, args, prompt)
    finally:
        conversation.close()


def _read_pipe() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"standard input is not UTF-8 text: {error}; give UTF-8") from None


def _talk(conversation: LocalConversation, args: argparse.Namespace, prompt: str | None) -> int:
    given = {name: getattr(args, name) for name in _SAMPLING}
    conversation.settings.update({k: v for k, v in given.items() if v is not None})
    conversation.reasoning = REASONING[args.reasoning]
    if hasattr(args, "seed"):
        conversation.settings["seed"] = args.seed
    conversation.images = [image_part(path) for path in args.image or ()]
    repl = Repl(conversation, "run", show_stats=args.stats)
    name = conversation.engine.model_config.model
    if prompt is not None:
        if note := _no_template(conversation):
            print(f"{name}: {note}", file=sys.stderr)
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


def split_words(words: list[str], model: str | None) -> tuple[str | None, str | None]:
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
    _check_known(words[0])
    return words[0], None


def _is_name(word: str) -> bool:
    """Whether a word is an existing path, or has only characters that model names may have."""
    return _NAME.fullmatch(word) is not None or (len(word) < 4096 and Path(word).exists())


def _check_known(word: str) -> None:
    """Raises ConfigError unless the word is a path, a hub id, or the name of a local model.

    A word without a slash is not looked up on the hub, because it may be a prompt.
    """
    cache = env.hub_cache_dir()
    if (
        "/" in word
        or word == DEMO_MODEL
        or Path(word).exists()
        or is_cached(word, cache)
        or target_of(word)
    ):
        return
    raise ConfigError(
        f"the model {word!r} was not found. Give a directory, a GGUF file, or a hub id such as "
        f"Qwen/Qwen3-0.6B.{suggestion(word, cache)} If {word!r} is a prompt, name the model too: "
        f"quire run {DEMO_MODEL} {word}"
    )


_NAME = re.compile(r"[\w~.@:/+-]{1,4096}", re.ASCII)
_WORDS_HELP = "A model directory, GGUF file or hub id, a prompt, or both. A single word is used as \
a model, a text with spaces as a prompt."
