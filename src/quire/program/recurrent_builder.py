"""`RecurrentBuilder`: the part of `Builder` that writes recurrent layers and latent attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from quire.program.ops import Activation, HeadLinear, JoinHeads
from quire.program.recurrent_ops import CausalConv, GatedDelta, Mamba, Ssd
from quire.program.scoped import ScopedOps
from quire.program.values import Param, Tensor, Value


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
