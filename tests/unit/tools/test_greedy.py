"""Where two continuations differ first, and how near a tie that is."""

from __future__ import annotations

import numpy as np
import pytest
from tools.quality.greedy import QUESTIONS, difference


def test_equal_texts_do_not_differ() -> None:
    logits = np.zeros((3, 5), np.float32)
    assert difference([1, 2, 3], [1, 2, 3], logits, logits) is None


def test_the_gap_is_compared_with_the_rounding_before() -> None:
    generator = np.random.default_rng(1)
    truth = generator.normal(size=(4, 2000)).astype(np.float32)
    truth[2, [7, 9]] = 5.25, 5.0
    noise = generator.normal(scale=0.1, size=truth.shape).astype(np.float32)
    noise[3] *= 100  # behind the difference: does not count
    found = difference([1, 2, 7, 4], [1, 2, 9, 9], truth, truth + noise)
    assert found is not None
    assert (found.place, found.tokens) == (2, (7, 9))
    assert found.gap == pytest.approx(0.25)
    assert found.rounding == pytest.approx(0.1 * 2**0.5, rel=0.1)
    assert found.ratio == pytest.approx(0.25 / found.rounding)


def test_there_are_twenty_prompts() -> None:
    assert len(set(QUESTIONS.read_text(encoding="utf-8").splitlines())) == 20
