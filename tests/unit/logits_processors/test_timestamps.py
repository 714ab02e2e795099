"""The rules for timestamps forbid exactly the tokens that transformers' processors forbid."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from quire.logits_processors.timestamps import TimestampRules

_EOT, _NO_TIMESTAMPS, _FIRST, _VOCAB = 60, 80, 81, 131
_SUPPRESS, _BEGIN = (3, 7, 70, 71), (5, _EOT)


def _rules(timestamps: bool = True, initial: int | None = 10) -> TimestampRules:
    return TimestampRules(
        eot=_EOT, first_timestamp=_FIRST, no_timestamps=_NO_TIMESTAMPS, suppress=_SUPPRESS,
        begin_suppress=_BEGIN, max_initial_timestamp_index=initial, timestamps=timestamps,
    )  # fmt: skip


@pytest.mark.parametrize("initial", [None, 10])
def test_random_rows_have_the_masks_of_transformers(initial: int | None) -> None:
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as theirs

    config = SimpleNamespace(
        no_timestamps_token_id=_NO_TIMESTAMPS, eos_token_id=_EOT, bos_token_id=_EOT,
        max_initial_timestamp_index=initial,
    )  # fmt: skip
    processors = [
        theirs.SuppressTokensAtBeginLogitsProcessor(_BEGIN, 3, device="cpu"),
        theirs.SuppressTokensLogitsProcessor(_SUPPRESS, device="cpu"),
        theirs.WhisperTimeStampLogitsProcessor(config, begin_index=3),
    ]
    numbers, rules, seen = np.random.default_rng(1), _rules(initial=initial), set()
    for _ in range(3000):
        written = numbers.integers(0, _EOT, numbers.integers(0, 6))
        times = np.sort(numbers.integers(_FIRST, _VOCAB, len(written)))
        written = np.where(numbers.random(len(written)) < 0.5, times, written).tolist()
        logits = numbers.normal(0, 3, _VOCAB).astype(np.float32)
        logits[_FIRST:] += np.float32(numbers.choice([-4, -1, 0, 2]))
        row = torch.tensor(logits)[None]
        ids = torch.tensor([[1, 2, 3, *written]])
        for one in processors:
            row = one(ids, row)
        found = rules(written, logits)
        assert found is logits
        assert np.array_equal(found, row[0].numpy())
        seen.add((np.isinf(found[:_EOT]).all(), np.isinf(found[_FIRST:]).all()))
    assert len(seen) == 3


def test_without_timestamps_none_is_written() -> None:
    row = np.zeros(_VOCAB, np.float32)
    _rules(timestamps=False)([], row)
    assert set(np.flatnonzero(np.isinf(row))) == {*_SUPPRESS, *_BEGIN, *range(_FIRST, _VOCAB)}
    row[:] = 0
    _rules(timestamps=False)([4], row)
    assert set(np.flatnonzero(np.isinf(row))) == {*_SUPPRESS, *range(_FIRST, _VOCAB)}


def test_rows_without_a_possible_time_stay_finite() -> None:
    row = np.zeros(_VOCAB, np.float32)
    found = _rules()([_VOCAB - 1, 4], row)  # the last time: only text and the end are left
    assert np.isinf(found[_FIRST:]).all()
    assert np.isfinite(found[_EOT])
