"""The ops of recurrent layers, each of which keeps a state of fixed size of every request; and
`RecurrentBuilder`, which adds them to a program.

Legend: C channels, N heads, K key heads, P numbers of a head, S numbers of a state's row; the rest
as in `ops`. A chunk is `STATE_CHUNK` tokens that begin at a multiple of it. An op stores the state
as it was after the last whole chunk, and the rows of the chunk under way. So the same bits come out
however a request is cut into steps, a state is written once in a chunk, and rows that were computed
in vain are taken back by computing them again, within their chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from quire.config.kv_groups import KVShape
from quire.config.state_groups import STATE_CHUNK, StateGroup, StateShape
from quire.program.ops import (
    Activation,
    HeadLinear,
    JoinHeads,
    KernelOp,
    Memory,
    RowsRead,
    StateLayer,
)
from quire.program.scoped import ScopedOps
from quire.program.values import Param, Tensor, Value, Vector

CHANNELS = 256
"""Channels of a piece of the state of `CausalConv` and `Mamba`; the last may have fewer."""


@dataclass(frozen=True, slots=True)
class RecurrentOp(KernelOp):
    """Base of these ops. A step that is computed twice would update the state twice."""

    rows: ClassVar[RowsRead] = "request"
    is_repeatable: ClassVar[bool] = False


def _memory(layer: int, num_pieces: int, width: int) -> tuple[Memory, ...]:
    kept = StateGroup((), KVShape(0, 0, 0), (StateShape(num_pieces, width),))
    return (Memory(layer, kept),)


@dataclass(frozen=True, slots=True)
class CausalConv(RecurrentOp):
    """concat(outs)[t, c] = act(bias[c] + sum over j of weight[c, j] * x[t - W + 1 + j, c]), for
    every channel alone; weight is [C * W]. Tokens before the first are zeros. `act` None: none.

    Stored: the last STATE_CHUNK + W - 1 rows of x, the one at position p in place p modulo their
    number. Those of a piece's channels lie together: [rows, channels].
    """

    reads_float32: ClassVar[bool] = False
    x: Value
    outs: tuple[Value, ...]
    layer: StateLayer
    width: int
    """W."""
    weight: Vector
    bias: Vector | None = None
    act: Activation | None = None

    @property
    def num_rows(self) -> int:
        """Rows of x that are stored."""
        return STATE_CHUNK + self.width - 1

    def memories(self) -> tuple[Memory, ...]:
        """The last rows of x."""
        channels = min(CHANNELS, self.x.dim)
        return _memory(self.layer, -(-self.x.dim // channels), self.num_rows * channels)


@dataclass(frozen=True, slots=True)
class GatedDelta(RecurrentOp):
    """The gated delta rule, of N heads with states M [key_dim, value_dim], in float32:

        M' = exp(g) M;  u = beta (v - k M');  M = M' + outer(k, u);  out = q M

    q and k [T, K * key_dim] are divided by sqrt(sum of their head's squares + 1e-6), and q by
    sqrt(key_dim) too; head n reads key head n * K // N, or n % K if `is_tiled`.
    v is [T, N * value_dim]. beta = sigmoid(b),
    b [T, N]. g = -exp(a_log) * softplus(a + dt_bias), a_log [N]; a and dt_bias are [N], or
    [N * key_dim], where each row of M has its own g (Kimi's delta attention).

    In a chunk that begins with M0, with G the sum of g up to a row and E(s, t) = exp(G_t - G_s):

        u_t = beta_t (v_t - (exp(G_t) k_t) M0 - sum over s < t of (E(s, t) k_s . k_t) u_s)
        out_t = (exp(G_t) q_t) M0 + sum over s <= t of (E(s, t) k_s . q_t) u_s

    Stored for each head: M0, then k, u and G of the chunk's rows.
    Sources: Yang et al. 2025, "Gated Delta Networks"; Kimi Team 2025, "Kimi Linear", section 3.
    """

    q: Value
    k: Value
    v: Value
    a: Value
    b: Value
    out: Value
    layer: StateLayer
    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    a_log: Vector
    dt_bias: Vector
    is_tiled: bool = False

    def memories(self) -> tuple[Memory, ...]:
        """A piece for each head."""
        width = chunk_width(self.key_dim, self.value_dim, self.a.dim // self.num_heads)
        return _memory(self.layer, self.num_heads, width)


def chunk_width(key_dim: int, value_dim: int, decay_dim: int) -> int:
    """Numbers of a head's piece: M0, then k, u and G of a chunk's rows."""
    return key_dim * value_dim + STATE_CHUNK * (key_dim + value_dim + decay_dim)


@dataclass(frozen=True, slots=True)
class Ssd(RecurrentOp):
    """Mamba 2's recurrence of N heads with states M [S, P], in float32:

        M' = exp(-exp(a_log) dt) M + outer(b, dt x);  out = c M' + d x

    x is [T, N * P]; b and c are [T, groups * S], and head n reads group n * groups // N.
    dt = softplus(dt + dt_bias), bounded to dt_min .. dt_max; dt is [T, N]; a_log, dt_bias and d are
    [N]. `GatedDelta` says how a chunk is computed: with k = b, q = c, g = -exp(a_log) dt and
    u = dt x. Source: Dao and Gu 2024, "Transformers are SSMs", section 6.
    """

    x: Value
    dt: Value
    b: Value
    c: Value
    out: Value
    layer: StateLayer
    num_heads: int
    num_groups: int
    head_dim: int
    state_dim: int
    a_log: Vector
    dt_bias: Vector
    d: Vector
    dt_min: float = 0.0
    dt_max: float = float("inf")

    def memories(self) -> tuple[Memory, ...]:
        """A piece for each head."""
        return _memory(self.layer, self.num_heads, chunk_width(self.state_dim, self.head_dim, 1))


@dataclass(frozen=True, slots=True)
class Mamba(RecurrentOp):
    """Mamba 1's recurrence of C channels with states M [C, S], in float32:

        M' = exp(-exp(a_log) dt) M + dt x b;  out = M' c + d x

    x and dt are [T, C], b and c [T, S]; a_log is [C * S] and d [C]. dt = softplus(dt + dt_bias),
    dt_bias [C]. Every channel and number of a state decays in its own way, so that a chunk's rows
    give no short form: the state moves on with each token.

    Rows cannot be taken back for the same reason.

    Stored for the channels of a piece: the states after the last token, then those after the last
    whole chunk, both [channels, S]. Source: Gu and Dao 2023, "Mamba", algorithm 2.
    """

    x: Value
    dt: Value
    b: Value
    c: Value
    out: Value
    layer: StateLayer
    a_log: Vector
    dt_bias: Vector
    d: Vector

    takes_rows_back: ClassVar[bool] = False

    def memories(self) -> tuple[Memory, ...]:
        """A piece for some channels."""
        channels = min(CHANNELS, self.x.dim)
        return _memory(self.layer, -(-self.x.dim // channels), 2 * channels * self.b.dim)


class RecurrentBuilder(ScopedOps):
    """Each recurrent op is the next layer with a memory of its own."""

    def causal_conv(
        self,
        x: Value,
        prefix: str | Sequence[str],
        width: int,
        dims: dict[str, int],
        *,
        bias: bool,
        act: Activation | None = None,
    ) -> tuple[Value, ...]:
        """Convolves every channel of x with `prefix.weight` [C, 1, width], and splits the result
        into values of these dims. Several prefixes: each value has a tensor of its own."""
        outs = tuple(self._value(hint, dim) for hint, dim in dims.items())
        sizes = [x.dim] if isinstance(prefix, str) else list(dims.values())
        prefixes = [prefix] if isinstance(prefix, str) else prefix
        parts = tuple(
            Tensor(f"{name}.weight", (size, 1, width))
            for name, size in zip(prefixes, sizes, strict=True)
        )
        name = self._unique(f"{self._scope}conv.weight")
        weight = Param(name, (x.dim * width,), parts)
        slot = self._vector(f"{prefix}.bias", x.dim, "conv.bias") if bias else None
        self._ops.append(CausalConv(x, outs, self._next_memory(), width, weight, slot, act))
        return outs

    def gated_delta(
        self,
        qkv: Sequence[Value],
        a: Value,
        b: Value,
        *,
        num_heads: int,
        num_key_heads: int,
        a_log: Tensor,
        dt_bias: Tensor,
        is_tiled: bool = False,
    ) -> Value:
        """The gated delta rule, see `GatedDelta`."""
        q, k, v = qkv
        out = self._value("delta", v.dim)
        op = GatedDelta(
            q, k, v, a, b, out, self._next_memory(), num_heads, num_key_heads,
            k.dim // num_key_heads, v.dim // num_heads,
            self._flat(a_log, "a_log"), self._flat(dt_bias, "dt_bias"), is_tiled,
        )  # fmt: skip
        return self._emit(op)

    def ssd(
        self,
        x: Value,
        dt: Value,
        bc: tuple[Value, Value],
        num_groups: int,
        prefix: str,
        dt_limits: tuple[float, float],
    ) -> Value:
        """Mamba 2's recurrence with the tensors `prefix`A_log, dt_bias and D, see `Ssd`."""
        b, c = bc
        out = self._value("ssd", x.dim)
        heads = dt.dim
        op = Ssd(
            x, dt, b, c, out, self._next_memory(), heads, num_groups, x.dim // heads,
            b.dim // num_groups,
            self._vector(f"{prefix}A_log", heads, "a_log"),
            self._vector(f"{prefix}dt_bias", heads, "dt_bias"),
            self._vector(f"{prefix}D", heads, "d"), *dt_limits,
        )  # fmt: skip
        return self._emit(op)

    def mamba(self, x: Value, dt: Value, bc: tuple[Value, Value], prefix: str) -> Value:
        """Mamba 1's recurrence with the tensors `prefix`A_log, dt_proj.bias and D, see `Mamba`."""
        b, c = bc
        out = self._value("mamba", x.dim)
        a_log = self._flat(Tensor(f"{prefix}A_log", (x.dim, b.dim)), "a_log")
        op = Mamba(
            x, dt, b, c, out, self._next_memory(), a_log,
            self._vector(f"{prefix}dt_proj.bias", x.dim, "dt_bias"),
            self._vector(f"{prefix}D", x.dim, "d"),
        )  # fmt: skip
        return self._emit(op)

    def head_linear(
        self, x: Value, parts: Sequence[Tensor], shape: tuple[int, int, int], hint: str
    ) -> Value:
        """Each head of x times its own matrix, see `HeadLinear`. `shape`: [N, M, K]; `parts`: the
        heads' matrices in order."""
        out = self._value(hint, shape[0] * shape[1])
        weight = Param(self._unique(f"{self._scope}{hint}.weight"), shape, tuple(parts))
        return self._emit(HeadLinear(x, out, weight))

    def join_heads(self, a: Value, b: Value, num_heads: int, hint: str) -> Value:
        """Heads with the numbers of a's, then those of b's."""
        return self._emit(JoinHeads(a, b, self._value(hint, a.dim + b.dim), num_heads))

    def _vector(self, name: str, size: int, hint: str) -> Param:
        return self._param(hint, (Tensor(name, (size,)),))

    def _flat(self, tensor: Tensor, hint: str) -> Param:
        """A tensor of any shape as a vector."""
        return Param(self._unique(f"{self._scope}{hint}"), (prod(tensor.slot_shape),), (tensor,))
