"""Limits of one rendering: steps, printed characters and processor time, and the sizes of values.

`new_budget` sets the `Budget` of a rendering. `environment` subtracts from it in every round of a
loop, every call, every filter and every printed value.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.utils import Namespace

from quire.chat.job import MAX_STEPS, MAX_TEXT, TOO_LONG

_STEPS_PER_CLOCK_CHECK = 16
_MAX_PRINTED = 4 * MAX_TEXT
"""Characters printed in one rendering; text that macros return is printed again."""


class TemplateLimitError(jinja2.TemplateError):
    """A template exceeded a limit of this package."""


@dataclass(slots=True)
class Budget:
    """The rest of a rendering's limits."""

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


MAX_ITEMS = 1 << 20
"""Items of any one list."""
_MAX_WIDTH = 100_000
"""Largest width for padding, indentation or repetition."""
_MAX_INT_BITS = 4096
_MAX_EXPONENT = 64
_OTHER = 64
"""Assumed characters of a value that is neither text nor number nor container."""
_LISTS: tuple[type[Any], ...] = (
    list, tuple, set, frozenset, type({}.keys()), type({}.values()),
)  # fmt: skip
_ITEMS: type[Any] = type({}.items())
_LINE_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPACES = " \t\x1f\u3000" + _LINE_BREAKS
_NUMBER = re.compile(r"\d+")

_WIDTH_FILTERS = {
    "batch", "center", "indent", "round", "slice", "tojson", "truncate", "wordwrap",
}  # fmt: skip
_SUBJECT_UNREAD = {
    "abs", "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list",
    "map", "random", "reject", "rejectattr", "reverse", "select", "selectattr", "slice",
}  # fmt: skip
"""Filters that read their subject or its items, but not the contents of the items."""
_SLOW_FILTERS = {
    "pprint": 1 << 16, "striptags": 1 << 20, "title": 1 << 20, "urlencode": 1 << 20,
    "urlize": 1 << 18, "wordcount": 1 << 20, "wordwrap": 1 << 18, "xmlattr": 1 << 20,
}  # fmt: skip
"""Filters that take much time per character, and the most characters of their subject."""
_CONSUMING_FILTERS = {"groupby", "join", "list", "max", "min", "sort", "sum", "unique"}
"""Filters that make a list of their subject's items."""


def check_size(num_chars: int, most: int = MAX_TEXT) -> None:
    """Raises TemplateLimitError for a text that would be too long."""
    if num_chars > most:
        raise TemplateLimitError(f"it makes a text of more than {most} characters")


def check_items(num_items: int) -> None:
    """Raises TemplateLimitError for a list that would be too long."""
    if num_items > MAX_ITEMS:
        raise TemplateLimitError(f"it makes a list of more than {MAX_ITEMS} items")


def text_size(value: Any, most: int = MAX_TEXT) -> int:
    """About the number of characters of the value as text; an item held twice counts twice.

    Reads each distinct container once. Raises TemplateLimitError beyond `most`, for a value that
    holds itself, and for a number of too many digits.
    """
    size = len(value) if type(value) is str else _measured(value, {}, most)
    check_size(size, most)
    return size


def _measured(value: Any, known: dict[int, int], most: int) -> int:
    """`known` holds the sizes of containers by `id`; -1 while one is being measured."""
    if isinstance(value, str):
        return len(value) + 4
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, (bytes, bytearray)):
        return 4 * len(value)
    inside = _inside(value)
    if inside is None:
        return _OTHER
    size = known.get(id(value), 0)
    if size < 0:
        raise TemplateLimitError("it makes text of a value that holds itself")
    if size == 0:
        known[id(value)] = -1
        size = 4 + 4 * len(inside)
        for item in inside:
            size += len(item) if type(item) is str else _measured(item, known, most)
            check_size(size, most)
        known[id(value)] = size
    return size


def _inside(value: Any) -> list[Any] | None:
    """The items of a container, or None if it is none. Only items that live as long as it does,
    because `known` identifies them by `id`."""
    if isinstance(value, _LISTS):
        return list(value)
    if isinstance(value, _ITEMS):
        return [part for pair in value for part in pair]
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if type(value) is Namespace:
        return _inside(object.__getattribute__(value, "_Namespace__attrs"))
    return None


def _digits(number: int) -> int:
    if number.bit_length() > _MAX_INT_BITS:
        raise TemplateLimitError(f"it makes a number of more than {_MAX_INT_BITS} bits")
    return 4 + number.bit_length() // 3


def checked(value: Any) -> Any:
    """The value itself, if it is not too large."""
    kind = type(value)
    if kind is str:
        check_size(len(value))
    elif kind is int:
        _digits(value)
    elif isinstance(value, (str, bytes)):
        check_size(len(value))
    elif isinstance(value, (list, tuple, dict)):
        check_items(len(value))
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Called before an arithmetic operator: checks the size of its operands and its result."""
    if operator == "+" and type(left) is str and type(right) is str:
        check_size(len(left) + len(right))
        return
    for value, other in ((left, right), (right, left)):
        if isinstance(value, int):
            _digits(value)
            if operator == "**" and abs(value) > _MAX_EXPONENT:
                raise TemplateLimitError(f"it takes a power beyond {_MAX_EXPONENT}")
        elif isinstance(value, (str, bytes)):
            if operator == "*" and isinstance(other, int):
                check_size(len(value) * other)
            elif operator == "+" and isinstance(other, (str, bytes)):
                check_size(len(value) + len(other))
        elif isinstance(value, (list, tuple)):
            if operator == "*" and isinstance(other, int):
                check_items(len(value) * other)
            elif operator == "+" and isinstance(other, (list, tuple)):
                check_items(len(value) + len(other))
    if operator == "%" and isinstance(left, (str, bytes)):
        values = right if isinstance(right, tuple) else (right,)
        check_size(_formatted(str(left), values, "%"))


def check_call(function: Any, values: tuple[Any, ...]) -> None:
    """Called before a call: checks its arguments, and the result of methods that can grow."""
    for value in values:
        text_size(value)
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(owner, str):
        grow = _METHODS.get(name)
        if grow is not None:
            check_size(grow(owner, values))
    elif isinstance(owner, int):
        _check_widths(values)
    elif isinstance(owner, (list, tuple)):
        text_size(owner)


def check_filter(name: str, values: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Called before a filter: checks its subject `values[0]`, its arguments, and its result."""
    rest = (*values[1:], *kwargs.values())
    for value in rest:
        text_size(value)
    if not values:
        return
    subject = values[0]
    if name not in _SUBJECT_UNREAD:
        text_size(subject, _SLOW_FILTERS.get(name, MAX_TEXT))
    elif isinstance(subject, int):
        _digits(subject)
    if name in _CONSUMING_FILTERS and isinstance(subject, str):
        check_items(len(subject))
    if name in _WIDTH_FILTERS:
        _check_widths(rest)
    grow = _FILTERS.get(name)
    if grow is not None:
        check_size(grow(subject, rest))


def listed(name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a filter. An iterator that the filter consumes becomes a list, which can be
    measured first."""
    if name in _CONSUMING_FILTERS and values and isinstance(values[0], Iterator):
        return (list(values[0]), *values[1:])
    return values


def _check_widths(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_WIDTH:
            raise TemplateLimitError(f"it asks for a width of more than {_MAX_WIDTH}")


def _padded(text: str, rest: tuple[Any, ...]) -> int:
    return max((len(text), *(value for value in rest if isinstance(value, int))))


def _replaced(subject: Any, rest: tuple[Any, ...]) -> int:
    if len(rest) < 2:
        return 0
    text, old, new = str(subject), str(rest[0]), str(rest[1])
    return len(text) + text.count(old) * len(new)


def _indented(subject: Any, rest: tuple[Any, ...]) -> int:
    text = str(subject)
    width = max((_width(value) for value in rest), default=4)
    if len(text) * (1 + width) <= MAX_TEXT:
        return len(text)
    return len(text) + width * (1 + sum(map(text.count, _LINE_BREAKS)))


def _tabs_expanded(text: str, rest: tuple[Any, ...]) -> int:
    return len(text) + text.count("\t") * max((_width(value) for value in rest), default=8)


def _wrapped(text: Any, rest: tuple[Any, ...]) -> int:
    return len(str(text)) * (1 + max((_width(v) for v in rest if isinstance(v, str)), default=1))


def _linked(text: Any, rest: tuple[Any, ...]) -> int:
    marks = 64 + sum(_width(value) for value in rest if isinstance(value, str))
    return len(str(text)) * (2 + marks // 4)


def _translated(text: str, rest: tuple[Any, ...]) -> int:
    table = rest[0] if rest else None
    if not isinstance(table, Mapping):
        return len(text)
    return len(text) * max((_width(v) for v in table.values() if isinstance(v, str)), default=1)


def _width(value: Any) -> int:
    return len(value) if isinstance(value, str) else value if isinstance(value, int) else 0


def _joined(separator: str, rest: tuple[Any, ...]) -> int:
    if not rest or not isinstance(rest[0], (list, tuple, Mapping)):
        return len(separator) * MAX_ITEMS if rest and isinstance(rest[0], Iterator) else 0
    return text_size(rest[0]) + len(separator) * len(rest[0])


def _join_filtered(subject: Any, rest: tuple[Any, ...]) -> int:
    separator = next((value for value in rest if isinstance(value, str)), "")
    return _joined(separator, (subject,))


def _split(text: str, rest: tuple[Any, ...]) -> int:
    separators = [value for value in rest if isinstance(value, str) and value] or _SPACES
    most = max((value for value in rest if isinstance(value, int) and value >= 0), default=None)
    if len(text) > MAX_ITEMS and (most is None or most > MAX_ITEMS):
        check_items(sum(map(text.count, separators)))
    return len(text)


def _percent_formatted(text: Any, rest: tuple[Any, ...]) -> int:
    return _formatted(str(text), rest, "%")


def _brace_formatted(text: str, rest: tuple[Any, ...]) -> int:
    bare = text.replace("{{", "").replace("}}", "")
    if re.search(r"\{[^{}]*\{", bare):
        raise TemplateLimitError("it formats with a width that is variable")
    return _formatted(bare, rest, "{") + len(text)


def _formatted(pattern: str, values: Iterable[Any], mark: str) -> int:
    """An upper bound of the characters: each field takes the longest value or the largest width."""
    numbers = [int(digits[:9]) for digits in _NUMBER.findall(pattern)]
    sizes = [text_size(value) for value in values]
    if mark == "%" and "*" in pattern:
        numbers += [abs(value) for value in values if isinstance(value, int)]
    return len(pattern) + pattern.count(mark) * max((*numbers, *sizes, 0))


_METHODS: dict[str, Callable[[str, tuple[Any, ...]], int]] = {
    "center": _padded, "expandtabs": _tabs_expanded, "format": _brace_formatted,
    "format_map": _brace_formatted, "join": _joined, "ljust": _padded, "replace": _replaced,
    "rjust": _padded, "rsplit": _split, "split": _split, "splitlines": _split,
    "translate": _translated, "zfill": _padded,
}  # fmt: skip
_FILTERS: dict[str, Callable[[Any, tuple[Any, ...]], int]] = {
    "format": _percent_formatted, "indent": _indented, "join": _join_filtered,
    "replace": _replaced, "urlize": _linked, "wordwrap": _wrapped,
}  # fmt: skip
