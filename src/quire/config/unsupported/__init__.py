"""vLLM's engine arguments that are not in `EngineArgs`: their defaults, and the reasons.

A script written for vLLM often sets defaults explicitly: values without effect are accepted. Any
other value is refused with the reason, never ignored. Tables; read by `names.py`, by the command
line, and by lists of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.config.unsupported.refused import REFUSED
from quire.config.unsupported.without_effect import WITHOUT_EFFECT


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One argument of vLLM that does nothing here."""

    name: str
    default: object
    """vLLM's; of a configuration object, its fields that have a meaning here, as a dict."""
    reason: str
    """Why another value is refused, or why no value has an effect."""
    also: tuple[object, ...] = ()
    """Further values that mean the same here."""
    is_refused: bool = True
    """False: no value has an effect, so that every value is accepted (and logged)."""

    def accepts(self, value: object) -> bool:
        """Whether the value changes nothing here; None is vLLM's word for its default."""
        if value is None or not self.is_refused:
            return True
        return any(_is_same(value, allowed) for allowed in (self.default, *self.also))


def _is_same(value: object, allowed: object) -> bool:
    """Equal, and True is not 1; a dict may leave out what has its default."""
    if isinstance(value, Mapping) and isinstance(allowed, Mapping):
        return all(key in allowed and _is_same(value[key], allowed[key]) for key in value)
    if isinstance(allowed, list) and isinstance(value, (list, tuple, set, frozenset)):
        return list(value) == allowed
    if any(one is None or isinstance(one, bool) for one in (value, allowed)):
        return value is allowed
    return isinstance(value, (int, float, str)) and value == allowed


__all__ = ["UNSUPPORTED", "Unsupported", "unsupported"]


def unsupported(
    refused: Mapping[str, Mapping[str, tuple[object, ...]]],
    without_effect: Mapping[str, Mapping[str, object]],
) -> dict[str, Unsupported]:
    """By name, from tables by reason. `refused`: the values without effect, vLLM's default first;
    `without_effect`: the default."""
    return {
        **{
            name: Unsupported(name, values[0], reason, values[1:])
            for reason, names in refused.items()
            for name, values in names.items()
        },
        **{
            name: Unsupported(name, default, reason, is_refused=False)
            for reason, names in without_effect.items()
            for name, default in names.items()
        },
    }


UNSUPPORTED = unsupported(REFUSED, WITHOUT_EFFECT)
