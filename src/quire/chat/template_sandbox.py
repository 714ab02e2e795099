"""The Jinja environment of chat templates: sandboxed, and bounded in steps, text and time.

A template comes with a model, so it is a stranger's program. Jinja's sandbox keeps it from
Python's insides; what is added here keeps it from running or growing without end. Called by
`chat_template`; the names a template may use are those of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from quire.chat.template_limits import (
    check_method,
    check_operands,
    check_size,
    checked,
    count_printed,
    guard_filter,
    new_budget,
    spend_text,
    take_step,
)

_MIN_COUNTED_TEXT = 32


def render_bounded(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The rendered text. Raises jinja2's errors, TemplateLimitError among them."""
    with new_budget():
        return template.render(variables)


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """The template, ready to render. Raises jinja2.TemplateSyntaxError."""
    return environment().from_string(source)


@lru_cache(maxsize=1)
def environment() -> GuardedEnvironment:
    """The one environment; it holds no state of a rendering."""
    return GuardedEnvironment()


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Counts every loop round, macro call and printed character against the rendering's budget.

    Values are bounded where they are made: no operator, call or filter gives a string or
    list of more than MAX_TEXT.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=count_printed,
        )
        filters: dict[str, Any] = {**self.filters, "tojson": _to_json}
        self.filters = {name: guard_filter(name, held) for name, held in filters.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        guarded = _Guard().visit(super()._parse(source, name, filename))
        return guarded.set_environment(self)  # type: ignore[no-any-return]

    step = staticmethod(take_step)
    spend = staticmethod(spend_text)

    def concat_values(self, *values: Any) -> str:
        """The operator `~`."""
        texts = [str(value) for value in values]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        check_method(getattr(__obj, "__wrapped__", __obj), args, kwargs)
        return checked(super().call(__context, __obj, *args, **kwargs))


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an answer for training; here it is no more."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Guard(NodeTransformer):
    """Writes the calls of `step`, `spend` and `concat_values` into a parsed template."""

    def _visit_body(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _call_statement("step", [], node.lineno))
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = _visit_body  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Node | list[nodes.Node]:  # noqa: N802
        self.generic_visit(node)
        fixed = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
        fixed += sum(len(str(part.value)) for part in node.nodes if isinstance(part, nodes.Const))
        if fixed < _MIN_COUNTED_TEXT:
            return node
        return [_call_statement("spend", [nodes.Const(fixed)], node.lineno), node]

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_values", node.nodes, node.lineno)

    def visit_NSRef(self, node: nodes.NSRef) -> nodes.Node:  # noqa: N802
        if node.attr.startswith("_"):
            raise jinja2.TemplateSyntaxError("a namespace has no private names", node.lineno)
        return node


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(method)
    call = nodes.Call(function, arguments, [], None, None)
    return call.set_lineno(line)  # type: ignore[return-value]


def _call_statement(method: str, arguments: list[nodes.Expr], line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call(method, arguments, line), lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without Jinja's escapes for HTML, as transformers has it."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
