"""`Builder`: builds the program of a model, with one call per op.

Values and weight slots get their names from the current scope and a short hint, such as
`layers.3.q`. Called by `models/`; knows no model family, device or batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod

from quire.program import ops
from quire.program import pointwise_ops as pointwise
from quire.program.program import Program
from quire.program.recurrent_ops import RecurrentBuilder
from quire.program.values import Param, Tensor, Value


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """Division of attention rows into heads: N query heads, K kv heads, H numbers each."""

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
    """Frequencies of a rotary embedding and the factor on its cos and sin (yarn's mscale).

    `interleaved`: pairs are neighbours instead of halves; `axes`: of the frequencies, see `Rope`.
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Routing:
    """Parameters of a router; the fields are those of `Route`."""

    top_k: int
    score: ops.RouteScore = "softmax"
    normalise: bool = True
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    floor: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """The weights of a layer's experts in a checkpoint: the rows of one expert after the other,
    with the rows of gate before those of up. Experts that are not `gated` have no gate."""

    gate_up: tuple[Tensor, ...]
    down: tuple[Tensor, ...]
    width: int
    """I, the width of an expert."""
    gate_up_bias: tuple[Tensor, ...] = ()
    down_bias: tuple[Tensor, ...] = ()
    gated: bool = True


class Builder(RecurrentBuilder):
    """Collects ops in order of execution. Used by one thread for one program.

    Invariant: names of values are unique; `program` checks everything else.
    """

    def program(self) -> Program:
        """The finished, checked program."""
        program = Program(self._name, tuple(self._ops))
        program.check()
        return program

    def embed(self, tensor: Tensor, scale: float = 1.0, given_scale: float = 1.0) -> Value:
        """Rows of the table `tensor` [V, D] at the step's token ids, times `scale`; rows that are
        given with the step, times `given_scale`."""
        out = self._value("embed", tensor.shape[1])
        tables = (op.table for op in self._ops if isinstance(op, ops.Embed))
        shared = next((table for table in tables if table.parts == (tensor,)), None)
        table = shared or self._param("embed_tokens", (tensor,))
        return self._emit(ops.Embed(out, table, scale, given_scale=given_scale))

    def embed_slices(
        self, parts: Sequence[Tensor], dim: int, hint: str, scale: float = 1.0
    ) -> tuple[Value, ...]:
        """Rows of a table [V, W] at the step's token ids, in slices of `dim` numbers. `parts`: the
        tensors that contain the table's rows, in order."""
        table = self._param(f"{hint}.table", tuple(parts))
        outs = tuple(self._value(hint, dim) for _ in range(table.shape[1] // dim))
        self._ops.append(ops.EmbedSlices(outs, table, scale))
        return outs

    def learned_positions(self, x: Value, tensor: Tensor, offset: int = 0) -> Value:
        """x plus the rows of `tensor` [P, D] at the tokens' positions + offset."""
        out = self._value("positioned", x.dim)
        table = self._param("embed_positions", (tensor,))
        return self._emit(ops.LearnedPositions(x, out, table, offset))

    def token_types(self, x: Value, tensor: Tensor) -> Value:
        """x plus the rows of `tensor` [types, D] of the tokens' types."""
        return self._emit(
            ops.TokenTypes(x, self._value("typed", x.dim), self._param("embed_types", (tensor,)))
        )

    def add_vector(self, x: Value, name: str, hint: str) -> Value:
        """x plus the checkpoint's vector `name`: token types of a model that has one of them."""
        return self._emit(
            ops.TokenTypes(
                x, self._value(hint, x.dim), self._param(hint, (Tensor(name, (1, x.dim)),))
            )
        )

    def rms_norm(
        self,
        x: Value,
        weight: str | None,
        eps: float,
        hint: str = "norm",
        *,
        weight_offset: float = 0.0,
    ) -> Value:
        """RMS norm over D with the checkpoint's `weight` [D], if there is one, plus
        `weight_offset`."""
        out = self._value(hint, x.dim)
        slot = None
        if weight is not None:
            slot = self._param(f"{hint}.weight", (Tensor(weight, (x.dim,)),))
        return self._emit(ops.RmsNorm(x, out, slot, eps, weight_offset))

    def layer_norm(
        self,
        x: Value,
        prefix: str,
        eps: float,
        *,
        affine: bool = True,
        has_bias: bool = True,
        hint: str = "norm",
        weight_offset: float = 0.0,
    ) -> Value:
        """Layer norm over D with `prefix.weight` and `prefix.bias` [D], or without bias, or with
        neither."""
        out = self._value(hint, x.dim)
        weight = bias = None
        if affine:
            weight = self._param(f"{hint}.weight", (Tensor(f"{prefix}.weight", (x.dim,)),))
        if affine and has_bias:
            bias = self._param(f"{hint}.bias", (Tensor(f"{prefix}.bias", (x.dim,)),))
        return self._emit(ops.LayerNorm(x, out, weight, bias, eps, weight_offset))

    def head_norm(
        self,
        x: Value,
        weights: Sequence[Tensor],
        eps: float,
        head_dim: int,
        hint: str,
        *,
        weight_offset: float = 0.0,
        kind: ops.NormKind = "rms",
    ) -> Value:
        """Norm over each head's H numbers. `weights`, concatenated, have H numbers for all heads,
        or H for each head; empty: without weight."""
        out = self._value(hint, x.dim)
        slot = None
        if weights:
            slot = Param(
                self._unique(f"{self._scope}{hint}.weight"),
                (sum(prod(weight.slot_shape) for weight in weights),),
                tuple(weights),
            )
        op = ops.HeadNorm(x, out, slot, eps, x.dim // head_dim, head_dim, weight_offset, kind)
        return self._emit(op)

    def linears(
        self, x: Value, outs: Sequence[Out], hint: str = "linear", *, exact: bool = False
    ) -> tuple[Value, ...]:
        """Several products of the same x as one Linear: their weights stacked in order.

        Either all of `outs` have a bias, or none.
        """
        values = tuple(self._value(out.hint, out.dim) for out in outs)
        weights = _joined([out.tensor("weight", (x.dim,)) for out in outs])
        biases = _joined([out.tensor("bias", ()) for out in outs if out.bias])
        weight = self._param(f"{hint}.weight", weights)
        bias = self._param(f"{hint}.bias", biases) if biases else None
        self._ops.append(ops.Linear(x, values, weight, bias, exact))
        return values

    def linear(
        self, x: Value, prefix: str, dim: int, *, bias: bool, hint: str, exact: bool = False
    ) -> Value:
        """x times `prefix.weight` [dim, K], plus `prefix.bias` if it has one. `exact`: the weight
        is never rounded to a format."""
        return self.linears(x, [Out(hint, prefix, dim, bias)], hint, exact=exact)[0]

    def product(self, x: Value, matrix: Tensor, hint: str) -> Value:
        """x times a matrix with a name of its own [K, N], stored transposed, in the exact form."""
        out = self._value(hint, matrix.shape[1])
        weight = self._param(f"{hint}.weight", (matrix,))
        return self._emit(ops.Linear(x, (out,), weight, exact=True))

    def conv1d(
        self, x: Value, prefix: str, dims: dict[str, int], *, hint: str
    ) -> tuple[Value, ...]:
        """GPT-2's linear: `prefix.weight` is [K, N], N the sum of `dims` (hint to dim)."""
        total = sum(dims.values())
        values = tuple(self._value(name, dim) for name, dim in dims.items())
        tensor = Tensor(f"{prefix}.weight", (x.dim, total), transposed=True)
        weight = self._param(f"{hint}.weight", (tensor,))
        bias = self._param(f"{hint}.bias", (Tensor(f"{prefix}.bias", (total,)),))
        self._ops.append(ops.Linear(x, values, weight, bias))
        return values

    def rope(self, x: Value, head_dim: int, rotary: Rotary, hint: str) -> Value:
        """Rotates every head of x at the tokens' positions."""
        out = self._value(hint, x.dim)
        heads = x.dim // head_dim
        op = ops.Rope(
            x, out, heads, head_dim, rotary.inv_freq, rotary.scale, rotary.interleaved, rotary.axes
        )
        return self._emit(op)

    def given_columns(self, first: int, dim: int, vocab_size: int) -> Value:
        """Numbers of given rows; see `GivenColumns`."""
        return self._emit(ops.GivenColumns(self._value("given", dim), first, vocab_size))

    def position_scale(self, x: Value, beta: float, period: int, shift: int, hint: str) -> Value:
        """x times a factor that grows with the position; see `PositionScale`."""
        return self._emit(pointwise.PositionScale(x, self._value(hint, x.dim), beta, period, shift))

    def attention(
        self,
        q: Value,
        k: Value | None,
        v: Value | None,
        heads: HeadLayout,
        *,
        layer: int | None = None,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: tuple[float, ...] | None = None,
        sinks: str | None = None,
        is_chunked: bool = False,
        is_causal: bool = True,
        relative: Param | None = None,
        buckets: tuple[int, ...] = (),
        latent_dim: int | None = None,
        spans: bool = False,
        first_key: int = 0,
        num_keys: int = 0,
    ) -> Value:
        """Attention of the next layer; `scale` defaults to 1 / sqrt(H). `sinks`: the checkpoint's
        tensor [N]. Without k and v, attends to the K and V of `layer`. If it is not causal, nothing
        is kept from step to step. `latent_dim`: v is the first `latent_dim` numbers of k."""
        out = self._value("attention", heads.num_heads * (latent_dim or heads.head_dim))
        slot = None
        if sinks is not None:
            slot = self._param("sinks", (Tensor(sinks, (heads.num_heads,)),))
        if layer is None and is_causal:
            layer = self._next_memory()
        op = ops.Attention(
            q, k, v, out, layer, heads.num_heads, heads.num_kv_heads, heads.head_dim,
            heads.head_dim**-0.5 if scale is None else scale, window, softcap, alibi_slopes,
            sinks=slot, is_chunked=is_chunked, is_causal=is_causal, relative=relative,
            buckets=buckets, value_dim=latent_dim, spans=spans, first_key=first_key,
            num_keys=num_keys,
        )  # fmt: skip
        return self._emit(op)

    def keep_sources(self, k: Value, v: Value, heads: HeadLayout, layer: int) -> None:
        """Writes K and V of the source rows to the memory of a layer of attention."""
        self._ops.append(ops.KeepSources(k, v, layer, heads.num_kv_heads, heads.head_dim))

    def end_sources(self, num_sources: int) -> None:
        """Ends the part of the program that is computed for source rows; see `SourcesEnd`."""
        self._ops.append(ops.SourcesEnd(num_sources))

    def glu(self, gate: Value, up: Value, act: ops.Activation) -> Value:
        """act(gate) * up."""
        return self._emit(pointwise.Glu(gate, up, self._value("glu", gate.dim), act))

    def multiply(self, a: Value, b: Value) -> Value:
        """a * b, elementwise."""
        return self.glu(a, b, "identity")

    def act(self, x: Value, act: ops.Activation) -> Value:
        """act(x)."""
        return self._emit(pointwise.Act(x, self._value("act", x.dim), act))

    def xielu(self, x: Value, positive: str, negative: str) -> Value:
        """xIELU with two numbers of the checkpoint; see `Xielu`."""
        out = self._value("act", x.dim)
        first = self._param("act.positive", (Tensor(positive, (1,)),))
        second = self._param("act.negative", (Tensor(negative, (1,)),))
        return self._emit(pointwise.Xielu(x, out, first, second))

    def clamp(self, x: Value, limit: float, hint: str) -> Value:
        """x, bounded to -limit .. limit."""
        return self._emit(pointwise.Clamp(x, self._value(hint, x.dim), limit))

    def between(self, x: Value, prefix: str, hint: str) -> Value:
        """x, bounded by the checkpoint's numbers `prefix_min` and `prefix_max`; see `Between`."""
        out = self._value(hint, x.dim)
        low, high = (
            self._param(f"{hint}.{end}", (Tensor(f"{prefix}_{end}", (1,)),))
            for end in ("min", "max")
        )
        return self._emit(pointwise.Between(x, out, low, high))

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self._emit(pointwise.Add(a, b, self._value("sum", a.dim)))

    def scale(self, x: Value, factor: float) -> Value:
        """x * factor."""
        return self._emit(pointwise.Scale(x, self._value("scaled", x.dim), factor))

    def weigh(self, x: Value, weight: str, size: int, hint: str) -> Value:
        """x times the checkpoint's `weight` of `size` numbers: the width of x, or 1."""
        out = self._value(hint, x.dim)
        slot = self._param(f"{hint}.weight", (Tensor(weight, (size,)),))
        return self._emit(pointwise.Weigh(x, out, slot))

    def row_scale(self, x: Value, factor: Value) -> Value:
        """x * factor, factor [T, 1]."""
        return self._emit(pointwise.RowScale(x, factor, self._value("scaled", x.dim)))

    def columns(self, x: Value, first: int, count: int) -> Value:
        """Some columns of x."""
        return self._emit(ops.Columns(x, self._value("columns", count), first))

    def soft_cap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap)."""
        return self._emit(pointwise.SoftCap(x, self._value("capped", x.dim), cap))

    def outliers(self, x: Value, deviations: float) -> Value:
        """The excess of x over its row's mean plus some standard deviations; see `Outliers`."""
        return self._emit(pointwise.Outliers(x, self._value("outliers", x.dim), deviations))

    def match_rms(self, x: Value, like: Value, eps: float) -> Value:
        """x, scaled to the root mean square of `like`; see `MatchRms`."""
        return self._emit(pointwise.MatchRms(x, like, self._value("matched", x.dim), eps))

    def sigmoid_gate(self, x: Value, gate: Value) -> Value:
        """x * sigmoid(gate), gate [T, 1] or as wide as x."""
        return self._emit(pointwise.SigmoidGate(x, gate, self._value("gated", x.dim)))

    def route(self, logits: Value, routing: Routing, bias: Tensor | None = None) -> Value:
        """The weights [T, E] of the experts that each row of `logits` selects. `bias`: E numbers
        that affect only the selection."""
        out = self._value("routes", logits.dim)
        slot = None
        if bias is not None:
            name = self._unique(f"{self._scope}route.bias")
            slot = Param(name, (prod(bias.slot_shape),), (bias,))
        return self._emit(ops.Route(logits, out, bias=slot, **asdict(routing)))

    def experts(
        self,
        x: Value,
        routes: Value,
        weights: ExpertTensors,
        top_k: int,
        act: ops.Activation,
        *,
        weighs_inputs: bool = False,
    ) -> Value:
        """The weighted sum of the selected experts' MLPs of x."""
        out = self._value("experts", x.dim)
        op = ops.Experts(
            x, routes, out,
            self._experts_param("experts.gate_up.weight", weights.gate_up, routes.dim, x.dim),
            self._experts_param("experts.down.weight", weights.down, routes.dim, weights.width),
            top_k, act,
            self._optional_param("experts.gate_up.bias", weights.gate_up_bias),
            self._optional_param("experts.down.bias", weights.down_bias),
            weighs_inputs, gated=weights.gated,
        )  # fmt: skip
        return self._emit(op)

    def _experts_param(
        self, hint: str, parts: tuple[Tensor, ...], num_experts: int, k: int
    ) -> Param:
        """A slot [E, N, K] whose parts contain its rows in order."""
        rows = sum(part.num_rows for part in parts)
        return Param(
            self._unique(f"{self._scope}{hint}"), (num_experts, rows // num_experts, k), parts
        )

    def relative_biases(self, name: str, num_buckets: int, num_heads: int) -> Param:
        """The checkpoint's tensor [buckets, N] of biases that layers share, see `Attention`."""
        tensor = Tensor(name, (num_buckets, num_heads))
        return Param(self._unique("relative_biases"), (num_buckets * num_heads,), (tensor,))

    def chosen_rows(self, x: Value, tensor: Tensor, rows: Sequence[int], hint: str) -> Value:
        """x times some rows of the matrix `tensor`, one number for each."""
        parts = tuple(replace(tensor, rows=((row, 1),)) for row in rows)
        return self._emit(
            ops.Linear(
                x, (self._value(hint, len(rows)),), self._param(f"{hint}.weight", parts), None, True
            )
        )

    def rows_in(self, *dims: int, vocab_size: int = 0) -> tuple[Value, ...]:
        """The rows that are given with the step, in parts of these widths. `vocab_size`: as of
        `RowsIn`."""
        outs = tuple(self._value("given", dim) for dim in dims)
        self._ops.append(ops.RowsIn(outs, vocab_size))
        return outs

    def rows_out(self, x: Value) -> None:
        """Gives the rows of x to the caller of a step."""
        self._ops.append(ops.RowsOut(x))

    def take_rows(self, x: Value) -> Value:
        """The rows of x whose results are wanted."""
        return self._emit(ops.TakeRows(x, self._value("taken", x.dim)))

    def mean_rows(self, x: Value) -> Value:
        """The mean of x over each request's tokens, see `MeanRows`."""
        return self._emit(ops.MeanRows(x, self._value("mean", x.dim)))

    def vectors(self, x: Value) -> Value:
        """Ends the program: its result is x."""
        return self._emit(ops.Vectors(x, self._value("vectors", x.dim)))

    def logits(
        self,
        x: Value,
        tensor: Tensor,
        *,
        bias: str | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
        is_taken: bool = False,
    ) -> Value:
        """Ends the program: logits of the rows of x that need them, by the head `tensor` [V, D]
        and the checkpoint's `bias` [V], if it has one. `is_taken`: x has no other rows.

        A head that is the embedding's own tensor shares the embedding's slot.
        """
        taken = x if is_taken else self.take_rows(x)
        out = self._value("logits", tensor.shape[0])
        tied = (op.table for op in self._ops if isinstance(op, ops.Embed))
        shared = next((table for table in tied if table.parts == (tensor,)), None)
        head = shared or self._param("lm_head", (tensor,))
        slot = None
        if bias is not None:
            slot = self._param("lm_head.bias", (Tensor(bias, (tensor.shape[0],)),))
        return self._emit(ops.Logits(taken, out, head, slot, scale, softcap))


@dataclass(frozen=True, slots=True)
class Out:
    """One product of a stacked linear: its name, checkpoint prefix, rows and bias.

    `rows`: the rows of this product in a checkpoint tensor of `total` rows that also contains rows
    of other products; see `Tensor`.
    """

    hint: str
    prefix: str
    dim: int
    bias: bool = False
    rows: tuple[tuple[int, int], ...] | None = None
    total: int = 0

    @classmethod
    def stacked(cls, prefix: str, dims: Sequence[tuple[str, int]], bias: bool = False) -> list[Out]:
        """Products of one tensor, which has the rows of each after those of the one before. `dims`:
        their hints and numbers of rows."""
        total, first, outs = sum(dim for _, dim in dims), 0, []
        for hint, dim in dims:
            outs.append(cls(hint, prefix, dim, bias, ((first, dim),), total))
            first += dim
        return outs

    def tensor(self, kind: str, row: tuple[int, ...]) -> Tensor:
        """The tensor of the weight or the bias. `row`: shape of its rows."""
        if self.rows is None:
            return Tensor(f"{self.prefix}.{kind}", (self.dim, *row))
        return Tensor(f"{self.prefix}.{kind}", (self.total, *row), rows=self.rows)


def _joined(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Joins parts that are adjacent rows of one tensor."""
    joined: list[Tensor] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.rows and part.rows and last.name == part.name:
            joined[-1] = replace(last, rows=_merged(last.rows + part.rows))
        else:
            joined.append(part)
    return tuple(
        replace(part, rows=None) if part.rows == ((0, part.shape[0]),) else part for part in joined
    )


def _merged(runs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, count in runs:
        if merged and sum(merged[-1]) == first:
            merged[-1] = (merged[-1][0], merged[-1][1] + count)
        else:
            merged.append((first, count))
    return tuple(merged)
