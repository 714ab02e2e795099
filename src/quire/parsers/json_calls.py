"""Calls written as JSON objects that have a tool's name and its arguments, in any order."""

from __future__ import annotations

from quire.parsers.json_text import json_string, json_string_value, json_value
from quire.parsers.reader import Emit, Parse, ignore
from quire.parsers.reply import Reply

_NAME = ("name",)
_ARGUMENTS = ("arguments", "parameters")


def read_json_call(
    reply: Reply,
    name_keys: tuple[str, ...] = _NAME,
    arguments_keys: tuple[str, ...] = _ARGUMENTS,
    id_keys: tuple[str, ...] = (),
) -> Parse[bool]:
    """Reads one object. False if it is no call: then none has begun.

    Arguments are passed on as they were written, as they come, if the name came before them.
    Arguments that are a JSON text in a string are that text. Without arguments they are `{}`.
    Other keys are skipped.
    """
    reader = reply.reader
    if (yield from reader.skip_space()) != "{":
        return False
    reader.take(1)
    name: str | None = None
    call_id: str | None = None
    early: list[str] | None = None
    has_begun = False
    while True:
        if (yield from reader.skip_space()) == "}":
            break
        key = yield from json_string(reader)
        if key is None or (yield from reader.skip_space()) != ":":
            return has_begun
        reader.take(1)
        if key in name_keys and name is None:
            name = yield from json_string(reader)
            if not name:
                return False
        elif key in id_keys and (yield from reader.skip_space()) == '"':
            call_id = yield from json_string(reader)
        elif key in arguments_keys and early is None and not has_begun:
            if name is None:
                early = []
                is_whole = yield from _read_arguments(reply, early.append)
            else:
                reply.begin_call(name, call_id)
                has_begun = True
                is_whole = yield from _read_arguments(reply, reply.arguments)
            if not is_whole:
                return has_begun
        elif not (yield from json_value(reader, ignore)):
            return has_begun
        char = yield from reader.skip_space()
        if char == ",":
            reader.take(1)
        elif char != "}":
            return has_begun
    reader.take(1)
    if not has_begun:
        if name is None:
            return False
        reply.begin_call(name, call_id)
        reply.arguments("".join(early or ()) or "{}")
    reply.end_call()
    return True


def _read_arguments(reply: Reply, emit: Emit) -> Parse[bool]:
    is_text = (yield from reply.reader.skip_space()) == '"'
    return (yield from (json_string_value if is_text else json_value)(reply.reader, emit))
