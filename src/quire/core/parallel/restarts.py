"""Engines that have died and are started again: `Restarts`, how often and after what pause; and
`CarriedState`, what commands have made of all engines, for one that is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from quire.core.pausing import MEMORY_TAGS, check_tags
from quire.errors import ConfigError
from quire.system import clock

DEFAULT_RESTARTS = 3
_WINDOW_S = 600.0
"""An engine that has worked for so long may die as often as a new one."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(slots=True)
class Restarts:
    """The deaths of several engines. One thread."""

    limit: int
    """Most restarts of an engine within ten minutes."""
    now: Callable[[], float] = clock.now
    _deaths: dict[int, list[float]] = field(default_factory=dict)

    def pause_after_death(self, engine: int) -> float | None:
        """An engine has died: the seconds until it is to be started again, which double each time;
        None: no more."""
        now = self.now()
        recent = [time for time in self._deaths.get(engine, []) if now - time < _WINDOW_S]
        self._deaths[engine] = [*recent, now]
        if len(recent) >= self.limit:
            return None
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** len(recent))


_READS = frozenset({"check_health", "get_model_inspection", "rank_stats"})
"""Methods of the worker after which it is what it was before."""


class CarriedState:
    """Pauses and sleep, which a new engine takes over, and whether the weights were replaced, which
    it could not take over."""

    def __init__(self) -> None:
        self.replaced_by: str | None = None
        """The method of the workers that may have replaced weights."""
        self._mode: str | None = None
        self._asleep: set[str] = set()

    @contextmanager
    def during(self, command: str, args: Sequence[Any]) -> Iterator[None]:
        """While engines carry out a command, which some may have done and others not."""
        before = self.replaced_by
        if command == "pause":
            self._mode = args[0]
        is_of_files = list(args) == ["reload_weights", [], {}]  # a new engine reads the same ones
        method = str(args[0]) if replaces_weights(command, args) and not is_of_files else None
        self.replaced_by = method or before
        try:
            yield
        except ConfigError:  # it was refused
            self.replaced_by = before
            raise
        self.replaced_by = method or self.replaced_by

    def note(self, command: str, args: Sequence[Any]) -> None:
        """An engine has carried out a command."""
        if command == "sleep":
            self._asleep |= {0: set(), 1: {"kv_cache"}, 2: set(MEMORY_TAGS)}[args[0]]
        elif command == "release_kv_cache_memory":
            self._asleep.add("kv_cache")
        elif command == "wake_up":
            self._asleep -= set(check_tags(args[0]))
        if command in ("resume", "wake_up") and not self._asleep:
            self._mode = None

    def commands(self) -> list[tuple[str, list[Any]]]:
        """Commands that bring a new engine into this state."""
        if self._mode is None:
            return []
        found: list[tuple[str, list[Any]]] = [("pause", [self._mode])]
        if self._asleep:
            found.append(("sleep", [2 if "weights" in self._asleep else 1]))
            if "kv_cache" not in self._asleep:
                found.append(("wake_up", [["kv_cache"]]))
        return found


def replaces_weights(command: str, args: Sequence[Any]) -> bool:
    """Whether other weights may be used after a command, perhaps only where it was carried out."""
    return command == "collective_rpc" and args[0] not in _READS
