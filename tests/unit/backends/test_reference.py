"""The reference backend by itself: what it refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import CompiledModel, KVCacheSpec
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError, CheckpointError
from quire.program import Linear, Tensor, keep_all

SPEC = KVCacheSpec(6, 8, "float32", keep_all(small_program()))
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture
def model() -> Iterator[CompiledModel]:
    program = small_program()
    compiled = ReferenceBackend().compile(program, RandomStore(program), SPEC, OPTIONS)
    yield compiled
    compiled.close()


@pytest.mark.parametrize("shape", [(1, 512), (2, 511), (2, 2, 256)])
def test_blocks_of_a_wrong_shape_are_refused(model: CompiledModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="blocks are uint8"):
        model.write_blocks(np.array([0, 1], np.int32), np.zeros(shape, np.uint8))


@pytest.mark.parametrize("block", [-1, 6])
def test_block_ids_out_of_range_are_refused(model: CompiledModel, block: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 5"):
        model.read_blocks(np.array([block], np.int32))


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("token_ids", [3, 1, 11], "token id 11 is not from 0 to 10"),
        ("token_ids", [3, -1, 4], "token id -1"),
        ("token_ids", [3, 1], "differ in length"),
        ("positions", [0, 1, 3], "do not end at 3"),
        ("context_lens", [4], "do not end at 4"),
        ("context_lens", [3, 3], "differ in length"),
        ("block_tables", [[[-1]]], "block id -1"),
        ("block_tables", [[[6]]], "block id 6"),
        ("block_tables", [[[]]], "do not fit 0 blocks"),
        ("block_tables", [[0]], r"are \[1, 1\], not \[1, 1, entries\]"),
        ("block_tables", [[[0], [1]]], r"are \[1, 2, 1\]"),
        ("seq_starts", [0, 2], "do not divide 3 tokens"),
        ("seq_starts", [1, 3], "do not divide 3 tokens"),
        ("seq_starts", [0, 1, 3], "do not divide 3 tokens"),
        ("logits_rows", [3], "logits row 3"),
        ("logits_rows", [-1], "logits row -1"),
    ],
)
def test_a_malformed_step_is_refused(
    model: CompiledModel, field: str, value: Any, complaint: str
) -> None:
    batch = replace(one_request(TOKENS[:3], [0]), **{field: np.array(value, np.int32)})
    with pytest.raises(BackendError, match=complaint):
        model.step(batch)


def test_a_step_larger_than_compiled_for_is_refused(model: CompiledModel) -> None:
    batch = one_request([1] * 65, range(9))
    with pytest.raises(BackendError, match="larger than 64 for 4"):
        model.step(batch)


def test_memory_is_told_and_given_back() -> None:
    program = small_program()
    model = ReferenceBackend().compile(program, RandomStore(program), SPEC, OPTIONS)
    report = model.memory()
    assert report.weight_bytes == 4 * sum(param.num_elements for param in program.params())
    assert report.kv_reserved_bytes == 6 * ReferenceBackend().kv_block_bytes(program, SPEC)
    model.close()
    model.close()
    assert model.memory().weight_bytes == model.memory().kv_reserved_bytes == 0
    with pytest.raises(BackendError, match="closed"):
        model.step(one_request(TOKENS, [0, 1]))


@pytest.mark.parametrize(
    ("options", "spec", "complaint"),
    [
        ({"dtype": "float16"}, SPEC, "no dtype float16"),
        ({"max_model_len": 33}, SPEC, "33 exceeds the 32 learned positions"),
        ({}, replace(SPEC, dtype="int3"), "KV cache dtype 'int3'"),
    ],
)
def test_what_it_cannot_do_is_refused(
    options: dict[str, Any], spec: KVCacheSpec, complaint: str
) -> None:
    program = small_program()
    with pytest.raises(BackendError, match=complaint):
        ReferenceBackend().compile(program, RandomStore(program), spec, replace(OPTIONS, **options))


def test_a_weight_format_or_shape_that_does_not_fit() -> None:
    program = small_program()
    index = next(i for i, op in enumerate(program.ops) if isinstance(op, Linear))
    op = program.ops[index]
    if not isinstance(op, Linear):
        raise TypeError("not a linear")

    def compile_with(**changes: Any) -> None:
        changed = replace(op, weight=replace(op.weight, **changes))
        ops = (*program.ops[:index], changed, *program.ops[index + 1 :])
        store = RandomStore(program)
        ReferenceBackend().compile(replace(program, ops=ops), store, SPEC, OPTIONS)

    with pytest.raises(BackendError, match="no weight format int3"):
        compile_with(format="int3")
    with pytest.raises(CheckpointError, match=r"tensor l0.k.weight is \[4, 8\], not \[4, 9\]"):
        compile_with(parts=(Tensor("l0.k.weight", (4, 9)),))


def test_bfloat16_kv_is_half_as_large_and_close() -> None:
    program, narrow = small_program(), replace(SPEC, dtype="bfloat16")
    backend = ReferenceBackend()
    full = backend.compile(program, RandomStore(program), SPEC, OPTIONS)
    half = backend.compile(program, RandomStore(program), narrow, OPTIONS)
    assert half.memory().kv_reserved_bytes * 2 == full.memory().kv_reserved_bytes
    a, b = (model.step(one_request(TOKENS, [0, 1])).logits for model in (full, half))
    assert a is not None
    assert b is not None
    assert 0 < np.abs(a - b).max() < 0.02 * np.abs(a).max()
    data = half.read_blocks(np.array([0, 1], np.int32))
    half.write_blocks(np.array([3, 4], np.int32), data)
    again = half.step(one_request(TOKENS, [3, 4], computed=11)).logits
    assert again is not None
    assert again.tobytes() == b[11:].tobytes()
