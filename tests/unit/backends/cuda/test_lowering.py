"""Lowering: places of values, what tokens see, blocks of queries, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from small_families import FAMILIES
from small_model import OPTIONS, one_request
from tiny_checkpoint import CONFIG

from quire.backends.base import KVCacheSpec, StepBatch
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.lowering.table import all_kernels
from quire.backends.cuda.lowering.values import plan_values
from quire.backends.cuda.lowering.visible import View, query_blocks
from quire.backends.cuda.plan import Plan
from quire.backends.reference.ops.attention import _first_visible, _last_visible
from quire.errors import BackendError
from quire.models import build_program
from quire.program import Attention, Value, keep_all, last_reads
from quire.program.passes import run_passes
from quire.program.values import WeightFormat

FACTS = EmulatedDevice().facts


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "gemma2"])
def test_values_that_live_together_do_not_share_memory(family: str) -> None:
    program = run_passes(build_program({**CONFIG, **FAMILIES[family]}), None)
    places, end = plan_values(program, lambda width: width)
    begin_of = {out: (begin, outs) for outs, begin in places for out in outs}
    living: set[Value] = set()
    for op, dying in zip(program.ops[:-1], last_reads(program), strict=False):
        living.update(op.outputs())
        spans = {begin_of[value][0]: sum(o.dim for o in begin_of[value][1]) for value in living}
        ends = sorted((begin, begin + size) for begin, size in spans.items())
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert ends[-1][1] <= end
        living.difference_update(dying)


def batch(lengths: list[int], computed: list[int]) -> StepBatch:
    """Requests of these lengths, of which some tokens are computed already."""
    counts = [length - begin for length, begin in zip(lengths, computed, strict=True)]
    one = one_request([0], [0])
    return replace(
        one,
        token_ids=np.zeros(sum(counts), np.int32),
        positions=np.concatenate(
            [np.arange(b, e, dtype=np.int32) for b, e in zip(computed, lengths, strict=True)]
        ),
        seq_starts=np.cumsum([0, *counts]).astype(np.int32),
        context_lens=np.array(lengths, np.int32),
    )


def attention(**changes: object) -> Attention:
    value = Value("x", 8)
    return Attention(value, value, value, Value("out", 8), 0, 2, 2, 4, 1.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"window": 5}, {"window": 5, "is_chunked": True}, {"is_causal": False},
        {"is_causal": False, "window": 3}, {"first_key": 4}, {"num_keys": 4},
    ],
    ids=str,
)  # fmt: skip
def test_tokens_see_what_the_reference_says(changes: dict[str, object]) -> None:
    op, step = attention(**changes), batch([12, 3, 9], [0, 2, 5])
    first, last, position = View.of(op).visible(step)
    lengths = np.repeat(step.context_lens, np.diff(step.seq_starts))
    assert position.tolist() == step.positions.tolist()
    assert first.tolist() == [_first_visible(op, p) for p in position.tolist()]
    wanted = [_last_visible(op, p, n) for p, n in zip(position, lengths, strict=True)]
    assert last.tolist() == wanted


def test_spans_are_seen_whole() -> None:
    step = batch([6], [0])
    step.spans = np.array([[0, 1, 1, 3, 4, 4], [0, 2, 2, 3, 5, 5]], np.int32)
    first, last, _ = View.of(attention(spans=True)).visible(step)
    assert (first.tolist(), last.tolist()) == ([0] * 6, [0, 2, 2, 3, 5, 5])
    first, last, _ = View.of(attention(spans=True, is_causal=False)).visible(step)
    assert first.tolist() == step.spans[0].tolist()


@pytest.mark.parametrize("group", [1, 3, 5, 9])
def test_blocks_of_queries_have_each_row_once(group: int) -> None:
    step = batch([12, 3, 9, 4], [0, 2, 5, 4])
    visible = View.of(attention(window=4)).visible(step)
    found = query_blocks(step, visible, group, 8)
    rows = []
    for request, begin, first_row, num_rows, lowest, highest, *_ in found.tolist():
        assert begin == step.seq_starts[request]
        own = range(first_row, min(first_row + 8, num_rows))
        rows += [(begin + row // group, row % group) for row in own]
        tokens = [begin + row // group for row in own]
        assert lowest == visible[0, tokens].min()
        assert highest == visible[1, tokens].max()
    assert sorted(rows) == [(t, s) for t in range(len(step.token_ids)) for s in range(group)]


def test_every_launch_is_a_kernel_that_is_compiled_beforehand() -> None:
    known, families = set(all_kernels()), ("qwen3", "qwen2_windows", "gemma2", "gpt2", "mpt")
    cases: list[tuple[str, WeightFormat | None]] = [(family, None) for family in families]
    for family, weights in [*cases, ("qwen2_moe", "int8"), ("qwen2_moe", "int4_w4a8")]:
        program = run_passes(build_program({**CONFIG, **FAMILIES[family]}), weights)
        kv = KVCacheSpec(9, 16, "bfloat16", keep_all(program))
        options = replace(OPTIONS, dtype="bfloat16", max_model_len=32)
        plan = Plan(program, kv, options, FACTS)
        tokens = one_request([1] * 20, [1, 2])
        step, _ = plan.lowering.arrays.step(tokens, plan.lowering.values, 0)
        actions = [action for _, emit in plan.ops for action in emit(step)]
        actions += plan.result.emit(step, 0, 20)
        assert {launch.kernel for launch in actions} <= known  # type: ignore[union-attr]
        assert len(actions) > len(program.ops)


def test_what_has_no_kernel_is_named() -> None:
    program = run_passes(build_program({**CONFIG, "head_dim": 320}), None)
    kv = KVCacheSpec(9, 16, "bfloat16", keep_all(program))
    with pytest.raises(BackendError, match="no attention with heads of 320 numbers; 256 is the"):
        Plan(program, kv, OPTIONS, FACTS)
