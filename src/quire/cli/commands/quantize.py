"""Quantise a model's weights once, for a faster start: `quire quantize MODEL OUT`.

OUT becomes a normal model directory: `quire run OUT`, `quire serve OUT`. Its weights have the
memory layout of this machine's processor and are memory-mapped, so that all processes share them.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.units import format_bytes

_OPTIONS = (
    "model", "revision", "hf_token", "hf_overrides", "download_dir", "dtype", "quantization",
    "load_format", "backend", "num_threads",
)  # fmt: skip


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("places", nargs="*", metavar="MODEL OUT", help=_PLACES_HELP)
    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    add_options(parser, EngineArgs, title="model", skip=fields - set(_OPTIONS))


def execute(args: argparse.Namespace) -> int:
    """Convert the model and print a summary."""
    places = list(args.places)
    if hasattr(args, "model"):
        places.insert(0, args.model)
    if len(places) != 2:
        raise ConfigError(f"give a model and a new directory, not {len(places)} words; {_EXAMPLE}")
    args.model = places[0]
    if getattr(args, "quantization", None) == "none":
        args.quantization = None
    from quire.planning.quantize import quantize_model

    packed = quantize_model(read(EngineArgs, args), Path(places[1]).expanduser())
    arithmetic = packed.arithmetic
    form = f"{arithmetic.quantization}, " * bool(arithmetic.quantization) + arithmetic.dtype
    print(
        f"{packed.path}: {format_bytes(packed.num_bytes)} of weights, {form}, for tier "
        f"{packed.isa}. Start it with `quire run {packed.path}`."
    )
    return 0


_EXAMPLE = "for example: quire quantize Qwen/Qwen3-0.6B qwen3-int8 --quantization int8"
_PLACES_HELP = "The model (a directory or a hub id), and the directory to create."
