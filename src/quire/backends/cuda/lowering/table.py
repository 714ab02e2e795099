"""The function that lowers each kind of op, and the modules that have kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from quire.backends.cuda.kernel import Kernel
from quire.backends.cuda.lowering import (
    adapters,
    attention,
    caller_rows,
    coded,
    linear,
    lookup,
    norm,
    pointwise,
    products,
    ranks,
    results,
    rope,
    rows,
    sampling,
)
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.lowering.layers import (
    experts,
    heads,
    latent,
    recurrent,
    route,
    uncached,
)
from quire.backends.cuda.lowering.results import Result, lower_result
from quire.program import (
    Act,
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
    KeepSources,
    LayerNorm,
    LearnedPositions,
    Linear,
    Mamba,
    MatchRms,
    MeanRows,
    Op,
    Outliers,
    PositionScale,
    RmsNorm,
    Rope,
    Route,
    RowScale,
    RowsIn,
    RowsOut,
    Scale,
    SigmoidGate,
    SoftCap,
    SourcesEnd,
    Ssd,
    TakeRows,
    TokenTypes,
    Weigh,
    Xielu,
)


def _lower_attention(op: Attention, lowering: Lowering) -> Emit:
    """One of the kinds of attention."""
    if op.is_latent:
        return latent.lower_latent_attention(op, lowering)
    if op.layer is None:
        return uncached.lower_uncached_attention(op, lowering)
    return attention.lower_attention(op, lowering)


LOWERINGS: Mapping[type[Op], Callable[[Any, Lowering], Emit]] = {
    Act: pointwise.lower_act,
    Add: pointwise.lower_add,
    Attention: _lower_attention,
    Between: rows.lower_between,
    CausalConv: recurrent.lower_causal_conv,
    Clamp: pointwise.lower_clamp,
    Columns: pointwise.lower_columns,
    Embed: lookup.lower_embed,
    EmbedSlices: lookup.lower_embed_slices,
    Experts: experts.lower_experts,
    GatedDelta: recurrent.lower_gated_delta,
    Gather: ranks.lower_gather,
    GivenColumns: rows.lower_given_columns,
    Glu: pointwise.lower_glu,
    HeadLinear: heads.lower_head_linear,
    HeadNorm: norm.lower_head_norm,
    JoinHeads: heads.lower_join_heads,
    KeepSources: caller_rows.lower_keep_sources,
    LayerNorm: norm.lower_layer_norm,
    LearnedPositions: lookup.lower_learned_positions,
    Linear: products.lower_linear,
    Mamba: recurrent.lower_mamba,
    MatchRms: rows.lower_match_rms,
    MeanRows: rows.lower_mean_rows,
    Outliers: rows.lower_outliers,
    PositionScale: pointwise.lower_position_scale,
    RmsNorm: norm.lower_rms_norm,
    Rope: rope.lower_rope,
    Route: route.lower_route,
    RowsIn: caller_rows.lower_rows_in,
    RowScale: pointwise.lower_row_scale,
    RowsOut: caller_rows.lower_rows_out,
    Scale: pointwise.lower_scale,
    SigmoidGate: pointwise.lower_sigmoid_gate,
    SoftCap: pointwise.lower_soft_cap,
    SourcesEnd: caller_rows.lower_sources_end,
    Ssd: recurrent.lower_ssd,
    TakeRows: lookup.lower_take_rows,
    TokenTypes: lookup.lower_token_types,
    Weigh: pointwise.lower_weigh,
    Xielu: rows.lower_xielu,
}

MODULES: tuple[ModuleType, ...] = (
    adapters, attention, coded, experts, heads, latent, linear, lookup, norm, pointwise, ranks,
    recurrent, results, rope, route, rows, sampling,
)  # fmt: skip
"""Modules with a function `variants`."""


def all_kernels() -> Iterator[Kernel]:
    """Every kernel that may be launched, each once: what is compiled when a wheel is built."""
    yield from dict.fromkeys(kernel for module in MODULES for kernel in module.variants())


def lower(lowering: Lowering) -> tuple[list[tuple[Op, Emit]], Result]:
    """The ops of the program but the last, with their launches, and the last. Raises BackendError
    for an op without an entry."""
    ops: list[tuple[Op, Emit]] = []
    for op in lowering.program.ops[:-1]:
        function = LOWERINGS.get(type(op))
        if function is None:
            lowering.refuse(f"op {type(op).__name__}")
        ops.append((op, function(op, lowering)))
    result = lower_result(lowering)
    lowering.finish()
    return ops, result
