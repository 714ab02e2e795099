"""What one rendering of a chat template may use up, and checks before anything large is made.

Called by `template_sandbox` alone. Each check looks at operands and arguments, so that a
value beyond the bound is never built.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jinja2

MAX_STEPS = 1_000_000
"""Rounds of loops and calls of macros in one rendering."""
MAX_TEXT = 1 << 24
"""Characters printed in one rendering, and in any one string; also the items of a list."""
MAX_SECONDS = 10.0
_MAX_WIDTH = 100_000
"""Largest number that may ask for padding, indentation or repetition."""
_MAX_INT_BITS = 4096
_WIDE = re.compile(r"\d{6}|\*")
_WIDTH_METHODS = {"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map"}
_SIZED = (str, bytes, list, tuple)


class TemplateLimitError(jinja2.TemplateError):
    """A template went beyond a bound of this module."""


@dataclass(slots=True)
class _Budget:
    """What a rendering may still use up."""

    steps: int
    text: int
    deadline: float


_budget: ContextVar[_Budget | None] = ContextVar("quire_template_budget", default=None)


@contextmanager
def new_budget() -> Iterator[None]:
    """Bounds what this thread or task renders inside."""
    token = _budget.set(_Budget(MAX_STEPS, MAX_TEXT, time.monotonic() + MAX_SECONDS))
    try:
        yield
    finally:
        _budget.reset(token)


def take_step() -> None:
    """Called in every round of a loop and every call of a macro."""
    budget = _budget.get()
    if budget is None:
        return
    budget.steps -= 1
    if budget.steps < 0:
        raise TemplateLimitError(f"the template takes more than {MAX_STEPS} steps")
    if time.monotonic() > budget.deadline:
        raise TemplateLimitError(f"the template takes more than {MAX_SECONDS:.0f} s")


def spend_text(num_chars: int) -> None:
    """Called before text is printed."""
    budget = _budget.get()
    if budget is None:
        return
    budget.text -= num_chars
    if budget.text < 0:
        raise TemplateLimitError(f"the template gives more than {MAX_TEXT} characters")


def count_printed(value: Any) -> Any:
    """The environment's `finalize`: sees every printed value."""
    budget = _budget.get()
    if budget is None:
        return value
    text = value if isinstance(value, str) else str(value)
    spend_text(len(text))
    return text


def check_size(size: int) -> None:
    """Raises TemplateLimitError for a string or list that would be too large."""
    if size > MAX_TEXT:
        raise TemplateLimitError(f"the template makes a value of more than {MAX_TEXT} items")


def checked(value: Any) -> Any:
    """The value itself, if it is not too large."""
    if isinstance(value, _SIZED):
        check_size(len(value))
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Before `+`, `*`, `**` and `%`: what would they make?"""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, int):
            if value.bit_length() > _MAX_INT_BITS or (operator == "**" and abs(value) > 64):
                raise TemplateLimitError("the template makes too large a number")
        elif isinstance(value, _SIZED):
            if operator == "*" and isinstance(times, int):
                check_size(len(value) * max(times, 0))
            elif operator == "+" and isinstance(times, _SIZED):
                check_size(len(value) + len(times))
    if operator == "%" and isinstance(left, (str, bytes)):
        _check_format(str(left), right if isinstance(right, tuple) else (right,))


def _check_format(pattern: str, values: Any) -> None:
    if _WIDE.search(pattern):
        raise TemplateLimitError("the template formats with a width that is too large or variable")
    _check_widths(values)


def _check_widths(values: Any) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise TemplateLimitError(f"the template asks for a width of {value!r:.30}")


def check_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Methods of strings whose result can be much larger than what they are given."""
    text = getattr(method, "__self__", None)
    if not isinstance(text, str):
        return
    name = getattr(method, "__name__", "")
    if name in ("format", "format_map"):
        if re.search(r"\d{6}|\{[^}]*\{", text):
            raise TemplateLimitError("the template formats with too large or variable a width")
    elif name in _WIDTH_METHODS:
        _check_widths((*args, *kwargs.values()))
    elif name == "replace" and len(args) >= 2:
        _check_replace(text, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], (list, tuple)):
        _check_join(text, args[0])


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        check_size(len(text) + text.count(old) * len(new))


def _check_join(separator: str, values: Any) -> None:
    total = 0
    for value in values:
        total += len(separator) + (len(value) if isinstance(value, str) else 0)
    check_size(total)


def guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments and its result bounded."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        values = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _check_widths((*values[1:], *kwargs.values()))
        if name == "replace" and len(values) >= 3:
            _check_replace(str(values[0]), str(values[1]), str(values[2]))
        elif name == "join" and values and isinstance(values[0], (list, tuple)):
            _check_join(str(values[1]) if len(values) > 1 else str(kwargs.get("d", "")), values[0])
        elif name == "format" and values:
            _check_format(str(values[0]), values[1:])
        return checked(function(*args, **kwargs))

    return guarded
