"""A model that is split among ranks gives the bits of one rank, in a prompt and in decoding."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rank_threads import PlainDummy, RankThreads, connected
from small_families import FAMILIES
from tiny_checkpoint import CONFIG

from quire.backends.base import Backend, CompileOptions, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.models import build_program
from quire.planning.speed.timing import decode_step, prompt_step
from quire.program import Linear, Program, kv_layout
from quire.program.passes import run_passes
from quire.program.values import GroupedFormat

OPTIONS = CompileOptions("bfloat16", max_num_tokens=96, max_num_seqs=3, max_model_len=64)
SPLITS = [(2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2)]
HELD = [
    GroupedFormat("u4", 32, has_zeros=True),
    GroupedFormat("u4", 32, has_zeros=True, has_order=True),
    GroupedFormat("e2m1", 16, scale="e4m3"),
    GroupedFormat("e4m3", 128),
    GroupedFormat("nf4", 64),
]


def program_of(family: str, weights: Any) -> Program:
    config = {**CONFIG, "hidden_size": 128, "intermediate_size": 128, **FAMILIES[family]}
    if not isinstance(weights, GroupedFormat):
        return run_passes(build_program(config), weights)
    program = run_passes(build_program(config))
    held = [
        replace(op, weight=replace(op.weight, format=weights))
        if isinstance(op, Linear) and not op.exact and _may_be_grouped(op)
        else op
        for op in program.ops
    ]
    return replace(program, ops=tuple(held))


def _may_be_grouped(op: Linear) -> bool:
    is_transposed = any(part.transposed for part in op.weight.parts)
    return not is_transposed and op.weight.shape[1] % 64 == 0


def logits(kind: str, program: Program, tensor_size: int, num_stages: int) -> list[Any]:
    layout = kv_layout(program, OPTIONS.max_model_len)
    kv = KVCacheSpec(12 * len(layout.groups), 16, "bfloat16", layout)
    groups = connected(num_stages, tensor_size)
    files = [os.memfd_create("shared") for _ in range(num_stages)]
    if kind == "shared memory":
        for number, group in enumerate(groups):
            group.shared_fd = files[number // tensor_size]
    backends: list[Backend] = [
        ReferenceBackend() if kind == "reference" else CpuBackend(1) for _ in groups
    ]
    weights = PlainDummy(program)
    model = RankThreads(backends, program, weights, kv, OPTIONS, num_stages, groups)
    found = []
    for batch in (prompt_step(kv, 40, 288), decode_step(kv, 3, 33, 288)):
        batch.want_logits = True
        found.append(model.step(batch).logits)
    model.close()
    for file in files:
        os.close(file)
    return found


@pytest.mark.parametrize("kind", ["reference", "sockets", "shared memory"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "weights", [None, "int8", "int8_w8a8", "int4", "int4_w4a8", *HELD], ids=str
)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_ranks_give_the_bits_of_one(
    kind: str, family: str, weights: Any, split: tuple[int, int]
) -> None:
    tensor_size, num_stages = split
    if family in ("gemma3n", "gemma4"):  # four layers that share K and V, and stay in one stage
        num_stages = 1
    program = program_of(family, weights)
    one = logits(kind, program, 1, 1)
    found = logits(kind, program, tensor_size, num_stages)
    assert all(np.array_equal(a, b) for a, b in zip(one, found, strict=True))
    assert np.isfinite(one[0]).all()
