"""Write a checkpoint with a LoRA adapter in its weights: `quire merge BASE ADAPTER OUT`.

OUT becomes a normal model directory in the base model's number format. Its tokens may differ from
those of requests that name the adapter, because the sums of the weights are rounded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from quire.config.command_line.parser import Parser
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.units import format_bytes

_HELP = "The model (a directory or a hub id), the folder of the adapter, and the directory to make."
_EXAMPLE = "for example: quire merge Qwen/Qwen3-0.6B adapters/mine qwen3-mine"


def configure(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("places", nargs="*", metavar="BASE ADAPTER OUT", help=_HELP)


def execute(args: argparse.Namespace) -> int:
    """Merge and print a summary."""
    places = list(args.places)
    if hasattr(args, "model"):
        places.insert(0, args.model)
    if len(places) != 3:
        raise ConfigError(
            f"give a model, an adapter and a new directory, not {len(places)} words; {_EXAMPLE}"
        )
    from quire.planning.adapters.merge import merge_adapter

    base, adapter, out = places[0], *(Path(place).expanduser() for place in places[1:])
    num_bytes = merge_adapter(EngineArgs(base), adapter, out)
    print(f"{out}: {format_bytes(num_bytes)} of weights. Start it with `quire run {out}`.")
    return 0
