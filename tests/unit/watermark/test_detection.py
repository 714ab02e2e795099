"""Detectors: what they find in tokens that were chosen with noise, and without."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quire.errors import ConfigError
from quire.watermark.config import both_keys
from quire.watermark.detection import (
    DualKeyGumbelWatermarkDetector,
    GumbelWatermarkDetector,
    gamma_tail,
)
from quire.watermark.philox import uniforms

VOCAB = 50


def marked(key: int, length: int, width: int = 4) -> list[int]:
    """Tokens of a model that thinks all tokens equally likely."""
    tokens = [-1] * width
    for _ in range(length):
        context = np.array([tokens[-width:]])
        tokens.append(int(np.argmax(uniforms(key, context, np.arange(VOCAB)[None])[0])))
    return tokens[width:]


def test_a_watermark_is_found_by_its_key_alone() -> None:
    tokens = marked(42, 60)
    found = GumbelWatermarkDetector(42).detect(tokens)
    assert found.is_watermarked
    assert found.p_value < 1e-20
    assert found.num_scored_tokens == 60
    assert not GumbelWatermarkDetector(43).detect(tokens).is_watermarked
    assert not GumbelWatermarkDetector(42, context_width=3).detect(tokens).is_watermarked
    assert GumbelWatermarkDetector(42).detect(tokens[10:50]).is_watermarked


def test_a_text_without_is_rarely_taken_for_one_with() -> None:
    rng = np.random.default_rng(1)
    detector = GumbelWatermarkDetector(42)
    p_values = [detector.detect(rng.integers(0, VOCAB, 40).tolist()).p_value for _ in range(400)]
    assert 0.4 < np.mean(p_values) < 0.6
    assert np.mean(np.array(p_values) < 0.1) < 0.16


def test_either_key_counts() -> None:
    first, second = both_keys(9)
    for alpha, key in ((0.0, first), (1.0, second)):
        detector = DualKeyGumbelWatermarkDetector(9, alpha=alpha)
        assert detector.detect(marked(key, 40)).is_watermarked
        assert not detector.detect(marked(9, 40)).is_watermarked
    assert DualKeyGumbelWatermarkDetector(9, alpha=0.3).detect(marked(first, 60)).is_watermarked


def test_repeated_contexts_count_once() -> None:
    tokens = [1, 2, 3] * 20
    assert GumbelWatermarkDetector(42).detect(tokens).num_scored_tokens == 7
    whole = GumbelWatermarkDetector(42, deduplicate_contexts=False).detect(tokens)
    assert whole.num_scored_tokens == 60


def test_no_tokens_say_nothing() -> None:
    found = GumbelWatermarkDetector(1).detect([])
    assert (found.score, found.p_value, found.num_scored_tokens) == (0.0, 1.0, 0)


def test_the_tail_of_the_gamma_distribution() -> None:
    for shape in (1, 2, 7, 40):
        for x in (0.5, 3.0, 20.0, 90.0):
            exact = math.exp(-x) * sum(x**k / math.factorial(k) for k in range(shape))
            assert gamma_tail(shape, x) == pytest.approx(exact, rel=1e-9, abs=1e-13)
    assert gamma_tail(3, 0) == gamma_tail(3, -1) == 1
    assert 0 < gamma_tail(2000.5, 2600) < 1e-30


@pytest.mark.parametrize(
    "options", [{"context_width": 0}, {"p_value_threshold": 1.0}, {"key": -1}, {"prf": "x"}]
)
def test_mistakes(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GumbelWatermarkDetector(**{"key": 1, **options})  # type: ignore[arg-type]
