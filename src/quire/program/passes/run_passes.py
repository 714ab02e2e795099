"""Runs all passes in order. The result is the program that is planned, packed, counted and
compiled.

Called only by `planning`, so that no program misses a pass. Backends may transform the result
further: the CPU backend does so in `backends/cpu/lowering/fuse.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.config.quantization import Quantization
from quire.config.ranks import Rank
from quire.errors import ConfigError
from quire.program.passes.cut import cut
from quire.program.passes.quantise_weights import quantise_weights
from quire.program.passes.shard import shard
from quire.program.passes.take_rows_early import take_rows_early
from quire.program.program import Program


def run_passes(
    program: Program, quantization: Quantization | Literal["dense"] | None = None
) -> Program:
    """A model's program for backends. `quantization` None: weights stay in the model's dtype."""
    program = quantise_weights(program, quantization or "dense")
    return take_rows_early(program)


@dataclass(frozen=True, slots=True)
class PartOfProgram:
    """The part of a program that one rank computes."""

    program: Program
    first_memory: int
    """The memory of the whole program that is memory 0 of this one."""


def of_rank(program: Program, rank: Rank) -> PartOfProgram:
    """The part of a rank of a program that has been through the other passes. Raises ConfigError if
    the model cannot be split so."""
    if program.num_sources and rank.num_stages > 1:
        raise ConfigError(
            f"pipeline_parallel_size must be 1: every layer of {program.name} attends to the rows "
            "of an encoder; use tensor_parallel_size"
        )
    stages = cut(program, rank.num_stages)
    first_memory = sum(len(stage.memories()) for stage in stages[: rank.stage])
    return PartOfProgram(shard(stages[rank.stage], rank.tensor, rank.tensor_size), first_memory)
