"""`reply_constraint`: the grammar that limits the calls of a reply to valid calls of its tools.

Called for each request that offers tools. The result is a structural tag, which `structured/`
compiles to a grammar: reasoning first, if the reply may reason, then an answer by
`CallRules.choice`. Requests with the same tools and rules get the same grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from quire.errors import GrammarError, RequestError
from quire.parsers.call_rules import CallRules, Check, CheckTool
from quire.parsers.format import ReasoningTags, ReplyFormat
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.params import FIELD, KINDS, StructuredOutputsParams
from quire.structured.source import parsed_json, parsed_schema
from quire.structured.tags.parts import (
    Part,
    const,
    either,
    first_texts,
    json_schema,
    optional,
    regex,
    sequence,
)

_SPACE = regex("[ \\t\\r\\n]{0,40}")


def reply_constraint(
    format: ReplyFormat,
    rules: CallRules,
    check: Check,
    *,
    is_reasoning: bool = False,
    may_reason: bool = True,
    content: StructuredOutputsParams | None = None,
    left_out: list[str] | None = None,
) -> StructuredOutputsParams | None:
    """The constraint of the reply; None: any text. Raises RequestError if the request cannot be
    met.

    `is_reasoning`: the prompt ends within the reasoning. `may_reason`: the reply may begin with
    reasoning. `content`: the constraint of an answer that is not a call; unused with the choice
    `required`. `check` raises GrammarError for a grammar that cannot be compiled, as
    `InputProcessor.check_grammar` does. `left_out`: see `CallRules.schemas`.

    - `none`, or no tools: the content alone, after the reasoning.
    - `required`: only calls; several only if `is_parallel`.
    - `auto`: text in which a marker begins calls of the offered tools. With `content`, the answer
      is either calls or that content. Any text, if no marker announces the model's calls.

    Calls in a format without a grammar are not constrained.
    """
    is_known = format.tools is None or format.tools.has_grammar
    left_out = [] if left_out is None else left_out
    schemas: Schemas = {}
    if rules.choice != "none" and is_known:
        check_tool = None if format.tools is None else _check_of(format.tools)
        schemas = rules.schemas(check, left_out, check_tool)
    if not schemas and content is None:
        return None
    calls: Part | None = None
    if schemas:
        calls = _tools_of(format).grammar(schemas, is_parallel=rules.is_parallel)
    must_call = rules.choice == "required"
    part = None if content is None or must_call else _content_part(content)
    whole = format.own_form(calls, part, must_call=must_call, is_reasoning=is_reasoning)
    if whole is None:
        answer = part
        if calls is not None:
            answer = _answer(format, calls, part, schemas, rules)
        if answer is None:
            return None
        markers = _tools_of(format).markers if calls is not None else ()
        whole = _after_reasoning(format.reasoning, answer, markers, is_reasoning, may_reason)
        if whole is part:
            return content
    tag = msgspec.json.encode({"type": "structural_tag", "format": whole}).decode()
    options = content or StructuredOutputsParams(structural_tag=tag)
    return msgspec.structs.replace(options, **{**dict.fromkeys(KINDS), "structural_tag": tag})


def working_constraint(
    format: ReplyFormat,
    rules: CallRules,
    check: Check,
    *,
    is_reasoning: bool,
    may_reason: bool,
    content: StructuredOutputsParams | None,
    left_out: list[str],
) -> StructuredOutputsParams | None:
    """`reply_constraint` of tools whose schemas can be compiled one by one, and perhaps not
    together: then optional ones are left out. Raises GrammarError for one that `check` raises."""

    def constraint_by(rules: CallRules, left_out: list[str]) -> StructuredOutputsParams | None:
        with named_as_tools(rules, check, content):
            constraint = reply_constraint(
                format,
                rules,
                check,
                is_reasoning=is_reasoning,
                may_reason=may_reason,
                content=content,
                left_out=left_out,
            )
            if constraint is not None:
                check(constraint)
        return constraint

    try:
        return constraint_by(rules, left_out)
    except GrammarError as error:
        if not rules.are_optional:
            raise
        try:
            constraint = constraint_by(replace(rules, level="function"), [])
        except GrammarError:
            raise error from None  # something else is at fault
    left_out[:] = [tool.place for tool in rules.allowed if tool.parameters and not tool.strict]
    return constraint


def _check_of(tools: ToolFormat) -> CheckTool:
    """The check whether the format can hold a schema."""

    def check(name: str, schema: Mapping[str, Any]) -> None:
        try:
            tools.grammar({name: schema}, is_parallel=False)
        except RecursionError:  # definitions refer to each other in too long a chain
            raise GrammarError(
                f"{FIELD}.json is nested too deeply for this model's call format: use a shorter "
                "chain of definitions that refer to each other",
                parameter=f"{FIELD}.json",
            ) from None

    return check


@contextmanager
def named_as_tools(
    rules: CallRules, check: Check, content: StructuredOutputsParams | None = None
) -> Iterator[None]:
    """Makes errors about the grammar of a `reply_constraint` name the tool or the content field
    that caused them."""
    try:
        yield
    except GrammarError as error:
        if error.parameter != f"{FIELD}.structural_tag":
            raise
        for tool in rules.allowed if rules.choice != "none" else ():
            tool.check_schema(tool.schema, check)
        if content is not None:
            check(content)
        if rules.choice == "none":
            raise
        message = str(error).replace(f"{FIELD}.structural_tag", "tools")
        raise GrammarError(f"{message}: offer fewer of them", parameter="tools") from None


def _answer(
    format: ReplyFormat, calls: Part, content: Part | None, schemas: Schemas, rules: CallRules
) -> Part | None:
    """The grammar of what follows the reasoning. None: any text, if no marker announces calls."""
    if rules.choice == "required":
        return sequence(_SPACE, calls)
    triggers, is_opening = _triggers(_tools_of(format), calls, schemas)
    if content is not None:
        return _calls_or(content, _tools_of(format), calls, triggers, is_opening=is_opening)
    if not triggers and not is_opening:
        return None
    return _text_with_calls(format, calls, schemas, rules, triggers, is_opening=is_opening)


def _text_with_calls(
    format: ReplyFormat,
    calls: Part,
    schemas: Schemas,
    rules: CallRules,
    triggers: list[str],
    *,
    is_opening: bool,
) -> Part:
    """Text in which a marker begins calls. It may contain the marks of reasoning and answers."""
    tags, tools = format.reasoning, _tools_of(format)
    begins, marks = ((), ()) if tags is None else (tags.begins, tags.answer_marks)
    marks = (*marks, *tools.answer_marks)
    others = [const(mark) for mark in marks]
    if tags is not None and tags.may_repeat:
        others += [sequence(const(begin), _reasoning(tags, tools.markers)) for begin in begins]
        marks = (*marks, *begins)
    final = [calls] if triggers and not rules.is_parallel else []
    if triggers and rules.is_parallel:
        others.append(calls)
    text: Part = {
        "excluded_patterns": list(tools.call_patterns(schemas)),
        "not_first": list(begins),
        "not_first_patterns": list(tools.opening_patterns(schemas)),
    }
    if others or final:
        triggers = [*triggers, *marks]
        text |= {"type": "triggered_tags", "triggers": triggers, "tags": others}
        text |= {"final_tags": final}
    else:
        text |= {"type": "any_text"}
    return either([sequence(_SPACE, calls), text]) if is_opening else text


def _triggers(tools: ToolFormat, calls: Part, schemas: Schemas) -> tuple[list[str], bool]:
    """The texts that begin calls anywhere in an answer; whether other texts begin calls only at the
    start of an answer."""
    triggers, is_opening = dict[str, None](), False
    patterns = tools.call_patterns(schemas)
    sure = [marker for marker in tools.markers if re.escape(marker) in patterns]
    for text in first_texts(calls):
        markers = [one for one in sure if text.startswith(one)]
        if not markers and text.startswith(tools.opening_markers):
            is_opening = True
        else:  # a text is cut at the shortest trigger that its tokens allow
            triggers.update(dict.fromkeys([*markers, text]))
    return list(triggers), is_opening


def _tools_of(format: ReplyFormat) -> ToolFormat:
    if format.tools is None:
        raise RequestError(
            "tools require a model with a known call format: name the format with "
            "--tool-call-parser",
            parameter="tools",
        )
    return format.tools


def _calls_or(
    content: Part, tools: ToolFormat, calls: Part, triggers: list[str], *, is_opening: bool
) -> Part:
    """A grammar for either calls or this content."""
    if is_opening or not triggers or not all(text.startswith(tools.markers) for text in triggers):
        raise RequestError(
            "tool_choice 'auto' cannot be combined with structured output for this model, because "
            'no marker separates its calls from other text: set tool_choice to "none" or '
            '"required", or remove the structured output constraint',
            parameter="tool_choice",
        )
    only_calls = {**_one_of(triggers, [calls]), "is_bare": True}
    return either([only_calls, _without(content, tools.markers)])


def _without(part: Any, markers: Sequence[str]) -> Any:
    """Exclude these markers from the free text at the end of the part."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("any_text", "triggered_tags"):
        return {**part, "excludes": [*(part.get("excludes") or ()), *markers]}
    if kind in ("or", "sequence") and isinstance(part.get("elements"), list):
        return {**part, "elements": [_without(one, markers) for one in part["elements"]]}
    return part


def _after_reasoning(
    tags: ReasoningTags | None,
    answer: Part,
    markers: Sequence[str],
    is_reasoning: bool,
    may_reason: bool,
) -> Part:
    """The reasoning followed by the answer."""
    if tags is None or not (is_reasoning or may_reason):
        return answer
    reasoning = _reasoning(tags, markers)
    if is_reasoning:
        return sequence(reasoning, answer)
    begin = {**_one_of(tags.begins, map(const, tags.begins)), "is_bare": True}
    return sequence(optional(sequence(begin, reasoning)), answer)


def _reasoning(tags: ReasoningTags, markers: Sequence[str]) -> Part:
    """The reasoning after its begin tag, with the end tag. It contains no call."""
    ends = _one_of(tags.ends, map(const, tags.ends))
    return {**ends, "excludes": [marker for marker in markers if marker not in tags.ends]}


def _one_of(triggers: Sequence[str], tags: Iterable[Part]) -> Part:
    """Any text up to the first of these triggers, then the tag that begins with it."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(tags),
        "at_least_one": True,
        "stop_after_first": True,
    }


def _content_part(content: StructuredOutputsParams) -> Part:
    """Convert the content to a part of a structural tag. Raises GrammarError."""
    value = getattr(content, content.kind)
    if content.kind == "json":
        return json_schema(parsed_schema("json", value))
    if content.kind == "json_object":
        return json_schema({"type": "object"})
    if content.kind == "regex":
        return regex(value)
    if content.kind == "grammar":
        return {"type": "grammar", "grammar": value}
    if content.kind == "choice":
        words = " | ".join(json.dumps(text) for text in dict.fromkeys(value))
        return {"type": "grammar", "grammar": f"start: CHOICE\nCHOICE: {words}"}
    from quire.structured.tags.grammar import triggered_tags_of  # rarely needed

    tag = parsed_json("structural_tag", value)
    if isinstance(tag, Mapping) and "structures" in tag:
        return triggered_tags_of(tag)
    return {} if not isinstance(tag, Mapping) else tag.get("format") or {}
