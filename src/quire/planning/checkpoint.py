"""What is read from a model directory before anything is decided; no weights are read.

Called by `build`, and by `quantize`, which packs weights without building an engine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from quire.backends.base import Capabilities
from quire.config import resolve
from quire.config.engine_args import EngineArgs
from quire.config.field_types import check_fields
from quire.config.hub import resolve_model
from quire.config.model_files import DEMO_MODEL_PATH, has_file, read_config
from quire.config.quantization import MEANINGS, Quantization, resolve_quantization
from quire.config.records import Dtype, WeightSource
from quire.errors import CheckpointError, ConfigError
from quire.models import ModelFacts, build_program, model_facts
from quire.program import Program
from quire.program.passes import quantise_weights
from quire.weights import PACKED_NAME, PackedHeader
from quire.weights.packed_file import read_packed_header

DEMO_MODEL = "demo"
"""The bundled model's name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory: its configuration, its program, and where its weights come from."""

    name: str
    path: Path
    hf_config: Mapping[str, Any]
    facts: ModelFacts
    program: Program
    weights: WeightSource
    packed: PackedHeader | None
    """Of packed weights."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """In which numbers a model is held and multiplied."""

    dtype: Dtype
    quantization: Quantization | None


def read_checkpoint(args: EngineArgs) -> Checkpoint:
    """Finds the model and reads its configuration. Raises ConfigError or ModelError."""
    check_fields(args)
    if args.model is None:
        name, path = DEMO_MODEL, DEMO_MODEL_PATH
    else:
        name = args.model
        path = resolve_model(
            args.model,
            revision=args.revision,
            download_dir=args.download_dir,
            hf_token=args.hf_token,
            needs_weights=args.load_format != "dummy",
        )
    hf_config = read_config(path, args.hf_overrides)
    weights: WeightSource = "dummy" if args.load_format == "dummy" else "checkpoint"
    packed = None
    if args.load_format == "auto" and has_file(path / PACKED_NAME):
        weights, packed = "packed", read_packed_header(path / PACKED_NAME)
    facts, program = model_facts(hf_config), build_program(hf_config)
    return Checkpoint(name, path, hf_config, facts, program, weights, packed)


def settle_arithmetic(
    args: EngineArgs, checkpoint: Checkpoint, capabilities: Capabilities
) -> Arithmetic:
    """Packed weights are what they are; anything else is rounded to what was asked for.

    Raises ConfigError for what the backend does not have, and for what contradicts the file.
    """
    if checkpoint.packed is not None:
        args = _as_packed(args, checkpoint.path / PACKED_NAME, checkpoint.packed, capabilities)
    return Arithmetic(
        resolve.resolve_dtype(args, checkpoint.hf_config, capabilities.dtypes),
        resolve_quantization(args.quantization, capabilities.weight_formats),
    )


def quantised(checkpoint: Checkpoint, arithmetic: Arithmetic) -> Checkpoint:
    """The checkpoint with the format of every weight in its program."""
    if arithmetic.quantization is None:
        return checkpoint
    program = quantise_weights(checkpoint.program, arithmetic.quantization)
    return dataclasses.replace(checkpoint, program=program)


def fingerprint(checkpoint: Checkpoint, arithmetic: Arithmetic) -> str:
    """Equal for equal models: their config.json, weight files (name and size) and arithmetic."""
    files = sorted(
        (file.name, file.stat().st_size)
        for pattern in ("*.safetensors", "*.bin", PACKED_NAME)
        for file in checkpoint.path.glob(pattern)
        if file.is_file()
    )
    parts = [
        dict(checkpoint.hf_config), files, checkpoint.weights,
        arithmetic.dtype, arithmetic.quantization,
    ]  # fmt: skip
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _as_packed(
    args: EngineArgs, file: Path, packed: PackedHeader, capabilities: Capabilities
) -> EngineArgs:
    """The arguments with the file's own arithmetic, which they must not contradict."""
    if not capabilities.reads_packed_weights:
        raise ConfigError(
            f"{file}: packed weights are the CPU backend's, and here {capabilities.name} computes; "
            "load the checkpoint that they were made from"
        )
    if packed.dtype not in get_args(Dtype) or packed.quantization not in (None, *MEANINGS):
        raise CheckpointError(
            f"{file}: packed in {packed.dtype!r} with quantization {packed.quantization!r}, which "
            "is not known here; pack the model again, with this Quire: quire quantize MODEL OUT"
        )
    if args.dtype != "auto" and resolve.spelled_dtype(args.dtype) != packed.dtype:
        raise ConfigError(
            f"dtype={args.dtype!r}: {file} is packed in {packed.dtype}; leave dtype out, or pack "
            f"the model again: quire quantize MODEL OUT --dtype {args.dtype}"
        )
    if args.quantization not in (None, packed.quantization):
        raise ConfigError(
            f"quantization={args.quantization!r}: {file} is packed "
            f"{f'as {packed.quantization}' if packed.quantization else 'without it'}; leave "
            "quantization out, or pack the model again: quire quantize MODEL OUT "
            f"--quantization {args.quantization}"
        )
    return dataclasses.replace(
        args,
        dtype=packed.dtype,  # type: ignore[arg-type]  # one of them
        quantization=packed.quantization,
    )
