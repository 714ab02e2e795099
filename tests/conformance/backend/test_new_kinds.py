"""A new op needs nothing but its own class.

The ops of this file exist nowhere else: one that keeps a state of each request, and one that ends a
program with a vector. Passes, planning, the block accounting and the reference backend know only
what they say of themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from small_model import OPTIONS, RandomStore, one_request

from quire.backends.base import KVCacheSpec
from quire.backends.reference import ReferenceBackend
from quire.backends.reference.ops import Frame, run
from quire.config.kv_groups import KVShape
from quire.config.kv_layout import KVLayout
from quire.config.records import CacheConfig
from quire.config.state_groups import StateGroup, StateShape
from quire.errors import BackendError, IntegrityError
from quire.kvcache import KVCacheManager
from quire.program import Attention, Builder, Linear, Memory, Op, Program, TakeRows, Tensor, Value
from quire.program.kv_groups import keep_all, kv_layout
from quire.program.ops import RowsRead
from quire.program.passes import run_passes

WIDTH = 8
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@dataclass(frozen=True, slots=True)
class RunningSum(Op):
    """out[t] = sum of x over the tokens of the request up to t."""

    rows: ClassVar[RowsRead] = "request"
    is_repeatable: ClassVar[bool] = False
    x: Value
    out: Value
    layer: int

    def memories(self) -> tuple[Memory, ...]:
        kept = StateGroup((), KVShape(0, 0, 0), (StateShape(1, self.x.dim),))
        return (Memory(self.layer, kept),)


@run.register
def _(op: RunningSum, frame: Frame) -> None:
    batch, cache = frame.batch, frame.cache
    out = np.empty_like(frame.values[op.x])
    for request, tables in enumerate(batch.block_tables):
        begin, end = batch.seq_starts[request : request + 2]
        [state] = cache.state(op.layer, tables)
        if batch.positions[begin] == 0:
            state[:] = 0
        for token in range(begin, end):
            state += frame.values[op.x][token]
            out[token] = state
    frame.values[op.out] = out


@dataclass(frozen=True, slots=True)
class MeanPool(Op):
    """out[r] = mean of x over the tokens of request r."""

    rows: ClassVar[RowsRead] = "request"
    is_result: ClassVar[bool] = True
    x: Value
    out: Value


@run.register
def _(op: MeanPool, frame: Frame) -> None:
    starts = frame.batch.seq_starts
    pieces = np.split(frame.values[op.x], starts[1:-1])
    frame.values[op.out] = np.stack([piece.mean(axis=0) for piece in pieces])


def embedding() -> tuple[Builder, Value]:
    builder = Builder("new-kinds")
    return builder, builder.embed(Tensor("embed", (11, WIDTH)))


def stateful_program() -> Program:
    builder, x = embedding()
    summed = Value("layers.0.sum", WIDTH)
    builder._emit(RunningSum(x, summed, 0))
    builder.logits(summed, Tensor("head", (11, WIDTH)))
    return builder.program()


def pooled_program() -> Program:
    builder, x = embedding()
    attended = Value("layers.0.out", WIDTH)
    attention = Attention(x, x, x, attended, None, 2, 2, WIDTH // 2, 0.5, is_causal=False)
    builder._emit(attention)
    pooled = Value("pooled", WIDTH)
    builder._emit(MeanPool(attended, pooled))
    return builder.program()


def logits_in_pieces(program: Program, cuts: list[int]) -> NDArray[np.float32]:
    """The last token's logits, of a step for each piece between the cuts."""
    spec = KVCacheSpec(4, 16, "float32", kv_layout(program, 64))
    spec = ReferenceBackend().sized(program, spec)
    model = ReferenceBackend().compile(program, RandomStore(program), spec, OPTIONS)
    found = None
    for begin, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        batch = one_request(TOKENS[:end], [2], computed=begin)
        found = model.step(batch).logits
    assert found is not None
    with pytest.raises(BackendError, match="steps cannot be repeated"):
        model.find_not_finite(batch)
    return found[-1]


def test_a_state_goes_on_from_step_to_step() -> None:
    program = run_passes(stateful_program())
    whole = logits_in_pieces(program, [])
    for cuts in ([1], [5, 6], [10], list(range(1, 11))):
        assert logits_in_pieces(program, cuts).tobytes() == whole.tobytes()


def test_no_pass_moves_rows_before_a_state() -> None:
    ops = [type(op) for op in run_passes(stateful_program()).ops]
    assert ops.index(TakeRows) > ops.index(RunningSum)


def test_a_group_of_states_grows_by_its_own_rule() -> None:
    states = kv_layout(stateful_program(), 64).sized(64)
    mixed = KVLayout((*states.groups, *keep_all(one_layer()).groups), 1)
    config = CacheConfig(
        block_size=4, num_blocks=8, block_bytes=64, kv_cache_dtype="float32", layout=mixed,
        enable_prefix_caching=True, fingerprint="f",
    )  # fmt: skip
    kv = KVCacheManager(config, max_chunk=16)
    blocks = kv.open()
    assert kv.allocate_slots(blocks, TOKENS, 0, 5) == [[0], [1, 2]]
    assert kv.allocate_slots(blocks, TOKENS, 5, 11) == [[], [3]]
    assert kv.num_missing(blocks, 12) == 0
    assert kv.get_computed_blocks(kv.open(), TOKENS).num_entries == 0
    kv.check_integrity()
    kv.free(blocks, 11)
    kv.check_integrity()
    assert kv.pool.num_held == 0


def one_layer() -> Program:
    builder, x = embedding()
    out = Value("layers.0.out", WIDTH)
    builder._emit(Attention(x, x, x, out, 0, 2, 2, WIDTH // 2, 0.5))
    builder.logits(out, Tensor("head", (11, WIDTH)))
    return builder.program()


def test_a_program_may_end_in_a_vector() -> None:
    program = run_passes(pooled_program())
    layout = kv_layout(program, 64)
    assert (layout.groups, program.vocab_size) == ((), 11)
    spec = KVCacheSpec(1, 16, "float32", layout)
    store = RandomStore(program)
    model = ReferenceBackend().compile(program, store, spec, OPTIONS)
    batch = one_request(TOKENS, [])
    batch.block_tables = np.zeros((1, 0, 1), np.int32)
    found = model._compute(batch)  # type: ignore[attr-defined]
    rows = frame_of(store, program)[TOKENS].reshape(len(TOKENS), 2, -1)
    scores = np.einsum("qhd,khd->hqk", rows, rows) * 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    truth = np.einsum("hqk,khd->qhd", weights, rows).reshape(len(TOKENS), -1).mean(axis=0)
    assert np.allclose(found[0], truth, atol=1e-5)
    batch.positions = batch.positions + np.int32(1)
    batch.context_lens = batch.context_lens + np.int32(1)
    with pytest.raises(BackendError, match="all tokens of a request in a step"):
        model._compute(batch)  # type: ignore[attr-defined]


def frame_of(store: RandomStore, program: Program) -> NDArray[np.float32]:
    [table] = program.params()
    return store.get(table.parts[0].name).data.view(np.float32).reshape(table.shape)


def test_a_program_that_gives_nothing_is_refused() -> None:
    program = stateful_program()
    with pytest.raises(IntegrityError, match="does not give a result"):
        replace(program, ops=program.ops[:-1]).check()
    linear = Linear(Value("a", 2), (Value("b", 2),), next(program.params()))
    assert (linear.rows, linear.memories(), linear.is_result) == ("own", (), False)
