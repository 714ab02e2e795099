"""Whether a chat template takes instructions between the turns of a conversation.

Some end with an error, some leave them out. Found by rendering a conversation, when the first
request has such instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.server.apis.messages.schema import Effort, PromptFields
from quire.server.served_model import ServedModel

_ROLES = ("system", "user", "system", "assistant", "user", "system")


async def merges_system(model: ServedModel, request: PromptFields) -> bool:
    """Whether the instructions between the turns of this request have to be merged into those
    before all turns. Raises CapacityError, QuireError."""
    if all(turn.role != "system" for turn in request.messages):
        return False
    has_tools = bool(request.tools)  # a model may have a template for these alone
    known = model.takes_late_system
    if has_tools not in known:
        known[has_tools] = await _takes_late_system(model, [] if has_tools else None)
    return not known[has_tools]


async def _takes_late_system(model: ServedModel, tools: Sequence[object] | None) -> bool:
    marks = [f"mark-{index}" for index in range(len(_ROLES))]
    probe = ChatInput(
        [{"role": role, "content": mark} for role, mark in zip(_ROLES, marks, strict=True)],
        tools=tools,
        chat_template_kwargs=model.args.default_chat_template_kwargs,
    )
    try:
        text = await model.chat_renderer().render(probe)
    except RequestError:
        return False
    places = [text.find(mark) for mark in marks]
    return places[0] >= 0 and places == sorted(places)


async def disabled_effort(model: ServedModel, request: PromptFields) -> str:
    """For `thinking` of the type `disabled`. Raises CapacityError, QuireError."""
    given = model.args.anthropic_disabled_thinking_effort
    if given != "auto":
        return given
    if request.thinking is None or request.thinking.type != "disabled":
        return "none"
    if model.disabled_thinking_effort is None:
        model.disabled_thinking_effort = await _found(model)
    return model.disabled_thinking_effort


async def _found(model: ServedModel) -> str:
    without = await _rendered(model, "none")
    if without is None:
        return "low"
    for effort in get_args(Effort):
        if await _rendered(model, effort) == without:
            return "low"
    return "none"


async def _rendered(model: ServedModel, effort: str) -> str | None:
    """The prompt of a short conversation; None if the template refuses it."""
    variables = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    probe = ChatInput(
        [{"role": "user", "content": "Hi"}],
        chat_template_kwargs={**model.args.default_chat_template_kwargs, **variables},
    )
    try:
        return await model.chat_renderer().render(probe)
    except RequestError:
        return None
