"""The routes of text-generation-inference: `/generate`, `/generate_stream` and `/vertex`; and `/`,
where text-embeddings-inference answers, too."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.completions.routes import completion_prompts
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.endpoint import Routes
from quire.server.apis.hugging_face.generation import (
    TgiEvent,
    TgiParameters,
    TgiReply,
    TgiRequest,
    TgiWriter,
    completion_request,
)
from quire.server.apis.hugging_face.tei import (
    Prediction,
    TeiEmbedRequest,
    TeiPredictRequest,
    embed,
    predict,
)
from quire.server.bodies.json_http import context_of, json_response, model_of, read_body
from quire.server.generation.begin import MakeWriter, begin, generate
from quire.server.generation.prompts import PreparedPrompt
from quire.server.generation.replies.portions import ReplyHead
from quire.server.http.event_stream import PLAIN_FORM, until_gone

ROUTES = Routes("generation", takes_any_name=True)


@ROUTES.on("POST", "/generate", response=TgiReply)
async def generate_text(http: Request, asked: TgiRequest) -> Response | ASGIApp:
    """Continues a prompt, in the form of text-generation-inference."""
    return await answer(http, asked, stream=False)


@ROUTES.on("POST", "/generate_stream", response=TgiEvent, stream=TgiEvent, has_named_events=True)
async def generate_stream(http: Request, asked: TgiRequest) -> Response | ASGIApp:
    """The same as a stream."""
    return await answer(http, asked, stream=True)


class VertexRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Prompts to be continued."""

    instances: list[TgiRequest]
    model: str | None = None


class VertexReply(msgspec.Struct, kw_only=True):
    """The texts, in the order of the prompts."""

    predictions: list[str]


@ROUTES.on("POST", "/vertex", response=VertexReply)
async def vertex(http: Request, asked: VertexRequest) -> Response:
    """Continues prompts one after the other. For Google's Vertex AI."""
    context_of(http).target(asked.model).model.limits.check_prompts(
        len(asked.instances), 1, "instances"
    )
    predictions = []
    for index, instance in enumerate(asked.instances):
        instance.model = asked.model
        parameters = instance.parameters or TgiParameters()
        request = completion_request(instance, parameters, stream=False)
        head = ReplyHead.of(context_of(http), http, request, f"vertex{index}")
        generation, writer = await begin(
            http, request, head, completion_prompts, _writer_of(instance, parameters)
        )
        finals = await until_gone(http, generation.close, generation.final_outputs())
        if finals is None:
            return Response()
        predictions.append(writer.part(finals[0], finals[0].outputs[0]).generated_text)
    return json_response(VertexReply(predictions=predictions))


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
    parameters = asked.parameters or TgiParameters()
    request = completion_request(asked, parameters, stream=stream)
    make_writer = _writer_of(asked, parameters, is_list=is_list)
    return await generate(http, request, "tgi", completion_prompts, make_writer, PLAIN_FORM)


def _writer_of(
    asked: TgiRequest, parameters: TgiParameters, *, is_list: bool = False
) -> MakeWriter[CompletionRequest, PreparedPrompt, TgiWriter]:
    def writer(_: CompletionRequest, head: ReplyHead, prompts: list[PreparedPrompt]) -> TgiWriter:
        del prompts
        tokenizer = head.target.model.loaded_engine().tokenizer
        return TgiWriter(asked, parameters, tokenizer, is_list=is_list)

    return writer
