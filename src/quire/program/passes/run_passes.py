"""Runs all passes in order. The result is the program that is planned, packed, counted and
compiled.

Called only by `planning`, so that no program misses a pass. Backends may transform the result
further: the CPU backend does so in `backends/cpu/lowering/fuse.py`.
"""

from __future__ import annotations

from quire.program.passes.quantise_weights import quantise_weights
from quire.program.passes.take_rows_early import take_rows_early
from quire.program.program import Program
from quire.program.values import WeightFormat


def run_passes(program: Program, weight_format: WeightFormat | None = None) -> Program:
    """A model's program for backends. `weight_format` None: weights stay in the model's dtype."""
    program = quantise_weights(program, weight_format or "dense")
    return take_rows_early(program)
