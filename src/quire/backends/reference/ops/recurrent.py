"""The results of the ops of recurrent layers, token by token: the specification.

A token's result is computed in arrays whose sizes follow from its place in its chunk, so no cut of
a request can change a bit. Sums are taken in float64; what is stored is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.paged_kv_cache import PagedKVCache
from quire.backends.reference.activations import ACTIVATIONS, Doubles, sigmoid
from quire.backends.reference.ops.frame import Floats, Frame, divide, run
from quire.config.state_groups import STATE_CHUNK
from quire.program import CausalConv, GatedDelta, Mamba, Ssd, Value

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request in a step, the position of the first, and the pieces of its state."""

    rows: slice
    position: int
    pieces: list[Floats]


def each_request(batch: StepBatch, cache: PagedKVCache, layer: int) -> Iterator[RequestRows]:
    """Those that have rows in the step."""
    for request, tables in enumerate(batch.block_tables):
        begin, end = batch.seq_starts[request : request + 2].tolist()
        if begin < end:
            position, pieces = int(batch.positions[begin]), cache.state(layer, tables)
            if position == 0:  # nothing of the block's last user is left in it
                for piece in pieces:
                    piece[:] = 0
            yield RequestRows(slice(begin, end), position, pieces)


def convolve(
    op: CausalConv, x: Floats, weight: Floats, bias: Floats | None, request: RequestRows
) -> Doubles:
    """The sums of a request's rows x [n, C]: [n, C]. Stores the last rows."""
    count, width = len(x), op.width
    weight = weight.reshape(-1, width)
    before = width - 1
    rings = [piece.reshape(op.num_rows, -1) for piece in request.pieces]
    stored = np.concatenate(rings, axis=1)[:, : x.shape[1]]
    positions = np.arange(request.position - before, request.position)
    history = stored[positions % op.num_rows]
    history[positions < 0] = 0
    rows = np.concatenate([history, x])
    out = np.zeros((count, x.shape[1])) if bias is None else np.tile(bias.astype(float), (count, 1))
    for tap in range(width):
        out += weight[:, tap].astype(np.float64) * rows[tap : tap + count]
    last = np.arange(request.position, request.position + count)[-op.num_rows :]
    channels = rings[0].shape[1]
    for number, ring in enumerate(rings):
        part = x[-op.num_rows :, number * channels : (number + 1) * channels]
        ring[last % op.num_rows, : part.shape[1]] = part
    return out


@dataclass(slots=True)
class _Chunk:
    """The heads' states at the last chunk's begin, [N, key_dim, value_dim], and the chunk's rows,
    [N, STATE_CHUNK, ...] each."""

    states: Floats
    keys: Floats
    updates: Floats
    decays: Floats

    @classmethod
    def of(cls, pieces: Sequence[Floats], key_dim: int, value_dim: int) -> _Chunk:
        """Copies of the pieces."""
        numbers, size = np.stack(pieces), key_dim * value_dim
        ends = size + STATE_CHUNK * np.cumsum([key_dim, value_dim])
        states, *rows = np.split(numbers, [size, *ends], axis=1)
        by_row = [part.reshape(len(pieces), STATE_CHUNK, -1) for part in rows]
        return cls(states.reshape(-1, key_dim, value_dim), *by_row)

    def store(self, pieces: Sequence[Floats]) -> None:
        """Puts them back."""
        parts = (self.states, self.keys, self.updates, self.decays)
        numbers = np.concatenate([part.reshape(len(pieces), -1) for part in parts], axis=1)
        for piece, row in zip(pieces, numbers, strict=True):
            piece[:] = row

    def add(self, place: int, q: Doubles, k: Floats, v: Doubles, g: Doubles, beta: Doubles | None
            ) -> Doubles:  # fmt: skip
        """The results [N, value_dim] of the row in this place of the chunk. q, k [N, key_dim], v
        [N, value_dim], g [N, 1 or key_dim]. `beta` [N] of the delta rule; None: u = v."""
        if place == 0:
            total = g
        else:
            total = self.decays[:, place - 1].astype(np.float64) + g
        self.keys[:, place], self.decays[:, place] = k, total
        total = self.decays[:, place].astype(np.float64)
        rows = slice(0, place + 1)
        ratios = np.exp(total[:, None] - self.decays[:, rows])
        keys = self.keys[:, rows] * ratios
        own = np.exp(total)
        update = v
        if beta is not None:
            wide = k.astype(np.float64)
            known = _product(own * wide, self.states)
            scores = (keys[:, :place] * wide[:, None]).sum(axis=-1)
            known += (scores[:, :, None] * self.updates[:, :place]).sum(axis=1)
            update = beta[:, None] * (v - known)
        self.updates[:, place] = update
        scores = (keys * q[:, None]).sum(axis=-1)
        out = _product(own * q, self.states)
        out += (scores[:, :, None] * self.updates[:, rows]).sum(axis=1)
        if place + 1 == STATE_CHUNK:
            grown = (keys[:, :, :, None] * self.updates[:, :, None, :]).sum(axis=1)
            self.states = (own[:, :, None] * self.states + grown).astype(np.float32)
        return out


def _product(rows: Doubles, states: Floats) -> Doubles:
    """rows [N, key_dim] times states [N, key_dim, value_dim]."""
    found: Doubles = (rows[:, :, None] * states).sum(axis=1)
    return found


def _scan(
    request: RequestRows, q: Doubles, k: Floats, v: Doubles, g: Doubles, beta: Doubles | None
) -> Doubles:
    """All rows of a request, each array [n, N, ...]: [n, N, value_dim]."""
    chunk = _Chunk.of(request.pieces, k.shape[-1], v.shape[-1])
    out = np.empty(v.shape)
    for row in range(len(v)):
        place = (request.position + row) % STATE_CHUNK
        own_beta = None if beta is None else beta[row]
        out[row] = chunk.add(place, q[row], k[row], v[row], g[row], own_beta)
    chunk.store(request.pieces)
    return out


def gated_delta(
    op: GatedDelta, rows: Sequence[Floats], a_log: Floats, dt_bias: Floats, request: RequestRows
) -> Doubles:
    """A request's results [n, N, value_dim]. `rows`: its q, k, v, a and b."""
    q, k, v, a, b = (part.astype(np.float64) for part in rows)
    repeats = op.num_heads // op.num_key_heads
    heads = np.arange(op.num_heads)
    of_head = heads % op.num_key_heads if op.is_tiled else heads // repeats
    q, k = (_unit_heads(part, op.num_key_heads)[:, of_head] for part in (q, k))
    decay = _softplus(a + dt_bias).reshape(len(a), op.num_heads, -1)
    g = -np.exp(a_log.astype(np.float64)).reshape(-1, 1) * decay
    v = v.reshape(len(v), op.num_heads, -1)
    return _scan(request, q * op.key_dim**-0.5, k.astype(np.float32), v, g, sigmoid(b))


def _unit_heads(x: Doubles, num_heads: int) -> Doubles:
    heads = x.reshape(len(x), num_heads, -1)
    found: Doubles = heads / np.sqrt(np.square(heads).sum(axis=-1, keepdims=True) + _EPS)
    return found


def ssd(
    op: Ssd, rows: Sequence[Floats], weights: Sequence[Floats], request: RequestRows
) -> Doubles:
    """A request's results [n, N, P]. `rows`: its x, dt, b and c; `weights`: a_log, dt_bias, d."""
    x, dt, b, c = (part.astype(np.float64) for part in rows)
    a_log, dt_bias, d = (weight.astype(np.float64) for weight in weights)
    repeats = op.num_heads // op.num_groups
    b, c = (part.reshape(len(part), op.num_groups, -1).repeat(repeats, axis=1) for part in (b, c))
    x = x.reshape(len(x), op.num_heads, -1)
    dt = np.clip(_softplus(dt + dt_bias), op.dt_min, op.dt_max)
    g = (-np.exp(a_log) * dt)[:, :, None]
    out = _scan(request, c, b.astype(np.float32), dt[:, :, None] * x, g, None)
    return out + d[:, None] * x


def mamba(
    op: Mamba, rows: Sequence[Floats], weights: Sequence[Floats], request: RequestRows
) -> Doubles:
    """A request's results [n, C]. `rows`: its x, dt, b and c; `weights`: a_log, dt_bias, d."""
    x, dt, b, c = (part.astype(np.float64) for part in rows)
    a_log, dt_bias, d = (weight.astype(np.float64) for weight in weights)
    pieces = [piece.reshape(2, -1, op.b.dim) for piece in request.pieces]
    states = np.concatenate([piece[int(request.position % STATE_CHUNK == 0)] for piece in pieces])
    state = states[: x.shape[1]]
    anchors = None
    dt, decays = _softplus(dt + dt_bias), -np.exp(a_log.reshape(-1, op.b.dim))
    out = np.empty(x.shape)
    for row in range(len(x)):
        grown = (dt[row] * x[row])[:, None] * b[row]
        state = (np.exp(decays * dt[row][:, None]) * state + grown).astype(np.float32)
        out[row] = (state * c[row]).sum(axis=1) + d * x[row]
        if (request.position + row + 1) % STATE_CHUNK == 0:
            anchors = state
    channels = pieces[0].shape[1]
    for number, piece in enumerate(pieces):
        part = slice(number * channels, (number + 1) * channels)
        piece[0, : len(state[part])] = state[part]
        if anchors is not None:
            piece[1, : len(anchors[part])] = anchors[part]
    return out


def _softplus(x: Doubles) -> Doubles:
    found: Doubles = np.logaddexp(0.0, x)
    return found


@run.register
def _(op: CausalConv, frame: Frame) -> None:
    x, weight = frame.values[op.x], frame.array(op.weight)
    bias = None if op.bias is None else frame.array(op.bias)
    out = np.empty_like(x)
    for request in each_request(frame.batch, frame.cache, op.layer):
        sums = convolve(op, x[request.rows], weight, bias, request)
        out[request.rows] = sums if op.act is None else ACTIVATIONS[op.act](sums)
    divide(out, op.outs, frame)


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
    _each(op, frame, ssd)


@run.register
def _(op: Mamba, frame: Frame) -> None:
    _each(op, frame, mamba)


def _each(op: Ssd | Mamba, frame: Frame, compute: Callable[..., Floats | Doubles]) -> None:
    """`compute` for each request: both ops have the same inputs and weights."""
    weights = [frame.array(param) for param in (op.a_log, op.dt_bias, op.d)]
    out = np.empty_like(frame.values[op.x])
    for request in each_request(frame.batch, frame.cache, op.layer):
        found = compute(op, _own_rows(frame, request, op.x, op.dt, op.b, op.c), weights, request)
        out[request.rows] = found.reshape(len(found), -1)
    frame.values[op.out] = out
