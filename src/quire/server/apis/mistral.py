"""Mistral's `/v1/fim/completions`: fills the gap between a prompt and a suffix."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.chat.prompts import filled_prompt
from quire.server.apis.chat.reply_plan import ChatPrompt
from quire.server.apis.chat.routes import chat_writer
from quire.server.apis.chat.schema import ChatChunk, ChatMessage, ChatRequest, ChatResponse
from quire.server.apis.endpoint import Routes
from quire.server.generation.begin import generate
from quire.server.generation.gaps import Gap
from quire.server.generation.prompts import tokenized
from quire.server.generation.request_fields import Int64, SamplerFields
from quire.server.served_model import ServedModel


class FimRequest(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """A text with a gap at its end or, with a suffix, in the middle."""

    model: str | None = None
    prompt: str
    suffix: str | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    random_seed: Int64 | None = None
    metadata: dict[str, Any] | None = None
    """Accepted and not used."""


_SAME = (
    *SamplerFields.__struct_fields__, "model", "max_tokens", "min_tokens", "stop", "stream",
)  # fmt: skip

ROUTES = Routes("generation")


@ROUTES.on("POST", "/v1/fim/completions", response=ChatResponse, stream=ChatChunk)
async def fill(http: Request, asked: FimRequest) -> Response | ASGIApp:
    """Fills the gap of a text, in Mistral's form, if the model has tokens for that."""
    fields: dict[str, Any] = {name: getattr(asked, name) for name in _SAME}
    if asked.random_seed is not None:
        fields["seed"] = asked.random_seed
    request = ChatRequest(messages=[ChatMessage(role="user", content=asked.prompt)], **fields)

    async def prompts(model: ServedModel, request: ChatRequest) -> list[ChatPrompt]:
        if asked.suffix:
            return [await filled_prompt(Gap(asked.prompt, asked.suffix), model, request)]
        text = asked.prompt
        token_ids = await tokenized(model, text)
        return [ChatPrompt(token_ids, text)]

    return await generate(http, request, "fim", prompts, chat_writer)
