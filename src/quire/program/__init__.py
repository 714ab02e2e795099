"""The program IR: a model as a flat list of ops over named values."""

from quire.program.builder import Builder, ExpertTensors, HeadLayout, Out, Rotary, Routing
from quire.program.kv_groups import check_layout, keep_all, kv_layout
from quire.program.liveness import last_reads
from quire.program.ops import (
    Act,
    Activation,
    Add,
    Attention,
    Clamp,
    Embed,
    Experts,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    Module,
    ModuleSource,
    NormKind,
    Op,
    PositionScale,
    RmsNorm,
    Rope,
    Route,
    RouteScore,
    Scale,
    SigmoidGate,
    TakeRows,
    Xielu,
)
from quire.program.place import LOGITS, OpPlace, place_of
from quire.program.printer import format_program
from quire.program.program import Program
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
    "LOGITS", "Act", "Activation", "ActivationBits", "Add", "Attention", "Builder", "Clamp",
    "Embed", "ExpertTensors", "Experts", "Glu", "GroupedFormat", "HeadLayout",
    "HeadNorm", "LayerNorm", "LearnedPositions", "Linear", "Logits", "Module", "ModuleSource",
    "NormKind", "Op", "OpPlace", "Out", "Param", "PositionScale", "Program", "RmsNorm", "Rope",
    "Rotary", "Route", "RouteScore", "Routing", "Scale", "SigmoidGate", "TakeRows", "Tensor",
    "Value", "WeightFormat", "Xielu", "check_layout", "format_program", "keep_all", "kv_layout",
    "last_reads", "place_of", "some_tokens",
]  # fmt: skip
