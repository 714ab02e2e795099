"""Turns the user's arguments into a concrete `EngineConfig`.

Called by `LLMEngine`, the async engine, the server and `quire explain`. There are three stages:
`facts` reads the files and the machine, `choices` settles what does not depend on the memory, and
`compile_plan` runs the passes on the program and fits it into the memory. No weights are read: a
model that cannot fit is refused before anything is loaded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from quire.config.checkpoint.hf_overrides import HFValues
from quire.config.declaration import with_same_names
from quire.config.engine_args import EngineArgs
from quire.config.memory import MemoryNeeds, max_concurrency, tokens_held
from quire.config.records import CacheConfig, EngineConfig, ModelConfig
from quire.config.resolve import Usage
from quire.errors import QuireError
from quire.log import configure, get_logger
from quire.models.registry import architectures_of
from quire.models.rope.factors import rope_factors, with_rope_factors
from quire.planning.choices import Choices, settle_choices
from quire.planning.compile_plan import CompilePlan, fit_plan
from quire.planning.draft_model import draft_config
from quire.planning.facts import Facts, gather_facts
from quire.planning.gpu import reason_against_gpu
from quire.planning.kv.identity import kv_fingerprint, with_draft
from quire.planning.kv.store import describe, settle_store
from quire.units import format_bytes

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An `EngineConfig` with the facts and numbers that explain it."""

    config: EngineConfig
    compiled: CompilePlan
    """Equal to `compile_plan(config)`, which the worker calls."""
    needs: MemoryNeeds
    facts: Facts
    no_kv_store: str
    """Why there is no KV store, or none in files; "" if there is one."""


def build_engine_config(args: EngineArgs, usage: Usage = "llm") -> EngineConfig:
    """Resolve all settings. Raises ConfigError, ModelError or BackendError."""
    return plan_engine(args, usage).config


def plan_engine(args: EngineArgs, usage: Usage = "llm") -> EnginePlan:
    """Build an engine's configuration; also return the facts and numbers on which it is based."""
    plan = _plan_by_itself(args, usage)
    if plan is None:
        facts = gather_facts(args)
        configure(facts.observability.log_level, facts.observability.log_config_file)
        plan = settle(args, usage, facts)
    facts = plan.facts
    _log_plan(plan)
    _log_store(plan)
    if facts.kv_events is not None and not plan.config.cache.enable_prefix_caching:
        logger.warning("KV events are off because prefix caching is off")
    return plan


def _plan_by_itself(args: EngineArgs, usage: Usage) -> EnginePlan | None:
    """The plan for a GPU, if `device="auto"` takes one; None if it does not. Logs which device
    computes and why, where there is a choice."""
    reason = reason_against_gpu(args)
    if reason is None:
        return None
    if not reason:
        try:
            facts = gather_facts(replace(args, device="cuda"))
            configure(facts.observability.log_level, facts.observability.log_config_file)
            plan = settle(replace(args, device="cuda"), usage, facts)
        except QuireError as error:
            reason = str(error)
        else:
            where = facts.backend.capabilities.description
            logger.info("device=auto: the GPU computes: %s", where)
            return plan
    logger.info("device=auto: the CPU computes, and not the GPU: %s", reason)
    return None


def settle(args: EngineArgs, usage: Usage, facts: Facts) -> EnginePlan:
    """Make the plan from the arguments and the facts alone."""
    choices = settle_choices(args, usage, facts)
    facts = _with_rope_factors(facts, choices.max_model_len)
    fitted = fit_plan(facts.checkpoint.model.program, choices, _without_store_memory(args, facts))
    compiled, needs = fitted.plan, fitted.needs
    num_sources = facts.checkpoint.model.facts.num_sources
    model = _model_config(args, facts, choices, needs.max_model_len - num_sources)
    cache = CacheConfig(
        block_size=needs.block_size,
        num_blocks=compiled.kv.num_blocks,
        kv_cache_dtype=choices.kv_cache_dtype,
        enable_prefix_caching=choices.enable_prefix_caching,
        block_bytes=choices.parallel.nnodes * needs.kv_block_bytes,
        layout=needs.kv_layout,
        asked=choices.kv_memory,
        # A sound is rarely heard twice: its blocks are the first that others use.
        most_cached_blocks=0 if num_sources else None,
    )
    draft, weights = None, facts.weights_digest
    if facts.draft is not None and choices.draft is not None:
        draft = draft_config(facts.draft.checkpoint, model, choices.draft)
        weights = with_draft(weights, draft, facts.draft.weights_digest)
    fingerprint = kv_fingerprint(
        model, cache, facts.backend.capabilities, weights, choices.parallel
    )
    store = settle_store(facts.kv_store, facts.kv_disk, cache, model, facts.memory.available_bytes)
    config = EngineConfig(
        model=model,
        cache=replace(cache, fingerprint=fingerprint),
        scheduler=choices.scheduler,
        device=replace(facts.device, description=facts.backend.capabilities.description),
        observability=facts.observability,
        structured_outputs=choices.structured_outputs,
        kv_store=store.config,
        kv_events=facts.kv_events,
        reasoning=choices.reasoning,
        lora=fitted.lora,
        prompt_adapters=choices.prompt_adapters,
        draft=draft,
        worker_extension=args.worker_extension_cls,
        parallel=choices.parallel,
    )
    return EnginePlan(config, compiled, needs, facts, store.reason)


def _with_rope_factors(facts: Facts, max_model_len: int) -> Facts:
    """Return the facts with models that have the rope factors for this longest context."""
    checkpoint, draft = facts.checkpoint, facts.draft
    checkpoint = replace(checkpoint, model=with_rope_factors(checkpoint.model, max_model_len))
    if draft is not None:
        of_draft = draft.checkpoint
        of_draft = replace(of_draft, model=with_rope_factors(of_draft.model, max_model_len))
        draft = replace(draft, checkpoint=of_draft)
    return replace(facts, checkpoint=checkpoint, draft=draft)


def _without_store_memory(args: EngineArgs, facts: Facts) -> Facts:
    """Return the facts with the KV store's memory subtracted from the available memory."""
    asked, memory = facts.kv_store, facts.memory
    is_used = not asked.is_off and args.enable_prefix_caching is not False
    left = memory.available_bytes - asked.memory_bytes
    if not (is_used and asked.memory_bytes and left > 0):
        return facts
    return replace(facts, memory=replace(memory, available_bytes=left))


def _model_config(
    args: EngineArgs, facts: Facts, choices: Choices, max_model_len: int
) -> ModelConfig:
    checkpoint = facts.checkpoint
    vocab_size = checkpoint.model.facts.vocab_size
    return with_same_names(
        ModelConfig,
        args,
        model=checkpoint.name,
        path=checkpoint.path,
        tokenizer_path=facts.tokenizer_path,
        hf_config=HFValues(checkpoint.model.hf_config),
        architecture=architectures_of(checkpoint.model.hf_config)[0],
        dtype=choices.arithmetic.dtype,
        max_model_len=max_model_len,
        num_sources=checkpoint.model.facts.num_sources,
        vocab_size=vocab_size,
        served_model_name=choices.served_names,
        quantization=choices.arithmetic.quantization,
        stored_numbers=choices.arithmetic.stored_numbers,
        weights=checkpoint.weights,
        default_sampling_params=choices.sampling_defaults,
        never_generated=choices.never_generated,
        max_output_tokens=choices.max_output_tokens,
        eos_token_ids=tuple(i for i in facts.eos_token_ids if i < vocab_size),
        chat_template=facts.chat_template,
        logits_processors=() if checkpoint.pooling else facts.logits_processors,
        pooling=checkpoint.pooling,
        prompt_embeds_width=choices.prompt_embeds_width,
        images=choices.images.config,
        no_images=choices.images.why_not,
    )


def _log_plan(plan: EnginePlan) -> None:
    cache, model, needs = plan.config.cache, plan.config.model, plan.needs
    if plan.config.device.backend == "transformers":
        logger.warning(
            "%s runs on the modules of transformers, which is slow: requests run one at a time",
            model.architecture,
        )
    factors = rope_factors(plan.facts.checkpoint.model, model.max_model_len)
    if factors is not None:
        logger.info("longrope: the factors are %s", factors)
    if not needs.kv_layout.groups:
        logger.info(
            "%s (%s, %s) for %s, max_model_len %d, no KV cache",
            model.model,
            model.architecture,
            model.dtype + f", weights {model.quantization}" * bool(model.quantization),
            ", ".join(model.supported_tasks),
            model.max_model_len,
        )
        return
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


def _log_store(plan: EnginePlan) -> None:
    """Log one line: the tiers of the KV store, or why there is none."""
    store, asked = plan.config.kv_store, plan.facts.kv_store
    if store is None:
        is_missed = asked.is_named and not asked.is_off
        level = logging.WARNING if is_missed else logging.DEBUG if asked.is_off else logging.INFO
        logger.log(level, "no KV store: %s", plan.no_kv_store)
        return
    logger.info("KV store: %s", "; ".join(describe(store)))
