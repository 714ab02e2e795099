"""Reads the facts of a model directory that all later decisions need. Does not read weights.

Called by `gather_facts`, and by `quantize_model`, which packs weights without building an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.config.checkpoint.model_files import DEMO_MODEL, has_file, read_config
from quire.config.engine_args import EngineArgs
from quire.config.field_types import check_fields
from quire.config.model_lookup.hub import resolve_model
from quire.config.names import check_assigned
from quire.config.pooling import PoolingConfig
from quire.config.records import WeightSource
from quire.config.stored_numbers import StoredNumbers
from quire.config.whisper.alignment_heads import with_alignment_heads
from quire.errors import CheckpointError, ConfigError
from quire.models import ModelDescription, as_asked
from quire.models.heads.mark import without_head
from quire.models.media.settings import with_image_processor, with_processor_kwargs
from quire.models.rope.overrides import overridden_rope
from quire.models.transformers.choice import with_model_impl
from quire.planning.pooling import with_pooling
from quire.planning.stored_matrices import as_stored, stored_numbers
from quire.weights import PACKED_NAME, PackedHeader, projector_file, weight_files
from quire.weights.packed_file import read_packed_header


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory: its configuration, its program, and the source of its weights."""

    name: str
    path: Path
    model: ModelDescription
    weights: WeightSource
    packed: PackedHeader | None
    """The header of packed weights."""
    is_gguf: bool = False
    """The weights come from a GGUF file."""
    pooling: PoolingConfig | None = None
    """Pooling of the model; None: it generates."""
    stored_numbers: StoredNumbers | None = None
    """Types of the numbers in the files; None: they are not known."""


def read_checkpoint(args: EngineArgs) -> Checkpoint:
    """Find the model and read its configuration. Raises ConfigError or ModelError."""
    check_assigned(args)
    check_fields(args)
    name = DEMO_MODEL if args.model is None else args.model
    path = resolve_model(
        name,
        revision=args.revision,
        download_dir=args.download_dir,
        hf_token=args.hf_token,
        needs_weights=args.load_format != "dummy",
        prefers_gguf=args.load_format == "gguf",
        mmproj=args.mmproj,
    )
    if args.mmproj is not None and projector_file(path) is None:
        raise ConfigError(
            f"mmproj={args.mmproj!r}: {name} is not a GGUF model; leave mmproj out, as a "
            "checkpoint of another format holds its image encoder itself"
        )
    if args.load_format == "gguf" and not any(path.glob("*.gguf")):
        raise ConfigError(f"load_format='gguf': {path} has no GGUF file; leave load_format out")
    own = without_head(read_config(path))
    hf_config = as_asked(overridden_rope(own, args.hf_overrides), args.quantization)
    hf_config = with_model_impl(hf_config, args.model_impl)
    hf_config = with_processor_kwargs(
        with_image_processor(hf_config, path), args.mm_processor_kwargs
    )
    hf_config = with_alignment_heads(hf_config, path)
    pooled = with_pooling(args, dict(hf_config), path)
    hf_config = pooled.hf_config
    weights: WeightSource = "dummy" if args.load_format == "dummy" else "checkpoint"
    packed = None
    if args.load_format == "auto" and has_file(path / PACKED_NAME):
        weights, packed = "packed", read_packed_header(path / PACKED_NAME)
    if weights == "checkpoint":
        hf_config = as_stored(hf_config, path)
    model = ModelDescription(hf_config)
    _ = model.facts, model.program  # raise for a model that is not supported
    is_gguf = weights == "checkpoint" and _is_gguf(path)
    numbers = stored_numbers(args.dtype, model, path, weights, packed)
    return Checkpoint(name, path, model, weights, packed, is_gguf, pooled.pooling, numbers)


def _is_gguf(path: Path) -> bool:
    """Whether the weights are a GGUF file. Errors are reported when they are loaded."""
    try:
        return weight_files(path)[-1].suffix == ".gguf"
    except CheckpointError:
        return False
