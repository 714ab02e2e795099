"""The argument parser of every command: suggestions for typos, and `--config FILE`.

Knows argparse and configuration files, and nothing of what the options mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from quire.config.command_line.dotted import joined_parts, without_short_forms
from quire.config.command_line.help import ALL, help_for, short_help, whole_help
from quire.config.command_line.values import parse_json, parse_loose
from quire.errors import ConfigError, UnknownArgumentError
from quire.log import get_logger
from quire.log.writer import printable
from quire.redaction import redact
from quire.suggest import did_you_mean

logger = get_logger(__name__)

_TAKES_THE_LAST = (argparse._StoreAction, argparse.BooleanOptionalAction)
_MAX_MESSAGE_CHARS = 1000
"""Longest error message; argparse's messages repeat the words of the command line."""


class Parser(argparse.ArgumentParser):
    """One command's options.

    Differs from its base in this: `--max_model_len` is `--max-model-len`; the error about an
    unknown option suggests the nearest one; `--config FILE` reads options from a file, and the
    command line overrides the file; JSON may be given in parts (`dotted.py`); `--help` shows the
    common options, `--help-all` every option, and `--help=WORD` some of them.
    """

    def __init__(self, prog: str | None = None, description: str = "") -> None:
        self.shortened: dict[str, frozenset[str]] = {}
        """Titles of groups of which `--help` shows these options only, by their names in Python."""
        super().__init__(
            prog=prog, description=description, allow_abbrev=False, formatter_class=_Formatter
        )

    def shorten(self, titles: Collection[str], common: Collection[str]) -> None:
        """Leaves these groups out of `--help`, except for the `common` options."""
        self.shortened.update(dict.fromkeys(titles, frozenset(common)))

    def format_help(self) -> str:
        """The text that `--help` prints."""
        return short_help(self, self.shortened) if self.shortened else whole_help(self)

    def error(self, message: str) -> NoReturn:
        """Exits with code 2, as shells expect of a usage error."""
        if len(message) > _MAX_MESSAGE_CHARS:
            message = f"{message[:_MAX_MESSAGE_CHARS]} ..."
        text = printable(redact(message))  # names of files are words of a command
        self.exit(2, f"{self.prog}: error: {text}\nSee `{self.prog} --help`.\n")

    def add_config_option(self) -> None:
        """Declares `--config`, for `parse` to expand."""
        self.add_argument(
            "--config",
            metavar="FILE",
            help="Options from a YAML or JSON file, by their long names. "
            "The command line overrides the file.",
        )

    def parse(
        self, argv: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Reads the arguments of this command. Exits on a mistake, as argparse does."""
        self._answer_help(argv)
        try:
            words = self._whole(argv)
            from_file = self.parse_known_args(self._config_words(words), namespace)[0]
        except ConfigError as error:
            self.error(str(error))
        self._forget_lists(words, from_file)
        # The command line overrides the values of the file.
        args, extra = self.parse_known_args(words, from_file)
        if extra:
            self._add_later_words(args, extra)
        return args

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Call `parse`; by default with the words of this process's command line."""
        return self.parse(sys.argv[1:] if args is None else args, namespace)

    def _whole(self, argv: Sequence[str]) -> list[str]:
        """The words with dashes, and with every short form written out. Raises ConfigError."""
        words = [_kebab(word) for word in argv]
        if "--optimization-level" in self.flags():
            words = without_short_forms(words)
        json_flags = [
            flag
            for flag, action in self._option_string_actions.items()
            if action.type in (json.loads, parse_json, parse_loose) and action.nargs is None
        ]
        repeated: dict[str, None] = {}
        words = joined_parts(words, json_flags, repeated)
        repeated.update(self._repeated(words))
        if repeated:
            logger.warning(
                "Found duplicate keys: %s; the last value of each counts", ", ".join(repeated)
            )
        return words

    def _repeated(self, words: Sequence[str]) -> dict[str, None]:
        """The flags that are given again, where a later value takes the place of an earlier one."""
        counts = Counter(word.partition("=")[0] for word in words if word.startswith("--"))
        actions = self._option_string_actions
        return {
            flag: None
            for flag, count in counts.items()
            if count > 1 and flag in actions and type(actions[flag]) in _TAKES_THE_LAST
        }

    def _forget_lists(self, words: Sequence[str], from_file: argparse.Namespace) -> None:
        """Removes the file's lists that the words give: argparse would lengthen them."""
        for flag in {word.partition("=")[0] for word in words}:
            action = self._option_string_actions.get(flag)
            if isinstance(action, argparse._ExtendAction) and hasattr(from_file, action.dest):
                delattr(from_file, action.dest)

    def _answer_help(self, argv: Sequence[str]) -> None:
        """Prints what `--help=WORD` or `--help-all` asks for, and exits."""
        if ALL in argv:
            text = whole_help(self)
        else:
            word = next((word[7:] for word in argv if word.startswith("--help=")), None)
            if word is None:
                return
            text = whole_help(self) if word.lower() == "all" else help_for(self, word)
        self._print_message(text, sys.stdout)
        self.exit()

    def flags(self) -> set[str]:
        """Every long flag of this command."""
        return {flag for flag in self._option_string_actions if flag.startswith("--")}

    def _add_later_words(self, args: argparse.Namespace, words: list[str]) -> None:
        """Adds the words that stand after an option to the list of the words before it.

        argparse ends such a list at the first option: of `run MODEL --seed 1 PROMPT` it leaves
        PROMPT over.
        """
        lists = [one for one in self._get_positional_actions() if one.nargs == "*"]
        unknown = [word for word in words if word.startswith("-") and word != "-"]
        if unknown or not lists:
            self._reject((unknown or words)[0])
        setattr(args, lists[-1].dest, [*getattr(args, lists[-1].dest), *words])

    def _reject(self, word: str) -> NoReturn:
        if word.startswith("-"):
            name = word.split("=", 1)[0]
            self.error(f"unknown option {name}{did_you_mean(name, self.flags())}")
        self.error(f"unexpected argument {word!r}")

    def _config_words(self, words: Sequence[str]) -> list[str]:
        """The options of the `--config` file, as arguments; empty without a file."""
        if "--config" not in self.flags():
            return []
        path = config_path(words)[0]
        if path is None:
            return []
        from quire.config.command_line.config_files import read_config  # rarely used

        found: list[str] = []
        for key, value in read_config(path).items():
            name = "--" + str(key).replace("_", "-")
            if name not in self.flags():
                raise UnknownArgumentError(
                    f"{path}: unknown option {key!r}{did_you_mean(name, self.flags())}"
                )
            found += self._words_for(name, value)
        return found

    def _words_for(self, name: str, value: Any) -> list[str]:
        is_switch = self._option_string_actions[name].nargs == 0
        if value is None or value == []:  # left out, as in vLLM
            return []
        if isinstance(value, bool) and is_switch:
            return [name] if value else ["--no-" + name[2:]] if self._negates(name) else []
        if isinstance(value, list):
            return [
                name,
                *(json.dumps(one) if isinstance(one, dict) else str(one) for one in value),
            ]
        if isinstance(value, dict):
            return [name, json.dumps(value)]
        return [f"{name}={value}"]

    def _negates(self, name: str) -> bool:
        return "--no-" + name[2:] in self.flags()


def config_path(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The file that `--config` names, and the other words."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    found, others = finder.parse_known_args(list(words))
    return found.config, others


class _Formatter(argparse.HelpFormatter):
    """Keeps `--x, --no-x` short and the text readable on a wide terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        """The command and its positional words."""
        del usage, groups, prefix
        words = [action.metavar or action.dest for action in actions if not action.option_strings]
        shown = " ".join(f"[{word}]" for word in words)
        return f"usage: {self._prog} {shown + ' ' if shown else ''}[options]\n\n"


def _kebab(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, sign, value = word.partition("=")
    flag, dot, parts = name.partition(".")
    return flag.replace("_", "-") + dot + parts + sign + value
