"""SamplingColumns: every column is declared once, and both sides go by the declaration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.errors import BackendError
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest
from quire.sampling.columns import COLUMNS, SamplingColumns
from quire.worker.sampling_rows import SamplingRows

VOCAB = 100
NEUTRAL = SamplingParams(seed=5)
USED = SamplingParams(temperature=0.5, top_k=7, top_p=0.5, min_p=0.25, seed=-7, logprobs=3)
VALUES = {
    "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "seeds": 2**64 - 7,
    "num_logprobs": 3,
}  # fmt: skip


def request(name: str, params: SamplingParams) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        token_ids=[1],
        num_prompt_tokens=1,
        sampling_params=params,
        block_ids=[[0]],
        first_entries=[0],
        num_computed_tokens=0,
    )


def gathered(*params: SamplingParams) -> SamplingColumns:
    rows = SamplingRows(4, VOCAB)
    for row, one in enumerate(params):
        rows.set(row, request(str(row), one))
    indices = np.arange(len(params), dtype=np.int32)
    columns = rows.columns(indices, indices + 1)
    assert columns is not None
    return columns


def test_each_column_follows_from_the_parameters_of_a_request() -> None:
    arrays = gathered(NEUTRAL, USED).given(2)
    assert arrays.keys() == COLUMNS.keys(), "both rows are there, whoever uses the column"
    assert arrays["counters"].tolist() == [1, 2]
    for name, value in VALUES.items():
        assert arrays[name].tolist()[1] == value, name
        assert arrays[name].dtype == COLUMNS[name].dtype


def test_what_is_neutral_in_every_row_is_left_out() -> None:
    always = {name for name, column in COLUMNS.items() if column.neutral is None}
    assert always == {"temperature", "seeds", "counters"}
    assert gathered(NEUTRAL, NEUTRAL).given(2).keys() == always


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_length_or_type_is_refused(name: str) -> None:
    columns = gathered(USED, USED)
    columns.given(2)
    good = getattr(columns, name)
    setattr(columns, name, good[:1])
    with pytest.raises(BackendError, match=f"sampling column {name} has 1 rows, not 2"):
        columns.check(2)
    setattr(columns, name, good.astype(np.int64))
    with pytest.raises(BackendError, match=f"sampling column {name} is int64, not "):
        columns.check(2)


@pytest.mark.parametrize("name", [n for n, column in COLUMNS.items() if column.lowest is not None])
def test_a_number_that_means_nothing_is_refused(name: str) -> None:
    columns = gathered(USED, USED)
    getattr(columns, name)[1] = COLUMNS[name].lowest - 1  # type: ignore[operator]
    with pytest.raises(BackendError, match=f"sampling column {name} holds -"):
        columns.check(2)


def test_nan_is_refused() -> None:
    columns = gathered(USED)
    columns.temperature[0] = np.nan
    with pytest.raises(BackendError, match="temperature holds nan"):
        columns.check(1)


def test_an_incomplete_bias_is_refused() -> None:
    columns = replace(gathered(NEUTRAL), bias_starts=np.array([0, 2], np.int32))
    columns.bias_ids = np.array([1, 2], np.int32)
    with pytest.raises(BackendError, match="do not have the length of bias_starts"):
        columns.check(1)
    columns.bias_values = np.zeros(2)
    with pytest.raises(BackendError, match="bias_values float64"):
        columns.check(1)
    columns.bias_values = np.zeros(2, np.float32)
    columns.check(1)
    with pytest.raises(BackendError, match="bias_starts has 2 rows, not 3"):
        replace(gathered(NEUTRAL, NEUTRAL), bias_starts=columns.bias_starts).check(2)
