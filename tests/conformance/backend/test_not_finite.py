"""What each backend tells of numbers that are not finite: which rows, and where they began."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sampling_columns import SamplingRow, build_columns
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import Backend, CompiledModel, KVCacheSpec, StepBatch
from quire.program import keep_all

Compile = Callable[[dict[str, tuple[int, ...]]], CompiledModel]
EMBEDDING = {"embed.weight": (6, 2)}
"""Token 6 is poisoned."""


@pytest.fixture
def compiled(backend: Backend) -> Compile:
    def compile_with(bad: dict[str, tuple[int, ...]]) -> CompiledModel:
        program = small_program(tied=False)
        return backend.compile(
            program,
            RandomStore(program, bad),
            KVCacheSpec(8, 16, "float32", keep_all(program)),
            OPTIONS,
        )

    return compile_with


def sampling(batch: StepBatch, **changes: int) -> StepBatch:
    rows = [SamplingRow(num_logprobs=2, **changes) for _ in batch.logits_rows]  # type: ignore[arg-type]
    batch.sampling = build_columns(rows)
    return batch


def two_requests(first: list[int], second: list[int]) -> StepBatch:
    """Both prompts in one step, in blocks of their own; a token is chosen for each."""
    count = len(first) + len(second)
    return sampling(
        StepBatch(
            token_ids=np.array([*first, *second], np.int32),
            positions=np.array([*range(len(first)), *range(len(second))], np.int32),
            seq_starts=np.array([0, len(first), count], np.int32),
            context_lens=np.array([len(first), len(second)], np.int32),
            block_tables=np.array([[[1]], [[2]]], np.int32),
            logits_rows=np.array([len(first) - 1, count - 1], np.int32),
            sampling=None,
        )
    )


@pytest.mark.parametrize(
    ("tensor", "index", "place"),
    [
        ("embed.weight", (3, 1), "embed_tokens"), ("pos.weight", (4, 0), "embed_positions"),
        ("l0.norm", (2,), "layer 0, norm"), ("l0.q.weight", (1, 1), "layer 0, qkv"),
        ("l1.v.bias", (2,), "layer 1, qkv"), ("l1.o.weight", (0, 5), "layer 1, o"),
        ("l1.fc.weight", (3, 3), "layer 1, fc"), ("l1.p.bias", (7,), "layer 1, p"),
        ("norm.weight", (0,), "norm"), ("head.weight", (10, 3), None),
    ],
)  # fmt: skip
def test_the_first_op_is_named(
    compiled: Compile, tensor: str, index: tuple[int, ...], place: str | None
) -> None:
    model = compiled({tensor: index})
    batch = sampling(one_request([1, 3, 2, 4], [0], logits_rows=[3]))
    output = model.step(batch)
    assert output.not_finite is not None
    assert output.not_finite.tolist() == [True]
    [found] = model.find_not_finite(batch)
    assert (None if found is None else str(found)) == place
    assert found is None or not found.reads_cache
    model.close()


def test_rows_are_told_apart(compiled: Compile) -> None:
    model = compiled(EMBEDDING)
    batch = sampling(one_request([1, 3, 6, 4], [0]))
    output = model.step(batch)
    assert output.not_finite is not None
    assert output.not_finite.tolist() == [False, False, True, True]
    assert output.logprobs is not None
    assert (output.logprobs.token_ids[2:] == -1).all()
    batch.sampling = None
    assert model.step(batch).not_finite is None
    model.close()


def test_a_neighbour_has_the_bits_that_it_has_alone(compiled: Compile) -> None:
    model = compiled(EMBEDDING)
    alone = model.step(two_requests([1, 2, 3], [4, 5]))
    mixed = model.step(batch := two_requests([1, 6, 3], [4, 5]))
    blocks = np.arange(8, dtype=np.int32)
    before = model.read_blocks(blocks).tobytes()
    places = model.find_not_finite(batch)
    assert [str(place) for place in places] == ["embed_tokens", "None"]
    assert model.read_blocks(blocks).tobytes() == before, "the same K/V is written again"
    assert mixed.not_finite is not None
    assert mixed.not_finite.tolist() == [True, False]
    assert mixed.sampled[1] == alone.sampled[1]
    assert alone.logprobs is not None
    assert mixed.logprobs is not None
    assert mixed.logprobs.logprobs[1].tobytes() == alone.logprobs.logprobs[1].tobytes()
    model.close()


def test_what_an_earlier_step_left_is_seen_by_attention(compiled: Compile) -> None:
    model = compiled(EMBEDDING)
    model.step(one_request([1, 6], [0]))
    batch = sampling(one_request([1, 6, 3], [0], computed=2))
    output = model.step(batch)
    assert output.not_finite is not None
    assert output.not_finite.tolist() == [True]
    [found] = model.find_not_finite(batch)
    assert found is not None
    assert found.reads_cache
    assert str(found) == "layer 0, attention"
    model.close()


def test_a_healthy_step_has_nothing_to_name(compiled: Compile) -> None:
    model = compiled({})
    batch = two_requests([1, 2, 3], [4, 5])
    output = model.step(batch)
    assert output.not_finite is not None
    assert not output.not_finite.any()
    assert model.find_not_finite(batch) == [None, None]
    model.close()
