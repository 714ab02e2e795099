"""`render`: a conversation to the prompt text that its model was trained on.

Depends on its `RenderJob` alone, which holds JSON. Called by the child process. Knows no tokens and
no files. A template expects a message's content as a text or as a list of parts; which of these is
read from the parsed template, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes

from quire.chat.job import VARIABLES, ChatInput, ContentFormat, RenderJob
from quire.chat.messages import Images, check_nesting, template_messages
from quire.chat.sandbox import environment, render_template
from quire.chat.template_limits import TemplateLimitError, new_budget
from quire.errors import RequestError


@lru_cache(maxsize=32)
def detect_content_format(source: str) -> ContentFormat:
    """The format, found by the template's loops; `string` if the template cannot be parsed."""
    tree = _parsed(source)
    if tree is None:
        return "string"
    messages = set(_message_names(tree))
    contents = set(_names_of_content(tree, messages))
    in_macros = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _loops(macro)}
    for loop in _loops(tree):
        name = _name_of(loop.iter)
        is_named_so = name == "content" and id(loop) not in in_macros
        if is_named_so or name in contents or _is_content_of(loop.iter, messages):
            return "openai"
    return "string"


@lru_cache(maxsize=32)
def expects_no_content(source: str) -> bool:
    """Whether the template asks if a message's content is none, and does not search it without
    having asked. Others print or search it, and need an empty one."""
    return _asks_of_content(source, "none") and not _searches_content(source)


@lru_cache(maxsize=32)
def expects_text(source: str) -> bool:
    """Whether the template asks if a message's content is a string: one that loops over content
    then takes text too."""
    return _asks_of_content(source, "string")


@lru_cache(maxsize=32)
def reads_thinking(source: str) -> bool:
    """Whether the template compares something with `thinking`, the type of parts with reasoning, or
    selects by it."""
    if (tree := _parsed(source)) is None:
        return False
    values = list[nodes.Node]()
    for one in tree.find_all(nodes.Compare):
        is_equal = one.ops[0].op in ("eq", "ne")  # in `'thinking' in message` it is a name
        values += [*([one.expr] if is_equal else []), *(op.expr for op in one.ops)]
    for chosen in tree.find_all(nodes.Filter):
        values += chosen.args[1:] if chosen.name in ("selectattr", "rejectattr") else []
    values += [
        item for one in values if isinstance(one, nodes.List | nodes.Tuple) for item in one.items
    ]
    return any(_is_constant(one, "thinking") for one in values)


def _searches_content(source: str) -> bool:
    """Whether a condition is nothing but a search in content."""
    tree = _parsed(source)
    if tree is None:
        return False
    contents = _contents(tree)
    searched = (
        op.expr
        for branch in tree.find_all(nodes.If)
        if isinstance(branch.test, nodes.Compare)
        for op in branch.test.ops
        if op.op in ("in", "notin")
    )
    return any(_name_of(node) in contents or _names_content(node) for node in searched)


def _contents(tree: nodes.Template) -> set[str]:
    return {"content", *_names_of_content(tree, set(_message_names(tree)))}


def _asks_of_content(source: str, test: str) -> bool:
    tree = _parsed(source)
    if tree is None:
        return False
    contents = _contents(tree)
    asked = [node.node for node in tree.find_all(nodes.Test) if node.name == test]
    if test == "none":
        asked += [
            compared.expr
            for compared in tree.find_all(nodes.Compare)
            if any(op.op in ("eq", "ne") and _is_constant(op.expr, None) for op in compared.ops)
        ]
    return any(_name_of(node) in contents or _names_content(node) for node in asked)


def _names_content(node: nodes.Node | None) -> bool:
    """`X.content`, `X["content"]` or `X.get("content")`, of whatever."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr):
        return bare.attr == "content"
    if isinstance(bare, nodes.Call) and isinstance(bare.node, nodes.Getattr) and bare.args:
        return bare.node.attr == "get" and _is_constant(bare.args[0], "content")
    return isinstance(bare, nodes.Getitem) and _is_constant(bare.arg, "content")


def _is_constant(node: nodes.Node, value: str | None) -> bool:
    return isinstance(node, nodes.Const) and node.value == value


def _parsed(source: str) -> nodes.Template | None:
    try:
        return environment().parse_as_written(source)
    except (jinja2.TemplateError, RecursionError):
        return None


def _loops(tree: nodes.Node) -> Iterator[nodes.For]:
    return tree.find_all(nodes.For)


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """The loop variables that run over the messages, or over a variable that holds them."""
    assigned: dict[str | None, set[str]] = {}
    for assignment in tree.find_all(nodes.Assign):
        name = _name_of(assignment.target)
        if name:
            assigned.setdefault(_name_of(assignment.node), set()).add(name)
    lists, waiting = {"messages"}, ["messages"]
    while waiting:
        names = assigned.get(waiting.pop(), set()) - lists
        lists |= names
        waiting.extend(names)
    for loop in _loops(tree):
        name = _name_of(loop.target)
        if name and _name_of(loop.iter) in lists:
            yield name


def _names_of_content(tree: nodes.Template, messages: set[str]) -> Iterator[str]:
    """Variables set to a message's content, and macro parameters that it is passed to."""
    held: dict[str, set[str]] = {}
    for assignment in tree.find_all(nodes.Assign):
        name, attribute = _name_of(assignment.target), _attribute_of(assignment.node, messages)
        if name and attribute:
            held.setdefault(name, set()).add(attribute)
    for name, attributes in held.items():
        if attributes == {"content"}:  # a variable for calls may hold the content of old messages
            yield name
    macros = {macro.name: [arg.name for arg in macro.args] for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        parameters = macros.get(_name_of(call.node) or "", [])
        for parameter, argument in zip(parameters, call.args, strict=False):
            if _is_content_of(argument, messages):
                yield parameter
        for keyword in call.kwargs:
            if keyword.key in parameters and _is_content_of(keyword.value, messages):
                yield keyword.key


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """The node without filters, tests and slices around it."""
    while True:
        if isinstance(node, (nodes.Filter, nodes.Test)) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            return node


def _name_of(node: nodes.Node | None) -> str | None:
    bare = _bare(node)
    return bare.name if isinstance(bare, nodes.Name) else None


def _is_content_of(node: nodes.Node | None, messages: set[str]) -> bool:
    """`message.content` or `message["content"]`."""
    return _attribute_of(node, messages) == "content"


def _attribute_of(node: nodes.Node | None, messages: set[str]) -> str | None:
    """The name of what is taken of a message; None if the node is something else."""
    bare = _bare(node)
    if isinstance(bare, nodes.Getattr) and _name_of(bare.node) in messages:
        return bare.attr
    if isinstance(bare, nodes.Getitem) and isinstance(bare.arg, nodes.Const):
        return str(bare.arg.value) if _name_of(bare.node) in messages else None
    return None


_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to be continued; cut off after rendering."""
_MAX_MESSAGE_CHARS = 2000


def render(job: RenderJob) -> str:
    """The prompt. Encode it without special tokens: the template has written them.

    Raises RequestError, with the template's own words where it refuses the conversation.
    """
    try:
        with new_budget(job.max_seconds):
            return _rendered(job)
    except RequestError:
        raise
    except TemplateLimitError as error:
        message = f"the chat template {job.template_name!r} was stopped: {error.message}"
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template is not valid: {error.message} (line {error.lineno})"
    except jinja2.TemplateError as error:
        message = str(error.message or type(error).__name__)
    except MemoryError:
        message = f"the chat template {job.template_name!r} was stopped: it needs too much memory"
    except Exception as error:  # a template can raise anything that an expression can
        message = f"the chat template fails with {type(error).__name__}: {error}"
    raise _error(message[:_MAX_MESSAGE_CHARS])


def _rendered(job: RenderJob) -> str:
    chat = job.chat
    content_format = chat.content_format or detect_content_format(job.template)
    for what in ("messages", "tools", "documents"):
        check_nesting(getattr(chat, what), what)
    check_nesting(chat.variables, VARIABLES)
    keeps_text = chat.content_format is None and expects_text(job.template)
    failure: Exception | None = None
    for missing, has_text_arguments in _forms(chat, content_format, job.template):
        messages = template_messages(
            chat.messages, content_format, missing=missing, keeps_text=keeps_text,
            has_text_arguments=has_text_arguments, keeps_thinking=reads_thinking(job.template),
            images=Images(chat.placeholders, chat.no_images),
        )  # fmt: skip
        try:
            return _filled(job, messages)
        except (TypeError, jinja2.UndefinedError) as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _forms(
    chat: ChatInput, content_format: ContentFormat, template: str
) -> Iterator[tuple[Any, bool]]:
    """The content that a message without any gets, and whether arguments of calls are texts. The
    first form that a template does not fail with is taken.

    A key that is not there makes many templates fail, and many print None. Arguments are objects
    for all templates but some that join them to a text.
    """
    messages = [message for message in chat.messages if isinstance(message, dict)]
    has_calls = any(message.get("tool_calls") for message in messages)
    contents: tuple[Any, ...] = ("",)
    if content_format == "openai":
        contents = [], [{"type": "text", "text": ""}]
    elif expects_no_content(template):
        contents = None, ""
    if all(message.get("content") is not None for message in messages):
        contents = contents[:1]
    yield from ((content, False) for content in contents)
    if has_calls:
        yield from ((content, True) for content in contents)


def _filled(job: RenderJob, messages: list[dict[str, Any]]) -> str:
    chat = job.chat
    final_text = _mark_end(messages) if chat.continue_final_message else None
    variables = {
        **job.special_tokens,
        **(chat.variables or {}),
        "messages": messages,
        "tools": chat.tools,
        "documents": chat.documents,
        "add_generation_prompt": chat.add_generation_prompt,
    }
    rendered = render_template(job.template, variables)
    return rendered if final_text is None else _cut_at_mark(rendered, final_text)


def _error(message: str) -> RequestError:
    return RequestError(message, parameter="messages")


def _mark_end(chat: list[dict[str, Any]]) -> str:
    """Appends the mark to the last message's text, which is returned without it."""
    content = chat[-1].get("content")
    if isinstance(content, list) and content:
        if "text" not in content[-1]:
            raise _error("continue_final_message is set, but the final message ends with an image")
        text = str(content[-1]["text"])
        content[-1]["text"] = text + _CONTINUED
        return text
    if not isinstance(content, str):
        raise _error("continue_final_message is set, but the final message has no content")
    chat[-1]["content"] = content + _CONTINUED
    return content


def _cut_at_mark(rendered: str, final_text: str) -> str:
    begin = rendered.rfind(_CONTINUED.strip())
    if begin < 0 or final_text.strip() not in rendered:
        raise _error(
            "continue_final_message is set, but the final message does not appear in the "
            "rendered chat: the template leaves out some of it"
        )
    if rendered.startswith(_CONTINUED, begin):
        return rendered[:begin]
    return rendered[:begin].rstrip()
