"""`/invocations`: Amazon SageMaker's route to chats, completions, vectors, classes and scores."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from quire.config.pooling import PoolingTask
from quire.errors import RequestError
from quire.server.apis.chat.routes import chat_completions
from quire.server.apis.chat.schema import ChatChunk, ChatRequest, ChatResponse
from quire.server.apis.completions.routes import completions
from quire.server.apis.completions.schema import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
)
from quire.server.apis.embeddings import (
    ClassifyRequest,
    ClassifyResponse,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingRequest,
    PoolingResponse,
    classify,
    embeddings,
    pooling,
)
from quire.server.apis.scores import (
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    rerank,
    score,
)
from quire.server.bodies.json_http import context_of, read_body
from quire.server.bodies.unread import field_names, model_of
from quire.server.endpoint import Gives
from quire.server.routing import Routes

_ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"


ROUTES = Routes("generation")


@ROUTES.on(
    "POST",
    "/invocations",
    request=(
        ChatRequest, CompletionRequest, EmbeddingRequest, ClassifyRequest, PoolingRequest,
        RerankRequest, ScoreRequest,
    ),
    response=(
        ChatResponse, CompletionResponse, EmbeddingResponse, ClassifyResponse, PoolingResponse,
        RerankResponse, ScoreResponse,
    ),
    stream=(ChatChunk, CompletionChunk),
)  # fmt: skip
async def invocations(http: Request) -> Any:
    """Computes what the fields of the body ask for. For Amazon SageMaker."""
    given, context = await field_names(http), context_of(http)
    if "requestType" in given:
        message = (
            "stateful sessions are not supported; send each request with its whole conversation"
        )
        raise RequestError(message, parameter="requestType")
    adapter = http.headers.get(_ADAPTER_HEADER)
    if adapter is not None:  # it stands for the body's model; another name is answered 404
        context.target(adapter)
    settings = (await model_of(http, _gives(given))).config.model.pooling
    if settings is not None:
        return await _pooled(http, given, settings.task)
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


def _gives(given: set[str]) -> Gives:
    """Result that a body without a model's name asks for."""
    if given & {"messages", "prompt"}:
        return "text"
    return "embed or classify" if "input" in given and "query" not in given else "scores"


async def _pooled(http: Request, given: set[str], task: PoolingTask) -> Any:
    """The answer of a model that pools: `query` asks for an order, `input` and `messages` for what
    the model gives, and other bodies are pairs."""
    gives = _gives(given)
    if "query" in given:
        return await rerank(http, await read_body(http, RerankRequest, gives))
    if not given & {"input", "messages"}:
        return await score(http, await read_body(http, ScoreRequest, gives))
    match task:
        case "embed":
            return await embeddings(http, await read_body(http, EmbeddingRequest, gives))
        case "classify":
            return await classify(http, await read_body(http, ClassifyRequest, gives))
        case _:
            return await pooling(http, await read_body(http, PoolingRequest, gives))
