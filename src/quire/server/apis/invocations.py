"""`/invocations`: Amazon SageMaker's route to chats and completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.chat.routes import chat_completions
from quire.server.apis.chat.schema import ChatChunk, ChatRequest, ChatResponse
from quire.server.apis.completions.routes import completions
from quire.server.apis.completions.schema import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.apis.endpoint import Routes
from quire.server.bodies.json_http import context_of, field_names, read_body

_ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"


ROUTES = Routes("generation")


@ROUTES.on(
    "POST",
    "/invocations",
    request=(ChatRequest, CompletionRequest),
    response=(ChatResponse, CompletionResponse),
    stream=(ChatChunk, CompletionChunk),
)
async def invocations(http: Request) -> Response | ASGIApp:
    """A chat or a completion, by its body. For Amazon SageMaker."""
    given, context = await field_names(http), context_of(http)
    if "requestType" in given:
        message = (
            "stateful sessions are not supported; send each request with its whole conversation"
        )
        raise RequestError(message, parameter="requestType")
    adapter = http.headers.get(_ADAPTER_HEADER)
    if adapter is not None:  # it stands for the body's model; another name is answered 404
        context.target(adapter)
    if "messages" in given:
        return await chat_completions(http, await read_body(http, ChatRequest))
    if "prompt" in given:
        return await completions(http, await read_body(http, CompletionRequest))
    raise RequestError(
        "Cannot find suitable handler for request. Expected one of: "
        "['ChatCompletionRequest', 'CompletionRequest']; a body with `messages` is the first, one "
        "with `prompt` the second.",
        parameter="messages",
    )
