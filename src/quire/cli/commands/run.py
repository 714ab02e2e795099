"""Generate text or chat in this process, without a server: `quire run [MODEL] [PROMPT]`.

Without a prompt: a conversation at the terminal, or one answer to the text of a pipe. Without a
model: the bundled demo model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quire.cli.conversation.repl import REASONING, Repl
from quire.cli.terminal import is_interactive, quiet_log
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_count
from quire.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from quire.cli.conversation.local import LocalConversation

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")
_ONE_USER = {"max_num_seqs": 16, "disable_log_stats": True}
"""For one user: few requests need less memory, and log lines would interrupt the answer."""


def configure(parser: Parser) -> None:
    """Declares the options."""
    parser.add_argument("words", nargs="*", metavar="MODEL PROMPT", help=_WORDS_HELP)
    group = parser.add_argument_group("answer")
    group.add_argument("--system-prompt", help="Goes before the conversation.")
    group.add_argument(
        "--reasoning", choices=("on", "off"), help="Whether to reason before the answer."
    )
    group.add_argument("--temperature", type=float, help="0 always takes the likeliest token.")
    group.add_argument("--top-p", type=float, help="Keep the likeliest tokens up to this share.")
    group.add_argument("--top-k", type=parse_count, help="Keep this many of the likeliest tokens.")
    group.add_argument("--min-p", type=float, help="Drop tokens below this share of the best.")
    group.add_argument("--max-tokens", type=parse_count, help="Most tokens of an answer.")
    group.add_argument("--stop", nargs="+", help="Texts that end the answer.")
    group.add_argument("--stats", action="store_true", help="Show speed after each answer.")
    group.add_argument("--verbose", action="store_true", help="Show the engine's log.")
    add_engine_options(parser, has_positional=False, defaults=_ONE_USER)


def execute(args: argparse.Namespace) -> int:
    """One answer, or a conversation. The exit code is 0 unless something failed."""
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
    repl = Repl(conversation, "run", show_stats=args.stats)
    if prompt is not None:
        repl.say(prompt)
        return 0
    if not is_interactive():
        raise ConfigError("give a prompt: a conversation needs a terminal as the output")
    name = conversation.engine.model_config.model
    kind = "" if conversation.is_chat else " It has no chat template: it continues your text."
    return repl.loop(f"{name} is ready.{kind} /help lists the commands.")


def split_words(words: list[str], model: str | None) -> tuple[str | None, str | None]:
    """The model and the prompt among the positional words; None for one that is not given.

    A single word is a model if it is a directory or has the form of a hub id, `org/name`; otherwise
    it is the prompt. Raises ConfigError for too many words.
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
    return (words[0], None) if _is_model(words[0]) else (None, words[0])


def _is_model(word: str) -> bool:
    if len(word) > 4096 or any(char.isspace() for char in word):
        return False
    reads_like_a_hub_id = word.count("/") == 1 and not word.startswith("/")
    return reads_like_a_hub_id or Path(word).expanduser().exists()


_WORDS_HELP = "A model directory or hub id, a prompt, or both. A single word is taken for a model \
if it is a directory or reads like org/name."
