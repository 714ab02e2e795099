"""`set_reply_form`: what the reply to a chat has to look like, and what the engine has to know of
its marks.

Calls of tools are held to the tools that the request offers; a form that the request asks for
begins behind the reasoning. Called by the routes once the prompt is known.
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import GrammarError
from quire.params import SamplingParams
from quire.parsers.call_rules import CallRules
from quire.parsers.constraint import named_as_tools, reply_constraint
from quire.reasoning.marks import ReasoningMarks
from quire.server.context import ServerContext
from quire.server.requests.chats.reply_plan import ReplyPlan
from quire.server.work_pool import INLINE_SIZE
from quire.structured.params import StructuredOutputsParams


async def set_reply_form(
    context: ServerContext, plan: ReplyPlan | None, params: SamplingParams
) -> list[str]:
    """Puts the form of the reply that `plan` and the parameters ask for into these. Returns the
    names of the fields that have no effect: schemas of tools that cannot be compiled, and need not
    hold. Raises RequestError, which names the tool or the field that is at fault."""
    if plan is None:
        return []
    params.keep_tokens(plan.kept_token_ids)
    params.skip_special_tokens = plan.skips_special_tokens
    content, tags = params.structured_outputs, plan.format.reasoning
    holds_at_once = tags is None or context.config.structured_outputs.enable_in_reasoning
    is_given = not plan.tools.is_searched and (content is None or holds_at_once)
    if tags is not None:
        marks = ReasoningMarks(tags.begin, tags.end, plan.is_reasoning, is_in_grammar=not is_given)
        params.mark_reasoning(marks)
    if is_given:
        return []
    left_out: list[str] = []
    params.structured_outputs = await context.pool.run(
        INLINE_SIZE + 1, _form, context, plan, content, left_out
    )
    return left_out


def _form(
    context: ServerContext,
    plan: ReplyPlan,
    content: StructuredOutputsParams | None,
    left_out: list[str],
) -> StructuredOutputsParams | None:
    """Where schemas that work one by one do not work together, a reply that may do without them
    does."""
    rules = plan.tools.rules
    try:
        return _form_by(rules, context, plan, content, left_out)
    except GrammarError as error:
        if not rules.are_optional:
            raise
        try:
            form = _form_by(replace(rules, level="function"), context, plan, content, [])
        except GrammarError:
            raise error from None  # something else is at fault
    left_out[:] = [tool.place for tool in rules.allowed if tool.parameters and not tool.strict]
    return form


def _form_by(
    rules: CallRules,
    context: ServerContext,
    plan: ReplyPlan,
    content: StructuredOutputsParams | None,
    left_out: list[str],
) -> StructuredOutputsParams | None:
    check = context.loaded_engine().input_processor.check_grammar
    with named_as_tools(rules, check, content):
        form = reply_constraint(
            plan.format,
            rules,
            check,
            is_reasoning=plan.is_reasoning,
            may_reason=plan.may_reason,
            content=content,
            left_out=left_out,
        )
        if form is not None:
            check(form)
    return form
