"""The program IR: a model as a flat list of ops over named values."""

from quire.program.building.builder import Builder, ExpertTensors, HeadLayout, Out, Rotary, Routing
from quire.program.kv_groups import check_layout, keep_all, kv_layout
from quire.program.liveness import last_reads
from quire.program.ops import (
    Act,
    Activation,
    Add,
    Attention,
    Clamp,
    Embed,
    EmbedSlices,
    Experts,
    Glu,
    HeadLinear,
    HeadNorm,
    JoinHeads,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    MatchRms,
    MeanRows,
    Memory,
    Module,
    ModuleSource,
    NormKind,
    Op,
    Outliers,
    PositionScale,
    RmsNorm,
    Rope,
    Route,
    RouteScore,
    RowScale,
    Scale,
    SigmoidGate,
    SoftCap,
    TakeRows,
    TokenTypes,
    Vectors,
    Weigh,
    Xielu,
)
from quire.program.place import LOGITS, OpPlace, place_of
from quire.program.program import Program
from quire.program.recurrent_ops import CausalConv, GatedDelta, Mamba, Ssd
from quire.program.some_tokens import some_tokens
from quire.program.values import (
    ActivationBits,
    GroupedFormat,
    Param,
    Tensor,
    Value,
    WeightFormat,
)

__all__ = [
    "LOGITS", "Act", "Activation", "ActivationBits", "Add", "Attention", "Builder", "CausalConv",
    "Clamp", "Embed", "EmbedSlices", "ExpertTensors", "Experts", "GatedDelta", "Glu",
    "GroupedFormat", "HeadLayout", "HeadLinear", "HeadNorm", "JoinHeads", "LayerNorm",
    "LearnedPositions", "Linear", "Logits", "Mamba", "MatchRms", "MeanRows", "Memory", "Module",
    "ModuleSource", "NormKind", "Op", "OpPlace", "Out", "Outliers", "Param", "PositionScale",
    "Program", "RmsNorm", "Rope", "Rotary", "Route", "RouteScore", "Routing", "RowScale", "Scale",
    "SigmoidGate", "SoftCap", "Ssd", "TakeRows", "Tensor", "TokenTypes", "Value", "Vectors",
    "Weigh", "WeightFormat", "Xielu", "check_layout", "keep_all", "kv_layout", "last_reads",
    "place_of", "some_tokens",
]  # fmt: skip
