"""The program IR: a model as a flat list of ops over named values."""

from quire.program.builder import Builder, ExpertTensors, HeadLayout, Out, Rotary, Routing
from quire.program.kv_groups import check_layout, keep_all, kv_layout, layout_of_rank
from quire.program.liveness import last_reads
from quire.program.ops import (
    MAX_AXES,
    Activation,
    Attention,
    Columns,
    Embed,
    EmbedSlices,
    Experts,
    Gather,
    GivenColumns,
    HeadLinear,
    HeadNorm,
    JoinHeads,
    KeepSources,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    MeanRows,
    Memory,
    Module,
    ModuleSource,
    NormKind,
    Op,
    Receive,
    RmsNorm,
    Rope,
    Route,
    RowsIn,
    RowsOut,
    Send,
    SourcesEnd,
    TakeRows,
    TokenTypes,
    Vectors,
)
from quire.program.place import LOGITS, OpPlace, place_of
from quire.program.pointwise_ops import (
    Act,
    Add,
    Between,
    Clamp,
    Glu,
    MatchRms,
    Outliers,
    PositionScale,
    RowScale,
    Scale,
    SigmoidGate,
    SoftCap,
    Weigh,
    Xielu,
)
from quire.program.program import Program
from quire.program.recurrent_ops import CausalConv, GatedDelta, Mamba, Ssd
from quire.program.some_tokens import some_tokens
from quire.program.values import (
    ActivationBits,
    GroupedFormat,
    Param,
    Split,
    Tensor,
    Value,
    WeightFormat,
)

__all__ = [
    "LOGITS", "MAX_AXES", "Act", "Activation", "ActivationBits", "Add", "Attention", "Between",
    "Builder", "CausalConv", "Clamp", "Columns", "Embed", "EmbedSlices", "ExpertTensors", "Experts",
    "GatedDelta", "Gather", "GivenColumns", "Glu", "GroupedFormat", "HeadLayout", "HeadLinear",
    "HeadNorm", "JoinHeads", "KeepSources", "LayerNorm", "LearnedPositions", "Linear", "Logits",
    "Mamba", "MatchRms", "MeanRows", "Memory", "Module", "ModuleSource", "NormKind", "Op",
    "OpPlace", "Out", "Outliers", "Param", "PositionScale", "Program", "Receive", "RmsNorm", "Rope",
    "Rotary", "Route", "Routing", "RowScale", "RowsIn", "RowsOut", "Scale",
    "Send", "SigmoidGate", "SoftCap", "SourcesEnd", "Split", "Ssd", "TakeRows", "Tensor",
    "TokenTypes", "Value", "Vectors", "Weigh", "WeightFormat", "Xielu", "check_layout",
    "keep_all", "kv_layout", "last_reads", "layout_of_rank", "place_of", "some_tokens",
]  # fmt: skip
