"""What every op computes, in NumPy float32: the specification of all other backends.

Sums along a row are taken in float64. One function per op, found by its type; `Frame` is all
that they see of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.paged.kv_cache import PagedKVCache
from quire.backends.reference.adapters import StepAdapters, change_product
from quire.backends.reference.attention import Extras, attend, with_given
from quire.backends.reference.linear import RowIndependentMatrix
from quire.backends.reference.recurrent import (
    RequestRows,
    convolve,
    each_request,
    gated_delta,
    mamba,
    ssd,
)
from quire.backends.reference.route import route, sigmoid
from quire.errors import BackendError
from quire.program import (
    Act,
    Activation,
    Add,
    Attention,
    Between,
    CausalConv,
    Clamp,
    Columns,
    Embed,
    EmbedSlices,
    Experts,
    GatedDelta,
    Gather,
    GivenColumns,
    Glu,
    HeadLinear,
    HeadNorm,
    JoinHeads,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    Mamba,
    MatchRms,
    MeanRows,
    Op,
    Outliers,
    Param,
    PositionScale,
    Receive,
    RmsNorm,
    Rope,
    Route,
    RowScale,
    RowsIn,
    RowsOut,
    Scale,
    Send,
    SigmoidGate,
    SoftCap,
    Split,
    Ssd,
    TakeRows,
    TokenTypes,
    Value,
    Vectors,
    Weigh,
    Xielu,
)
from quire.ranks import RankGroup

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]

_MEAN_BLOCK = 16
"""Tokens whose sum is taken first: see `MeanRows`."""


@dataclass(slots=True)
class Weights:
    """The model's numbers by slot name. A matrix that is multiplied is also in `matrices`, those of
    experts in `stacks`."""

    arrays: Mapping[str, Floats]
    matrices: Mapping[str, RowIndependentMatrix]
    stacks: Mapping[str, Sequence[RowIndependentMatrix]]


@dataclass(slots=True)
class Frame:
    """One step in progress: its input, the weights, the cache and the values computed so far."""

    batch: StepBatch
    weights: Weights
    cache: PagedKVCache
    ranks: RankGroup | None = None
    """The other ranks, of a program that was split."""
    adapters: StepAdapters | None = None
    values: dict[Value, Floats] = field(default_factory=dict)
    rows_out: list[Floats] = field(default_factory=list)
    """What `RowsOut` gives, in order."""

    def array(self, param: Param) -> Floats:
        """A slot's numbers."""
        return self.weights.arrays[param.name]

    def multiply(self, x: Value, param: Param) -> Floats:
        """x @ weight.T, rows independent, with the changes of adapters."""
        product = self.weights.matrices[param.name].multiply(self.values[x])
        self._change(param, 0, np.arange(len(product)), self.values[x], product, like=x)
        return product

    def multiply_expert(
        self, x: Floats, param: Param, expert: int, rows: Rows, like: Value
    ) -> Floats:
        """As `multiply`, with the matrix of an expert. x has the `rows` of a value as `like`."""
        product = self.weights.stacks[param.name][expert].multiply(x)
        self._change(param, expert, rows, x, product, like=like)
        return product

    def _change(
        self, param: Param, expert: int, rows: Rows, x: Floats, product: Floats, *, like: Value
    ) -> None:
        if self.adapters is not None:
            taken = len(self.values[like]) != len(self.batch.token_ids)
            own = self.adapters.of_rows(rows, taken=taken)
            change_product(own, param.name, expert, x, product)

    @property
    def group(self) -> RankGroup:
        """The ranks that exchange values. Raises BackendError if there are none."""
        if self.ranks is None:
            raise BackendError("a program that was split among ranks needs the other ranks")
        return self.ranks

    def gathered(self, own: Floats, split: Split) -> Floats:
        """The columns of all ranks, of which `own` are this rank's."""
        first, count = split.own
        whole = np.empty((len(own), split.total), np.float32)
        whole[:, first : first + count] = own
        self.group.columns(whole.view(np.uint8), split.scaled(whole.itemsize).spans)
        return whole


@singledispatch
def run(op: Op, frame: Frame) -> None:  # noqa: ARG001 (what the real ones take)
    """Computes the op's outputs into `frame.values`."""
    raise BackendError(f"the reference backend has no op {type(op).__name__}")


@run.register
def _(op: Embed, frame: Frame) -> None:
    token_ids = frame.batch.token_ids
    if op.owners is not None:  # rows of other ranks' tokens are filled in by a Gather
        first, count = op.owners.own
        token_ids = np.clip(token_ids - first, 0, count - 1)
    rows = frame.array(op.table)[token_ids]
    if frame.adapters is not None:
        frame.adapters.change_embedding(op.table.name, token_ids, rows)
    rows = rows * np.float32(op.scale) if op.scale != 1.0 else rows
    for given in frame.batch.input_rows:
        own = given.rows[:, : op.out.dim]
        rows[given.first : given.first + len(own)] = own * np.float32(op.given_scale)
    frame.values[op.out] = rows


@run.register
def _(op: GivenColumns, frame: Frame) -> None:
    columns = np.zeros((len(frame.batch.token_ids), op.out.dim), np.float32)
    for given in frame.batch.input_rows:
        part = given.rows[:, op.first : op.first + op.out.dim]
        columns[given.first : given.first + len(part), : part.shape[1]] = part
    frame.values[op.out] = columns


@run.register
def _(op: EmbedSlices, frame: Frame) -> None:
    rows = frame.array(op.table)[frame.batch.token_ids] * np.float32(op.scale)
    _divide(rows, op.outs, frame)


def _divide(rows: Floats, outs: Sequence[Value], frame: Frame) -> None:
    """Each value has its part of the columns, in order."""
    begin = 0
    for out in outs:
        frame.values[out] = rows[:, begin : begin + out.dim]
        begin += out.dim


@run.register
def _(op: LearnedPositions, frame: Frame) -> None:
    rows = frame.array(op.table)[frame.batch.positions + op.offset]
    frame.values[op.out] = frame.values[op.x] + rows


@run.register
def _(op: TokenTypes, frame: Frame) -> None:
    types = frame.batch.token_types
    rows = frame.array(op.table)[0 if types is None else types]
    frame.values[op.out] = frame.values[op.x] + rows


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
def _(op: Linear, frame: Frame) -> None:
    product = frame.multiply(op.x, op.weight)
    if op.bias is not None:
        product += frame.array(op.bias)
    _divide(product, op.outs, frame)


@run.register
def _(op: HeadLinear, frame: Frame) -> None:
    x = frame.values[op.x]
    heads = np.split(x, op.weight.shape[0], axis=1)
    stack = frame.weights.stacks[op.weight.name]
    products = [one.multiply(head) for one, head in zip(stack, heads, strict=True)]
    frame.values[op.out] = np.concatenate(products, axis=1)


@run.register
def _(op: JoinHeads, frame: Frame) -> None:
    a, b = (frame.values[x].reshape(-1, op.num_heads, x.dim // op.num_heads) for x in (op.a, op.b))
    frame.values[op.out] = np.concatenate([a, b], axis=2).reshape(len(a), op.out.dim)


@run.register
def _(op: CausalConv, frame: Frame) -> None:
    x, weight = frame.values[op.x], frame.array(op.weight)
    bias = None if op.bias is None else frame.array(op.bias)
    out = np.empty_like(x)
    for request in each_request(frame.batch, frame.cache, op.layer):
        sums = convolve(op, x[request.rows], weight, bias, request)
        out[request.rows] = sums if op.act is None else _ACTIVATIONS[op.act](sums)
    _divide(out, op.outs, frame)


def _own_rows(frame: Frame, request: RequestRows, *values: Value) -> list[Floats]:
    return [frame.values[value][request.rows] for value in values]


@run.register
def _(op: GatedDelta, frame: Frame) -> None:
    a_log, dt_bias = frame.array(op.a_log), frame.array(op.dt_bias)
    out = np.empty_like(frame.values[op.v])
    for request in each_request(frame.batch, frame.cache, op.layer):
        rows = _own_rows(frame, request, op.q, op.k, op.v, op.a, op.b)
        found = gated_delta(op, rows, a_log, dt_bias, request)
        out[request.rows] = found.reshape(len(found), -1)
    frame.values[op.out] = out


@run.register
def _(op: Ssd, frame: Frame) -> None:
    weights = [frame.array(param) for param in (op.a_log, op.dt_bias, op.d)]
    out = np.empty_like(frame.values[op.x])
    for request in each_request(frame.batch, frame.cache, op.layer):
        found = ssd(op, _own_rows(frame, request, op.x, op.dt, op.b, op.c), weights, request)
        out[request.rows] = found.reshape(len(found), -1)
    frame.values[op.out] = out


@run.register
def _(op: Mamba, frame: Frame) -> None:
    weights = [frame.array(param) for param in (op.a_log, op.dt_bias, op.d)]
    out = np.empty_like(frame.values[op.x])
    for request in each_request(frame.batch, frame.cache, op.layer):
        rows = _own_rows(frame, request, op.x, op.dt, op.b, op.c)
        out[request.rows] = mamba(op, rows, weights, request)
    frame.values[op.out] = out


@run.register
def _(op: Rope, frame: Frame) -> None:
    """The angle is a float32 product, as in the models' own code; cos and sin are exact."""
    x = frame.values[op.x]
    heads = x.reshape(len(x), op.num_heads, op.head_dim).copy()
    half = len(op.inv_freq)
    positions, axes = frame.batch.positions[:, None], np.zeros(half, np.intp)
    if op.axes and frame.batch.axis_positions is not None:
        positions, axes = frame.batch.axis_positions, np.array(op.axes, np.intp)
    turning = positions.astype(np.float32)[:, axes]
    angles = (turning * np.array(op.inv_freq, np.float32)).astype(np.float64)
    cos = (np.cos(angles) * op.scale).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * op.scale).astype(np.float32)[:, None, :]
    if op.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = a * cos - b * sin
    heads[..., second] = b * cos + a * sin
    frame.values[op.out] = heads.reshape(x.shape)


@run.register
def _(op: Attention, frame: Frame) -> None:
    k, v = (None if value is None else frame.values[value] for value in (op.k, op.v))
    if frame.batch.given_kv and op.layer is not None and k is not None and v is not None:
        k, v = with_given(frame.batch.given_kv, op.layer, k, v)
    sinks = None if op.sinks is None else frame.array(op.sinks)
    biases = None if op.relative is None else frame.array(op.relative)
    extras = Extras(sinks, biases)
    frame.values[op.out] = attend(op, (frame.values[op.q], k, v), extras, frame.batch, frame.cache)


@run.register
def _(op: Glu, frame: Frame) -> None:
    frame.values[op.out] = _glu(frame.values[op.gate], frame.values[op.up], op.act)


@run.register
def _(op: SigmoidGate, frame: Frame) -> None:
    gate = sigmoid(frame.values[op.gate].astype(np.float64)).astype(np.float32)
    frame.values[op.out] = frame.values[op.x] * gate


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
        return _activate(both, op.act)
    gate, up = np.split(both, 2, axis=1)
    return _glu(gate, up, op.act)


@run.register
def _(op: Act, frame: Frame) -> None:
    frame.values[op.out] = _activate(frame.values[op.x], op.act)


def _glu(gate: Floats, up: Floats, act: Activation) -> Floats:
    if act != "swiglu_oai":
        return _activate(gate, act) * up
    g = np.minimum(gate.astype(np.float64), 7.0)
    u = np.clip(up.astype(np.float64), -7.0, 7.0)
    return ((u + 1.0) * g * sigmoid(1.702 * g)).astype(np.float32)


def _activate(x: Floats, act: Activation) -> Floats:
    """In float64, rounded once."""
    return _ACTIVATIONS[act](x.astype(np.float64)).astype(np.float32)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * sigmoid(x)


def _gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; exact form."""
    result: NDArray[np.float64] = 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    return result


def _gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same paper's approximation by tanh."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_quick": lambda x: _silu(1.702 * x) / 1.702,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.square(np.maximum(x, 0.0)),
    "tanh": np.tanh,
    "identity": lambda x: x,
}


@run.register
def _(op: Xielu, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    positive = np.logaddexp(0.0, frame.array(op.positive).astype(np.float64))
    negative = op.beta + np.logaddexp(0.0, frame.array(op.negative).astype(np.float64))
    bent = (np.expm1(np.minimum(x, op.eps)) - x) * negative
    result = np.where(x > 0, positive * np.square(x), bent) + op.beta * x
    frame.values[op.out] = result.astype(np.float32)


@run.register
def _(op: Clamp, frame: Frame) -> None:
    limit = np.float32(op.limit)
    frame.values[op.out] = np.clip(frame.values[op.x], -limit, limit)


@run.register
def _(op: Between, frame: Frame) -> None:
    low, high = frame.array(op.low), frame.array(op.high)
    frame.values[op.out] = np.maximum(low, np.minimum(high, frame.values[op.x]))


@run.register
def _(op: Weigh, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * frame.array(op.weight)


@run.register
def _(op: RowScale, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * frame.values[op.factor]


@run.register
def _(op: SoftCap, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    frame.values[op.out] = (op.cap * np.tanh(x / op.cap)).astype(np.float32)


@run.register
def _(op: Outliers, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    limit = x.mean(axis=-1, keepdims=True) + op.deviations * x.std(axis=-1, keepdims=True)
    frame.values[op.out] = np.maximum(x - limit, 0.0).astype(np.float32)


@run.register
def _(op: MatchRms, frame: Frame) -> None:
    x = frame.values[op.x].astype(np.float64)
    own = np.maximum(np.square(x).mean(axis=-1, keepdims=True), op.eps)
    like = np.square(frame.values[op.like].astype(np.float64)).mean(axis=-1, keepdims=True)
    frame.values[op.out] = (x * (np.sqrt(like) / np.sqrt(own))).astype(np.float32)


@run.register
def _(op: PositionScale, frame: Frame) -> None:
    periods = (frame.batch.positions.astype(np.int64) + op.shift) // op.period
    factors = (1.0 + op.beta * np.log(1.0 + periods)).astype(np.float32)
    frame.values[op.out] = frame.values[op.x] * factors[:, None]


@run.register
def _(op: Add, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.a] + frame.values[op.b]


@run.register
def _(op: Scale, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x] * np.float32(op.factor)


@run.register
def _(op: TakeRows, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x][frame.batch.logits_rows]


@run.register
def _(op: MeanRows, frame: Frame) -> None:
    x, starts = frame.values[op.x], frame.batch.seq_starts
    out = np.empty((len(frame.batch.logits_rows), op.out.dim), np.float32)
    requests = np.searchsorted(starts, frame.batch.logits_rows, side="right") - 1
    for row, request in enumerate(requests):
        tokens = x[starts[request] : starts[request + 1]].astype(np.float64)
        sums = [
            tokens[at : at + _MEAN_BLOCK].sum(axis=0) for at in range(0, len(tokens), _MEAN_BLOCK)
        ]
        out[row] = np.sum(sums, axis=0) / len(tokens)
    frame.values[op.out] = out


@run.register
def _(op: Vectors, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x]


@run.register
def _(op: Logits, frame: Frame) -> None:
    logits = frame.multiply(op.x, op.weight)
    logits *= np.float32(op.scale)  # in place: these are the largest values of a step
    if op.bias is not None:
        logits += frame.array(op.bias)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        logits /= cap
        np.tanh(logits, out=logits)
        logits *= cap
    if op.columns is not None:
        logits = frame.gathered(logits, op.columns)
    frame.values[op.out] = logits


@run.register
def _(op: Gather, frame: Frame) -> None:
    if op.by == "columns":
        frame.values[op.out] = frame.gathered(frame.values[op.x], op.split)
        return
    rows = np.array(frame.values[op.x])
    frame.group.owned_rows(rows.view(np.uint8), op.split.spans)
    frame.values[op.out] = rows


@run.register
def _(op: Columns, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x][:, op.first : op.first + op.out.dim]


@run.register
def _(op: RowsIn, frame: Frame) -> None:
    rows, width = frame.batch.rows_in, sum(out.dim for out in op.outs)
    if rows is None or rows.shape != (len(frame.batch.token_ids), width):
        raise BackendError(f"a step needs rows_in with {width} numbers for each token")
    _divide(rows.astype(np.float32), op.outs, frame)


@run.register
def _(op: RowsOut, frame: Frame) -> None:
    frame.rows_out.append(frame.values[op.x])


@run.register
def _(op: Receive, frame: Frame) -> None:
    for out in op.outs:
        rows = np.empty((len(frame.batch.token_ids), out.dim), np.float32)
        frame.group.receive(rows.view(np.uint8))
        frame.values[out] = rows


@run.register
def _(op: Send, frame: Frame) -> None:
    for value in op.values:
        frame.group.send(np.ascontiguousarray(frame.values[value]).view(np.uint8))
