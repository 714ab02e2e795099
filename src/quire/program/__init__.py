"""The program IR: a model as a flat list of ops over named values."""

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
from quire.program.values import Param, Shard, Tensor, Value, WeightFormat

__all__ = [
    "Act", "Activation", "Add", "Attention", "Embed", "Glu", "HeadNorm", "LayerNorm",
    "LearnedPositions", "Linear", "Logits", "Op", "Param", "Program", "RmsNorm", "Rope",
    "Scale", "Shard", "TakeRows", "Tensor", "Value", "WeightFormat",
]  # fmt: skip
