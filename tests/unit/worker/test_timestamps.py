"""The rules for timestamps leave exactly the tokens that transformers' processors leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire import SamplingParams
from quire.protocol import ScheduledRequest
from quire.sampling.columns import SamplingColumns
from quire.sampling.masks import TokenMasks
from quire.sampling.reference import masked
from quire.timestamp_rules import TimestampRules
from quire.worker.sampling_rows import SamplingRows

_END, _NO_TIMESTAMPS, _FIRST, _VOCAB = 60, 80, 81, 131
_SUPPRESS, _BEGIN = [3, 7, 70, 71], [5, _END]
_PROMPT = [1, 2, 3]


def _rules(*, is_on: bool = True, initial: int | None = 10) -> TimestampRules:
    return TimestampRules(
        first=_FIRST,
        end=_END,
        most_first=initial,
        forbidden=[*_SUPPRESS, _NO_TIMESTAMPS],
        forbidden_first=_BEGIN,
        is_on=is_on,
    )


def _rows(rules: TimestampRules, written: list[int]) -> SamplingRows:
    """A request that has written these tokens before it was started."""
    params = SamplingParams(temperature=0.0, seed=0)
    params.write_timestamps(rules)
    rows = SamplingRows(1, _VOCAB)
    rows.set(
        0,
        ScheduledRequest(
            request_id="a",
            token_ids=[*_PROMPT, *written],
            num_prompt_tokens=len(_PROMPT),
            sampling_params=params,
            block_ids=[[]],
            first_entries=[0],
            num_computed_tokens=0,
        ),
    )
    return rows


def _columns(rows: SamplingRows, num_tokens: int) -> SamplingColumns:
    found = rows.columns(np.array([0]), np.array([num_tokens], np.int32))
    assert found is not None
    return found


def _left(columns: SamplingColumns, logits: Any) -> Any:
    assert isinstance(columns.mask, TokenMasks)
    return masked(logits, columns, 0)


@pytest.mark.parametrize("initial", [None, 10])
def test_random_rows_are_masked_as_by_transformers(initial: int | None) -> None:
    import torch
    from transformers.generation import logits_process as theirs

    config = SimpleNamespace(
        no_timestamps_token_id=_NO_TIMESTAMPS, eos_token_id=_END, bos_token_id=_END,
        max_initial_timestamp_index=initial,
    )  # fmt: skip
    processors = [
        theirs.SuppressTokensAtBeginLogitsProcessor(_BEGIN, len(_PROMPT), device="cpu"),
        theirs.SuppressTokensLogitsProcessor(_SUPPRESS, device="cpu"),
        theirs.WhisperTimeStampLogitsProcessor(config, begin_index=len(_PROMPT)),
    ]
    draw, seen = np.random.default_rng(1), set()
    for _ in range(1500):
        written = draw.integers(0, _END, draw.integers(0, 6))
        times = np.sort(draw.integers(_FIRST, _VOCAB, len(written)))
        written = np.where(draw.random(len(written)) < 0.5, times, written).tolist()
        logits = draw.normal(0, 3, _VOCAB).astype(np.float32)
        logits[_FIRST:] += np.float32(draw.choice([-4, -1, 0, 2]))
        wanted = torch.tensor(logits)[None]
        for one in processors:
            wanted = one(torch.tensor([[*_PROMPT, *written]]), wanted)
        rows = _rows(_rules(initial=initial), written[: len(written) // 2])
        for token_id in written[len(written) // 2 :]:
            rows.advance(np.array([0]), np.array([token_id], np.int32))
        found = _left(_columns(rows, len(_PROMPT) + len(written)), logits)
        assert np.array_equal(found, wanted[0].numpy())
        seen.add((np.isinf(found[:_END]).all(), np.isinf(found[_FIRST:]).all()))
    assert len(seen) == 3


def test_without_timestamps_none_is_written() -> None:
    logits = np.zeros(_VOCAB, np.float32)
    rows = _rows(_rules(is_on=False), [])
    columns = _columns(rows, len(_PROMPT))
    assert columns.mass_from is None
    later = {*_SUPPRESS, _NO_TIMESTAMPS, *range(_FIRST, _VOCAB)}
    assert set(np.flatnonzero(np.isinf(_left(columns, logits)))) == {*later, *_BEGIN}
    rows.advance(np.array([0]), np.array([4], np.int32))
    left = _left(_columns(rows, len(_PROMPT) + 1), logits)
    assert set(np.flatnonzero(np.isinf(left))) == later


def test_a_request_without_rules_has_no_mask() -> None:
    rows = SamplingRows(1, _VOCAB)
    rows.set(
        0,
        ScheduledRequest(
            request_id="a", token_ids=[1], num_prompt_tokens=1,
            sampling_params=SamplingParams(seed=0), block_ids=[[]], first_entries=[0],
            num_computed_tokens=0,
        ),
    )  # fmt: skip
    columns = _columns(rows, 1)
    assert columns.mask is None
    assert columns.mass_from is None
