"""The grammar of a reply: from the tools that it may call and the form that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.errors import GrammarError
from quire.parsers.call_rules import CallRules
from quire.parsers.constraint import named_as_tools, reply_constraint
from quire.parsers.format import ReplyFormat
from quire.structured.params import StructuredOutputsParams

Check = Callable[[StructuredOutputsParams], object]


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """What a model may write in a reply."""

    format: ReplyFormat
    rules: CallRules
    is_reasoning: bool
    """The prompt ends inside a reasoning block."""
    may_reason: bool
    """The reply may begin with reasoning."""


def constraint_of(
    form: ReplyForm,
    check: Check,
    content: StructuredOutputsParams | None,
    left_out: list[str],
) -> StructuredOutputsParams | None:
    """`check`: raises GrammarError for a grammar that cannot be compiled. `content`: the form
    of the content. If the tools' schemas can be compiled one by one but not together, optional ones
    are left out, and added to `left_out`. Raises GrammarError."""
    rules = form.rules
    try:
        return _constraint_by(form, check, content, left_out)
    except GrammarError as error:
        if not rules.are_optional:
            raise
        try:
            relaxed = replace(form, rules=replace(rules, level="function"))
            constraint = _constraint_by(relaxed, check, content, [])
        except GrammarError:
            raise error from None  # something else is at fault
    left_out[:] = [tool.place for tool in rules.allowed if tool.parameters and not tool.strict]
    return constraint


def _constraint_by(
    form: ReplyForm,
    check: Check,
    content: StructuredOutputsParams | None,
    left_out: list[str],
) -> StructuredOutputsParams | None:
    with named_as_tools(form.rules, check, content):
        constraint = reply_constraint(
            form.format,
            form.rules,
            check,
            is_reasoning=form.is_reasoning,
            may_reason=form.may_reason,
            content=content,
            left_out=left_out,
        )
        if constraint is not None:
            check(constraint)
    return constraint
