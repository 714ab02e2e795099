"""Normalisations, whose sums are taken in float64."""

from __future__ import annotations

import numpy as np

from quire.backends.reference.ops.frame import Floats, Frame, run
from quire.program import HeadNorm, LayerNorm, MatchRms, RmsNorm


@run.register
def _(op: RmsNorm, frame: Frame) -> None:
    result = _rms_norm(frame.values[op.x], op.eps)
    if op.weight is not None:
        result = result * (frame.array(op.weight) + np.float32(op.weight_offset))
    frame.values[op.out] = result


@run.register
def _(op: HeadNorm, frame: Frame) -> None:
    x = frame.values[op.x]
    heads = x.reshape(len(x), op.num_heads, op.head_dim)
    result = (_rms_norm if op.kind == "rms" else _layer_norm)(heads, op.eps)
    if op.weight is not None:
        weight = frame.array(op.weight) + np.float32(op.weight_offset)
        result = result * weight.reshape(-1, op.head_dim)
    frame.values[op.out] = result.reshape(x.shape)


def _rms_norm(x: Floats, eps: float) -> Floats:
    wide = x.astype(np.float64)
    mean_square = np.square(wide).mean(axis=-1, keepdims=True)
    result: Floats = (wide / np.sqrt(mean_square + eps)).astype(np.float32)
    return result


@run.register
def _(op: LayerNorm, frame: Frame) -> None:
    result = _layer_norm(frame.values[op.x], op.eps)
    if op.weight is not None:
        result *= frame.array(op.weight) + np.float32(op.weight_offset)
    if op.bias is not None:
        result += frame.array(op.bias)
    frame.values[op.out] = result


def _layer_norm(x: Floats, eps: float) -> Floats:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    result: Floats = (centred / np.sqrt(variance + eps)).astype(np.float32)
    return result


@run.register
def _(op: MatchRms, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    own = np.maximum(np.square(x).mean(axis=-1, keepdims=True), op.eps)
    like = np.square(frame.values[op.like].astype(np.float64)).mean(axis=-1, keepdims=True)
    frame.values[op.out] = (x * (np.sqrt(like) / np.sqrt(own))).astype(np.float32)
