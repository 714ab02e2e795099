"""Resolves the user's arguments to concrete values, given the facts. Pure: this module reads
nothing.

Called by `plan_engine`; `quantize_model` calls `settle_arithmetic`. The rules for each value are in
`config/`. Sizes that depend on the memory are settled later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from quire.adapters.config import LoRAConfig, PromptAdapterConfig, lora_config
from quire.backends.records import Capabilities
from quire.config import resolve
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import (
    KVCacheDtype,
    KVMemoryChoice,
    resolve_block_size,
    resolve_kv_cache_dtype,
)
from quire.config.quantization import MEANINGS, Quantization, resolve_quantization
from quire.config.records import Arithmetic, Dtype, ParallelConfig, SchedulerConfig
from quire.config.resolve import Usage
from quire.config.stored_numbers import StoredNumbers
from quire.errors import CheckpointError, ConfigError, quoted
from quire.forbidden_tokens import ForbiddenTokens
from quire.log import get_logger
from quire.models import GGUF_FORMATS, BlockFormats, Expanded, Shipped
from quire.planning.given_rows import prompt_adapters, prompt_embeds_width
from quire.planning.gpu import check_gpu_ranks
from quire.planning.images import ImagesChoice, images_choice
from quire.planning.kv.events import check_events_of_engines
from quire.planning.reasoning_marks import reasoning_marks
from quire.reasoning.marks import ReasoningMarks
from quire.structured.params import OWN_BACKENDS, StructuredOutputsConfig
from quire.weights import PACKED_NAME, PackedHeader

if TYPE_CHECKING:
    from quire.planning.checkpoint import Checkpoint
    from quire.planning.facts import Facts

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Choices:
    """Concrete values of all settings that do not depend on the memory."""

    arithmetic: Arithmetic
    kv_cache_dtype: KVCacheDtype
    block_size: int
    max_model_len: int
    """Upper limit of the positions of a request: the rows of an encoder and the tokens."""
    fits_memory: bool
    """Whether `max_model_len` may be reduced to fit the memory."""
    scheduler: SchedulerConfig
    enable_prefix_caching: bool
    kv_memory: KVMemoryChoice
    sampling_defaults: Mapping[str, Any]
    never_generated: ForbiddenTokens
    """Sequences of tokens that the model's settings forbid."""
    max_output_tokens: int | None
    """Limit for the tokens of each server reply; None: as many as fit."""
    served_names: tuple[str, ...]
    structured_outputs: StructuredOutputsConfig
    reasoning: ReasoningMarks | None
    lora: LoRAConfig | None
    """Without the sizes of adapters."""
    images: ImagesChoice
    prompt_adapters: PromptAdapterConfig | None
    prompt_embeds_width: int | None
    """Numbers of a row of `prompt_embeds`; None: they are refused."""
    parallel: ParallelConfig
    draft: Arithmetic | None = None
    """The arithmetic of the draft model; None: drafts come from no model."""


def settle_choices(args: EngineArgs, usage: Usage, facts: Facts) -> Choices:
    """Resolve every setting once. Raises ConfigError that names the argument, its value and one
    that works."""
    checkpoint, capabilities = facts.checkpoint, facts.backend.capabilities
    arithmetic = settle_arithmetic(args, checkpoint, capabilities)
    model_facts = checkpoint.model.facts
    of_sources = model_facts.num_sources
    longest = model_facts.max_model_len - of_sources
    default_len = model_facts.short_rope_len or longest
    wanted_len = resolve.resolve_max_model_len(args, longest, default_len)
    pooling = checkpoint.pooling
    if pooling is not None and pooling.max_tokens is not None and args.max_model_len is None:
        wanted_len = min(default_len, pooling.max_tokens)
    max_model_len = of_sources + (wanted_len or default_len)
    needs_whole = checkpoint.model.program.needs_whole_requests or (
        pooling is not None and pooling.needs_all_rows
    )
    if needs_whole:
        _warn_of_whole_texts(args)
    if args.max_logprobs < -1:
        raise ConfigError(f"max_logprobs must be -1 or more, got {args.max_logprobs}; try 20")
    vocab_size = checkpoint.model.facts.vocab_size
    sampling_defaults = resolve.resolve_sampling_defaults(args, facts.generation)
    structured_outputs = _structured_outputs(args)
    scheduler = _scheduler(args, facts, usage, max_model_len, needs_whole=needs_whole)
    return Choices(
        arithmetic=arithmetic,
        kv_cache_dtype=resolve_kv_cache_dtype(
            args.kv_cache_dtype, arithmetic.dtype, capabilities.kv_cache_dtypes
        ),
        block_size=resolve_block_size(args.block_size, capabilities.block_size_multiple),
        max_model_len=max_model_len,
        fits_memory=wanted_len is None,
        scheduler=scheduler,
        enable_prefix_caching=args.enable_prefix_caching is not False and not needs_whole,
        kv_memory=resolve.resolve_kv_choice(args, facts.kv_cache_bytes),
        sampling_defaults=sampling_defaults,
        never_generated=(
            resolve.resolve_never_generated(
                args, facts.generation, facts.eos_token_ids, vocab_size, is_whisper=of_sources > 0
            )
            if pooling is None
            else ForbiddenTokens()
        ),
        max_output_tokens=resolve.resolve_max_output_tokens(args, sampling_defaults),
        served_names=resolve.served_names(args, checkpoint.name),
        structured_outputs=structured_outputs,
        reasoning=reasoning_marks(args.reasoning_config, structured_outputs.reasoning_parser),
        lora=_lora(args, facts, arithmetic.dtype),
        images=images_choice(args, checkpoint, scheduler),
        prompt_adapters=prompt_adapters(args, checkpoint),
        prompt_embeds_width=prompt_embeds_width(args.enable_prompt_embeds, checkpoint),
        parallel=_parallel(args, usage, facts),
        draft=_draft(facts, arithmetic),
    )


def _warn_of_whole_texts(args: EngineArgs) -> None:
    for name in ("enable_prefix_caching", "enable_chunked_prefill"):
        if getattr(args, name):
            logger.warning("%s is off: this model needs all tokens of a text in one step", name)


def _draft(facts: Facts, target: Arithmetic) -> Arithmetic | None:
    """The arithmetic of the draft model; a head has the model's, unless the user names a format.
    Raises ConfigError for a format that the backend does not support."""
    if facts.draft is None:
        return None
    if facts.draft.checkpoint.model.head is not None:
        asked = resolve_quantization(
            facts.draft.args.quantization, facts.backend.capabilities.weight_formats
        )
        numbers = facts.draft.checkpoint.stored_numbers
        return _arithmetic(target.dtype, asked or target.quantization, numbers)
    return settle_arithmetic(facts.draft.args, facts.draft.checkpoint, facts.backend.capabilities)


def _lora(args: EngineArgs, facts: Facts, dtype: Dtype) -> LoRAConfig | None:
    """Raises ConfigError for a model that takes no adapters."""
    found = lora_config(
        enable_lora=args.enable_lora,
        max_lora_rank=args.max_lora_rank,
        max_loras=args.max_loras,
        max_cpu_loras=args.max_cpu_loras,
        lora_dtype=args.lora_dtype,
        dtype=dtype,
    )
    if found is None:
        return None
    checkpoint, reason = facts.checkpoint, None
    if checkpoint.model.is_transformers:
        reason = "a model that transformers computes takes no adapters"
    if reason is not None:
        raise ConfigError(f"enable_lora must be left out: {reason}")
    return found


def _scheduler(
    args: EngineArgs, facts: Facts, usage: Usage, max_model_len: int, *, needs_whole: bool
) -> SchedulerConfig:
    """`resolve_scheduler`, without speculation where it cannot work."""
    has_sources = facts.checkpoint.model.facts.num_sources > 0
    scheduler = resolve.resolve_scheduler(
        args, usage, max_model_len, needs_whole=needs_whole, has_sources=has_sources
    )
    ops = facts.checkpoint.model.program.ops
    reason = None
    if facts.logits_processors:
        reason = "custom logits processors see one token of a request in a step"
    elif has_sources:
        reason = "the rules for timestamps see one token of a request in a step"
    elif not all(op.takes_rows_back for op in ops):
        reason = "the states of Mamba 1 cannot take tokens back"
    elif scheduler.num_stages > 1 and scheduler.speculation and scheduler.speculation.has_model:
        reason = (
            f"pipeline_parallel_size={scheduler.num_stages} divides the layers, and a draft model "
            "or a head needs all of them; use tensor_parallel_size, or the method ngram or suffix"
        )
    if reason is None:
        return scheduler
    for name in ("speculative_config", "spec_method", "spec_model", "spec_tokens"):
        if getattr(args, name):
            raise ConfigError(f"{name} must be left out: {reason}")
    if args.per_request_spec_decode_metrics != "none":
        raise ConfigError(f"per_request_spec_decode_metrics must be none: {reason}")
    return dataclasses.replace(scheduler, speculation=None)


def _parallel(args: EngineArgs, usage: Usage, facts: Facts) -> ParallelConfig:
    """`resolve_parallel`, for a model that can be computed by so many ranks."""
    parallel = resolve.resolve_parallel(args, usage)
    if facts.device.backend == "cuda":
        check_gpu_ranks(parallel)
    check_events_of_engines(facts.kv_events, parallel.data_parallel_size)
    return parallel


def _structured_outputs(args: EngineArgs) -> StructuredOutputsConfig:
    """Return the configuration, including `reasoning_parser`, which may be a separate argument, as
    in vLLM."""
    given = dict(args.structured_outputs_config or {})
    if args.reasoning_parser:
        given["reasoning_parser"] = args.reasoning_parser
    if given.get("reasoning_parser"):
        from quire.parsers.detection.names import FormatChoice

        FormatChoice.of(None, given["reasoning_parser"])
    found = StructuredOutputsConfig.of(given)
    if found.backend not in OWN_BACKENDS:
        logger.info(
            "structured_outputs_config.backend=%s has no effect here: Quire always uses "
            "llguidance for structured outputs",
            quoted(found.backend),
        )
    return found


def settle_arithmetic(
    args: EngineArgs, checkpoint: Checkpoint, capabilities: Capabilities
) -> Arithmetic:
    """Resolve dtype and quantization. Packed weights keep their formats; all others are rounded to
    what the user asked for.

    Raises ConfigError if the backend does not support a format or the file contradicts it.
    """
    if checkpoint.packed is not None:
        args = _as_packed(args, checkpoint.path / PACKED_NAME, checkpoint.packed, capabilities)
    shipped = None if checkpoint.packed else checkpoint.model.shipped
    if isinstance(shipped, Shipped | BlockFormats):
        args = _as_shipped(args, shipped, checkpoint.path)
    name = args.quantization
    if isinstance(shipped, Expanded) and name == shipped.method:
        name = None
    if name in GGUF_FORMATS and checkpoint.is_gguf:  # a GGUF file without block formats
        name = None
    return _arithmetic(
        resolve.resolve_dtype(
            args,
            checkpoint.model.hf_config,
            capabilities.dtypes,
            pools=checkpoint.pooling is not None,
        ),
        resolve_quantization(name, capabilities.weight_formats),
        checkpoint.stored_numbers,
    )


def _arithmetic(
    dtype: Dtype, quantization: Quantization | None, numbers: StoredNumbers | None
) -> Arithmetic:
    return Arithmetic(dtype, quantization, numbers if dtype == "float32" else None)


def _as_shipped(args: EngineArgs, shipped: Shipped | BlockFormats, path: Path) -> EngineArgs:
    """Check the user's quantization of a checkpoint that is quantised already. Its weights keep
    their format; the user may name its method."""
    names = GGUF_FORMATS if isinstance(shipped, BlockFormats) else (shipped.method,)
    if args.quantization is not None and args.quantization not in names:
        raise ConfigError(
            f"quantization={quoted(args.quantization)}: {path} has weights quantised with "
            f"{shipped.method}, which keep that format; leave quantization out, or load the "
            "unquantised checkpoint"
        )
    return dataclasses.replace(args, quantization=None)


def _computed_dtype(name: str) -> str | None:
    spelled = resolve.spelled_dtype(name)
    return "bfloat16" if spelled == "float16" else spelled


def _as_packed(
    args: EngineArgs, file: Path, packed: PackedHeader, capabilities: Capabilities
) -> EngineArgs:
    """Return the arguments with the dtype and quantization of the packed file. The user's arguments
    must not contradict them."""
    if not capabilities.reads_packed_weights:
        raise ConfigError(
            f"{file}: packed weights need the CPU backend, but the backend is {capabilities.name}; "
            "load the checkpoint that they were made from"
        )
    if packed.calibration is not None and args.enable_lora:
        raise ConfigError(
            f"enable_lora: {file} was packed with --calibrate, which scales the columns that "
            "adapters read; pack the model again without --calibrate, or leave enable_lora out"
        )
    if packed.dtype not in get_args(Dtype) or packed.quantization not in (None, *MEANINGS):
        raise CheckpointError(
            f"{file}: packed in {packed.dtype!r} with quantization {packed.quantization!r}, which "
            "this version does not support; pack the model again: quire quantize MODEL OUT"
        )
    if args.dtype != "auto" and _computed_dtype(args.dtype) != packed.dtype:
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
        dtype=packed.dtype,  # type: ignore[arg-type]  # checked above
        quantization=packed.quantization,
    )
