"""vLLM's engine arguments that are not in `EngineArgs`: their defaults, and the reasons.

A script written for vLLM often sets defaults explicitly: values without effect are accepted. Any
other value is refused with the reason, never ignored. Tables; read by `names.py`, by the command
line, and by lists of the differences.
"""

from __future__ import annotations

from quire.config.unsupported.entry import Unsupported
from quire.config.unsupported.refused import REFUSED
from quire.config.unsupported.without_effect import WITHOUT_EFFECT

__all__ = ["UNSUPPORTED", "Unsupported"]

UNSUPPORTED: dict[str, Unsupported] = {
    **{
        name: Unsupported(name, values[0], reason, values[1:])
        for reason, names in REFUSED.items()
        for name, values in names.items()
    },
    **{
        name: Unsupported(name, default, reason, is_refused=False)
        for reason, names in WITHOUT_EFFECT.items()
        for name, default in names.items()
    },
}
