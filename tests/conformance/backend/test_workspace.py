"""`Backend.workspace_bytes` against what is allocated: over models, formats, caches and threads."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sampling_columns import SamplingRow, build_columns
from small_families import FAMILIES
from small_model import RandomStore, small_program
from tiny_checkpoint import CONFIG

from quire.backends.base import Backend, CompiledModel, CompileOptions, KVCacheSpec, StepBatch
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.models import build_program
from quire.program import Program, kv_layout
from quire.program.passes import run_passes

OPTIONS = CompileOptions("bfloat16", max_num_tokens=96, max_num_seqs=3, max_model_len=64)
NUM_BLOCKS = 12
HUGE_PAGE = 2 << 20


def programs() -> Iterator[tuple[str, Program]]:
    yield "small", small_program(vocab_size=1031)
    for name, config in FAMILIES.items():
        yield name, build_program({**CONFIG, **config})


PROGRAMS = dict(programs())
VARIANTS: list[tuple[str | None, str, dict[str, Any]]] = [
    (None, "float32", {"dtype": "float32"}),
    (None, "bfloat16", {"max_num_tokens": 20, "max_model_len": 32}),
    ("int8", "bfloat16", {}),
    ("int8_w8a8", "int8", {}),
    ("int4", "int8", {"dtype": "float32"}),
    ("int4_w4a8", "float32", {}),
]


@pytest.fixture(params=PROGRAMS, scope="module")
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.mark.parametrize(("weights", "kv_dtype", "limits"), VARIANTS, ids=str)
def test_a_model_reports_what_was_planned(
    backend: Backend, program: Program, weights: Any, kv_dtype: str, limits: dict[str, Any]
) -> None:
    lowered, kv, options = compiled_for(program, weights, kv_dtype, limits)
    try:
        planned = backend.workspace_bytes(lowered, replace(kv, num_blocks=1), options)
    except BackendError as error:
        if backend.capabilities.name != "cuda":
            raise
        pytest.skip(f"this backend refuses the program: {error}")
    model = backend.compile(lowered, RandomStore(lowered), kv, options)
    assert model.memory().workspace_bytes == planned > 0
    model.close()
    assert model.memory().workspace_bytes == 0


@pytest.mark.sweep(3)
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize(("weights", "kv_dtype", "limits"), VARIANTS[1::2], ids=str)
def test_the_native_model_reserves_no_more_than_it_reports(
    program: Program, weights: Any, kv_dtype: str, limits: dict[str, Any], num_threads: int
) -> None:
    """Of what is reported, only lists of the samplers and rotary tables are no reservations: far
    less than one is here."""
    backend, reserved = native(num_threads)
    lowered, kv, options = compiled_for(program, weights, kv_dtype, limits)
    gc.collect()
    before = reserved()
    planned = backend.workspace_bytes(lowered, kv, options)
    assert reserved() == before, "planning holds nothing"
    model = backend.compile(lowered, RandomStore(lowered), kv, options)
    kv_bytes = -(-model.memory().kv_reserved_bytes // HUGE_PAGE) * HUGE_PAGE
    assert 0 <= planned - (reserved() - before - kv_bytes) < HUGE_PAGE
    model.step(largest_step(lowered, kv, options))
    model.close()
    assert reserved() == before


def test_each_thread_has_its_own_workspace() -> None:
    lowered, kv, options = compiled_for(PROGRAMS["qwen3"], None, "bfloat16", {})
    one, two, five = (native(n)[0].workspace_bytes(lowered, kv, options) for n in (1, 2, 5))
    assert one < two < five


@pytest.mark.parametrize(("weights", "kv_dtype", "limits"), VARIANTS, ids=str)
def test_the_reference_allocates_no_more(
    program: Program, weights: Any, kv_dtype: str, limits: dict[str, Any]
) -> None:
    """As NumPy tells it, in the largest step that there is."""
    lowered, kv, options = compiled_for(program, weights, kv_dtype, limits)
    model = ReferenceBackend().compile(lowered, RandomStore(lowered), kv, options)
    batch = largest_step(lowered, kv, options)
    peak = allocated_by(model, batch)
    planned = model.memory().workspace_bytes
    assert peak <= planned < 4 * peak
    model.close()


def compiled_for(
    program: Program, weights: Any, kv_dtype: str, limits: dict[str, Any]
) -> tuple[Program, KVCacheSpec, CompileOptions]:
    options = replace(OPTIONS, **limits)
    lowered = run_passes(program, weights)
    limit = lowered.position_limit or options.max_model_len
    options = replace(options, max_model_len=min(limit, options.max_model_len))
    layout = kv_layout(lowered, options.max_model_len)
    return lowered, KVCacheSpec(NUM_BLOCKS, 16, kv_dtype, layout), options


def native(num_threads: int) -> tuple[Backend, Any]:
    """The CPU backend, and how many bytes its library has reserved."""
    try:
        from quire.backends.cpu import CpuBackend, load

        backend, library = CpuBackend(num_threads), load()
    except (ImportError, BackendError) as error:
        pytest.skip(f"the native library is not built here: {error}")
    return backend, library.lib.quire_reserved_bytes


def largest_step(program: Program, kv: KVCacheSpec, options: CompileOptions) -> StepBatch:
    """Requests as long as may be, until the step is full; all logits are wanted, and sampled."""
    counts = []
    while (left := options.max_num_tokens - sum(counts)) and len(counts) < options.max_num_seqs:
        counts.append(min(left, options.max_model_len))
    total, num_groups = sum(counts), len(kv.layout.groups)
    entries = -(-options.max_model_len // kv.block_size)
    blocks = np.arange(len(counts) * num_groups * entries) % kv.num_blocks
    rows = [SamplingRow(temperature=1.0, top_p=0.9, num_logprobs=3) for _ in range(total)]
    return StepBatch(
        token_ids=(np.arange(total) % program.vocab_size).astype(np.int32),
        positions=np.concatenate([np.arange(count) for count in counts]).astype(np.int32),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        context_lens=np.array(counts, np.int32),
        block_tables=blocks.reshape(len(counts), num_groups, entries).astype(np.int32),
        logits_rows=np.arange(total, dtype=np.int32),
        sampling=build_columns(rows),
    )


def allocated_by(model: CompiledModel, batch: StepBatch) -> int:
    """The most that one step has allocated at once."""
    model.step(batch)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        model.step(batch)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
