"""SamplingColumns: every column is declared once, and both sides go by the declaration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.errors import BackendError
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest
from quire.sampling.columns import COLUMNS, SamplingColumns
from quire.sampling.token_lists import TokenLists
from quire.timestamp_rules import TimestampRules
from quire.worker.sampling_rows import SamplingRows

VOCAB = 100
NEUTRAL = SamplingParams(seed=5)
USED = SamplingParams(
    temperature=0.5, top_k=7, top_p=0.5, min_p=0.25, seed=-7, logprobs=3, repetition_penalty=1.5,
    frequency_penalty=-0.5, presence_penalty=0.75,
)  # fmt: skip
USED.write_timestamps(TimestampRules(first=90, end=80))
VALUES = {
    "repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 0.75,
    "temperature": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "seeds": 2**64 - 7,
    "num_logprobs": 3, "mass_from": 90,
}  # fmt: skip

LIMITED = [name for name, column in COLUMNS.items() if column.value and column.lowest is not None]


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
    of_requests = {name for name, column in COLUMNS.items() if column.value is not None}
    assert arrays.keys() == {*of_requests, "counters"}, "both rows, whoever uses the column"
    assert arrays["counters"].tolist() == [1, 2]
    for name, value in VALUES.items():
        assert arrays[name].tolist()[1] == value, name
        assert arrays[name].dtype == COLUMNS[name].dtype


def test_what_is_neutral_in_every_row_is_left_out() -> None:
    always = {name for name, column in COLUMNS.items() if column.neutral is None}
    assert always == {"temperature", "seeds", "counters"}
    assert gathered(NEUTRAL, NEUTRAL).given(2).keys() == always


def test_a_row_that_is_set_again_changes_the_columns_of_the_same_rows() -> None:
    rows, indices = SamplingRows(4, VOCAB), np.arange(2)
    for row in range(2):
        rows.set(row, request(str(row), NEUTRAL))
    rows.columns(indices, indices)
    rows.set(1, request("new", USED))
    after = rows.columns(indices, indices)
    assert after is not None
    assert after.seeds.tolist() == [NEUTRAL.seed, VALUES["seeds"]]
    assert after.top_k is not None
    rows.clear(1)
    last = rows.columns(indices, indices)
    assert last is not None
    assert last.top_k is None


@pytest.mark.parametrize("name", ["counters", *VALUES])
def test_a_column_of_another_length_or_type_is_refused(name: str) -> None:
    columns = gathered(USED, USED)
    columns.given(2)
    good = getattr(columns, name)
    setattr(columns, name, good[:1])
    with pytest.raises(BackendError, match=f"sampling column {name} must have 2 rows, not 1"):
        columns.check(2)
    setattr(columns, name, good.astype(np.int64))
    with pytest.raises(BackendError, match=f"sampling column {name} must be .*, not int64"):
        columns.check(2)


@pytest.mark.parametrize("name", LIMITED)
def test_a_number_that_means_nothing_is_refused(name: str) -> None:
    columns = gathered(USED, USED)
    getattr(columns, name)[1] = COLUMNS[name].lowest - 1  # type: ignore[operator]
    with pytest.raises(BackendError, match=f"sampling column {name} has -"):
        columns.check(2)


def test_nan_is_refused() -> None:
    columns = gathered(USED)
    columns.temperature[0] = np.nan
    with pytest.raises(BackendError, match="temperature has nan"):
        columns.check(1)


IDS, ONES = np.array([1, 2], np.int32), np.ones(2, np.float32)


def test_token_lists_are_joined_row_by_row() -> None:
    lists = TokenLists.join([(IDS, ONES), None, (IDS[:1], ONES[:1])])
    assert lists.starts.tolist() == [0, 2, 2, 3]
    assert lists.ids.tolist() == [1, 2, 1]
    assert lists.ids[lists.of_row(2)].tolist() == [1]
    replace(gathered(NEUTRAL, NEUTRAL, NEUTRAL), bias=lists).check(3)


@pytest.mark.parametrize(
    ("name", "lists", "message"),
    [
        ("bias", TokenLists.join([(IDS, ONES)]), "bias.starts must have 3 rows, not 2"),
        ("bias", TokenLists.join([(IDS, ONES[:1]), None]), "bias must be as long"),
        ("bias", TokenLists.join([(IDS, None), None]), "bias must be as long"),
        ("allowed", TokenLists.join([(IDS, ONES), None]), "allowed must be as long"),
        ("bias", TokenLists.join([(IDS.astype(np.int64), ONES), None]), "bias must be int32"),
        ("bias", TokenLists.join([(IDS, ONES.astype(float)), None]), "float32, not int32, float64"),
    ],
)
def test_token_lists_that_do_not_fit_are_refused(
    name: str, lists: TokenLists, message: str
) -> None:
    columns = replace(gathered(NEUTRAL, NEUTRAL), **{name: lists})
    with pytest.raises(BackendError, match=message):
        columns.check(2)


@pytest.mark.parametrize("penalty", [1e-60, 1e300])
def test_a_repetition_penalty_beyond_float32_stays_a_number(penalty: float) -> None:
    columns = gathered(SamplingParams(seed=5, repetition_penalty=penalty))
    found = columns.repetition_penalty
    assert found is not None
    assert np.isfinite(found[0])
    assert np.isfinite(np.float32(1) / found[0])
    assert found[0] > 0
