"""Ops that change the numbers of a row: gates, activations, sums, factors and limits. The legend is
that of `ops.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.program.ops import Activation, KernelOp, RowsRead
from quire.program.values import Value, Vector


@dataclass(frozen=True, slots=True)
class PointwiseOp(KernelOp):
    """Base of these ops. All values are as wide as the output, where nothing else is said."""

    is_by_column: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Glu(PointwiseOp):
    """out = act(gate) * up, elementwise."""

    gate: Value
    up: Value
    out: Value
    act: Activation


@dataclass(frozen=True, slots=True)
class SigmoidGate(PointwiseOp):
    """out = x * sigmoid(gate); gate is [T, 1], as of Qwen2-MoE's shared expert, or as wide as x."""

    x: Value
    gate: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Act(PointwiseOp):
    """out = act(x), elementwise."""

    x: Value
    out: Value
    act: Activation


@dataclass(frozen=True, slots=True)
class Add(PointwiseOp):
    """out = a + b."""

    a: Value
    b: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Scale(PointwiseOp):
    """out = x * factor."""

    x: Value
    out: Value
    factor: float


@dataclass(frozen=True, slots=True)
class Clamp(PointwiseOp):
    """out = x, clamped to -limit .. limit."""

    x: Value
    out: Value
    limit: float


@dataclass(frozen=True, slots=True)
class Between(PointwiseOp):
    """out = x, bounded to low .. high, which are weights [1] of the checkpoint (Gemma 4)."""

    x: Value
    out: Value
    low: Vector
    high: Vector


@dataclass(frozen=True, slots=True)
class Weigh(PointwiseOp):
    """out = x * weight; weight is [dim], or [1] for all numbers."""

    x: Value
    out: Value
    weight: Vector


@dataclass(frozen=True, slots=True)
class RowScale(PointwiseOp):
    """out = x * factor; factor is [T, 1]."""

    x: Value
    factor: Value
    out: Value


@dataclass(frozen=True, slots=True)
class SoftCap(PointwiseOp):
    """out = cap * tanh(x / cap), elementwise."""

    x: Value
    out: Value
    cap: float


@dataclass(frozen=True, slots=True)
class Outliers(PointwiseOp):
    """out = max(0, x - mean(x) - deviations * std(x)), mean and variance over D not D-1.

    For normally distributed numbers, a fixed share stays above 0. Source: Gemma 3n, "activation
    sparsity", as in transformers' models/gemma3n (`_gaussian_topk`).
    """

    is_by_column: ClassVar[bool] = False
    x: Value
    out: Value
    deviations: float


@dataclass(frozen=True, slots=True)
class MatchRms(PointwiseOp):
    """out = x * sqrt(mean(like^2)) / sqrt(max(mean(x^2), eps)), means over D. Gemma 3n."""

    is_by_column: ClassVar[bool] = False
    x: Value
    like: Value
    out: Value
    eps: float


@dataclass(frozen=True, slots=True)
class PositionScale(PointwiseOp):
    """out[t] = x[t] * (1 + beta * ln(1 + floor((positions[t] + shift) / period))).

    Makes q larger at far positions. Source: Llama 4's "attention temperature tuning".
    """

    rows: ClassVar[RowsRead] = "step"
    x: Value
    out: Value
    beta: float
    period: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Xielu(PointwiseOp):
    """out = a x^2 + beta x for x > 0, else b (expm1(min(x, eps)) - x) + beta x, elementwise.

    a = softplus(positive), b = beta + softplus(negative); both weights are [1].
    Source: Huang and Schlag 2024, "Deriving Activation Functions Using Integration".
    """

    x: Value
    out: Value
    positive: Vector
    negative: Vector
    beta: float = 0.5
    eps: float = -1e-6
