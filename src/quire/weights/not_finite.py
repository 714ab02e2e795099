"""Warns of weights that are not finite. Called by the backends when they compile a model."""

from __future__ import annotations

from collections.abc import Collection

from quire.log import get_logger
from quire.program import Between, Program

logger = get_logger(__name__)


def warn_not_finite(program: Program, names: Collection[str]) -> None:
    """Logs one warning if tensors of the program are in `names`: their number and the first one in
    the program's order. Bounds of `Between` may be infinite."""
    if not names:
        return
    bounds = {param for op in program.ops if isinstance(op, Between) for param in op.params()}
    every = dict.fromkeys(
        part.name for param in program.params() if param not in bounds for part in param.parts
    )
    bad = [name for name in every if name in names]
    if bad:
        logger.warning(
            "weights that are not finite (NaN or infinity): in %d of %d tensors, the first is %s. "
            "Requests that use them end with an error; the checkpoint may be damaged",
            len(bad),
            len(every),
            bad[0],
        )
