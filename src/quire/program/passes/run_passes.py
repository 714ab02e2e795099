"""All passes in their order: the program that is planned, packed, counted and compiled.

Called by `planning` alone, so that no program misses a pass. What a
backend makes of the result is its own: the CPU backend's is `backends/cpu/lowering/fuse.py`.
"""

from __future__ import annotations

from quire.program.passes.quantise_weights import quantise_weights
from quire.program.passes.take_rows_early import take_rows_early
from quire.program.program import Program
from quire.program.values import WeightFormat


def run_passes(program: Program, weight_format: WeightFormat | None = None) -> Program:
    """A model's program as backends take it. None: weights stay in the dtype."""
    program = quantise_weights(program, weight_format or "dense")
    return take_rows_early(program)
