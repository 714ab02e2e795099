"""Ops that compute each number from those at the same place."""

from __future__ import annotations

import numpy as np

from quire import program as ops
from quire.backends.reference.activations import activate, glu, sigmoid
from quire.backends.reference.ops.frame import Frame, run


@run.register
def _(op: ops.Glu, frame: Frame) -> None:
    frame.values[op.out] = glu(frame.values[op.gate], frame.values[op.up], op.act)


@run.register
def _(op: ops.Act, frame: Frame) -> None:
    frame.values[op.out] = activate(frame.values[op.x], op.act)


@run.register
def _(op: ops.SigmoidGate, frame: Frame) -> None:
    gate = sigmoid(frame.values[op.gate].astype(np.float64)).astype(np.float32)
    frame.values[op.out] = frame.values[op.x] * gate


@run.register
def _(op: ops.Xielu, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    positive = np.logaddexp(0.0, frame.array(op.positive).astype(np.float64))
    negative = op.beta + np.logaddexp(0.0, frame.array(op.negative).astype(np.float64))
    bent = (np.expm1(np.minimum(x, op.eps)) - x) * negative
    result = np.where(x > 0, positive * np.square(x), bent) + op.beta * x
    frame.values[op.out] = result.astype(np.float32)


@run.register
def _(op: ops.Clamp, frame: Frame) -> None:
    limit = np.float32(op.limit)
    frame.values[op.out] = np.clip(frame.values[op.x], -limit, limit)


@run.register
def _(op: ops.Between, frame: Frame) -> None:
    low, high = frame.array(op.low), frame.array(op.high)
    frame.values[op.out] = np.maximum(low, np.minimum(high, frame.values[op.x]))


@run.register
def _(op: ops.Weigh, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * frame.array(op.weight)


@run.register
def _(op: ops.RowScale, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * frame.values[op.factor]


@run.register
def _(op: ops.Scale, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * np.float32(op.factor)


@run.register
def _(op: ops.PositionScale, frame: Frame) -> None:
    periods = (frame.batch.positions.astype(np.int64) + op.shift) // op.period
    factors = (1.0 + op.beta * np.log(1.0 + periods)).astype(np.float32)
    frame.values[op.out] = frame.values[op.x] * factors[:, None]


@run.register
def _(op: ops.Add, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.a] + frame.values[op.b]


@run.register
def _(op: ops.SoftCap, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    frame.values[op.out] = (op.cap * np.tanh(x / op.cap)).astype(np.float32)


@run.register
def _(op: ops.Outliers, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    limit = x.mean(axis=-1, keepdims=True) + op.deviations * x.std(axis=-1, keepdims=True)
    frame.values[op.out] = np.maximum(x - limit, 0.0).astype(np.float32)
