"""The Jinja environment of chat templates: sandboxed, and bounded in steps, text and time.

A template comes with a model and is not trusted. Jinja's sandbox keeps it from Python's internals;
this module limits its time and memory. Two rules: the size of an operation is checked before it
runs (`sizes`), so that no single operation takes long; the clock is checked between operations
(`limits`). The names that a template may use are those of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from quire.chat import template_limits as limits

_COMPARING_TESTS = {
    "in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt",
    "lessthan", "<=", "le", "divisibleby",
}  # fmt: skip
_PASSED_BY_JINJA = {"_loop_vars", "_block_vars"}
_LAZY: tuple[type[Any], ...] = (
    GeneratorType,
    map,
    filter,
    reversed,
    type(reversed([])),
    type(reversed({})),
)
_MAX_TIME_FORMAT = 1000


def render_template(source: str, variables: Mapping[str, Any]) -> str:
    """The rendered text. Call it within `new_budget`. Raises jinja2's errors, including
    TemplateLimitError, and any error that an expression raises."""
    template = _compiled(source)
    pieces, size = [], 0
    for piece in template.root_render_func(template.new_context(dict(variables))):
        pieces.append(piece)
        size += len(piece)
        limits.check_size(size)
    return "".join(pieces)


@lru_cache(maxsize=32)
def _compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


@lru_cache(maxsize=1)
def environment() -> GuardedEnvironment:
    """The shared environment; it holds no state of a rendering."""
    return GuardedEnvironment()


class _CodeGenerator(CodeGenerator):
    """Compiles calls of the environment's own methods; no template can name them."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Counts and measures every operation of a template that can take long."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=_printed,
        )
        filters: dict[str, Any] = {**self.filters, "tojson": _to_json, "sum": _sum}
        self.filters = {name: _guarded_filter(name, function) for name, function in filters.items()}
        for name in _COMPARING_TESTS:
            self.tests[name] = _guarded_test(self.tests[name])
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def parse_as_written(self, source: str) -> nodes.Template:
        """The template's own nodes, without those that `_Guard` adds."""
        return super()._parse(source, None, None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        guarded = _Guard().visit(super()._parse(source, name, filename))
        return guarded.set_environment(self)  # type: ignore[no-any-return]

    loop_over = limits.CountedLoop

    @staticmethod
    def measured(value: Any) -> Any:
        """Returns the value, which will be compared or used as a key, if it is not too large."""
        limits.take_step()
        limits.text_size(value)
        return value

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Joins the printed text of a macro, a call or a block."""
        texts = list(pieces)
        limits.check_size(sum(map(len, texts)))
        return "".join(texts)

    def concat_values(self, *values: Any) -> str:
        """The operator `~`."""
        limits.take_step()
        for value in values:
            limits.text_size(value)
        return self.concat(map(str, values))

    def call_binop(self, _: Context | None, operator: str, left: Any, right: Any) -> Any:
        limits.take_step()
        limits.check_operands(operator, left, right)
        return limits.checked(self.binop_table[operator](left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        limits.take_step()
        if type(argument) not in (str, int):
            limits.text_size(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        limits.take_step()
        if type(__obj) is Namespace:
            raise TypeError("a namespace cannot be called")
        if isinstance(__obj, LoopContext):
            args = (*map(limits.CountedLoop, args),)
        elif __obj is not Namespace and not isinstance(__obj, (Macro, BlockReference)):
            given = [value for name, value in kwargs.items() if name not in _PASSED_BY_JINJA]
            limits.check_call(getattr(__obj, "__wrapped__", __obj), (*args, *given))
        return limits.checked(super().call(__context, __obj, *args, **kwargs))


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an answer for training; it is ignored here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Guard(NodeTransformer):
    """Writes the calls of `loop_over`, `measured` and `concat_values` into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _call("loop_over", [node.iter], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_values", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if sum(not _is_constant(part) for part in (node.expr, *(op.expr for op in node.ops))) > 1:
            node.expr = _measured(node.expr)
            for operand in node.ops:
                operand.expr = _measured(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _measured(node.key)
        return node

    def visit_NSRef(self, node: nodes.NSRef) -> nodes.Node:  # noqa: N802
        if node.attr.startswith("_"):
            raise jinja2.TemplateSyntaxError("a namespace has no private names", node.lineno)
        return node


def _is_constant(node: nodes.Expr) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)


def _measured(node: nodes.Expr) -> nodes.Expr:
    return node if _is_constant(node) else _call("measured", [node], node.lineno)


def _call(method: str, arguments: list[Any], line: int) -> nodes.Call:
    """`environment.method(*arguments)`; the arguments are expressions."""
    function = nodes.EnvironmentAttribute(method)
    call = nodes.Call(function, arguments, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


def _printed(value: Any) -> str:
    """The environment's `finalize`: called for every printed value."""
    limits.take_step()
    if not isinstance(value, str):
        limits.text_size(value)
        value = str(value)
    limits.spend_text(len(value))
    return value  # type: ignore[no-any-return]


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    num_passed = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        limits.take_step()
        values = limits.listed(name, args[num_passed:])
        limits.check_filter(name, values, kwargs)
        result = function(*args[:num_passed], *values, **kwargs)
        return limits.counted(result) if type(result) in _LAZY else limits.checked(result)

    return guarded


def _guarded_test(function: Any) -> Callable[..., Any]:
    def guarded(*values: Any, **kwargs: Any) -> Any:
        limits.take_step()
        for value in (*values, *kwargs.values()):
            limits.text_size(value)
        return function(*values, **kwargs)

    return guarded


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    limits.check_size(len(format), _MAX_TIME_FORMAT)
    return datetime.now().strftime(format)


@jinja2.pass_environment
def _sum(environment: Any, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    """Jinja's `sum` with a check before each addition: the sum of lists can grow without limit."""
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    total = start
    for item in items:
        total = environment.call_binop(None, "+", total, item)
    return total


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without Jinja's escapes for HTML, as transformers has it."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        pieces.append(piece)
        size += len(piece)
        limits.check_size(size)
    return "".join(pieces)
