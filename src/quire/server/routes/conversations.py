"""A batch of conversations as single chat requests, which the rest of the server knows.

Called by `/v1/chat/completions/batch`. Its limits are vLLM's: no streams, no tools, no beam search,
one choice for each conversation.
"""

from __future__ import annotations

import msgspec

from quire.errors import RequestError, quoted
from quire.server.context import ServerContext
from quire.server.schema.chat import BatchChatRequest, ChatRequest

_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "stream": ((None, False), "streams"),
    "use_beam_search": ((None, False), "beam search"),
    "tools": ((None,), "tools"),
    "prompt_logprobs": ((None,), "`prompt_logprobs`, which a reply has for one prompt"),
    "return_prompt_text": ((None, False), "`return_prompt_text`, which is of one prompt"),
}
"""Fields of a chat that a batch does not have: the values without effect, and what they ask for."""


def conversations_of(context: ServerContext, batch: BatchChatRequest) -> list[ChatRequest]:
    """A request for each conversation, in order. Raises RequestError."""
    for name, (neutral, what) in _REFUSED.items():
        value = getattr(batch, name)
        if value not in neutral:
            raise RequestError(
                f"Batch chat completions do not support {what}. Leave `{name}` at {neutral[-1]!r}, "
                "or send each conversation to /v1/chat/completions.",
                parameter=name,
            )
    if batch.n not in (None, 1):
        raise RequestError(
            "Batch chat completions do not support `n > 1`. Please set `n` to 1, got "
            f"{quoted(batch.n)}.",
            parameter="n",
            value=batch.n,
        )
    context.limits.check_prompts(len(batch.messages), 1, name="messages")
    shared = msgspec.structs.asdict(batch)
    del shared["messages"]
    return [ChatRequest(messages=messages, **shared) for messages in batch.messages]
