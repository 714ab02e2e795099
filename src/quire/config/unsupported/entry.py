"""`Unsupported`: what is known of an argument that does nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
