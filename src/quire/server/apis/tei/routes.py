"""`/embed` and `/embed_sparse` of text-embeddings-inference."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.frontend.inputs.tasks import wrong_task
from quire.protocol.pooling_params import PoolingParams
from quire.server.bodies.json_http import json_response, read_body
from quire.server.generation.request_fields import Count, Int64
from quire.server.pooling.fields import PoolingFields, as_inputs
from quire.server.pooling.run import PoolingJob, Result, size_of
from quire.tokenizer import Tokenizer


class TeiRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts."""

    inputs: str | list[str | list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]]
    model: str | None = None
    truncate: bool | None = False
    """Whether a text that is too long loses an end."""
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = "Right"
    prompt_name: str | None = None


class TeiEmbedRequest(TeiRequest, kw_only=True):
    """Texts that become vectors."""

    normalize: bool | None = True
    dimensions: Int64 | None = None


class SparseValue(msgspec.Struct, kw_only=True):
    """A number of a sparse vector that is not 0."""

    index: Count
    """The id of a token."""
    value: float


async def embed(http: Request) -> Response:
    """A list with the vector of each text."""
    request = await read_body(http, TeiEmbedRequest)
    fields = PoolingFields(model=request.model, use_activation=request.normalize)
    job = PoolingJob.of(http, fields, "embd")
    job.require("embed")
    params = fields.params("embed")
    params.dimensions, params.prompt_name = request.dimensions, request.prompt_name
    results = await _results(job, request, params)
    if results is None:
        return Response()
    num_values = sum(one.outputs.data.size for one in results)
    return await job.model.pool.run(
        num_values, lambda: json_response([one.outputs.data.tolist() for one in results])
    )


async def embed_sparse(http: Request) -> Response:
    """The sparse vector of each text: the largest weight of each of its tokens, by token id."""
    request = await read_body(http, TeiRequest)
    fields = PoolingFields(model=request.model)
    job = PoolingJob.of(http, fields, "embd")
    pooling = job.model.config.model.pooling
    if pooling is None or not pooling.is_sparse:
        raise RequestError(wrong_task(job.model.config.model, "sparse embed"), parameter="model")
    params = fields.params("token_classify")
    params.prompt_name = request.prompt_name
    results = await _results(job, request, params)
    if results is None:
        return Response()
    special = special_ids(job.model.tokenizer())
    return await job.model.pool.run(
        size_of([one.prompt_token_ids for one in results]),
        lambda: json_response([_sparse(one, special) for one in results]),
    )


async def _results(
    job: PoolingJob, request: TeiRequest, params: PoolingParams
) -> list[Result] | None:
    """None: the client has gone."""
    inputs = as_inputs("inputs", request.inputs)  # type: ignore[arg-type]
    if request.truncate:
        job.request.truncate_prompt_tokens = -1
        is_left = (request.truncation_direction or "Right").lower() == "left"
        job.request.truncation_side = "left" if is_left else "right"
    tokenization = job.request.tokenization(job.model)
    return await job.run("inputs", lambda: inputs, params, tokenization, size=size_of(inputs))


def special_ids(tokenizer: Tokenizer | None) -> frozenset[int]:
    """Ids of the special tokens that enclose a text."""
    frame = None if tokenizer is None else tokenizer.special_frame
    return frozenset() if frame is None else frozenset([*frame.before, *frame.after])


def _sparse(result: Result, special: frozenset[int]) -> list[SparseValue]:
    weights: dict[int, float] = {}
    for token, (weight,) in zip(result.prompt_token_ids, result.outputs.data.tolist(), strict=True):
        if weight > 0 and token not in special:
            weights[token] = max(weight, weights.get(token, 0.0))
    return [SparseValue(index=token, value=weights[token]) for token in sorted(weights)]
