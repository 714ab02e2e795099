"""Mistral's `/v1/fim/completions`: fills the gap between a prompt and a suffix, and answers in the
form of chats."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.chat.schema import ChatChunk, ChatResponse
from quire.server.apis.chat.writing import chat_writer
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import generate
from quire.server.requests.fields import Int64, SamplerFields
from quire.server.requests.reading import given
from quire.server.requests.request import ReplyOptions, TextRequest
from quire.server.requests.texts import Gap, TextPrompts
from quire.server.routing import Routes


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


_SAME = (*SamplerFields.__struct_fields__, "min_tokens", "stop")

ROUTES = Routes("generation")


@ROUTES.on("POST", "/v1/fim/completions", response=ChatResponse, stream=ChatChunk)
async def fill(http: Request, body: FimRequest) -> Response | ASGIApp:
    """Fills the gap of a text, in Mistral's form, if the model has tokens for that."""
    context_of(http).target(body.model)
    asked = TextRequest.of(
        body,
        Gap(body.prompt, body.suffix) if body.suffix else TextPrompts(body.prompt),
        sampling=given(body, _SAME),
        max_tokens=body.max_tokens,
        reply=ReplyOptions(stream=body.stream is True),
    )
    if body.random_seed is not None:
        asked.sampling["seed"] = body.random_seed
    return await generate(http, asked, "fim", chat_writer)
