"""Equal bits whatever the company: alone, in a batch, in any chunks, on one thread or several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import (
    BLOCK_SIZE,
    Floats,
    Seq,
    Weights,
    batch_of,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
)
from test_attention import DIM, Shape

from quire.backends.base import CompiledModel, Dtype
from quire.backends.cpu import CpuBackend
from quire.program import ActivationBits

Numbers = tuple[Dtype, str, ActivationBits]
"""The dtypes of the model and of its cache, and the bits of q over the latter."""
LENGTH = 600
SHAPES = [
    Shape(),
    Shape(heads=6, kv_heads=1, head_dim=80, window=270),
    Shape(window=90, sinks=True),
]


def compiled(isa: str, threads: int, shape: Shape, numbers: Numbers) -> CompiledModel:
    dtype, kv_dtype, activation_bits = numbers
    weights = Weights(11)
    program = program_of(replace(shape, activation_bits=activation_bits).body(), DIM, weights)
    return compile_on(CpuBackend(threads, isa), program, weights, dtype, kv_dtype=kv_dtype)


def whole(model: CompiledModel) -> Floats:
    """The sequence under test in one step of its own."""
    return logits_of(model.step(batch_of([(mine(), LENGTH)])))


def mine() -> Seq:
    return make_seqs([LENGTH], seed=5)[0]


def others(count: int) -> list[Seq]:
    """Requests in blocks that the one under test does not use."""
    taken = set(mine().blocks.tolist())
    free = np.array([b for b in range(256) if b not in taken], np.int32)
    found = make_seqs([40] * count, seed=6)
    for index, seq in enumerate(found):
        seq.blocks = free[index * 3 : index * 3 + 3]
    return found


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture(
    scope="module",
    params=[
        ("float32", "float32", 16),
        ("bfloat16", "bfloat16", 16),
        ("bfloat16", "int8", 16),
        ("bfloat16", "int8", 8),
    ],
    ids=lambda numbers: "-".join(map(str, numbers)),
)
def numbers(request: pytest.FixtureRequest) -> Numbers:
    found: Numbers = request.param
    return found


@pytest.fixture(scope="module")
def model(isa: str, shape: Shape, numbers: Numbers) -> CompiledModel:
    return compiled(isa, 2, shape, numbers)


@pytest.fixture(scope="module")
def expected(model: CompiledModel) -> bytes:
    return whole(model).tobytes()


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_any_number_of_threads(
    isa: str, shape: Shape, numbers: Numbers, threads: int, expected: bytes
) -> None:
    """Eight threads have too little to do: long contexts are split between them."""
    other = compiled(isa, threads, shape, numbers)
    assert whole(other).tobytes() == expected
    seq = mine()
    parts = [logits_of(other.step(batch_of([(seq, n)]))) for n in (LENGTH - 4, 1, 1, 1, 1)]
    assert np.concatenate(parts).tobytes() == expected


@pytest.mark.parametrize("chunk", [1, 5, 16, 37, 256, 511])
def test_any_chunking(model: CompiledModel, expected: bytes, chunk: int) -> None:
    seq = mine()
    # Single tokens only towards the end, across a chunk border: the beginning costs the most time.
    parts = [logits_of(model.step(batch_of([(seq, 500)])))] if chunk < 16 else []
    while seq.computed < LENGTH:
        count = min(chunk, LENGTH - seq.computed)
        parts.append(logits_of(model.step(batch_of([(seq, count)]))))
    assert np.concatenate(parts).tobytes() == expected


def test_among_32_others(model: CompiledModel, expected: bytes) -> None:
    seq, company = mine(), others(32)
    parts = [logits_of(model.step(batch_of([(seq, 580)])))]
    for place in range(20):
        work = [(other, 1 + place % 2) for other in company if other.computed + 2 <= 40]
        work.insert(place % (len(work) + 1), (seq, 1))
        at = sum(n for _, n in work[: [s is seq for s, _ in work].index(True)])
        parts.append(logits_of(model.step(batch_of(work)))[at : at + 1])
    assert np.concatenate(parts).tobytes() == expected


def test_after_blocks_were_copied_elsewhere(model: CompiledModel, expected: bytes) -> None:
    seq = mine()
    first = logits_of(model.step(batch_of([(seq, 300)])))
    elsewhere = np.array([b for b in range(256) if b not in set(seq.blocks.tolist())], np.int32)
    moved = elsewhere[: len(seq.blocks)]
    model.write_blocks(moved, model.read_blocks(seq.blocks))
    seq.blocks = moved
    rest = logits_of(model.step(batch_of([(seq, 300)])))
    assert np.concatenate((first, rest)).tobytes() == expected


def test_after_blocks_were_copied_whose_last_one_is_not_full(
    model: CompiledModel, expected: bytes
) -> None:
    """Of that one the first tokens alone, over what the block held before."""
    seq = mine()
    first = logits_of(model.step(batch_of([(seq, 300)])))
    entry, count = divmod(300, BLOCK_SIZE)
    data = model.read_blocks(seq.blocks)
    data[entry + 1 :] = 0xFF
    before = data[entry].tobytes()
    model.clear_behind(data[entry], 0, count)
    assert data[entry].tobytes() != before
    model.write_blocks(seq.blocks, np.full_like(data, 0xFF))
    model.write_blocks(seq.blocks, data)
    rest = logits_of(model.step(batch_of([(seq, 300)])))
    assert np.concatenate((first, rest)).tobytes() == expected
