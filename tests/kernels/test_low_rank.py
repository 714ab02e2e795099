"""Adapters on every tier: what they add, and rows that do not depend on other rows."""

from __future__ import annotations

import numpy as np
import pytest
from low_rank import (
    CONFIGS,
    LONG_RANK,
    RANK,
    WIDTH,
    compiled,
    logits_of,
    program_of,
    random_adapter,
    step_of,
)

from quire.backends.base import Backend, Dtype
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.program.values import WeightFormat


@pytest.mark.parametrize("rank", [RANK, LONG_RANK])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "weight_format"),
    [
        ("dense", "dense"), ("dense", "int8"), ("dense", "int4_w4a8"), ("experts", "dense"),
        ("experts", "int8"), ("weighted experts", "dense"),
    ],
)  # fmt: skip
def test_rows_have_their_own_bits(
    backend: CpuBackend, dtype: Dtype, kind: str, weight_format: WeightFormat, rank: int
) -> None:
    program = program_of(weight_format, kind)
    model, base = compiled(backend, program, dtype, WIDTH), compiled(backend, program, dtype, 0)
    ranks = {1: rank, 2: RANK}
    one, two = (
        model.load_adapter(random_adapter(program, seed, of), dtype) for seed, of in ranks.items()
    )
    chosen = [None, one, two, one]
    together = logits_of(model, step_of(range(4), chosen))
    for index, adapter in enumerate(chosen):
        [alone] = logits_of(model, step_of([index], [adapter]))
        assert np.array_equal(alone, together[index])
        [plain] = logits_of(base, step_of([index], [None]))
        assert np.array_equal(plain, alone) is (adapter is None)
    order = [3, 1, 0, 2]
    mixed = logits_of(model, step_of(order, [chosen[i] for i in order]))
    assert all(np.array_equal(mixed[at], together[i]) for at, i in enumerate(order))
    model.close()
    base.close()


@pytest.mark.parametrize("rank", [RANK, LONG_RANK])
@pytest.mark.parametrize("kind", CONFIGS)
def test_numbers_are_those_of_the_reference(backend: CpuBackend, kind: str, rank: int) -> None:
    program = program_of("dense", kind)
    found = []
    for each in (backend, ReferenceBackend()):
        model = compiled(each, program, "float32", WIDTH)
        one, two = (model.load_adapter(random_adapter(program, s, rank), "float32") for s in (1, 2))
        found.append(np.concatenate(logits_of(model, step_of(range(4), [two, None, one, two]))))
        model.close()
    # A row between two experts is changed most by rounding.
    most = 1e-4 if kind == "dense" else 2e-3
    assert np.abs(found[0] - found[1]).max() < most * np.abs(found[1]).max()


@pytest.mark.parametrize("rank", [RANK, LONG_RANK])
@pytest.mark.parametrize("weight_format", ["dense", "int8", "int8_w8a8", "int4", "int4_w4a8"])
def test_narrow_numbers_are_near_the_reference(
    backend: CpuBackend, weight_format: WeightFormat, rank: int
) -> None:
    """What adapters change, against the same with all numbers in float32."""
    program, changed = program_of(weight_format), []
    dtypes: list[tuple[Backend, Dtype]] = [(backend, "bfloat16"), (ReferenceBackend(), "float32")]
    for each, dtype in dtypes:
        model = compiled(each, program, dtype, WIDTH)
        one = model.load_adapter(random_adapter(program, 1, rank), dtype)
        with_one, without = (logits_of(model, step_of([3], [by])) for by in (one, None))
        changed.append(with_one[0] - without[0])
        model.close()
    error = np.linalg.norm(changed[0] - changed[1]) / np.linalg.norm(changed[1])
    assert error < 0.2
