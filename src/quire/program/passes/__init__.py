"""Passes: functions Program -> Program, one file each, that serve every backend.

A pass keeps the meaning: the reference gives the same values before and after, or the pass says
why not, and `Program.check` still holds. `run_passes` is their order. A backend's own lowering
lives with the backend.
"""

from quire.program.passes.quantise_weights import quantise_weights
from quire.program.passes.run_passes import PartOfProgram, of_rank, run_passes
from quire.program.passes.take_rows_early import take_rows_early

__all__ = ["PartOfProgram", "of_rank", "quantise_weights", "run_passes", "take_rows_early"]
