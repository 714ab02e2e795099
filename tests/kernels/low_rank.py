"""Programs and random adapters for tests of adapters on any backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from small_model import RandomStore
from tiny_checkpoint import CONFIG

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    LoadedAdapter,
    StepBatch,
)
from quire.models import build_program
from quire.program import Program, keep_all
from quire.program.passes import run_passes
from quire.program.values import WeightFormat
from quire.weights.adapters import AdapterPart, AdapterWeights
from quire.weights.adapters.slots import AdapterSlots

BLOCK_SIZE, RANK, LONG_RANK = 16, 5, 37
"""A tile of AMX has 32 numbers between A and B."""
WIDTH = 3 * 48
LENGTHS = (1, 7, 20, 33)
ODD = {**CONFIG, "intermediate_size": 90, "vocab_size": 151, "hidden_size": 72}
MIXTURE = {
    **ODD, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 27, "shared_expert_intermediate_size": 41,
}  # fmt: skip
LLAMA4 = {
    **ODD, "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text",
    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size_mlp": 64,
}  # fmt: skip
"""Experts read weighted rows."""
CONFIGS = {"dense": ODD, "experts": MIXTURE, "weighted experts": LLAMA4}
Floats = np.ndarray


def program_of(weight_format: WeightFormat, kind: str = "dense") -> Program:
    return run_passes(build_program(CONFIGS[kind]), weight_format)


def compiled(backend: Backend, program: Program, dtype: Dtype, width: int) -> CompiledModel:
    options = CompileOptions(dtype, 64, 4, 64, max_adapter_width=width)
    spec = KVCacheSpec(16, BLOCK_SIZE, dtype, keep_all(program))
    return backend.compile(program, RandomStore(program), spec, options)


def random_adapter(program: Program, seed: int, rank: int = RANK) -> AdapterWeights:
    """All modules: with biases, and gains except for the embedding."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int, size: float = 1.0) -> Floats:
        return (size * random.standard_normal(shape)).astype(np.float32)

    parts = []
    for slot in AdapterSlots(program).all():
        rows, depth = slot.tensor.slot_shape[-2:]
        if slot.is_embedding:
            rows, depth = depth, rows
        a, b = numbers(rank, depth, size=depth**-0.5), numbers(rows, rank, size=0.5)
        gains = None if slot.is_embedding else 1 + numbers(rows, size=0.1)
        a = np.ascontiguousarray(a.T) if slot.is_embedding else a
        bias = None if slot.is_embedding else numbers(rows, size=0.1)
        parts.append(
            AdapterPart(slot.param.name, slot.first_row, a, b, 0.7, bias, gains, slot.is_embedding)
        )
    return AdapterWeights(tuple(parts))


def step_of(which: Sequence[int], adapters: Sequence[LoadedAdapter | None]) -> StepBatch:
    """Requests number `which` of LENGTHS in one step."""
    counts = [LENGTHS[i] for i in which]
    tokens = [np.random.default_rng(i).integers(0, 151, LENGTHS[i]) for i in which]
    return StepBatch(
        token_ids=np.concatenate(tokens).astype(np.int32),
        positions=np.concatenate([np.arange(n) for n in counts]).astype(np.int32),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        context_lens=np.array(counts, np.int32),
        block_tables=np.array([[[4 * i + j for j in range(4)]] for i in which], np.int32),
        logits_rows=np.arange(sum(counts), dtype=np.int32),
        sampling=None,
        want_logits=True,
        adapters=list(adapters),
    )


def logits_of(model: CompiledModel, batch: StepBatch) -> list[Floats]:
    logits = model.step(batch).logits
    assert logits is not None
    return np.split(logits, batch.seq_starts[1:-1])
