"""`/api/embed` of Ollama, and `/api/embeddings`, which came before it."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.apis.ollama.texts import keep_loaded
from quire.server.bodies.json_http import json_response, read_body
from quire.server.generation.pooling import (
    PoolingFields,
    PoolingJob,
    Result,
    as_inputs,
    size_of,
    usage_of,
)
from quire.server.generation.request_fields import Count, Int64

_NS = 10**9


class OllamaEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that become vectors."""

    model: str | None = None
    input: str | list[str]
    truncate: bool | None = True
    """Whether a text that is too long loses its end."""
    dimensions: Int64 | None = None
    options: dict[str, Any] | None = None
    """Accepted and not used."""
    keep_alive: str | int | float | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text that becomes a vector."""

    model: str | None = None
    prompt: str
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None
    """`options` are accepted and not used."""


class OllamaEmbeddingsReply(msgspec.Struct, kw_only=True):
    """The vector."""

    embedding: list[float]


class OllamaEmbedReply(msgspec.Struct, kw_only=True):
    """The vectors, in the order of the texts. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: Count
    load_duration: Literal[0] = 0
    prompt_eval_count: Count


async def embed(http: Request) -> Response:
    """A vector for each text."""
    began_at = time.monotonic()
    request = await read_body(http, OllamaEmbedRequest)
    inputs = as_inputs("input", request.input)  # type: ignore[arg-type]
    truncates = request.truncate is not False
    job, results = await _vectors(
        http, request, "input", inputs, truncates=truncates, dimensions=request.dimensions
    )
    if results is None:
        return Response()
    reply = OllamaEmbedReply(
        model=job.name,
        embeddings=[one.outputs.data.tolist() for one in results],
        total_duration=int((time.monotonic() - began_at) * _NS),
        prompt_eval_count=usage_of(results).prompt_tokens,
    )
    return await job.model.pool.run(sum(map(len, reply.embeddings)), json_response, reply)


async def embeddings(http: Request) -> Response:
    """The vector of one text, which loses its end if it is too long."""
    request = await read_body(http, OllamaEmbeddingsRequest)
    _, results = await _vectors(http, request, "prompt", [request.prompt], truncates=True)
    if results is None:
        return Response()
    return json_response(OllamaEmbeddingsReply(embedding=results[0].outputs.data.tolist()))


async def _vectors(
    http: Request,
    request: OllamaEmbedRequest | OllamaEmbeddingsRequest,
    field: str,
    inputs: list[str | list[int]],
    *,
    truncates: bool,
    dimensions: int | None = None,
) -> tuple[PoolingJob, list[Result] | None]:
    fields = PoolingFields(model=request.model, truncate_prompt_tokens=-1 if truncates else None)
    job = PoolingJob.of(http, fields, "embd")
    job.require("embed")
    keep_loaded(http, job.model, request.keep_alive)
    params = fields.params("embed")
    params.dimensions = dimensions
    tokenization = fields.tokenization(job.model)
    return job, await job.run(field, lambda: inputs, params, tokenization, size=size_of(inputs))
