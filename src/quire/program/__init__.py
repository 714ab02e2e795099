"""The program IR: a model as a flat list of ops over named values."""

from quire.program.builder import Builder, HeadLayout, Out, Rotary
from quire.program.kv_groups import check_layout, keep_all, kv_layout
from quire.program.liveness import last_reads
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
from quire.program.place import LOGITS, OpPlace, place_of
from quire.program.printer import format_program
from quire.program.program import Program
from quire.program.values import ActivationBits, Param, Tensor, Value, WeightFormat

__all__ = [
    "LOGITS", "Act", "Activation", "ActivationBits", "Add", "Attention", "Builder", "Embed", "Glu",
    "HeadLayout", "HeadNorm", "LayerNorm", "LearnedPositions", "Linear", "Logits", "Op", "OpPlace",
    "Out", "Param", "Program", "RmsNorm", "Rope", "Rotary", "Scale", "TakeRows", "Tensor",
    "Value", "WeightFormat", "check_layout", "format_program", "keep_all", "kv_layout",
    "last_reads", "place_of",
]  # fmt: skip
