"""Small programs whose logits are the numbers under test, run natively and by the reference.

A program embeds, applies ops, and ends in a head that is the identity: row r of the logits is
row r of the value under test (rounded to bfloat16 in a bfloat16 model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    SamplingColumns,
    StepBatch,
    StepOutput,
)
from quire.backends.reference import ReferenceBackend
from quire.config.kv_layout import KVLayout
from quire.errors import CheckpointError
from quire.program import (
    Attention,
    Embed,
    Linear,
    Logits,
    Op,
    Param,
    Program,
    TakeRows,
    Value,
    keep_all,
)
from quire.program import Tensor as CheckpointTensor
from quire.weights import HostTensor, WeightStore
from quire.weights.store import TensorDtype

Floats = NDArray[np.float32]
VOCAB = 96
BLOCK_SIZE = 16
NUM_BLOCKS = 256


def to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(values: Floats) -> Floats:
    """The nearest bfloat16 numbers, as float32."""
    return (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)


class ArrayStore(WeightStore):
    """A checkpoint in memory, in any of the dtypes that files have."""

    def __init__(self, arrays: dict[str, Floats], dtype: TensorDtype = "F32") -> None:
        self._arrays = arrays
        self._dtype = dtype
        self._bytes = {name: self._encode(array) for name, array in arrays.items()}

    def _encode(self, array: Floats) -> NDArray[np.uint8]:
        if self._dtype == "BF16":
            return to_bfloat16(array).reshape(-1).view(np.uint8)
        kind = np.float16 if self._dtype == "F16" else np.float32
        return np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8)

    def names(self) -> Iterable[str]:
        return self._arrays

    def get(self, name: str) -> HostTensor:
        if name not in self._arrays:
            raise CheckpointError(f"no tensor {name}")
        shape = self._arrays[name].shape
        return HostTensor(name, self._dtype, shape, self._bytes[name], "memory")

    def close(self) -> None:
        self._bytes = {}


class Weights:
    """Makes up random weights as a program is written."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.arrays: dict[str, Floats] = {}

    def param(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Param:
        """A slot filled with normal numbers of this deviation."""
        return self.given(name, self._random.normal(0, scale, shape).astype(np.float32))

    def given(self, name: str, array: Floats, transposed: bool = False) -> Param:
        """A slot with these numbers, exact in bfloat16. `transposed`: stored as [K, N]."""
        held = rounded(array)
        self.arrays[name] = np.ascontiguousarray(held.T) if transposed else held
        tensor = CheckpointTensor(name, self.arrays[name].shape, transposed)
        return Param(name, array.shape, (tensor,))


Body = Callable[[Value, Weights], tuple[list[Op], Value]]


def program_of(body: Body, dim: int, weights: Weights) -> Program:
    """Embed [VOCAB, dim], what `body` adds, and the identity head over its result.

    A program needs an attention: a small one stands beside the body, read by nobody.
    """
    x = Value("x", dim)
    ops: list[Op] = [Embed(x, weights.param("table", (max(VOCAB, dim), dim)))]
    more, result = body(x, weights)
    if not any(isinstance(op, Attention) for op in more):
        q, k, v, out = (Value(name, 16) for name in ("spare.q", "spare.k", "spare.v", "spare"))
        ops.append(Linear(x, (q, k, v), weights.param("spare.weight", (48, dim), dim**-0.5)))
        ops.append(Attention(q, k, v, out, 0, 1, 1, 16, 0.25))
    ops += more
    taken, logits = Value("taken", result.dim), Value("logits", result.dim)
    ops.append(TakeRows(result, taken))
    identity = weights.given("identity", np.eye(result.dim, dtype=np.float32))
    ops.append(Logits(taken, logits, identity))
    program = Program("test", tuple(ops))
    program.check()
    return program


def extreme_rows(k: int) -> list[Floats]:
    """Rows [k] of which every byte is at an end of its range, once they are rounded to 8 bits, or
    to two bytes."""
    one = np.ones(k, np.float32)
    ends = [one, -one, np.resize(np.array([1, -1], np.float32), k)]
    for low in (-128, 127):  # the second byte, with none in the first
        ends.append(np.full(k, low / (127 * 256), np.float32))
        ends[-1][0] = 1
    return ends


@dataclass
class Pair:
    """The same program on the native backend and on the reference."""

    native: CompiledModel
    reference: CompiledModel


def compile_on(
    backend: Backend,
    program: Program,
    weights: Weights,
    dtype: Dtype = "float32",
    *,
    kv_dtype: str | None = None,
    layout: KVLayout | None = None,
    source: TensorDtype = "F32",
) -> CompiledModel:
    """The program with room for 1024 tokens a step. `layout`: None keeps every position."""
    options = CompileOptions(dtype, max_num_tokens=1024, max_num_seqs=64, max_model_len=2048)
    layout = layout or keep_all(program)
    spec = KVCacheSpec(NUM_BLOCKS, BLOCK_SIZE, kv_dtype or dtype, layout)
    return backend.compile(program, ArrayStore(weights.arrays, source), spec, options)


def compile_pair(backend: Backend, body: Body, dim: int, dtype: Dtype = "float32") -> Pair:
    """A body on both backends."""
    weights = Weights()
    program = program_of(body, dim, weights)
    return Pair(
        compile_on(backend, program, weights, dtype),
        compile_on(ReferenceBackend(), program, weights, dtype),
    )


@dataclass
class Seq:
    """A request by hand: its tokens and its scattered blocks."""

    tokens: NDArray[np.int32]
    blocks: NDArray[np.int32]
    computed: int = 0


def make_seqs(lengths: Sequence[int], seed: int = 0) -> list[Seq]:
    """Requests of random tokens in random blocks."""
    random = np.random.default_rng(seed)
    free = random.permutation(NUM_BLOCKS).astype(np.int32)
    seqs, used = [], 0
    for length in lengths:
        count = -(-length // BLOCK_SIZE)
        tokens = random.integers(0, VOCAB, length).astype(np.int32)
        # Of the vocabulary of the smallest head too.
        seqs.append(Seq(tokens % 16, free[used : used + count]))
        used += count
    return seqs


def batch_of(work: Sequence[tuple[Seq, int]], sampling: SamplingColumns | None = None) -> StepBatch:
    """The next n tokens of each request, all of whose logits are wanted. Advances the requests."""
    counts = [count for _, count in work]
    width = max(len(seq.blocks) for seq, _ in work)
    tables = np.zeros((len(work), width), np.int32)
    for row, (seq, _) in enumerate(work):
        tables[row, : len(seq.blocks)] = seq.blocks
    ranges = [np.arange(seq.computed, seq.computed + count) for seq, count in work]
    tokens = np.concatenate([seq.tokens[r] for (seq, _), r in zip(work, ranges, strict=True)])
    for seq, count in work:
        seq.computed += count
    return StepBatch(
        token_ids=tokens.astype(np.int32),
        positions=np.concatenate(ranges).astype(np.int32),
        seq_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        context_lens=np.array([seq.computed for seq, _ in work], np.int32),
        block_tables=tables[:, None],
        logits_rows=np.arange(sum(counts), dtype=np.int32),
        sampling=sampling,
        want_logits=True,
    )


def logits_of(output: StepOutput) -> Floats:
    """The logits that every batch here asks for."""
    if output.logits is None:
        raise RuntimeError("no logits came")
    return output.logits


def run_both(pair: Pair, lengths: Sequence[int]) -> tuple[Floats, Floats]:
    """All tokens of requests of these lengths in one step: (native, reference)."""
    seqs = make_seqs(lengths)
    batch = batch_of([(seq, len(seq.tokens)) for seq in seqs])
    native, reference = pair.native.step(batch), pair.reference.step(batch)
    return logits_of(native), logits_of(reference)


def assert_close(pair: Pair, lengths: Sequence[int], tolerance: float) -> None:
    """Native and reference agree to `tolerance` of the largest number of each row."""
    native, reference = run_both(pair, lengths)
    scale = np.abs(reference).max(axis=1, keepdims=True)
    worst = float((np.abs(native - reference) / scale).max())
    assert np.isfinite(native).all()
    assert worst <= tolerance, f"differs by {worst:.2e} of the row's largest number"


def close(*models: CompiledModel) -> None:
    """Frees them."""
    for model in models:
        model.close()
