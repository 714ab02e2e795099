"""Whether a chat template takes instructions between the turns of a conversation.

Some end with an error, some leave them out. Found by rendering a conversation, when the first
request has such instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.server.context import ServerContext
from quire.server.schema.messages import PromptFields

_ROLES = ("system", "user", "system", "assistant", "user", "system")


async def merges_system(context: ServerContext, request: PromptFields) -> bool:
    """Whether the instructions between the turns of this request have to be merged into those
    before all turns. Raises CapacityError, QuireError."""
    if all(turn.role != "system" for turn in request.messages):
        return False
    has_tools = bool(request.tools)  # a model may have a template for these alone
    known = context.takes_late_system
    if has_tools not in known:
        known[has_tools] = await _takes_late_system(context, [] if has_tools else None)
    return not known[has_tools]


async def _takes_late_system(context: ServerContext, tools: Sequence[object] | None) -> bool:
    marks = [f"mark-{index}" for index in range(len(_ROLES))]
    probe = ChatInput(
        [{"role": role, "content": mark} for role, mark in zip(_ROLES, marks, strict=True)],
        tools=tools,
        chat_template_kwargs=context.args.default_chat_template_kwargs,
    )
    try:
        text = await context.chat_renderer().render(probe)
    except RequestError:
        return False
    places = [text.find(mark) for mark in marks]
    return places[0] >= 0 and places == sorted(places)
