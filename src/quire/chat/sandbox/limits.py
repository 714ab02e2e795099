"""Limits of one rendering: steps, printed characters and processor time.

`new_budget` sets the `Budget` of a rendering. `environment` subtracts from it in every round of a
loop, every call, every filter and every printed value. Limits of a single value are in `sizes`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jinja2

from quire.chat.job import MAX_STEPS, MAX_TEXT, TOO_LONG

_STEPS_PER_CLOCK_CHECK = 16
_MAX_PRINTED = 4 * MAX_TEXT
"""Characters printed in one rendering; text that macros return is printed again."""


class TemplateLimitError(jinja2.TemplateError):
    """A template exceeded a limit of this package."""


@dataclass(slots=True)
class Budget:
    """What is left of a rendering's limits."""

    steps: int
    text: int
    deadline: float
    """In processor time of this process, which does not depend on the machine's load."""
    max_seconds: float


_budget: ContextVar[Budget] = ContextVar("quire_template_budget")


@contextmanager
def new_budget(max_seconds: float) -> Iterator[None]:
    """Limits what this thread or task compiles and renders in the `with` block."""
    deadline = time.process_time() + max_seconds
    token = _budget.set(Budget(MAX_STEPS, _MAX_PRINTED, deadline, max_seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def take_step() -> None:
    """Called before every operation that takes time. Raises TemplateLimitError."""
    budget = _budget.get()
    budget.steps -= 1
    if budget.steps < 0:
        raise TemplateLimitError(f"it takes more than {MAX_STEPS} steps")
    if not budget.steps % _STEPS_PER_CLOCK_CHECK and time.process_time() > budget.deadline:
        raise TemplateLimitError(TOO_LONG.format(budget.max_seconds))


def spend_text(num_chars: int) -> None:
    """Called before text is printed. Raises TemplateLimitError."""
    budget = _budget.get()
    budget.text -= num_chars
    if budget.text < 0:
        raise TemplateLimitError(f"it prints more than {_MAX_PRINTED} characters")


def counted(items: Iterable[Any]) -> Iterator[Any]:
    """The same items; each counts as a step."""
    for item in items:
        take_step()
        yield item


class CountedLoop:
    """The iterable of a template's `for` loop: each round counts as a step."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return counted(self._items)
