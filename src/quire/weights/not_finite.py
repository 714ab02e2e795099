"""Says it when weights are not finite. Called by the backends where they compile a model."""

from __future__ import annotations

from collections.abc import Iterable

from quire.log import get_logger
from quire.program import Program

logger = get_logger(__name__)


def warn_not_finite(program: Program, names: Iterable[str]) -> None:
    """Logs one line if there are any: the first of these tensors in the order of the program, and
    how many they are."""
    bad = set(names)
    if not bad:
        return
    every = [part.name for param in program.params() for part in param.parts]
    first = next((name for name in every if name in bad), min(bad))
    others = "" if len(bad) == 1 else f" and {len(bad) - 1} more of {len(set(every))} tensors"
    verb = "holds" if len(bad) == 1 else "hold"
    logger.warning(
        "%s%s %s numbers that are not finite (NaN or infinity): requests that meet them end with "
        "an error. The checkpoint may be damaged",
        first,
        others,
        verb,
    )
