"""llama-server's `/embedding`, which `/embeddings` means there, too."""

from __future__ import annotations

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.generation.pooling import Inputs, PoolingFields, PoolingJob, as_inputs, listed
from quire.server.requests.fields import Count, Int64
from quire.server.routing import Routes

_NONE, _EUCLIDEAN = -1, 2


class LlamaEmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that become vectors; one of the two names has them."""

    content: Inputs | None = None
    input: Inputs | None = None
    model: str | None = None
    embd_normalize: Int64 | None = _EUCLIDEAN
    """2: vectors have length 1. -1: they are as the model gives them."""


class LlamaEmbedding(msgspec.Struct, kw_only=True):
    """The vectors of one text: one, or one for each token where the model's task is that."""

    index: Count
    embedding: list[list[float]]


ROUTES = Routes("pooling", takes_any_name=True)


@ROUTES.on("POST", "/embedding", "/embeddings", gives="embed", response=list[LlamaEmbedding])
async def embedding(http: Request, asked: LlamaEmbeddingRequest) -> Response:
    """A list with the vectors of each text, in llama-server's form."""
    if (asked.content is None) == (asked.input is None):
        raise RequestError("give content or input, one of the two", parameter="content")
    if asked.embd_normalize not in (None, _NONE, _EUCLIDEAN):
        raise RequestError(
            f"embd_normalize must be {_EUCLIDEAN} or {_NONE}, got {asked.embd_normalize}",
            parameter="embd_normalize",
        )
    name = "input" if asked.content is None else "content"
    inputs = as_inputs(name, asked.input if asked.content is None else asked.content)  # type: ignore[arg-type]
    fields = PoolingFields(model=asked.model, use_activation=asked.embd_normalize != _NONE)
    job = PoolingJob.of(http, fields, "embd")
    job.require("embed", "token_embed")
    tokenization = fields.tokenization(job.model)
    results = await job.run(name, inputs, fields.params(), tokenization)
    return await job.answer(
        results,
        lambda found: [
            LlamaEmbedding(index=index, embedding=listed(np.atleast_2d(one.outputs.data)))
            for index, one in enumerate(found)
        ],
    )
