"""The reasoning effort that stands for thinking that is disabled.

Some chat templates refuse the effort `none`, or take it for another one. Found by rendering a
conversation, when the first request disables thinking.
"""

from __future__ import annotations

from typing import get_args

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.server.context import ServerContext
from quire.server.schema.messages import Effort, PromptFields


async def disabled_effort(context: ServerContext, request: PromptFields) -> str:
    """For `thinking` of the type `disabled`. Raises CapacityError, QuireError."""
    given = context.args.anthropic_disabled_thinking_effort
    if given != "auto":
        return given
    if request.thinking is None or request.thinking.type != "disabled":
        return "none"
    if context.disabled_thinking_effort is None:
        context.disabled_thinking_effort = await _found(context)
    return context.disabled_thinking_effort


async def _found(context: ServerContext) -> str:
    without = await _rendered(context, "none")
    if without is None:
        return "low"
    for effort in get_args(Effort):
        if await _rendered(context, effort) == without:
            return "low"
    return "none"


async def _rendered(context: ServerContext, effort: str) -> str | None:
    """The prompt of a short conversation; None if the template refuses it."""
    variables = {"enable_thinking": effort != "none", "reasoning_effort": effort}
    probe = ChatInput(
        [{"role": "user", "content": "Hi"}],
        chat_template_kwargs={**context.args.default_chat_template_kwargs, **variables},
    )
    try:
        return await context.chat_renderer().render(probe)
    except RequestError:
        return None
