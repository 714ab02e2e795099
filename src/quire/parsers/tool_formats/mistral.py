"""Mistral: `[TOOL_CALLS]f[ARGS]{...}` for each call; before tokenizer version 11,
`[TOOL_CALLS][{"name": ...}]`."""

from __future__ import annotations

import random
import string

from quire.parsers.events import Reply
from quire.parsers.json_calls import CallKeys, read_name, read_named_call
from quire.parsers.reader import Parse
from quire.parsers.tool_format import MarkedCalls, Schemas
from quire.structured.tags.parts import Part, calls_of

_ALPHANUMERIC = string.ascii_letters + string.digits
_ID_CHARS = 9


class MistralCalls(MarkedCalls):
    """Reads both forms; the grammar uses the newer one."""

    markers = ("[TOOL_CALLS]",)
    keys = CallKeys(id=("id",))

    def make_id(self, name: str, index: int) -> str:  # noqa: ARG002
        """A random id of nine characters: Mistral's templates refuse other ids."""
        return "".join(random.choices(_ALPHANUMERIC, k=_ID_CHARS))

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads a call with its name before the arguments, a list of calls, or an object.

        Some models write the tool's name before the mark. It then becomes content and names the
        call.
        """
        reader = reply.reader
        while (yield from reader.skip_space()) == "[":  # some models write the mark twice
            if (yield from reader.literal("[TOOL_CALLS]")) is None:
                break
        name = reply.last_word()
        if name not in reply.tools or not (yield from reader.starts_with("[ARGS]", "{")):
            if (yield from reader.next_char()) in ("[", "{"):
                return (yield from super().read_calls(reply))
            name = yield from read_name(reader, "[", "{")
        call_id: str | None = None
        if (yield from reader.literal("[CALL_ID]")) is not None:
            call_id = yield from read_name(reader, "[", "{")
        is_sure = (yield from reader.starts_with("[ARGS]", "{")) is not None
        if not name or not (is_sure or name in reply.tools):
            return False
        yield from reader.literal("[ARGS]")
        yield from read_named_call(reply, name, "[TOOL_CALLS]", call_id=call_id or None)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The grammar of the newer form."""
        calls = ((f"[TOOL_CALLS]{name}[ARGS]", schema, "") for name, schema in tools.items())
        return calls_of(calls, separator="" if is_parallel else None)


class MistralListCalls(MistralCalls):
    """Mistral with the grammar of the older form."""

    opening, between, closing = "[TOOL_CALLS] [", ", ", "]"

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        return MarkedCalls.grammar(self, tools, is_parallel=is_parallel)
