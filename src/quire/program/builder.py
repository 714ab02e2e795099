"""`Builder`: how a model file writes a program, one call per op.

Values and weight slots get their names from the scope in force and a short hint, so that
a program prints as `layers.3.q`. Called by `models/`; knows no model family, device or batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quire.program.ops import (
    Act,
    Activation,
    Add,
    Attention,
    Embed,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    Op,
    RmsNorm,
    Rope,
    Scale,
    TakeRows,
)
from quire.program.program import Program
from quire.program.values import Param, Tensor, Value


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How an attention's rows divide into heads: N query heads, K kv heads, H numbers each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_dim(self) -> int:
        """N * H."""
        return self.num_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """K * H."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Rotary:
    """Frequencies of a rotary embedding and the factor on its cos and sin (yarn's mscale)."""

    inv_freq: tuple[float, ...]
    scale: float = 1.0


class Builder:
    """Collects ops in order of execution. Used by one thread for one program.

    Invariant: every value's name is new; `program` checks all else.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ops: list[Op] = []
        self._taken: set[str] = set()
        self._scope = ""
        self._num_attentions = 0

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes the names of all values and slots made inside with `name.`."""
        outer, self._scope = self._scope, f"{self._scope}{name}."
        yield
        self._scope = outer

    def program(self) -> Program:
        """The finished, checked program."""
        program = Program(self._name, tuple(self._ops))
        program.check()
        return program

    def embed(self, tensor: Tensor, scale: float = 1.0) -> Value:
        """Rows of the table `tensor` [V, D] at the step's token ids."""
        out = self._value("embed", tensor.shape[1])
        return self._emit(Embed(out, self._param("embed_tokens", (tensor,)), scale), out)

    def learned_positions(self, x: Value, tensor: Tensor, offset: int = 0) -> Value:
        """x plus the rows of `tensor` [P, D] at the tokens' positions + offset."""
        out = self._value("positioned", x.dim)
        table = self._param("embed_positions", (tensor,))
        return self._emit(LearnedPositions(x, out, table, offset), out)

    def rms_norm(
        self, x: Value, weight: str, eps: float, hint: str = "norm", *, weight_offset: float = 0.0
    ) -> Value:
        """RMS norm over D with the checkpoint's `weight` [D] plus `weight_offset`."""
        out = self._value(hint, x.dim)
        slot = self._param(f"{hint}.weight", (Tensor(weight, (x.dim,)),))
        return self._emit(RmsNorm(x, out, slot, eps, weight_offset), out)

    def layer_norm(
        self,
        x: Value,
        prefix: str,
        eps: float,
        *,
        affine: bool = True,
        has_bias: bool = True,
        hint: str = "norm",
    ) -> Value:
        """Layer norm over D with `prefix.weight` and `prefix.bias` [D], or without bias, or with
        neither."""
        out = self._value(hint, x.dim)
        weight = bias = None
        if affine:
            weight = self._param(f"{hint}.weight", (Tensor(f"{prefix}.weight", (x.dim,)),))
        if affine and has_bias:
            bias = self._param(f"{hint}.bias", (Tensor(f"{prefix}.bias", (x.dim,)),))
        return self._emit(LayerNorm(x, out, weight, bias, eps), out)

    def head_norm(
        self,
        x: Value,
        weight: str,
        eps: float,
        head_dim: int,
        hint: str,
        *,
        weight_offset: float = 0.0,
    ) -> Value:
        """RMS norm over each head's H numbers with the checkpoint's `weight` [H] plus
        `weight_offset`."""
        out = self._value(hint, x.dim)
        slot = self._param(f"{hint}.weight", (Tensor(weight, (head_dim,)),))
        op = HeadNorm(x, out, slot, eps, x.dim // head_dim, head_dim, weight_offset)
        return self._emit(op, out)

    def linears(self, x: Value, outs: Sequence[Out], hint: str = "linear") -> tuple[Value, ...]:
        """Several products of the same x as one Linear: their weights stacked in order.

        Either all of `outs` have a bias or none has.
        """
        values = tuple(self._value(out.hint, out.dim) for out in outs)
        weights = tuple(Tensor(f"{out.prefix}.weight", (out.dim, x.dim)) for out in outs)
        biases = tuple(Tensor(f"{out.prefix}.bias", (out.dim,)) for out in outs if out.bias)
        weight = self._param(f"{hint}.weight", weights)
        bias = self._param(f"{hint}.bias", biases) if biases else None
        self._ops.append(Linear(x, values, weight, bias))
        return values

    def linear(self, x: Value, prefix: str, dim: int, *, bias: bool, hint: str) -> Value:
        """x times `prefix.weight` [dim, K], plus `prefix.bias` if it has one."""
        return self.linears(x, [Out(hint, prefix, dim, bias)], hint)[0]

    def split_linear(
        self, x: Value, outs: Sequence[Out], hint: str = "linear"
    ) -> tuple[Value, ...]:
        """As `linears` without biases; one tensor, `prefix.weight` of `outs[0]`, holds all rows."""
        values = tuple(self._value(out.hint, out.dim) for out in outs)
        shape = (sum(out.dim for out in outs), x.dim)
        weight = self._param(f"{hint}.weight", (Tensor(f"{outs[0].prefix}.weight", shape),))
        self._ops.append(Linear(x, values, weight, None))
        return values

    def conv1d(
        self, x: Value, prefix: str, dims: dict[str, int], *, hint: str
    ) -> tuple[Value, ...]:
        """GPT-2's linear: `prefix.weight` is [K, N], N the sum of `dims` (hint to dim)."""
        total = sum(dims.values())
        values = tuple(self._value(name, dim) for name, dim in dims.items())
        tensor = Tensor(f"{prefix}.weight", (x.dim, total), transposed=True)
        weight = self._param(f"{hint}.weight", (tensor,))
        bias = self._param(f"{hint}.bias", (Tensor(f"{prefix}.bias", (total,)),))
        self._ops.append(Linear(x, values, weight, bias))
        return values

    def rope(self, x: Value, head_dim: int, rotary: Rotary, hint: str) -> Value:
        """Rotates every head of x at the tokens' positions."""
        out = self._value(hint, x.dim)
        heads = x.dim // head_dim
        return self._emit(Rope(x, out, heads, head_dim, rotary.inv_freq, rotary.scale), out)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        heads: HeadLayout,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: tuple[float, ...] | None = None,
    ) -> Value:
        """Causal attention of the next layer; `scale` defaults to 1 / sqrt(H)."""
        out = self._value("attention", heads.q_dim)
        layer, self._num_attentions = self._num_attentions, self._num_attentions + 1
        op = Attention(
            q, k, v, out, layer, heads.num_heads, heads.num_kv_heads, heads.head_dim,
            heads.head_dim**-0.5 if scale is None else scale, window, softcap, alibi_slopes,
        )  # fmt: skip
        return self._emit(op, out)

    def glu(self, gate: Value, up: Value, act: Activation) -> Value:
        """act(gate) * up."""
        out = self._value("glu", gate.dim)
        return self._emit(Glu(gate, up, out, act), out)

    def act(self, x: Value, act: Activation) -> Value:
        """act(x)."""
        out = self._value("act", x.dim)
        return self._emit(Act(x, out, act), out)

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        out = self._value("sum", a.dim)
        return self._emit(Add(a, b, out), out)

    def scale(self, x: Value, factor: float) -> Value:
        """x * factor."""
        out = self._value("scaled", x.dim)
        return self._emit(Scale(x, out, factor), out)

    def logits(
        self, x: Value, tensor: Tensor, *, scale: float = 1.0, softcap: float | None = None
    ) -> Value:
        """Ends the program: logits of the rows of x that need them, by the head `tensor` [V, D].

        A head that is the embedding's own tensor shares the embedding's slot.
        """
        taken = self._value("taken", x.dim)
        self._ops.append(TakeRows(x, taken))
        out = self._value("logits", tensor.shape[0])
        tied = (op.table for op in self._ops if isinstance(op, Embed))
        shared = next((table for table in tied if table.parts == (tensor,)), None)
        head = shared or self._param("lm_head", (tensor,))
        return self._emit(Logits(taken, out, head, None, scale, softcap), out)

    def _emit(self, op: Op, out: Value) -> Value:
        self._ops.append(op)
        return out

    def _value(self, hint: str, dim: int) -> Value:
        return Value(self._unique(f"{self._scope}{hint}"), dim)

    def _param(self, hint: str, parts: tuple[Tensor, ...]) -> Param:
        shapes = [part.shape[::-1] if part.transposed else part.shape for part in parts]
        shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        return Param(self._unique(f"{self._scope}{hint}"), shape, parts)

    def _unique(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Out:
    """One product of a stacked linear: what to call it, its checkpoint prefix, rows and bias."""

    hint: str
    prefix: str
    dim: int
    bias: bool = False
