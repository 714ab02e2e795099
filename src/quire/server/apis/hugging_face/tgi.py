"""The routes of text-generation-inference: `/generate` and `/generate_stream`; and `/`, where
text-embeddings-inference answers, too. Its `/vertex` is in `vertex`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.hugging_face.tei import (
    Prediction,
    TeiEmbedRequest,
    TeiPredictRequest,
    embed,
    predict,
)
from quire.server.apis.hugging_face.tgi_reading import read_tgi
from quire.server.apis.hugging_face.tgi_schema import TgiEvent, TgiReply, TgiRequest
from quire.server.apis.hugging_face.tgi_writing import writer_of
from quire.server.bodies.json_http import read_body
from quire.server.bodies.unread import model_of
from quire.server.generation.begin import generate
from quire.server.http.event_stream import PLAIN_FORM
from quire.server.routing import Routes

ROUTES = Routes("generation", takes_any_name=True)


@ROUTES.on("POST", "/generate", response=TgiReply)
async def generate_text(http: Request, asked: TgiRequest) -> Response | ASGIApp:
    """Continues a prompt, in the form of text-generation-inference."""
    return await answer(http, asked, stream=False)


@ROUTES.on("POST", "/generate_stream", response=TgiEvent, stream=TgiEvent, has_named_events=True)
async def generate_stream(http: Request, asked: TgiRequest) -> Response | ASGIApp:
    """The same as a stream."""
    return await answer(http, asked, stream=True)


@ROUTES.on(
    "POST",
    "/",
    tag="pooling",
    gives="embed or classify",
    request=(TeiEmbedRequest, TeiPredictRequest, TgiRequest),
    response=(list[list[float]], list[Prediction], list[list[Prediction]], list[TgiReply]),
    stream=TgiEvent,
)
async def root(http: Request) -> Any:
    """The vectors, classes or text that the model gives. huggingface_hub's clients use it."""
    pooling = (await model_of(http, "embed or classify")).config.model.pooling
    if pooling is None:
        asked = await read_body(http, TgiRequest)
        return await answer(http, asked, stream=asked.stream is True, is_list=True)
    if pooling.task == "classify":
        return await predict(http, await read_body(http, TeiPredictRequest))
    return await embed(http, await read_body(http, TeiEmbedRequest))


async def answer(
    http: Request, asked: TgiRequest, *, stream: bool, is_list: bool = False
) -> Response | ASGIApp:
    """Answers a request. `is_list`: a whole reply is in a list."""
    request = read_tgi(asked, stream=stream)
    return await generate(http, request, "tgi", writer_of(asked, is_list=is_list), PLAIN_FORM)
