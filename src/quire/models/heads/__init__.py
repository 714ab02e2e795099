"""Draft heads: small programs that read hidden states of the model for which they draft."""

from quire.models.heads.choice import HEADS, head_program
from quire.models.heads.mark import OPTIONAL, is_head, own_name, with_head, without_head
from quire.models.heads.target import HeadProgram, Target

__all__ = [
    "HEADS", "OPTIONAL", "HeadProgram", "Target", "head_program", "is_head", "own_name", "with_head",
    "without_head",
]  # fmt: skip
