"""`/v1/chat/completions` and its batches."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError, quoted
from quire.server.apis.chat.prompts import planned_prompt
from quire.server.apis.chat.reply_plan import ChatPrompt
from quire.server.apis.chat.schema import BatchChatRequest, ChatRequest
from quire.server.apis.chat.tools import tool_use
from quire.server.apis.chat.writer import BatchChatWriter, ChatWriter
from quire.server.bodies.json_http import context_of, read_body
from quire.server.generation.begin import begin, generate, whole_of
from quire.server.generation.replies.portions import ReplyHead
from quire.server.served_model import ServedModel


async def chat_completions(http: Request) -> Response | ASGIApp:
    """Continues a conversation."""
    request = await read_body(http, ChatRequest)
    return await generate(http, request, "chatcmpl", chat_prompts, _chat_writer)


async def chat_completions_batch(http: Request) -> Response:
    """Continues several conversations, each by one choice of the reply."""
    batch = await read_body(http, BatchChatRequest)
    model = context_of(http).target(batch.model).model
    requests = conversations_of(model, batch)

    async def prepare(model: ServedModel, _: ChatRequest) -> list[ChatPrompt]:
        return [prompt for each in requests for prompt in await chat_prompts(model, each)]

    def make_writer(_: ChatRequest, head: ReplyHead, prompts: list[ChatPrompt]) -> BatchChatWriter:
        pairs = zip(requests, prompts, strict=True)
        writers = [_chat_writer(request, head, [prompt]) for request, prompt in pairs]
        return BatchChatWriter(head, writers)

    head = ReplyHead.of(context_of(http), http, requests[0], "chatcmpl")
    generation, writer = await begin(http, requests[0], head, prepare, make_writer)
    return await whole_of(http, generation, writer)


async def chat_prompts(model: ServedModel, request: ChatRequest) -> list[ChatPrompt]:
    """The one prompt of a chat. Raises RequestError."""
    return [await planned_prompt(model, request, tool_use(request, model.args.tool_strict_level))]


def _chat_writer(request: ChatRequest, head: ReplyHead, prompts: list[ChatPrompt]) -> ChatWriter:
    model = head.target.model
    tokenizer, role = model.loaded_engine().tokenizer, model.args.response_role
    return ChatWriter(request, head, prompts, tokenizer, role)


_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "stream": ((None, False), "streams"),
    "use_beam_search": ((None, False), "beam search"),
    "tools": ((None,), "tools"),
    "prompt_logprobs": ((None,), "`prompt_logprobs`, which a reply has for one prompt"),
    "return_prompt_text": ((None, False), "`return_prompt_text`, which is of one prompt"),
}
"""Fields of a chat that a batch does not have: the values without effect, and what they ask for."""


def conversations_of(model: ServedModel, batch: BatchChatRequest) -> list[ChatRequest]:
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
    model.limits.check_prompts(len(batch.messages), 1, name="messages")
    shared = msgspec.structs.asdict(batch)
    del shared["messages"]
    return [ChatRequest(messages=messages, **shared) for messages in batch.messages]
