"""Compute prompts and store their K/V in the KV store: `quire kv warm PROMPTS MODEL`.

PROMPTS is a file with one prompt per line: a text, or a JSON object with `prompt` (a text or token
ids) and optionally `cache_salt`, or with `messages`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from quire import env
from quire.config.checkpoint.model_files import read_text
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError
from quire.units import GiB

_MAX_FILE_BYTES = GiB


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("file", nargs="?", metavar="PROMPTS", help="A file of prompts.")
    add_engine_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Compute all prompts, and report how many tokens were stored already."""
    if args.file is None:
        raise ConfigError("give a file of prompts: quire kv warm PROMPTS MODEL")
    prompts = list(_prompts(env.expanded(args.file)))
    from quire.llm import LLM
    from quire.params import SamplingParams

    with closing(LLM.from_engine_args(engine_args(args))) as llm:
        if llm.llm_engine.config.kv_store is None:
            raise ConfigError("this engine has no KV store (see quire explain); give --kv-store")
        params = SamplingParams(max_tokens=1)
        texts: list[Any] = [one for one in prompts if "messages" not in one]
        chats = [one["messages"] for one in prompts if "messages" in one]
        found = llm.generate(texts, params) if texts else []
        found += llm.chat(chats, params) if chats else []
    num_tokens = sum(len(one.prompt_token_ids or ()) for one in found)
    num_cached = sum(one.num_cached_tokens or 0 for one in found)
    print(f"{len(found):,} prompts, {num_tokens:,} tokens, {num_cached:,} of them already stored")
    return 0


def _prompts(path: Path) -> Iterator[dict[str, Any]]:
    """Yields prompts for `LLM.generate` or `LLM.chat`. Raises ConfigError for an invalid line."""
    for number, line in enumerate(read_text(path, max_bytes=_MAX_FILE_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        if not line.startswith("{"):
            yield {"prompt": line}
            continue
        try:
            yield _of_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def _of_json(value: dict[str, Any]) -> dict[str, Any]:
    """Validate one JSON prompt. Raises ValueError."""
    match value:
        case {"messages": list(), **rest} if not rest:
            return value
        case {"prompt": str() | list() as prompt, **rest} if rest.keys() <= {"cache_salt"}:
            name = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
            return {name: prompt, **rest}
    raise ValueError("the object must have prompt, and optionally cache_salt, or only messages")
