"""`/v1/completions`, and the prompts that it makes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.completions.reading import read_completion
from quire.server.apis.completions.schema import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.apis.completions.writing import completion_writer
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import generate
from quire.server.generation.rendering import RenderedPrompt, refuse_beams, rendered
from quire.server.routing import Routes

ROUTES = Routes("generation")


@ROUTES.on("POST", "/v1/completions", response=CompletionResponse, stream=CompletionChunk)
async def completions(http: Request, request: CompletionRequest) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    context_of(http).target(request.model)
    return await generate(http, read_completion(request), "cmpl", completion_writer)


@ROUTES.on(
    "POST", "/v1/completions/render", tag="prompts", gives="text", response=list[RenderedPrompt]
)
async def render_completion(http: Request, request: CompletionRequest) -> Response:
    """The prompts and parameters that a completion request would run with."""
    context_of(http).target(request.model)
    refuse_beams(request)
    return await rendered(http, read_completion(request), "cmpl", is_list=True)
