"""Finds a watermark in token ids: no model takes part. Classes and results are vLLM's.

Under the assumption that a text has no watermark, each score is exponentially distributed, so that
their sum has a gamma distribution; its tail is the p-value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import ConfigError
from quire.watermark.config import WatermarkConfig, both_keys
from quire.watermark.philox import uniforms

Scores = NDArray[np.float64]
_MOST_TERMS = 10_000
_EPSILON = 1e-15


@dataclass(frozen=True)
class WatermarkDetection:
    """What was found."""

    score: float
    p_value: float
    """How likely a score as large is in a text without the watermark."""
    num_scored_tokens: int
    is_watermarked: bool


class WatermarkDetector:
    """Scores tokens by the tokens before them. Subclasses say how."""

    def __init__(
        self, context_width: int, p_value_threshold: float, deduplicate_contexts: bool = False
    ) -> None:
        """Raises ConfigError for values that mean nothing."""
        if context_width < 1:
            raise ConfigError(f"context_width must be positive, got {context_width}")
        if not 0 < p_value_threshold < 1:
            raise ConfigError(
                f"p_value_threshold must be between 0 and 1, got {p_value_threshold}; try 0.01"
            )
        self.context_width = context_width
        self.p_value_threshold = p_value_threshold
        self.deduplicate_contexts = deduplicate_contexts

    def detect(self, token_ids: Sequence[int]) -> WatermarkDetection:
        """Whether the tokens of one output, from its first on, carry the watermark."""
        contexts, targets = self._inputs(token_ids)
        if not len(targets):
            return WatermarkDetection(0.0, 1.0, 0, False)
        score = float(self._scores(contexts, targets).sum())
        p_value = self._p_value(score, len(targets))
        return WatermarkDetection(
            score=score,
            p_value=p_value,
            num_scored_tokens=len(targets),
            is_watermarked=p_value <= self.p_value_threshold,
        )

    def _inputs(self, token_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The contexts [C, W] and the token [C] that follows each; a context counts once, unless
        repeated ones count too."""
        before = [-1] * self.context_width
        tokens = [*before, *token_ids]
        found: list[tuple[int, ...]] = []
        targets: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for place, token_id in enumerate(token_ids):
            context = tuple(tokens[place : place + self.context_width])
            if self.deduplicate_contexts and context in seen:
                continue
            seen.add(context)
            found.append(context)
            targets.append(token_id)
        contexts = np.array(found, np.int64).reshape(-1, self.context_width)
        return contexts, np.array(targets, np.int64)

    def _scores(self, contexts: NDArray[np.int64], targets: NDArray[np.int64]) -> Scores:
        raise NotImplementedError

    def _p_value(self, score: float, num_scored_tokens: int) -> float:
        raise NotImplementedError


class GumbelWatermarkDetector(WatermarkDetector):
    """Of the algorithm `gumbel`."""

    def __init__(
        self,
        key: int,
        context_width: int = 4,
        p_value_threshold: float = 0.01,
        prf: str = "philox",
        deduplicate_contexts: bool = True,
    ) -> None:
        """Raises ConfigError for values that mean nothing."""
        super().__init__(context_width, p_value_threshold, deduplicate_contexts)
        self.key = WatermarkConfig(key, context_width=context_width, prf=prf).key

    def _scores(self, contexts: NDArray[np.int64], targets: NDArray[np.int64]) -> Scores:
        return _exponential(self.key, contexts, targets)

    def _p_value(self, score: float, num_scored_tokens: int) -> float:
        return gamma_tail(num_scored_tokens, score)


class DualKeyGumbelWatermarkDetector(WatermarkDetector):
    """Of the algorithm `dual_key_gumbel`: each token has a score by both keys, of which the second
    has the weight `alpha`."""

    def __init__(
        self,
        key: int,
        context_width: int = 4,
        p_value_threshold: float = 0.01,
        prf: str = "philox",
        deduplicate_contexts: bool = True,
        alpha: float = 0.1,
    ) -> None:
        """Raises ConfigError for values that mean nothing."""
        super().__init__(context_width, p_value_threshold, deduplicate_contexts)
        config = WatermarkConfig(key, "dual_key_gumbel", alpha, context_width, prf=prf)
        self.keys = both_keys(config.key)
        self.alpha = float(config.alpha)

    def _scores(self, contexts: NDArray[np.int64], targets: NDArray[np.int64]) -> Scores:
        first, second = (_exponential(key, contexts, targets) for key in self.keys)
        found: Scores = (1 - self.alpha) * first + self.alpha * second
        return found

    def _p_value(self, score: float, num_scored_tokens: int) -> float:
        """Of the gamma distribution with the sum's mean and variance."""
        variance = (1 - self.alpha) ** 2 + self.alpha**2
        return gamma_tail(num_scored_tokens / variance, score / variance)


def gamma_tail(shape: float, x: float) -> float:
    """P(X > x) for X of Gamma(shape, 1): the regularised upper incomplete gamma function. By its
    series below shape + 1 and its continued fraction above. Source: Press et al., "Numerical
    Recipes", 6.2."""
    if x <= 0 or shape <= 0:
        return 1.0
    factor = shape * math.log(x) - x - math.lgamma(shape)
    if x < shape + 1:
        return max(0.0, 1.0 - math.exp(factor) * _series(shape, x))
    return min(1.0, math.exp(factor) * _fraction(shape, x))


def _series(shape: float, x: float) -> float:
    term = total = 1.0 / shape
    for n in range(1, _MOST_TERMS):
        term *= x / (shape + n)
        total += term
        if term < total * _EPSILON:
            break
    return total


def _fraction(shape: float, x: float) -> float:
    """By Lentz's method."""
    tiny = 1e-300
    b = x + 1.0 - shape
    c, d = 1.0 / tiny, 1.0 / b
    value = d
    for n in range(1, _MOST_TERMS):
        a = -n * (n - shape)
        b += 2.0
        d = 1.0 / (a * d + b or tiny)
        c = b + a / c or tiny
        value *= d * c
        if abs(d * c - 1.0) < _EPSILON:
            break
    return value


def _exponential(key: int, contexts: NDArray[np.int64], targets: NDArray[np.int64]) -> Scores:
    numbers = uniforms(key, contexts, targets[:, None])[:, 0].astype(np.float64)
    found: Scores = -np.log1p(-numbers)
    return found
