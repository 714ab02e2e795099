"""The draft head of an engine: its checkpoint, and what is refused.

A head is planned like a draft model: a program with weights of its own, whose K/V lies in the same
blocks. Its program reads hidden states that the target's program gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import read_config
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.hub import resolve_model
from quire.config.records import WeightSource
from quire.config.speculation import SpeculationConfig
from quire.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from quire.models import ModelDescription
from quire.models.heads.mark import OPTIONAL, own_name, with_head
from quire.models.text_part import text_part
from quire.planning.checkpoint import Checkpoint
from quire.planning.draft_model import DraftFacts
from quire.planning.kv.weights_digest import weights_digest
from quire.planning.stored_matrices import stored_numbers
from quire.weights import open_checkpoint

_NAME = "speculative_config"
_SPECULATORS = "transformer_layer_config"
"""The key of speculators' checkpoints with the sizes of the head's layer."""


def head_facts(args: EngineArgs, speculation: SpeculationConfig, target: Checkpoint) -> DraftFacts:
    """Read the head that the arguments name. Raises ConfigError or ModelError."""
    method, path, name = speculation.method, target.path, target.name
    reason = _unusable(target)
    if reason is not None:
        raise ConfigError(f"{_NAME}.method={method!r}: {reason}")
    own: Mapping[str, Any] = target.model.text
    tensors: list[str] = []
    is_dummy = args.load_format == "dummy"
    if speculation.model is not None:
        name = speculation.model
        path = _folder(args, speculation)
        own = _own_config(path)
        tensors = [] if is_dummy else _optional_tensors(path)
    config = with_head(own, method, target.model.hf_config, tensors)
    description = ModelDescription(config)
    try:
        _ = description.program
    except (CheckpointError, UnsupportedModelError) as error:
        raise type(error)(f"{_NAME} with method={method!r}, {path}: {error}") from None
    weights: WeightSource = "dummy" if is_dummy else "checkpoint"
    numbers = stored_numbers(args.dtype, description, path, weights)
    checkpoint = Checkpoint(name, path, description, weights, None, stored_numbers=numbers)
    digest = weights_digest(checkpoint.path, checkpoint.weights)
    return DraftFacts(checkpoint, digest, replace(args, quantization=speculation.quantization))


def _unusable(target: Checkpoint) -> str | None:
    """Why no head can be used for the target; None if one can."""
    if target.pooling is not None:
        return "a model that pools has no use for a draft head"
    if target.model.is_transformers:
        return f"{target.name} must be a model that Quire computes itself"
    if target.packed is not None:
        return f"{target.path} must be a checkpoint, and not packed weights (quire quantize)"
    return None


def _folder(args: EngineArgs, speculation: SpeculationConfig) -> Path:
    try:
        return resolve_model(
            str(speculation.model),
            revision=speculation.revision,
            download_dir=args.download_dir,
            hf_token=args.hf_token,
            needs_weights=args.load_format != "dummy",
        )
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{_NAME}.model: {error}") from None


def _own_config(path: Path) -> dict[str, Any]:
    """The head's config.json; of a checkpoint of speculators, with the sizes of its layer."""
    own = text_part(read_config(path))
    layer = own.get(_SPECULATORS)
    return {**layer, **own} if isinstance(layer, Mapping) else dict(own)


def _optional_tensors(path: Path) -> list[str]:
    """The tensors of `OPTIONAL` that a head has."""
    with closing(open_checkpoint(path)) as store:
        names = {own_name(name) for name in store.names()}
    return [name for name in OPTIONAL if name in names]
