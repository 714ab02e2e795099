"""`/v1/embeddings`, `/pooling` and `/classify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.config.pooling import PoolingTask
from quire.errors import RequestError
from quire.outputs import LateChunkingMetadata
from quire.protocol.pooling_params import LateChunkingParams, PoolingParams
from quire.server.conversation.chat_text import chat_text
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.message import ChatMessage
from quire.server.generation.pooling import (
    EmbedDtype,
    Endianness,
    Inputs,
    ListReply,
    PoolingJob,
    RenderedFields,
    Result,
    as_inputs,
    listed,
    numbers,
    usage_of,
    written,
)
from quire.server.requests.fields import Count, Int64
from quire.server.routing import Routes

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]


class InputFields(RenderedFields, kw_only=True):
    """Exactly one of `input` and `messages`: texts, or a conversation that the model's chat
    template turns into one text."""

    input: Inputs | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_generation_prompt: bool | None = False
    continue_final_message: bool | None = False
    chat_template: str | None = None


class VectorFields(InputFields, kw_only=True):
    """Texts, and the form of their vectors."""

    encoding_format: EncodingFormat | None = "float"
    """`bytes`: the reply is the vectors' bytes, one after another, and its header `metadata` has
    the rest as JSON; `bytes_only`: without this header."""
    embed_dtype: EmbedDtype | None = "float32"
    """Type of the numbers in base64 and bytes."""
    endianness: Endianness | None = "native"
    dimensions: Int64 | None = None


class EmbeddingRequest(VectorFields, kw_only=True):
    """Texts that become vectors."""

    prompt_name: str | None = None
    """Which of the model's prompts is put before each text; by default the model's default."""
    late_chunking_params: LateChunkingParams | None = None


class PoolingRequest(VectorFields, kw_only=True):
    """Texts that become what the model gives: vectors, classes, or one of these for each token."""

    task: PoolingTask | None = None


class ClassifyRequest(InputFields, kw_only=True):
    """Texts that are classified."""


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """The vector of one text."""

    index: Count
    object: Literal["embedding"] = "embedding"
    embedding: list[float | list[float]] | str
    """A list for each token where the model gives a vector for each; a string is base64."""
    late_chunking: LateChunkingMetadata | msgspec.UnsetType = msgspec.UNSET
    """The pieces of the text that have the vectors, with `late_chunking_params`."""


class EmbeddingResponse(ListReply[EmbeddingItem], kw_only=True):
    """The vectors, in the order of the texts."""


class PoolingItem(msgspec.Struct, kw_only=True):
    """The result of one text."""

    index: Count
    object: Literal["pooling"] = "pooling"
    data: Any
    """Numbers; a list of them for each token where the task is one of tokens; or base64."""


class PoolingResponse(ListReply[PoolingItem], kw_only=True):
    """The results, in the order of the texts."""


class ClassifyItem(msgspec.Struct, kw_only=True):
    """The classes of one text."""

    index: Count
    label: str | None
    """The name of the most likely class, if the model has names."""
    probs: list[float]
    num_classes: Count


class ClassifyResponse(ListReply[ClassifyItem], kw_only=True):
    """The classes, in the order of the texts."""


ROUTES = Routes("pooling")


@ROUTES.on("POST", "/v1/embeddings", gives="embed", response=EmbeddingResponse)
async def embeddings(http: Request, request: EmbeddingRequest) -> Response:
    """A vector for each text, or for each of its tokens, as the model gives it."""
    job = PoolingJob.of(http, request, "embd")
    job.require("embed", "token_embed")
    params = request.params()
    params.late_chunking_params = request.late_chunking_params
    params.dimensions, params.prompt_name = request.dimensions, request.prompt_name
    return await _answer(job, request, params, partial(_vectors, job, request, _embeddings))


@ROUTES.on("POST", "/pooling", response=PoolingResponse)
async def pooling(http: Request, request: PoolingRequest) -> Response:
    """Computes the model's result for each text."""
    job = PoolingJob.of(http, request, "pool")
    if request.dimensions is not None:
        raise RequestError(
            "dimensions is currently not supported here; use /v1/embeddings", parameter="dimensions"
        )
    params = request.params(request.task)
    return await _answer(job, request, params, partial(_vectors, job, request, _pooled))


@ROUTES.on("POST", "/classify", gives="classify", response=ClassifyResponse)
async def classify(http: Request, request: ClassifyRequest) -> Response:
    """The classes of each text."""
    job = PoolingJob.of(http, request, "classify")
    job.require("classify")
    params = request.params("classify")
    return await _answer(job, request, params, partial(_classes, job))


async def _answer(
    job: PoolingJob,
    request: InputFields,
    params: PoolingParams,
    reply: Callable[[Sequence[Result]], Any],
) -> Response:
    """The reply to the results: a value or a response; an empty response if the client has gone."""
    if (request.input is None) == (request.messages is None):
        raise RequestError("give input or messages, one of the two", parameter="input")
    tokenization, field = job.request.tokenization(job.model), "input"
    if request.input is not None:
        inputs = as_inputs(field, request.input)
        if not isinstance(inputs[0], str):
            tokenization = replace(tokenization, add_special_tokens=False)
    else:
        begins = request.add_generation_prompt is True
        chat = Conversation.of(request.messages or [], request, add_generation_prompt=begins)
        inputs, field = [await chat_text(job.model, chat)], "messages"
        special = request.add_special_tokens is True
        tokenization = replace(tokenization, add_special_tokens=special)
    results = await job.run(field, inputs, params, tokenization)
    return await job.answer(results, reply)


def _vectors(
    job: PoolingJob,
    request: VectorFields,
    reply: Callable[[PoolingJob, Any, Sequence[Result]], Any],
    results: Sequence[Result],
) -> Any:
    """The vectors as JSON or, as vLLM has it, as bytes that the header `metadata` describes."""
    form = request.encoding_format or "float"
    if not form.startswith("bytes"):
        return reply(job, request, results)
    dtype, order = request.embed_dtype or "float32", request.endianness or "native"
    parts, items, start = [], [], 0
    for index, one in enumerate(results):
        parts.append(numbers(one.outputs.data, dtype, order))
        end, shape = start + len(parts[-1]), list(one.outputs.data.shape)
        items.append({"index": index, "embed_dtype": dtype, "endianness": order,
                      "start": start, "end": end, "shape": shape})  # fmt: skip
        start = end
    metadata = {"id": job.id, "created": job.created, "model": job.name, "data": items,
                "usage": msgspec.to_builtins(usage_of(results))}  # fmt: skip
    headers = {"metadata": json.dumps(metadata)} if form == "bytes" else None
    return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)


def _written(request: VectorFields, result: Result) -> Any:
    form = request.encoding_format or "float"
    dtype, order = request.embed_dtype or "float32", request.endianness or "native"
    return written(result.outputs.data, form, dtype, order)


def _embeddings(
    job: PoolingJob, request: EmbeddingRequest, results: Sequence[Result]
) -> EmbeddingResponse:
    items = (
        EmbeddingItem(
            index=index,
            embedding=_written(request, one),
            late_chunking=one.late_chunking or msgspec.UNSET,
        )
        for index, one in enumerate(results)
    )
    return job.reply(EmbeddingResponse, items, results)


def _pooled(job: PoolingJob, request: PoolingRequest, results: Sequence[Result]) -> PoolingResponse:
    items = (
        PoolingItem(index=index, data=_written(request, one)) for index, one in enumerate(results)
    )
    return job.reply(PoolingResponse, items, results)


def _classes(job: PoolingJob, results: Sequence[Result]) -> ClassifyResponse:
    settings = job.model.config.model.pooling
    labels = {} if settings is None else settings.labels
    items = (
        ClassifyItem(
            index=index,
            label=labels.get(int(one.outputs.data.argmax())),
            probs=listed(one.outputs.data),
            num_classes=one.outputs.data.size,
        )
        for index, one in enumerate(results)
    )
    return job.reply(ClassifyResponse, items, results)
