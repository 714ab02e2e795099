"""Models with made-up weights: their steps are those of real ones, and are timed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from small_families import FAMILIES
from tiny_checkpoint import CONFIG

from quire.backends.base import CompileOptions, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.config.stored_numbers import StoredNumbers
from quire.models import build_program
from quire.planning.speed.timing import decode_step, prompt_step
from quire.program import Linear, OpPlace, kv_layout, place_of
from quire.program.passes import run_passes
from quire.program.values import GroupedFormat

OPTIONS = CompileOptions("bfloat16", max_num_tokens=96, max_num_seqs=3, max_model_len=64)
NUM_BLOCKS = 12


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("weights", [None, "int8", "int8_w8a8", "int4", "int4_w4a8"])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_steps_have_finite_logits(name: str, weights: Any, kv_dtype: str) -> None:
    """Numbers that overflow, or are too small, would take another time."""
    program = run_passes(build_program({**CONFIG, **FAMILIES[name]}), weights)
    layout = kv_layout(program, OPTIONS.max_model_len)
    kv = KVCacheSpec(NUM_BLOCKS * len(layout.groups), 16, kv_dtype, layout)
    model = CpuBackend(2).compile_stand_in(program, kv, OPTIONS)
    for batch in (prompt_step(kv, 40, 288), decode_step(kv, 3, 33, 288)):
        output = model.step(batch)
        assert output.not_finite is not None
        assert not output.not_finite.any()
    model.close()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
def test_numbers_of_a_checkpoint_in_a_float32_model(name: str, stored: str) -> None:
    program = run_passes(build_program({**CONFIG, **FAMILIES[name]}))
    layout = kv_layout(program, OPTIONS.max_model_len)
    kv = KVCacheSpec(NUM_BLOCKS * len(layout.groups), 16, "float32", layout)
    numbers = StoredNumbers(stored, {})
    options = replace(OPTIONS, dtype="float32", stored_numbers=numbers)
    backend = CpuBackend(2)
    model = backend.compile_stand_in(program, kv, options)
    output = model.step(prompt_step(kv, 40, 288))
    assert output.not_finite is not None
    assert not output.not_finite.any()
    planned = backend.weight_bytes(program, "float32", numbers=numbers)
    assert planned <= model.memory().weight_bytes <= planned + 128 * len(list(program.params()))
    model.close()


@pytest.mark.parametrize(
    "held",
    [
        GroupedFormat("u4", 32, has_zeros=True),
        GroupedFormat("u4", 32, has_zeros=True, has_order=True),
        GroupedFormat("e2m1", 16, scale="e4m3"),
        GroupedFormat("e4m3", 128),
        GroupedFormat("nf4", 64),
    ],
    ids=str,
)
def test_grouped_weights_too(held: GroupedFormat) -> None:
    program = build_program({**CONFIG, "hidden_size": 128})
    ops = [
        replace(op, weight=replace(op.weight, format=held)) if isinstance(op, Linear) else op
        for op in program.ops
    ]
    program = replace(program, ops=tuple(ops))
    kv = KVCacheSpec(NUM_BLOCKS, 16, "bfloat16", kv_layout(program, 64))
    model = CpuBackend(2).compile_stand_in(program, kv, OPTIONS)
    output = model.step(prompt_step(kv, 40, 288))
    assert output.not_finite is not None
    assert not output.not_finite.any()


def test_times_of_ops_add_up_to_less_than_the_step() -> None:
    program = run_passes(build_program({**CONFIG, **FAMILIES["qwen3"]}))
    kv = KVCacheSpec(NUM_BLOCKS, 16, "bfloat16", kv_layout(program, 64))
    model = CpuBackend(2).compile_stand_in(program, kv, OPTIONS)
    batch = prompt_step(kv, 60, 288)
    begin = time.perf_counter()
    times = model.op_seconds(batch, 5)
    elapsed = time.perf_counter() - begin
    assert all(seconds >= 0 for _, seconds in times)
    assert 0 < 5 * sum(seconds for _, seconds in times) <= elapsed
    places = {place for place, _ in times}
    assert OpPlace(1, "down") in places
    assert {place.layer for place in places} == {place_of(op).layer for op in program.ops}
