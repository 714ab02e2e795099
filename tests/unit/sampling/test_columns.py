"""From rows to arrays."""

from __future__ import annotations

import numpy as np

from quire.sampling import SamplingRow, build_columns, child_seed


def test_neutral_columns_are_left_out() -> None:
    columns = build_columns([SamplingRow(), SamplingRow(temperature=0.5)])
    assert columns.temperature.tolist() == [0.0, 0.5]
    left_out = (columns.top_k, columns.top_p, columns.min_p, columns.bias_starts)
    assert left_out == (None, None, None, None)
    assert columns.num_logprobs is None


def test_all_columns() -> None:
    rows = [
        SamplingRow(1.0, 5, 0.9, 0.1, seed=-1, position=12, banned_token_ids=[4, 2]),
        SamplingRow(seed=2**64 + 3, position=7, num_logprobs=3),
        SamplingRow(top_k=2**40, banned_token_ids=[9]),
    ]
    columns = build_columns(rows)
    assert columns.top_k is not None
    assert columns.top_k.tolist() == [5, 0, 2**31 - 1]
    assert columns.top_p is not None
    assert columns.top_p.dtype == np.float32
    assert columns.seeds.tolist() == [2**64 - 1, 3, 0]
    assert columns.counters.tolist() == [12, 7, 0]
    assert columns.num_logprobs is not None
    assert columns.num_logprobs.tolist() == [-1, 3, -1]
    assert columns.bias_starts is not None
    assert columns.bias_starts.tolist() == [0, 2, 2, 3]
    assert columns.bias_ids is not None
    assert columns.bias_ids.tolist() == [4, 2, 9]
    assert columns.bias_values is not None
    assert np.isneginf(columns.bias_values).all()


def test_no_rows() -> None:
    assert build_columns([]).temperature.shape == (0,)


def test_child_seeds_differ_and_the_first_is_the_requests_own() -> None:
    assert child_seed(42, 0) == 42
    seeds = {child_seed(seed, index) for seed in (0, 1, 42, -1) for index in range(50)}
    assert len(seeds) == 200
    assert child_seed(42, 3) == child_seed(42, 3)
