"""The penalties, against their formula written down for a whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_columns import SamplingRow, build_columns

from quire.sampling.reference import adjust, sample
from quire.sampling.token_lists import TokenLists

VOCAB = 50


def penalised(
    logits: NDArray[np.float32],
    prompt: list[int],
    output: list[int],
    repetition: float,
    frequency: float,
    presence: float,
) -> NDArray[np.float32]:
    """As vLLM documents it: repetition first, then frequency, then presence."""
    counts = np.bincount(output, minlength=VOCAB).astype(np.float32)
    is_seen = np.isin(np.arange(VOCAB), prompt + output)
    one, penalty = np.float32(1), np.float32(repetition)
    found = logits.copy()
    found[is_seen] *= np.where(found[is_seen] > 0, one / penalty, penalty)
    found -= np.float32(frequency) * counts
    found -= np.float32(presence) * (counts > 0)
    return found.astype(np.float32)


@pytest.mark.parametrize(
    "penalties",
    [
        (1.3, 0.0, 0.0), (0.7, 0.0, 0.0), (1.0, 0.5, 0.0), (1.0, -0.5, 0.0), (1.0, 0.0, 1.5),
        (1.0, 0.0, -1.5), (1.2, 0.4, 0.3), (1e30, 2.0, 2.0), (1e-30, 2.0, 2.0),
    ],
)  # fmt: skip
def test_the_seen_tokens_are_penalised_and_no_others(penalties: tuple[float, ...]) -> None:
    random = np.random.default_rng(3)
    logits = random.normal(0, 3, VOCAB).astype(np.float32)
    logits[7] = -np.inf
    prompt, output = random.integers(0, 30, 40).tolist(), random.integers(20, 50, 60).tolist()
    counts = {**dict.fromkeys(prompt, 0), **{one: output.count(one) for one in output}}
    columns = build_columns([SamplingRow(), SamplingRow()])
    columns.seen = TokenLists.join(
        [None, (np.array([*counts], np.int32), np.array([*counts.values()], np.float32))]
    )
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    for name, value in zip(names, penalties, strict=True):
        setattr(columns, name, np.array([1, value], np.float32))
    wanted = penalised(logits, prompt, output, *penalties)  # type: ignore[arg-type]
    assert np.array_equal(adjust(logits, columns, 1), wanted)
    assert np.array_equal(adjust(logits, columns, 0), logits), "a row without"
    assert sample(np.stack([logits, logits]), columns).tolist()[1] == np.argmax(wanted)


def test_a_bias_comes_before_the_penalties_and_a_ban_stays() -> None:
    columns = build_columns([SamplingRow()])
    ids, ones = np.array([1, 2], np.int32), np.ones(2, np.float32)
    columns.bias = TokenLists.join([(ids, np.array([3, -np.inf], np.float32))])
    columns.seen = TokenLists.join([(ids, ones)])
    columns.repetition_penalty = np.array([2], np.float32)
    columns.presence_penalty = np.array([-1], np.float32)
    found = adjust(np.array([0, -1, 5], np.float32), columns, 0)
    assert found.tolist() == [0, (-1 + 3) / 2 + 1, -np.inf]
