"""The draft model of an engine: its checkpoint, its place in the plan, and what is refused.

A draft model has a program and weights of its own. Its K/V is stored next to the K/V of the same
tokens: each block of the pool has a second part for it. So a block table, a prefix hit, a
preemption and the KV store mean both models, and the block accounting does not know the second one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.config.checkpoint.hf_overrides import HFValues
from quire.config.engine_args import EngineArgs
from quire.config.records import Arithmetic, ModelConfig
from quire.config.speculation import SpeculationConfig
from quire.errors import ConfigError, ModelNotFoundError
from quire.models.registry import architectures_of
from quire.planning.checkpoint import Checkpoint, read_checkpoint
from quire.planning.kv.weights_digest import weights_digest

_NAME = "speculative_config.model"


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """The files of a draft model."""

    checkpoint: Checkpoint
    weights_digest: str
    args: EngineArgs
    """The engine's arguments as they apply to the draft model."""


def draft_facts(args: EngineArgs, speculation: SpeculationConfig, target: Checkpoint) -> DraftFacts:
    """Read the draft model that the arguments name. Raises ConfigError or ModelError."""
    own = replace(
        args,
        model=speculation.model,
        revision=speculation.revision,
        quantization=speculation.quantization,
        hf_overrides=None,
        load_format="dummy" if args.load_format == "dummy" else "auto",
    )
    try:
        checkpoint = read_checkpoint(own)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"{_NAME}: {error}") from None
    reason = _unusable(checkpoint, target)
    if reason is not None:
        raise ConfigError(f"{_NAME}={speculation.model!r}: {reason}")
    return DraftFacts(checkpoint, weights_digest(checkpoint.path, checkpoint.weights), own)


def _unusable(draft: Checkpoint, target: Checkpoint) -> str | None:
    """Why the draft model cannot be used for the target; None if it can."""
    own, wanted = draft.model.facts.vocab_size, target.model.facts.vocab_size
    if target.pooling is not None or draft.pooling is not None:
        return "a model that pools has no use for a draft model"
    if own != wanted:
        return f"it has {own} tokens and {target.name} has {wanted}; both must have the same tokens"
    for checkpoint in (draft, target):
        program = checkpoint.model.program
        if checkpoint.model.is_transformers:
            return f"{checkpoint.name} must be a model that Quire computes itself"
        if not all(memory.kept.is_by_position for memory in program.memories()):
            return f"{checkpoint.name} must not have recurrent layers"
    return None


def draft_config(draft: Checkpoint, target: ModelConfig, arithmetic: Arithmetic) -> ModelConfig:
    """The configuration of a draft model, or of a head, which reads texts of any length."""
    head = draft.model.head
    own_length = target.max_model_len if head else draft.model.facts.max_model_len
    return replace(
        target,
        model=draft.name,
        path=draft.path,
        hf_config=HFValues(draft.model.hf_config),
        architecture=head.program.name if head else architectures_of(draft.model.hf_config)[0],
        dtype=arithmetic.dtype,
        quantization=arithmetic.quantization,
        stored_numbers=arithmetic.stored_numbers,
        weights=draft.weights,
        max_model_len=min(target.max_model_len, own_length),
        chat_template=None,
        pooling=None,
        logits_processors=(),
    )
