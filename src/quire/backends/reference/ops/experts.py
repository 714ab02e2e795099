"""Which experts each row goes to, and what they compute; `Route` of the program's ops has the
formula."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.reference.activations import activate, glu, sigmoid
from quire.backends.reference.ops.frame import Floats, Frame, Rows, run
from quire.program import Experts, Route


def route(op: Route, logits: Floats, bias: Floats | None) -> Floats:
    """The weights [T, E] of logits [T, E], in float64 and rounded once."""
    wide = logits.astype(np.float64)
    is_finite = np.isfinite(wide).all(axis=1)
    wide[~is_finite] = 0.0
    if op.score == "sparsemixer":
        weights = _mixed_sparsely(op, wide)
        weights[~is_finite] = 0.0
        weights[~is_finite, : op.top_k] = np.nan
        return weights.astype(np.float32)
    scores = _softmax(wide) if op.score == "softmax" else sigmoid(wide)
    choice = wide if bias is None else scores.astype(np.float32) + bias
    chosen = _largest(_of_best_groups(op, choice), op.top_k)
    kept = np.take_along_axis(scores, chosen, axis=1)
    if op.normalise:
        kept /= np.maximum(kept.sum(axis=1, keepdims=True), op.floor)
    weights = np.zeros_like(wide)
    np.put_along_axis(weights, chosen, kept * op.scale, axis=1)
    weights[~is_finite, : op.top_k] = np.nan
    return weights.astype(np.float32)


def _mixed_sparsely(op: Route, logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mix by SparseMixer. Whether an expert is near enough to the best is decided in float32."""
    narrow, left = logits.astype(np.float32), logits.copy()
    weights, rows = np.zeros_like(logits), np.arange(len(logits))
    for _ in range(2):
        best = left.argmax(axis=1)
        most = narrow[rows, best][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is near
            distance = (most - narrow) / np.maximum(np.abs(narrow), most)
        near = np.where(distance > np.float32(2 * op.jitter), -np.inf, left)
        weights[rows, best] = _softmax(near)[rows, best]
        left[rows, best] = -np.inf
    return weights


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return result


def _of_best_groups(op: Route, choice: NDArray[np.floating]) -> NDArray[np.floating]:
    """The choices, minus infinity for experts of other groups."""
    if op.top_groups == op.num_groups:
        return choice
    grouped = choice.reshape(len(choice), op.num_groups, choice.shape[1] // op.num_groups)
    sums = np.sort(grouped, axis=2)[:, :, -op.group_best :].sum(axis=2)
    is_best = np.zeros(sums.shape, np.bool_)
    np.put_along_axis(is_best, _largest(sums, op.top_groups), True, axis=1)
    return np.where(is_best[:, :, None], grouped, -np.inf).reshape(choice.shape)


def _largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """The places of the largest of each row; of equal ones the first."""
    order: NDArray[np.intp] = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return order


@run.register
def _(op: Route, frame: Frame) -> None:
    bias = None if op.bias is None else frame.array(op.bias)
    frame.values[op.out] = route(op, frame.values[op.logits], bias)


@run.register
def _(op: Experts, frame: Frame) -> None:
    """Expert after expert, each over the rows that chose it."""
    x, routes = frame.values[op.x], frame.values[op.routes]
    rows = [np.flatnonzero(routes[:, expert]) for expert in range(op.routes.dim)]
    hidden = [_inside_expert(op, expert, rows[expert], frame) for expert in range(op.routes.dim)]
    if op.inner is not None:
        ends = np.cumsum([len(one) for one in rows])
        hidden = np.split(frame.gathered(np.concatenate(hidden), op.inner), ends[:-1])
    result = np.zeros((len(x), op.out.dim), np.float32)
    for expert, (own, inside) in enumerate(zip(rows, hidden, strict=True)):
        if not len(own):
            continue
        down = frame.multiply_expert(inside, op.down, expert, own, op.x)
        if op.down_bias is not None:
            down += frame.array(op.down_bias).reshape(op.routes.dim, -1)[expert]
        result[own] += down if op.weighs_inputs else routes[own, expert, None] * down
    frame.values[op.out] = result


def _inside_expert(op: Experts, expert: int, rows: Rows, frame: Frame) -> Floats:
    """act(gate @ x) * (up @ x), or act(up @ x), of the rows that chose an expert."""
    inputs = frame.values[op.x][rows]
    if op.weighs_inputs:
        inputs = inputs * frame.values[op.routes][rows, expert, None]
    both = frame.multiply_expert(inputs, op.gate_up, expert, rows, op.x)
    if op.gate_up_bias is not None:
        both += frame.array(op.gate_up_bias).reshape(op.routes.dim, -1)[expert]
    if not op.gated:
        return activate(both, op.act)
    gate, up = np.split(both, 2, axis=1)
    return glu(gate, up, op.act)
