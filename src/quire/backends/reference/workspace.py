"""Upper bound of the memory of a step of the reference backend, from the op that needs most.

Values are counted as `ReferenceModel` holds them, with the same analysis of their lifetimes. The
other allocations of an op are bounded for each kind of op; a test compares the bounds with the
allocations that NumPy reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire import program as ops
from quire.backends.base import CompileOptions, KVCacheSpec
from quire.config.state_groups import STATE_CHUNK, StateGroup
from quire.program.pointwise_ops import PointwiseOp

_ITEM = 4
"""Values are float32."""
_STEP_BYTES = 1 << 16
_TOKEN_BYTES = 512
"""Bytes of a step and of each token besides values: checks, indices and Python objects."""
_SAMPLING_BYTES = 160
"""Bytes per token of the vocabulary while a row of logits is sampled: arrays of 8-byte items."""
_ACTIVATION_BYTES: dict[ops.Activation, int] = {
    "identity": 24,
    "relu": 32,
    "relu2": 40,
    "gelu_quick": 96,
    "silu": 72,
    "gelu_tanh": 72,
    "swiglu_oai": 96,
    "tanh": 32,
    "gelu": 192,  # erf is computed on Python's own floats
}
_TILE_ROWS = 8


def workspace_bytes(program: ops.Program, kv: KVCacheSpec, options: CompileOptions) -> int:
    """Maximum bytes that a step needs besides weights and KV cache."""
    bounds = _Bounds(kv, options)
    most = live = 0
    products = _products(program)
    unread = {product: len(values) for product, values in products.items()}
    product_of = {value: name for name, values in products.items() for value in values}
    for op, dying in zip(program.ops, ops.last_reads(program), strict=True):
        live += bounds.values(sum(value.dim for value in op.outputs()))
        most = max(most, live + bounds.temporary(op))
        for value in dying:
            product = product_of[value]
            unread[product] -= 1
            if not unread[product]:
                live -= bounds.values(sum(one.dim for one in products[product]))
    sampling = live + _SAMPLING_BYTES * program.vocab_size
    return max(most, sampling) + _STEP_BYTES + _TOKEN_BYTES * options.max_num_tokens


def _products(program: ops.Program) -> dict[str, tuple[ops.Value, ...]]:
    """The values of each op: views of one array, which goes when the last of them does."""
    return {op.outputs()[0].name: op.outputs() for op in program.ops if op.outputs()}


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds for the largest possible step."""

    kv: KVCacheSpec
    options: CompileOptions

    def values(self, width: int) -> int:
        """Bytes of values of this width."""
        return _ITEM * width * self.options.max_num_tokens

    def temporary(self, op: ops.Op) -> int:
        """Bytes that an op allocates in addition to its outputs."""
        rows = self.options.max_num_tokens
        match op:
            case ops.Embed() | ops.GivenColumns() | ops.LearnedPositions() | ops.TokenTypes():
                return 2 * self.values(op.out.dim)
            case ops.EmbedSlices():
                return 2 * self.values(op.table.shape[1])
            case ops.RmsNorm() | ops.HeadNorm() | ops.LayerNorm():
                return 40 * rows * op.x.dim  # float64
            case ops.Linear() | ops.Logits():
                return 5 * self.values(op.x.dim) + self._tiles(op.weight)
            case ops.Rope():
                return 48 * rows * op.x.dim  # angles in float64
            case ops.Attention():
                return self._attention(op)
            case ops.Glu():
                return _ACTIVATION_BYTES[op.act] * rows * op.gate.dim
            case ops.SigmoidGate():
                return 64 * rows * op.gate.dim
            case ops.HeadLinear():
                tiles = 2 * _ITEM * _TILE_ROWS * (op.x.dim + op.out.dim)
                return 3 * self.values(op.x.dim + op.out.dim) + tiles
            case ops.JoinHeads():
                return self.values(op.out.dim)
            case ops.CausalConv():
                return 48 * (rows + 2 * op.num_rows) * op.x.dim
            case ops.GatedDelta() | ops.Ssd() | ops.Mamba():
                return self._recurrence(op)
            case ops.Route():
                return 96 * rows * op.logits.dim  # float64, and places
            case ops.Experts():
                return self._experts(op)
            case ops.Act():
                return _ACTIVATION_BYTES[op.act] * rows * op.x.dim
            case ops.SoftCap():
                return 32 * rows * op.x.dim
            case ops.Outliers() | ops.MatchRms():
                return 40 * rows * op.x.dim  # float64
            case ops.Gather():
                return 2 * self.values(op.out.dim)
            case ops.Receive() | ops.Send() | ops.RowsIn() | ops.RowsOut():
                return self.values(sum(value.dim for value in (*op.inputs(), *op.outputs())))
            case ops.PositionScale() | ops.Between() | ops.Clamp() | ops.MeanRows():
                return 2 * self.values(op.x.dim)
            case ops.Add() | ops.Scale() | ops.Weigh() | ops.RowScale():
                return 0
            case PointwiseOp():
                return 80 * rows * op.outputs()[0].dim  # some arrays of float64
            case _:
                return 0

    def _tiles(self, weight: ops.Param) -> int:
        return 2 * _ITEM * _TILE_ROWS * sum(weight.shape)

    def _recurrence(self, op: ops.GatedDelta | ops.Ssd | ops.Mamba) -> int:
        """Copies of a request's state and of its rows in float64, and a chunk's outer products."""
        [memory] = op.memories()
        assert isinstance(memory.kept, StateGroup)
        [state] = memory.kept.states
        heads = sum(value.dim for value in (*op.inputs(), op.out))
        repeats = op.num_heads // op.num_key_heads if isinstance(op, ops.GatedDelta) else 1
        repeats = op.num_heads // op.num_groups if isinstance(op, ops.Ssd) else repeats
        numbers = 12 if isinstance(op, ops.Mamba) else 2 * STATE_CHUNK + 12
        return numbers * 8 * state.num_pieces * state.width + (
            24 * self.options.max_num_tokens * heads * repeats
        )

    def _experts(self, op: ops.Experts) -> int:
        """All rows may go to one expert: their x, what is inside it, and their results."""
        _, both, width = op.gate_up.shape
        columns = both // 2 if op.gated else both
        inside = _ACTIVATION_BYTES[op.act] * self.options.max_num_tokens * columns
        return (
            (6 + op.weighs_inputs) * self.values(width)
            + 5 * self.values(both)
            + 3 * self.values(op.out.dim)
            + inside
            + self._tiles(op.gate_up)
            + self._tiles(op.down)
        )

    def _attention(self, op: ops.Attention) -> int:
        """The rows that are brought into the cache's format, a request's keys and values as they
        are multiplied, and the scores of one token."""
        options, width = self.options, op.num_kv_heads * op.head_dim
        seen = options.max_model_len
        if op.window is not None:
            seen = min(seen, op.window + options.max_num_tokens)
        seen += self.kv.block_size
        return 32 * options.max_num_tokens * width + 20 * seen * width + 32 * seen * op.num_heads
