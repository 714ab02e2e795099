"""The ops of a program, each a frozen record over Values [T, dim] and Params.

Legend: T tokens in the step, N query heads, K kv heads, H head dim, D hidden,
F feed-forward, V vocabulary, E experts, I width of an expert. `Op.rows` says on which rows of its
inputs a row of an output depends. `backends/reference` defines the exact result of each op.

Fields named `out`/`outs` are written, every other Value field is read. Passes, planning and
backends use only the properties of an op (`rows`, `memories`, `is_repeatable`, `takes_rows_back`,
`is_result`, `gives_rows`, `is_by_column`), so a new op needs no changes there. A `KernelOp` is also
the declaration of its kernel's struct in C.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal

from quire.config.kv_groups import FullGroup, KVGroup, KVShape, LatentGroup, WindowGroup
from quire.program.values import ActivationBits, Matrix, Param, Split, Table, Value, Vector

Activation = Literal[
    "identity", "silu", "gelu", "gelu_tanh", "relu", "relu2", "gelu_quick", "swiglu_oai", "tanh"
]  # fmt: skip
"""`gelu_quick` is x * sigmoid(1.702 x); `relu2` is relu(x)^2. `swiglu_oai` is only defined for a
gate and an up: (u + 1) * g * sigmoid(1.702 g), g = min(gate, 7) and u = up between -7 and 7.
Source: openai/gpt-oss, `gpt_oss/torch/model.py`."""

NormKind = Literal["rms", "layer"]
RouteScore = Literal["softmax", "sigmoid", "sparsemixer"]
StateLayer = int
"""The number of a memory that is a state of fixed size."""


MAX_AXES = 3
"""Most axes of positions."""

RowsRead = Literal["own", "step", "request"]
"""Rows on which a row of an op's outputs depends. `own`: the same row of the inputs. `step`: also
the token id or the position of the same row, so that the op needs the rows of the whole step.
`request`: also other rows of its request, in this step or in earlier ones."""


@dataclass(frozen=True, slots=True)
class Memory:
    """State that an op keeps for each request between steps."""

    layer: int
    """Its number; a program numbers them 0, 1, ... without gaps."""
    kept: KVGroup
    """The kind of KV group that keeps it, without layers."""


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all ops: what an op reads, writes and keeps."""

    rows: ClassVar[RowsRead] = "own"
    is_repeatable: ClassVar[bool] = True
    """Whether computing a step twice gives the same values and leaves the same memories."""
    takes_rows_back: ClassVar[bool] = True
    """Whether a request can go on as if some of its last rows, all of one chunk of `STATE_CHUNK`
    tokens, had not been computed (draft tokens)."""
    is_result: ClassVar[bool] = False
    """Whether a program may end with it."""
    gives_rows: ClassVar[bool] = False
    """Whether the caller of a step gets the rows of its input, so that all of them are needed."""
    is_by_column: ClassVar[bool] = False
    """Whether a column (or a head) of its output needs the same column of each input alone."""

    def memories(self) -> tuple[Memory, ...]:
        """The state that it writes for later steps; most ops have none."""
        return ()

    def inputs(self) -> tuple[Value, ...]:
        """The values read, in field order."""
        return collect(self, Value, written=False)

    def outputs(self) -> tuple[Value, ...]:
        """The values written, in field order."""
        return collect(self, Value, written=True)

    def params(self) -> tuple[Param, ...]:
        """The weights used, in field order."""
        return collect(self, Param, written=None)


@dataclass(frozen=True, slots=True)
class KernelOp(Op):
    """Base of the ops that a kernel computes alone. The kernel's struct in C has the fields of the
    op's class: the build generates it from them (`native/generate_structs.py`). Backends convert
    other ops to ops of their own, such as products with what follows them."""

    takes_rows: ClassVar[bool] = False
    """Whether it reads all rows and writes only those that need logits."""
    reads_float32: ClassVar[bool] = True
    """Whether values that it reads stay float32 in a model of another dtype."""


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[t] = table[token_ids[t]] * scale; table is [V, D]. If the step has a row for token t:
    out[t] = row * given_scale.

    `owners`: the table has the rows of this rank alone. It writes the rows of out whose token ids
    it owns; a `Gather` brings the others.
    """

    rows: ClassVar[RowsRead] = "step"
    out: Value
    table: Table
    scale: float = 1.0
    owners: Split | None = None
    given_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class GivenColumns(Op):
    """out[t] = the numbers from `first` on of the row that the step has for token t, as many as out
    has; zeros for other tokens. `Embed` reads the first numbers of such rows.

    `vocab_size`: token ids are below it.
    """

    rows: ClassVar[RowsRead] = "step"
    out: Value
    first: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EmbedSlices(Op):
    """concat(outs)[t] = table[token_ids[t]] * scale; table is [V, W], W the sum of the outs' dims.

    A table with rows for several layers side by side (Gemma 3n). Rows that the step has for tokens
    change nothing.
    """

    rows: ClassVar[RowsRead] = "step"
    outs: tuple[Value, ...]
    table: Table
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LearnedPositions(Op):
    """out[t] = x[t] + table[positions[t] + offset]; table is [P, D]. OPT has offset 2."""

    rows: ClassVar[RowsRead] = "step"
    x: Value
    out: Value
    table: Table
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TokenTypes(Op):
    """out[t] = x[t] + table[token_types[t]]; table is [types, D]. BERT's segments."""

    rows: ClassVar[RowsRead] = "step"
    x: Value
    out: Value
    table: Table


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset); without a weight, times 1.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", eq. 4.
    """

    x: Value
    out: Value
    weight: Vector | None
    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(var(x) + eps) * (weight + weight_offset) + bias, variance over D
    not D-1.

    `weight` and `bias` may be missing (OPT without affine norms).
    """

    x: Value
    out: Value
    weight: Vector | None
    bias: Vector | None
    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadNorm(Op):
    """RmsNorm, or LayerNorm without bias, over each head's H numbers of x [T, heads * H].

    The weight is [H], the same for all heads (Qwen3), or [heads * H] (Cohere), or missing
    (Llama 4). As in RmsNorm, `weight_offset` is added to the weight (Gemma 3).
    """

    is_by_column: ClassVar[bool] = True
    x: Value
    out: Value
    weight: Vector | None
    eps: float
    num_heads: int
    head_dim: int
    weight_offset: float = 0.0
    kind: NormKind = "rms"


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """concat(outs) = x @ weight.T + bias; weight is [N, K], N the sum of the outs' dims.

    Several outs are slices of one product: q|k|v or gate|up share one pass over x. `exact`: the
    weight stays in the model's dtype when the others are quantised (routers, gates).
    """

    x: Value
    outs: tuple[Value, ...]
    weight: Matrix
    bias: Vector | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class HeadLinear(KernelOp):
    """out's head n = weight[n] @ x's head n; x is [T, N * K], weight [N, M, K], out [T, N * M]."""

    reads_float32: ClassVar[bool] = False
    x: Value
    out: Value
    weight: Matrix


@dataclass(frozen=True, slots=True)
class JoinHeads(KernelOp):
    """Each head of out has the numbers of a's head, then those of b's; all have `num_heads`."""

    reads_float32: ClassVar[bool] = False
    a: Value
    b: Value
    out: Value
    num_heads: int


@dataclass(frozen=True, slots=True)
class Rope(Op):
    """Rotary embedding of x [T, heads * H] at the tokens' positions, on the first 2*len(inv_freq)
    of each head's H numbers; the others pass through.

    Angle = position * inv_freq[i]; cos and sin are multiplied by `scale` (yarn's mscale).
    Not interleaved: pairs are (i, i + len(inv_freq)), as Hugging Face stores them;
    interleaved: (2i, 2i + 1). Source: Su et al. 2021, "RoFormer", section 3.4.2.

    `axes`: for each frequency, the axis of the step's `axis_positions` that turns it; without them,
    the tokens' positions do (Wang et al. 2024, "Qwen2-VL", section 2.1). Empty: there are
    none.
    """

    rows: ClassVar[RowsRead] = "step"
    is_by_column: ClassVar[bool] = True
    x: Value
    out: Value
    num_heads: int
    head_dim: int
    inv_freq: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Writes this step's k and v to the memory of `layer`, then attends.

    q is [T, N * H], k is [T, K * H], v is [T, K * value_dim], out is [T, N * value_dim].
    `value_dim` None: H. Without k and v, it attends to the K and V that an earlier op of the same
    `layer` has written, with the same shape and window (Gemma 3n). Query head n reads kv head n * K
    // N. A token at position p sees positions max(0, p - window + 1) .. p of its own request
    (`window` None: all), and with `is_chunked` only those of its own chunk of `window` positions,
    which begins at a multiple of it. scores = q.k * scale, then `softcap * tanh(scores / softcap)`
    if set, plus alibi_slopes[n] * (key position - p) if set. `sinks` [N], if set, add one score per
    head to the softmax, which has no value (gpt-oss).

    With k and without v the layer is latent: it has one kv head, and v is the first `value_dim`
    numbers of k, which are stored once (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, with the
    matrices of keys and values moved to q and out).

    `layer` None: nothing is kept. A token attends to all tokens of its request in the step, also to
    later ones if `is_causal` is False; a request is then computed in one step (encoders). A
    window is then mirrored: a token at p attends to positions p - window + 1 .. p + window - 1.
    ALiBi counts distances: alibi_slopes[n] * -|key position - p|.

    `spans`: a token also sees the other tokens of its span (`StepBatch.spans`); if `is_causal` is
    False, it sees its span alone.

    `relative` [buckets * N], bucket by bucket, holds numbers added to the scores of head n: a key
    at distance d = key position - p has bucket `buckets[d + len(buckets) // 2]`; more distant
    keys have the bucket of the end (MPNet, T5).

    `first_key` and `num_keys`: a token sees no positions before the one, and none from the other on
    (0: no such limit). So layers of a decoder see either the source rows of their request
    or its own tokens; see `SourcesEnd`.

    `activation_bits` 8: q and the softmax weights are 8-bit activations, like those of the linears
    around them. With an 8-bit cache a backend may then round a token's q of a head, and its softmax
    weights for 64 positions, to bytes with a scale. 16: they have at least the precision of
    bfloat16, with any cache.
    """

    rows: ClassVar[RowsRead] = "request"
    q: Value
    k: Value | None
    v: Value | None
    out: Value
    layer: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    alibi_slopes: tuple[float, ...] | None = None
    activation_bits: ActivationBits = 16
    sinks: Vector | None = None
    is_chunked: bool = False
    value_dim: int | None = None
    is_causal: bool = True
    relative: Vector | None = None
    buckets: tuple[int, ...] = ()
    spans: bool = False
    first_key: int = 0
    num_keys: int = 0

    @property
    def is_latent(self) -> bool:
        """Whether v is a part of k."""
        return self.k is not None and self.v is None

    def memories(self) -> tuple[Memory, ...]:
        """K and V of every token, or of those in the window."""
        if self.layer is None or self.k is None:
            return ()
        if self.is_latent:
            latent = KVShape(1, self.head_dim, 0, self.value_dim or 0)
            return (Memory(self.layer, LatentGroup((), latent)),)
        shape = KVShape(self.num_kv_heads, self.head_dim, self.value_dim or self.head_dim)
        kept: KVGroup = FullGroup((), shape)
        if self.window is not None:
            kept = WindowGroup((), shape, self.window)
        return (Memory(self.layer, kept),)


@dataclass(frozen=True, slots=True)
class KeepSources(Op):
    """Writes this step's k and v to the memory of `layer`, which an attention op has. Shapes and
    names are those of `Attention`."""

    k: Value
    v: Value
    layer: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class SourcesEnd(Op):
    """Divides the program of a model with an encoder (Vaswani et al. 2017, "Attention Is All You
    Need", section 3.1). The first `num_sources` positions of each request are the encoder's rows:
    the ops before this one are computed for them alone, and the ops after it for all other tokens.
    Values do not cross it; the decoder reads K and V of the sources from the cache, where
    `KeepSources` has written them.
    """

    num_sources: int


@dataclass(frozen=True, slots=True)
class Route(KernelOp):
    """Selects the experts of a token: out [T, E] has the weights of `top_k` experts, 0 elsewhere.

    score = softmax(logits) or sigmoid(logits), in float32. The experts with the largest choice are
    selected, with lower numbers first among equals. choice = logits, or score + bias if there is a
    bias. With groups (`num_groups` groups of neighbours), only experts of `top_groups` groups may
    be selected: the groups with the largest sum of their `group_best` largest choices. weight =
    score * scale, and with `normalise` score / max(sum of the chosen scores, floor) * scale. A row
    of logits that is not finite has `top_k` weights that are NaN.

    `sparsemixer` selects the expert with the largest logit m, then the one with the next largest.
    The weight of each is its softmax over the logits it was selected from, without logits s with
    (m - s) / max(|s|, m) > 2 * `jitter`. `top_k` is 2; the other fields have no effect. Source:
    Liu et al. 2024, "GRIN: GRadient-INformed MoE", as in transformers' models/phimoe.

    Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks"; for groups and the bias
    DeepSeek-AI 2024, "DeepSeek-V3", section 2.1.2.
    """

    logits: Value
    out: Value
    top_k: int
    score: RouteScore = "softmax"
    normalise: bool = True
    bias: Vector | None = None
    num_groups: int = 1
    top_groups: int = 1
    group_best: int = 1
    floor: float = 0.0
    scale: float = 1.0
    jitter: float = 0.0


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out = sum over the experts e with routes[t, e] != 0 of
    routes[t, e] * (down[e] @ (act(gate[e] @ x) * (up[e] @ x))), each with its bias if it has one.

    gate_up is [E, 2 I, D], gate's rows first; down is [E, D, I]; the biases are [E * 2 I] and
    [E * D]. Experts that are not `gated` compute down[e] @ act(up[e] @ x): gate_up is [E, I, D]. At
    most `top_k` numbers of a row of routes [T, E] are not 0. Results are added in the order of the
    experts. A token's result does not depend on other tokens: experts have no capacity limit.

    `weighs_inputs`: experts read routes[t, e] * x, rounded to x's type, and their results are added
    up without weights (Llama 4).

    `inner`: gate_up has the rows of this rank's columns of every expert's gate and up. The op
    exchanges these columns with the other ranks before `down`, which has rows of its own.
    """

    x: Value
    routes: Value
    out: Value
    gate_up: Matrix
    down: Matrix
    top_k: int
    act: Activation
    gate_up_bias: Vector | None = None
    down_bias: Vector | None = None
    weighs_inputs: bool = False
    inner: Split | None = None
    gated: bool = True


@dataclass(frozen=True, slots=True)
class TakeRows(KernelOp):
    """Keeps only the rows that need logits: out is [L, dim], L = len(batch.logits_rows)."""

    rows: ClassVar[RowsRead] = "step"
    is_by_column: ClassVar[bool] = True
    takes_rows: ClassVar[bool] = True
    x: Value
    out: Value


@dataclass(frozen=True, slots=True)
class MeanRows(KernelOp):
    """out[l] = the mean of x over the tokens of the request of batch.logits_rows[l], all of which
    the step has. Sums of 16 tokens, counted from the first of the request, are added in order.
    Where batch.unpooled is set, out[l] = x[batch.logits_rows[l]]."""

    rows: ClassVar[RowsRead] = "request"
    takes_rows: ClassVar[bool] = True
    x: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Vectors(Op):
    """A result: the rows of x [L, D] in float32."""

    is_result: ClassVar[bool] = True
    x: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Logits(Op):
    """A result: float32 logits [L, V] = x @ weight.T * scale, then soft cap if set.

    `columns`: the weight and the bias have the rows of this rank. The op exchanges its columns with
    the other ranks.
    """

    is_result: ClassVar[bool] = True
    x: Value
    out: Value
    weight: Matrix
    bias: Vector | None = None
    scale: float = 1.0
    softcap: float | None = None
    columns: Split | None = None


@dataclass(frozen=True, slots=True)
class Gather(Op):
    """out = x of all ranks. By columns, x has this rank's columns of out. By owner, x is as wide as
    out, and each rank has the rows whose token ids are in its span of `split`.

    Every rank of the group takes part, in the same order of ops.
    """

    rows: ClassVar[RowsRead] = "step"
    x: Value
    out: Value
    split: Split
    by: Literal["columns", "owner"] = "columns"


@dataclass(frozen=True, slots=True)
class Columns(Op):
    """out = the columns of x from `first` on, as many as out has."""

    x: Value
    out: Value
    first: int


@dataclass(frozen=True, slots=True)
class RowsIn(Op):
    """concat(outs) = the rows that are given with the step (`StepBatch.rows_in`).

    `vocab_size`: token ids are below it, in a program that looks up none; otherwise 0.
    """

    rows: ClassVar[RowsRead] = "step"
    outs: tuple[Value, ...]
    vocab_size: int = 0


@dataclass(frozen=True, slots=True)
class RowsOut(Op):
    """Gives the rows of x to the caller (`StepOutput.rows_out`), which gets those of all such ops
    side by side. The values of these ops have the same rows: all of the step, or those that need
    logits."""

    gives_rows: ClassVar[bool] = True
    x: Value


@dataclass(frozen=True, slots=True)
class Receive(Op):
    """outs = the values that the stage before this one has sent. The first op of a stage.

    `vocab_size`: token ids are below it.
    """

    rows: ClassVar[RowsRead] = "step"
    outs: tuple[Value, ...]
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Send(Op):
    """A result: hands the values to the next stage. The last op of a stage."""

    is_result: ClassVar[bool] = True
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """A class of transformers, and the text of the config.json for its constructor."""

    class_name: str
    config: str

    def __str__(self) -> str:
        return self.class_name


@dataclass(frozen=True, slots=True)
class Module(Op):
    """A whole model as one op, the only one of its program: a module of transformers computes the
    logits [L, V] of token ids and positions.

    `layers` describe the contents of the KV cache; their values are only names. The module gets the
    tokens of a request in pieces of `piece` positions, which begin at multiples of `piece`; places
    without a token of the step are padded. So a token always has the same place in products of the
    same size, for any division of the tokens into steps.
    """

    rows: ClassVar[RowsRead] = "request"
    is_result: ClassVar[bool] = True
    out: Value
    source: ModuleSource
    weights: tuple[Param, ...]
    layers: tuple[Attention, ...]
    piece: int

    def memories(self) -> tuple[Memory, ...]:
        """The memories of its layers."""
        return tuple(one for op in self.layers for one in op.memories())


def collect(op: Any, kind: type, written: bool | None) -> tuple:  # type: ignore[type-arg]
    """The values of this kind in the fields of a dataclass, in order. `written`: only those of
    `out` and `outs`, or only those of the others; None: all."""
    found = []
    for name in _field_names(op.__class__, written):
        value = getattr(op, name)
        if isinstance(value, kind):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in value if isinstance(item, kind)]
    return tuple(found)


@cache
def _field_names(record: Any, written: bool | None) -> tuple[str, ...]:
    names = (field.name for field in fields(record))
    return tuple(n for n in names if written is None or (n in ("out", "outs")) is written)
