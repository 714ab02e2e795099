"""From what a user chose to a concrete `EngineConfig`: the orchestration above `config/`.

Called by `LLMEngine`, the async engine, `quire explain` and `quire doctor`. Reads the
checkpoint's configuration and the machine, no weights: what cannot fit is refused before
anything is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.backends.base import Backend, KVCacheSpec
from quire.backends.registry import choose_device, make_backend
from quire.config import resolve
from quire.config.engine_args import EngineArgs
from quire.config.hub import resolve_model
from quire.config.kv_cache import KVCacheDtype, resolve_block_size, resolve_kv_cache_dtype
from quire.config.memory import (
    AvailableMemory,
    KVMemoryChoice,
    MemoryNeeds,
    available_memory,
    longest_fit,
    max_concurrency,
    num_kv_blocks,
    tokens_held,
)
from quire.config.model_files import eos_token_ids, read_generation_config
from quire.config.records import (
    CacheConfig,
    Dtype,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from quire.config.resolve import Usage
from quire.errors import (
    CheckpointError,
    ConfigError,
    DoesNotFitError,
    ModelNotFoundError,
    quoted,
    reason,
)
from quire.log import get_logger
from quire.models import ModelFacts
from quire.models.registry import architectures_of
from quire.planning.checkpoint import (
    Arithmetic,
    Checkpoint,
    fingerprint,
    quantised,
    read_checkpoint,
    settle_arithmetic,
)
from quire.program import Program, kv_layout
from quire.units import ceil_div, format_bytes
from quire.weights import PackedHeader

logger = get_logger(__name__)

_ROW_BYTES = 256
"""What a request that may run has in the input batch, beside its block table."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An `EngineConfig` and how it came about, for those who explain it."""

    config: EngineConfig
    program: Program
    """With the format that each weight gets."""
    facts: ModelFacts
    packed: PackedHeader | None
    """Of packed weights."""
    needs: MemoryNeeds
    memory: AvailableMemory
    backend_description: str


def build_engine_config(args: EngineArgs, usage: Usage = "llm") -> EngineConfig:
    """Settles everything. Raises ConfigError, ModelError or BackendError."""
    return plan_engine(args, usage).config


def plan_engine(args: EngineArgs, usage: Usage = "llm") -> EnginePlan:
    """As `build_engine_config`, with the numbers behind it."""
    checkpoint = read_checkpoint(args)
    device = choose_device(args.backend, args.num_threads)
    backend = make_backend(device)
    arithmetic = settle_arithmetic(args, checkpoint, backend.capabilities)
    checkpoint, dtype = quantised(checkpoint, arithmetic), arithmetic.dtype
    wanted_len = resolve.resolve_max_model_len(args, checkpoint.facts.max_model_len)
    max_model_len = wanted_len or checkpoint.facts.max_model_len
    kv_dtype = resolve_kv_cache_dtype(
        args.kv_cache_dtype, dtype, backend.capabilities.kv_cache_dtypes
    )
    needs = _memory_needs(args, usage, checkpoint.program, dtype, kv_dtype, backend, max_model_len)
    choice, memory = resolve.resolve_kv_choice(args), available_memory()
    if wanted_len is None:
        needs = _fit_context(needs, choice, memory)
    scheduler = resolve.resolve_scheduler(args, usage, needs.max_model_len)
    cache = CacheConfig(
        block_size=needs.block_size,
        num_blocks=num_kv_blocks(needs, choice, memory),
        kv_cache_dtype=kv_dtype,
        enable_prefix_caching=args.enable_prefix_caching is not False,
        block_bytes=needs.kv_block_bytes,
        layout=needs.kv_layout,
        fingerprint=fingerprint(checkpoint, arithmetic),
    )
    config = EngineConfig(
        model=_model_config(args, checkpoint, arithmetic, needs.max_model_len),
        cache=cache,
        scheduler=scheduler,
        device=device,
        observability=resolve.resolve_observability(args),
    )
    _log_plan(config, needs)
    description = backend.capabilities.description
    return EnginePlan(
        config, checkpoint.program, checkpoint.facts, checkpoint.packed, needs, memory, description
    )


def _model_config(
    args: EngineArgs,
    checkpoint: Checkpoint,
    arithmetic: Arithmetic,
    max_model_len: int,
) -> ModelConfig:
    facts, hf_config, path = checkpoint.facts, checkpoint.hf_config, checkpoint.path
    if args.max_logprobs < -1:
        raise ConfigError(f"max_logprobs must be -1 or more, got {args.max_logprobs}; try 20")
    return ModelConfig(
        model=checkpoint.name,
        path=path,
        tokenizer_path=_tokenizer_path(args, path),
        hf_config=hf_config,
        architecture=architectures_of(hf_config)[0],
        dtype=arithmetic.dtype,
        max_model_len=max_model_len,
        vocab_size=facts.vocab_size,
        served_model_name=resolve.served_names(args, checkpoint.name),
        seed=args.seed,
        max_logprobs=args.max_logprobs,
        quantization=arithmetic.quantization,
        weights=checkpoint.weights,
        default_sampling_params=resolve.resolve_sampling_defaults(args, path, hf_config),
        eos_token_ids=_eos_token_ids(path, hf_config, facts.vocab_size),
        chat_template=_chat_template(args.chat_template),
    )


def _tokenizer_path(args: EngineArgs, path: Path) -> Path | None:
    if args.skip_tokenizer_init:
        return None
    if args.tokenizer is None:
        return path
    try:
        return resolve_model(
            args.tokenizer,
            revision=args.tokenizer_revision,
            download_dir=args.download_dir,
            hf_token=args.hf_token,
            needs_weights=False,
        )
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"tokenizer: {error}") from None


def _chat_template(choice: str | None) -> str | None:
    if choice is None:
        return None
    from quire.chat.template_files import read_chat_template

    try:
        return read_chat_template(choice)
    except (CheckpointError, OSError, RuntimeError) as error:  # `~` may have no home directory
        raise ConfigError(
            f"chat_template={quoted(choice)} cannot be read: {reason(error)}"
        ) from None


def _eos_token_ids(path: Path, hf_config: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    found = eos_token_ids(read_generation_config(path, hf_config))
    return tuple(token_id for token_id in found if token_id < vocab_size)


def _memory_needs(
    args: EngineArgs,
    usage: Usage,
    program: Program,
    dtype: Dtype,
    kv_dtype: KVCacheDtype,
    backend: Backend,
    max_model_len: int,
) -> MemoryNeeds:
    scheduler = resolve.resolve_scheduler(args, usage, max_model_len)
    block_size = resolve_block_size(args.block_size, backend.capabilities.block_size_multiple)
    layout = kv_layout(program, max_model_len)
    return MemoryNeeds(
        weight_bytes=backend.weight_bytes(program, dtype),
        workspace_bytes=_workspace_bytes(program, scheduler)
        + scheduler.max_num_seqs
        * (_ROW_BYTES + 4 * len(layout.groups) * ceil_div(max_model_len, block_size)),
        kv_block_bytes=backend.kv_block_bytes(
            program, KVCacheSpec(1, block_size, kv_dtype, layout)
        ),
        kv_layout=layout,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )


def _workspace_bytes(program: Program, scheduler: SchedulerConfig) -> int:
    """What a step writes to: the widest op's values for every token, and the logits."""
    widths = [sum(value.dim for value in (*op.inputs(), *op.outputs())) for op in program.ops[:-1]]
    num_tokens, num_seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    return 4 * (num_tokens * 2 * max(widths) + num_seqs * program.vocab_size)


def _fit_context(
    needs: MemoryNeeds, choice: KVMemoryChoice, memory: AvailableMemory
) -> MemoryNeeds:
    fits = min(needs.max_model_len, longest_fit(needs, choice, memory))
    if fits < 2:
        raise DoesNotFitError(
            f"there is no memory for any context: {needs.block_size} tokens need "
            f"{format_bytes(needs.kv_blocks(needs.block_size) * needs.kv_block_bytes)}; free "
            "memory, or give kv_cache_memory_bytes or gpu_memory_utilization a larger value"
        )
    if fits < needs.max_model_len:
        logger.info("max_model_len is %d: that is what the KV cache has room for", fits)
    return dataclasses.replace(needs, max_model_len=fits)


def _log_plan(config: EngineConfig, needs: MemoryNeeds) -> None:
    cache, model = config.cache, config.model
    logger.info(
        "%s (%s, %s), max_model_len %d; KV cache %s: %d tokens in %d blocks%s, "
        "maximum concurrency %.2fx",
        model.model,
        model.architecture,
        model.dtype + f", weights {model.quantization}" * bool(model.quantization),
        model.max_model_len,
        format_bytes(cache.num_blocks * cache.block_bytes),
        tokens_held(needs, cache.num_blocks),
        cache.num_blocks,
        "" if cache.layout.keeps_all else f" (groups of layers: {cache.layout.describe()})",
        max_concurrency(needs, cache.num_blocks),
    )
