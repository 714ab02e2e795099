"""Passes: functions Program -> Program, one file each, that serve every backend.

A pass preserves the result: the reference backend gives the same values before and after, unless
the pass documents a difference, and `Program.check` still holds. `run_passes` defines their order.
The lowering of a backend is part of the backend.
"""

from quire.program.passes.give_hidden import give_hidden
from quire.program.passes.quantise_weights import quantise_weights
from quire.program.passes.run_passes import of_rank, run_passes
from quire.program.passes.shard import kv_columns
from quire.program.passes.take_rows_early import take_rows_early

__all__ = [
    "give_hidden", "kv_columns", "of_rank", "quantise_weights", "run_passes",
    "take_rows_early",
]  # fmt: skip
