"""`FlexibleArgumentParser`: a parser for the command lines of scripts, with vLLM's spellings."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.config.command_line.config_files import read_config
from quire.config.command_line.parser import Parser, config_path
from quire.errors import ConfigError, quoted
from quire.log import get_logger

logger = get_logger(__name__)


class _Group(argparse._ArgumentGroup):
    """A group whose arguments can be deprecated."""

    def __init__(self, parser: FlexibleArgumentParser, *args: Any, **options: Any) -> None:
        super().__init__(parser, *args, **options)
        self._deprecated = parser._deprecated

    def add_argument(self, *names: Any, deprecated: bool = False, **options: Any) -> Any:
        action = super().add_argument(*names, **options)
        if deprecated:
            self._deprecated.append(action)
        return action


class FlexibleArgumentParser(Parser):
    """An `argparse.ArgumentParser` with the spellings of Quire's own commands: `--max_tokens` is
    `--max-tokens`, JSON may be given in parts, `--config FILE` reads options from a file."""

    def __init__(self, *args: Any, add_json_tip: bool = True, **options: Any) -> None:
        """Takes the arguments of `argparse.ArgumentParser`. vLLM's `add_json_tip` has no effect,
        because the help does not have that text."""
        del add_json_tip
        self.shortened = {}
        self._deprecated: list[argparse.Action] = []
        argparse.ArgumentParser.__init__(self, *args, **options)

    def add_argument(self, *names: Any, deprecated: bool = False, **options: Any) -> Any:
        """Like argparse. Use of a `deprecated` argument logs a warning."""
        action = super().add_argument(*names, **options)
        if deprecated:
            self._deprecated.append(action)
        return action

    def add_argument_group(self, *args: Any, **options: Any) -> Any:
        """Like argparse. Arguments of the group may be `deprecated`."""
        group = _Group(self, *args, **options)
        self._action_groups.append(group)
        return group

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Like argparse. Options of the `--config` file are read before the command line's, which
        therefore override them."""
        words = list(sys.argv[1:] if args is None else args)
        self._answer_help(words)
        if self._subparsers is None:  # else the parser of the command does this
            try:
                words = self._whole(words)
                if "--config" in self.flags():
                    words = [*self._config_words(words), *words]
                else:
                    path, words = config_path(words)
                    from_file = [] if path is None else self.load_config_file(str(path))
                    words = [*self._whole(from_file), *words]
            except ConfigError as error:
                self.error(str(error))
        found, rest = argparse.ArgumentParser.parse_known_args(self, words, namespace)
        for action in self._deprecated:
            if getattr(found, action.dest, action.default) != action.default:
                logger.warning("argument %r is deprecated", action.dest)
        return found, rest

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Like argparse."""
        found: argparse.Namespace = argparse.ArgumentParser.parse_args(self, args, namespace)
        return found

    def load_config_file(self, file_path: str) -> list[str]:
        """Return the options of a YAML file as words of a command line. Raises ConfigError."""
        if not file_path.endswith((".yaml", ".yml")):
            kind = file_path.rpartition(".")[2]
            raise ConfigError(f"Config file must be of a yaml/yml type. {quoted(kind)} supplied")
        words: list[str] = []
        for key, value in read_config(Path(file_path)).items():
            if isinstance(value, bool):
                negated = f"--no-{key}"
                words += [f"--{key}"] if value else [negated] if negated in self.flags() else []
            elif isinstance(value, list):
                words += [f"--{key}", *map(str, value)] if value else []
            else:
                text = json.dumps(value) if isinstance(value, dict) else str(value)
                words += [f"--{key}", text]
        return words

    @staticmethod
    def check_port(value: str) -> int:
        """Convert a TCP port; for `type=`. Raises argparse.ArgumentTypeError."""
        if value.isascii() and value.isdigit() and 1024 <= int(value[:6]) <= 65535:
            return int(value)
        raise argparse.ArgumentTypeError(f"port must be from 1024 to 65535, not {value!r}")
