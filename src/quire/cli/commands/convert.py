"""`quire quantize` and `quire merge`: new checkpoints out of others."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.log.writer import say
from quire.units import format_bytes

_OPTIONS = (
    "model", "revision", "hf_token", "hf_overrides", "download_dir", "dtype", "quantization",
    "load_format", "backend", "num_threads",
)  # fmt: skip


def quantize_options(parser: Parser) -> None:
    what = "The model (a directory or a hub id), and the directory to create."
    parser.add_argument("places", nargs="*", metavar="MODEL OUT", help=what)
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        type=Path,
        help="A text that the model reads, or an imatrix of llama.cpp: columns are scaled by how "
        "large the numbers are that they are multiplied with, so that rounding costs less.",
    )
    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    add_options(parser, EngineArgs, title="model", skip=fields - set(_OPTIONS))


def quantize(args: argparse.Namespace) -> int:
    """Quantise a model's weights once, for a faster start: `quire quantize MODEL OUT`.

    OUT becomes a normal model directory: `quire run OUT`, `quire serve OUT`. Its weights have the
    memory layout of this machine's processor and are memory-mapped, so that all processes share
    them.
    """
    example = "quire quantize Qwen/Qwen3-0.6B qwen3-int8 --quantization int8"
    places = _places(args, 2, "a model and a new directory", example)
    args.model = places[0]
    if getattr(args, "quantization", None) == "none":
        args.quantization = None
    from quire.planning.quantize import quantize_model

    calibrate = args.calibrate and args.calibrate.expanduser()
    packed = quantize_model(read(EngineArgs, args), Path(places[1]).expanduser(), calibrate)
    arithmetic = packed.arithmetic
    form = f"{arithmetic.quantization}, " * bool(arithmetic.quantization) + arithmetic.dtype
    if packed.calibration is not None:
        say(f"Calibrated with {packed.calibration}.")
    say(
        f"{packed.path}: {format_bytes(packed.num_bytes)} of weights, {form}, for tier "
        f"{packed.isa}. Start it with `quire run {packed.path}`."
    )
    return 0


def merge_options(parser: Parser) -> None:
    what = "The model (a directory or hub id), the folder of the adapter, the directory to create."
    parser.add_argument("places", nargs="*", metavar="BASE ADAPTER OUT", help=what)


def merge(args: argparse.Namespace) -> int:
    """Write a checkpoint with a LoRA adapter in its weights: `quire merge BASE ADAPTER OUT`.

    OUT becomes a normal model directory in the base model's number format. Its tokens may differ
    from those of requests that name the adapter, because the sums of the weights are rounded.
    """
    example = "quire merge Qwen/Qwen3-0.6B adapters/mine qwen3-mine"
    places = _places(args, 3, "a model, an adapter and a new directory", example)
    from quire.planning.merge_adapter import merge_adapter

    base, adapter, out = places[0], *(Path(place).expanduser() for place in places[1:])
    num_bytes = merge_adapter(EngineArgs(base), adapter, out)
    say(f"{out}: {format_bytes(num_bytes)} of weights. Start it with `quire run {out}`.")
    return 0


def _places(args: argparse.Namespace, count: int, what: str, example: str) -> list[str]:
    """The words of a command, of which the first may be given as `--model`. Raises ConfigError if
    there are not `count` of them."""
    places = list(args.places)
    if hasattr(args, "model"):
        places.insert(0, args.model)
    if len(places) != count:
        raise ConfigError(f"give {what}, not {len(places)} words; for example: {example}")
    return places
