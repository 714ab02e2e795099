"""`/v1/chat/completions`, its batches, and the prompt that it makes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.chat.reading import read_batch, read_chat
from quire.server.apis.chat.schema import BatchChatRequest, ChatChunk, ChatRequest, ChatResponse
from quire.server.apis.chat.writing import batch_writer, chat_writer
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import begin, generate, whole_of
from quire.server.generation.portions import ReplyHead
from quire.server.generation.rendering import RenderedPrompt, refuse_beams, rendered
from quire.server.routing import Routes

ROUTES = Routes("generation")


@ROUTES.on(
    "POST", "/v1/chat/completions", "/chat/completions", response=ChatResponse, stream=ChatChunk
)
async def chat_completions(http: Request, request: ChatRequest) -> Response | ASGIApp:
    """Continues a conversation."""
    context_of(http).target(request.model)
    return await generate(http, read_chat(request), "chatcmpl", chat_writer)


@ROUTES.on("POST", "/v1/chat/completions/batch", response=ChatResponse)
async def chat_completions_batch(http: Request, batch: BatchChatRequest) -> Response:
    """Continues several conversations, each by one choice of the reply."""
    asked = read_batch(context_of(http).target(batch.model).model, batch)
    head = ReplyHead.of(context_of(http), http, asked, "chatcmpl")
    generation, writer = await begin(http, asked, head, batch_writer)
    return await whole_of(http, generation, writer)


@ROUTES.on(
    "POST", "/v1/chat/completions/render", tag="prompts", gives="text", response=RenderedPrompt
)
async def render_chat(http: Request, request: ChatRequest) -> Response:
    """The prompt and parameters that a chat request would run with."""
    context_of(http).target(request.model)
    refuse_beams(request)
    return await rendered(http, read_chat(request, has_reply=False), "chatcmpl", is_list=False)
