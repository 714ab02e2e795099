"""Finds out which form of a message's content a chat template expects: text, or a list of parts.

`openai`: the template loops over the content of a message; `string`: it prints it. And whether it
expects that there may be none, as in messages with calls of tools. Called by `rendering`. Reads the
parsed template alone, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import jinja2
from jinja2 import nodes

from quire.chat.job import ContentFormat
from quire.chat.sandbox.environment import environment


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
