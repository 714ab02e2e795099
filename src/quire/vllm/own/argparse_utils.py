"""`FlexibleArgumentParser`: the command lines of scripts, with vLLM's spellings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` for which `--max_tokens` is `--max-tokens`."""

    def __init__(self, *args: Any, add_json_tip: bool = True, **options: Any) -> None:
        """The arguments of `argparse.ArgumentParser`. `add_json_tip` is vLLM's, and without effect:
        the help has no such text."""
        del add_json_tip
        super().__init__(*args, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse, with dashes for underscores in the names of long options."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([_with_dashes(word) for word in words], namespace)

    @staticmethod
    def check_port(value: str) -> int:
        """A TCP port, for `type=`. Raises argparse.ArgumentTypeError."""
        if value.isascii() and value.isdigit() and 1024 <= int(value[:6]) <= 65535:
            return int(value)
        raise argparse.ArgumentTypeError(f"port must be from 1024 to 65535, got {value!r}")


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, sign, value = word.partition("=")
    return name.replace("_", "-") + sign + value
