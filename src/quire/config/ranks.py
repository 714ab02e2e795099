"""`Rank`: which part of a model a process computes. The part's program follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_RANKS = 64
"""Most ranks of an engine; those of a stage have places in one shared page."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `num_stages` x `tensor_size` ranks. Each stage has some layers; the ranks of a stage
    share their columns and heads."""

    stage: int = 0
    tensor: int = 0
    num_stages: int = 1
    tensor_size: int = 1

    @property
    def number(self) -> int:
        """From 0, as vLLM counts: the ranks of a stage are neighbours."""
        return self.stage * self.tensor_size + self.tensor

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return self.num_stages * self.tensor_size

    def all(self) -> Iterator[Rank]:
        """Every rank, in the order of their numbers."""
        for number in range(self.world_size):
            stage, tensor = divmod(number, self.tensor_size)
            yield Rank(stage, tensor, self.num_stages, self.tensor_size)

    def __str__(self) -> str:
        parts = []
        if self.num_stages > 1:
            parts.append(f"stage {self.stage} of {self.num_stages}")
        if self.tensor_size > 1:
            parts.append(f"part {self.tensor} of {self.tensor_size}")
        return f"rank {self.number}" + f" ({', '.join(parts)})" * bool(parts)


ONE_RANK = Rank()
"""The only rank of a model that is not split."""
