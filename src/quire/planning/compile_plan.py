"""`CompilePlan`: what a backend compiles, and how much memory that needs.

It is made while an engine is planned. The worker, which may run in another process, makes the same
plan again from the finished `EngineConfig`, with the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from quire.adapters.config import LoRAConfig, PromptAdapterConfig
from quire.backends.base import Backend
from quire.backends.records import CompileOptions, KVCacheSpec
from quire.backends.registry import make_backend
from quire.config.kv_layout import KVLayout
from quire.config.memory import MemoryNeeds, fit
from quire.config.quantization import HEAD_4, MEANINGS, Quantization
from quire.config.ranks import ONE_RANK, Rank
from quire.config.records import EngineConfig, ModelConfig, ParallelConfig
from quire.config.state_groups import StateGroup
from quire.errors import ConfigError, DoesNotFitError
from quire.images.config import PROCESSOR_KWARGS, ImagesConfig
from quire.models import ModelDescription, Shipped, as_asked, build_program
from quire.models.base import HfConfig
from quire.planning.image_encoder import encoder_bytes
from quire.program import Experts, Program, keep_all, kv_layout, layout_of_rank, some_tokens
from quire.program.passes import give_hidden, of_rank, run_passes
from quire.units import format_bytes
from quire.weights.adapters import adapter_bytes, adapter_width

if TYPE_CHECKING:
    from quire.config.records import Arithmetic
    from quire.planning.choices import Choices
    from quire.planning.facts import Facts

_ROW_BYTES = 256
"""Bytes of the worker's input batch per running request, besides its block tables."""
_ROWS_COPIES = 3
"""Number of copies of the hidden states that a step gives: as they are found, joined, and kept."""
_HEAD_TOKENS = 256
"""Tokens that a draft head computes at once, at least."""
_LOGITS_COPIES = 5
"""Number of arrays with a step's logits that exist at once when logits processors run: the model's,
the changed ones, the input and the output of the last processor, and a scaled copy."""


@dataclass(frozen=True, slots=True)
class ExtraMemory:
    """Memory of a capability of the engine: adapters, an encoder, logits processors."""

    num_bytes: int
    """Most bytes that it takes; of a rank, its part on average."""
    taken_by: Literal["each", "first", "all"] = "each"
    """Each rank, the first one alone, or all ranks together, of which each has a part."""
    advice: str = ""
    """Sentence for users whose memory is too small."""

    def of_rank(self, rank: Rank) -> ExtraMemory:
        """The part of a rank."""
        if self.taken_by == "first":
            return replace(self, num_bytes=0 if rank.number else self.num_bytes)
        share = rank.world_size if self.taken_by == "all" else 1
        return replace(self, num_bytes=self.num_bytes // share)


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """All arguments of `Backend.compile` except the weights."""

    program: Program
    """The program after all passes, which have set the format of each weight."""
    kv: KVCacheSpec
    options: CompileOptions
    extras: tuple[ExtraMemory, ...] = ()
    """Memory of what requests may use besides the model."""
    draft: CompilePlan | None = None
    """The draft model, whose K/V is stored in the same blocks; None: there is none."""

    def of_rank(self, rank: Rank) -> CompilePlan:
        """Return the part of the plan that a rank compiles. Raises ConfigError if the model cannot
        be split so."""
        if rank.world_size == 1:
            return self
        part = of_rank(self.program, rank)
        layout = layout_of_rank(self.kv.layout, part.program, part.first_memory)
        return replace(
            self,
            program=part.program,
            kv=replace(self.kv, layout=layout),
            extras=tuple(one.of_rank(rank) for one in self.extras),
            draft=None if self.draft is None else self.draft.of_rank(rank),
        )

    @property
    def held(self) -> Program | None:
        """The program whose weights the draft model may share; None: it has a checkpoint of its
        own."""
        shares = self.draft is not None and self.draft.program.reads_rows
        return self.program if shares else None

    def bytes_read(self, backend: Backend, num_tokens: int) -> int:
        """Bytes of weights that a step with these tokens reads."""
        program, options = some_tokens(self.program, num_tokens), self.options
        return backend.weight_bytes(program, options.dtype, numbers=options.stored_numbers)

    def memory_needs(self, backend: Backend, held: Program | None = None) -> MemoryNeeds:
        """Return the needs in bytes; `kv.num_blocks` does not matter. `held`: as of
        `Backend.weight_bytes`. Raises BackendError if the backend does not support the plan."""
        program, kv, options = self.program, self.kv, self.options
        width = kv.layout.table_width(options.max_model_len, kv.block_size)
        entries = len(kv.layout.groups) * width
        needs = MemoryNeeds(
            weight_bytes=backend.weight_bytes(program, options.dtype, held, options.stored_numbers),
            workspace_bytes=backend.workspace_bytes(program, kv, options)
            + sum(one.num_bytes for one in self.extras)
            + options.max_num_seqs * (_ROW_BYTES + 4 * entries),
            kv_block_bytes=backend.kv_block_bytes(program, kv),
            kv_layout=kv.layout,
            block_size=kv.block_size,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_tokens,
        )
        if self.draft is None:
            return needs
        more = self.draft.memory_needs(backend, self.held)
        rows = sum(value.dim for op in program.ops if op.gives_rows for value in op.inputs())
        return replace(
            needs,
            weight_bytes=needs.weight_bytes + more.weight_bytes,
            workspace_bytes=needs.workspace_bytes
            + more.workspace_bytes
            + _ROWS_COPIES * 4 * options.max_num_tokens * rows,
            kv_block_bytes=needs.kv_block_bytes + more.kv_block_bytes,
        )


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """A plan that fits in memory."""

    plan: CompilePlan
    needs: MemoryNeeds
    lora: LoRAConfig | None = None
    """The limits of adapters, with their sizes."""


def fit_plan(program: Program, choices: Choices, facts: Facts) -> FittedPlan:
    """Plan a model's program with as many KV blocks as are useful.

    Raises DoesNotFitError, or BackendError if the backend does not support the model.
    """
    if facts.draft is not None:
        program = _with_hidden(program, facts.draft.checkpoint.model)
    sketch = _sketch(program, choices, facts)
    sketch = _with_room_for_states(sketch, choices.parallel, facts.backend)
    if facts.draft is not None and choices.draft is not None:
        sketch = _with_draft(sketch, facts.draft.checkpoint.model, choices.draft)
    needs = _needs_of_ranks(sketch, choices.parallel, facts.backend)
    try:
        fitted = fit(needs, choices.kv_memory, facts.memory, shortens=choices.fits_memory)
    except DoesNotFitError as error:
        advice = _smaller_formats(needs, choices, facts)
        if sketch.draft is not None:
            of_draft = sketch.draft.memory_needs(facts.backend, sketch.held)
            advice += (
                f". The draft model {sketch.draft.program.name} has a part in this: its weights "
                f"need {format_bytes(of_draft.weight_bytes)}, a step of it "
                f"{format_bytes(of_draft.workspace_bytes)}, and its K/V in a block "
                f"{format_bytes(of_draft.kv_block_bytes)}"
            )
        advice += "".join(one.advice for one in sketch.extras)
        raise DoesNotFitError(f"{error}{advice}") from None
    plan = _sized_plan(sketch, fitted.num_blocks, fitted.needs.max_model_len)
    lora = None if choices.lora is None else _sized(plan.program, choices.lora, choices.parallel)
    return FittedPlan(plan, fitted.needs, lora)


def _sized_plan(sketch: CompilePlan, num_blocks: int, max_model_len: int) -> CompilePlan:
    """The plan with its final sizes."""
    draft = sketch.draft
    return replace(
        sketch,
        kv=replace(sketch.kv, num_blocks=num_blocks),
        options=replace(sketch.options, max_model_len=max_model_len),
        draft=None if draft is None else _sized_plan(draft, num_blocks, max_model_len),
    )


def _with_hidden(program: Program, draft: ModelDescription) -> Program:
    """The program, which gives the hidden states that the draft head reads, if there is one."""
    return program if draft.head is None else give_hidden(program, draft.head.layers)


def _with_draft(
    plan: CompilePlan, draft: ModelDescription, arithmetic: Arithmetic | ModelConfig
) -> CompilePlan:
    """The plan with that of a draft model, which has the same blocks. Raises ConfigError unless one
    table of blocks serves all layers of the draft model, and the target has such a table."""
    program = run_passes(draft.program, arithmetic.quantization)
    layout = keep_all(program)
    if len(layout.groups) != (1 if program.memories() else 0):
        raise ConfigError(
            f"speculative_config.model: all layers of {program.name} must have K/V of the same "
            f"shape, and it has layers of {len(layout.groups)} shapes"
        )
    if plan.kv.layout.shared_group is None:
        raise ConfigError(
            "speculative_config.model needs a layer of the target that keeps every position, and "
            f"it has {plan.kv.layout.describe()}"
        )
    options = replace(
        plan.options,
        dtype=arithmetic.dtype,
        stored_numbers=arithmetic.stored_numbers,
        max_adapter_width=0,
    )
    if draft.head is not None:  # a part of a large step at once
        most = max(options.max_num_seqs, _HEAD_TOKENS if layout.groups else 1)
        options = replace(options, max_num_tokens=min(options.max_num_tokens, most))
    return replace(plan, draft=CompilePlan(program, replace(plan.kv, layout=layout), options))


def _with_room_for_states(
    draft: CompilePlan, parallel: ParallelConfig, backend: Backend
) -> CompilePlan:
    """Return the plan with so many blocks for each state that they suffice on every rank: the
    blocks of a rank are smaller, and hold the states of its layers."""
    layout = draft.kv.layout
    if parallel.world_size == 1 or not layout.states:
        return draft
    parts = [draft.of_rank(rank) for rank in parallel.ranks]
    sized = [backend.sized(part.program, part.kv).layout.groups for part in parts]
    groups = list(layout.groups)
    for index, group in enumerate(groups):
        if isinstance(group, StateGroup):
            of_ranks = (one[index] for one in sized)
            most = max(one.num_blocks for one in of_ranks if isinstance(one, StateGroup))
            groups[index] = msgspec.structs.replace(group, num_blocks=most)
    kv = replace(draft.kv, layout=KVLayout(tuple(groups), layout.num_slots))
    return replace(draft, kv=kv)


def _needs_of_ranks(draft: CompilePlan, parallel: ParallelConfig, backend: Backend) -> MemoryNeeds:
    """Return the needs of the ranks of one machine together. A block has a part of one size for
    each rank."""
    all_needs = [draft.of_rank(rank).memory_needs(backend) for rank in parallel.ranks]
    count = parallel.world_size // parallel.nnodes
    needs = max(
        (all_needs[i : i + count] for i in range(0, len(all_needs), count)),
        key=lambda of: sum(one.weight_bytes + one.workspace_bytes for one in of),
    )
    return replace(
        needs[0],
        weight_bytes=sum(one.weight_bytes for one in needs),
        workspace_bytes=sum(one.workspace_bytes for one in needs),
        kv_block_bytes=count * max(one.kv_block_bytes for one in all_needs),
        kv_layout=draft.kv.layout,
    )


def _smaller_formats(needs: MemoryNeeds, choices: Choices, facts: Facts) -> str:
    """Return a hint for users: the size of the weights in the smaller formats they can be rounded
    to, up to the first format that fits. Empty if the weights fit or cannot be rounded."""
    limit = int(facts.memory.available_bytes * choices.kv_memory.utilization)
    room = limit - needs.workspace_bytes - needs.kv_blocks(needs.block_size) * needs.kv_block_bytes
    config = facts.checkpoint.model.hf_config
    shipped = facts.checkpoint.model.shipped
    is_held = isinstance(shipped, Shipped) and shipped.expanded is None
    is_fixed = facts.checkpoint.packed is not None or is_held
    if needs.weight_bytes <= room or is_fixed:
        return ""
    arithmetic = choices.arithmetic
    named = []
    for name in MEANINGS:
        weights = name.removesuffix(HEAD_4)
        if weights not in facts.backend.capabilities.weight_formats or weights.endswith("a8"):
            continue
        program = run_passes(build_program(as_asked(config, name)), name)
        num_bytes = facts.backend.weight_bytes(
            program, arithmetic.dtype, numbers=arithmetic.stored_numbers
        )
        if num_bytes >= needs.weight_bytes:
            continue
        named.append(f"quantization={name!r} {format_bytes(num_bytes)}")
        if num_bytes <= room:
            return f". The weights would need: {', '.join(named)}, which fits"
    if not named:
        return ""
    return f". The weights would need: {', '.join(named)}, which does not fit either"


def _sketch(program: Program, choices: Choices, facts: Facts) -> CompilePlan:
    """Return a plan whose number of KV blocks is not settled yet."""
    backend = facts.backend
    program = run_passes(program, choices.arithmetic.quantization)
    layout = kv_layout(program, choices.max_model_len)
    spec = KVCacheSpec(1, choices.block_size, choices.kv_cache_dtype, layout)
    options = CompileOptions(
        dtype=choices.arithmetic.dtype,
        max_num_tokens=choices.scheduler.max_num_batched_tokens,
        max_num_seqs=choices.scheduler.max_num_seqs,
        max_model_len=choices.max_model_len,
        stored_numbers=choices.arithmetic.stored_numbers,
        max_adapter_width=_adapter_width(program, choices.lora),
    )
    lora = None if choices.lora is None else _sized(program, choices.lora, choices.parallel)
    extras = (
        _of_logits(program, options, is_on=bool(facts.logits_processors)),
        _of_adapters(lora, choices.prompt_adapters),
        _of_encoder(
            backend,
            facts.checkpoint.model.hf_config,
            choices.images.config,
            options,
            choices.arithmetic.quantization,
        ),
    )
    return CompilePlan(program, backend.sized(program, spec), options, extras)


def _of_logits(program: Program, options: CompileOptions, *, is_on: bool) -> ExtraMemory:
    """`is_on`: whether custom logits processors change the logits before tokens are sampled."""
    return ExtraMemory(is_on * _LOGITS_COPIES * 4 * options.max_num_seqs * program.vocab_size)


def _of_adapters(*kinds: LoRAConfig | PromptAdapterConfig | None) -> ExtraMemory:
    num_bytes = sum(kind.limits.memory_bytes for kind in kinds if kind is not None)
    return ExtraMemory(num_bytes, "all")


def _of_encoder(
    backend: Backend,
    hf_config: HfConfig,
    images: ImagesConfig | None,
    options: CompileOptions,
    quantization: Quantization | None,
) -> ExtraMemory:
    """The encoder of images or audio, and the cache of its results."""
    num_bytes = encoder_bytes(
        backend, hf_config, images, options.dtype, options.max_model_len, quantization
    )
    if not num_bytes:
        return ExtraMemory(0)
    advice = (
        f". The image encoder needs {format_bytes(num_bytes)} of it: less with smaller images "
        f"({PROCESSOR_KWARGS}, such as max_pixels), nothing with "
        "limit_mm_per_prompt={'image': 0}"
    )
    return ExtraMemory(num_bytes, "first", advice)


def _adapter_width(program: Program, lora: LoRAConfig | None) -> int:
    return 0 if lora is None else adapter_width(program, lora.max_lora_rank)


def _sized(program: Program, lora: LoRAConfig, parallel: ParallelConfig) -> LoRAConfig:
    """With the bytes of an adapter on all ranks together."""
    parts = [of_rank(program, rank).program for rank in parallel.ranks]
    num_bytes = [adapter_bytes(part, lora.max_lora_rank, lora.lora_dtype) for part in parts]
    has_experts = any(isinstance(op, Experts) for op in program.ops)
    return lora.sized(sum(num_bytes), has_experts=has_experts)


def compile_plan(config: EngineConfig, rank: Rank = ONE_RANK) -> CompilePlan:
    """Return the plan from which a finished configuration was made, or the part of a rank."""
    model, cache, scheduler = config.model, config.cache, config.scheduler
    program = build_program(model.hf_config)
    draft = None if config.draft is None else ModelDescription(config.draft.hf_config)
    if draft is not None:
        program = _with_hidden(program, draft)
    program = run_passes(program, model.quantization)
    options = CompileOptions(
        dtype=model.dtype,
        max_num_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=model.max_positions,
        stored_numbers=model.stored_numbers,
        max_adapter_width=_adapter_width(program, config.lora),
    )
    extras = (
        _of_logits(program, options, is_on=bool(model.logits_processors)),
        _of_adapters(config.lora, config.prompt_adapters),
        _of_encoder(
            make_backend(config.device), model.hf_config, model.images, options, model.quantization
        ),
    )
    spec = KVCacheSpec(cache.num_blocks, cache.block_size, cache.kv_cache_dtype, cache.layout)
    plan = CompilePlan(program, spec, options, extras)
    if config.draft is not None and draft is not None:
        plan = _with_draft(plan, draft, config.draft)
    return plan.of_rank(rank)
