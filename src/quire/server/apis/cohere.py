"""`/v2/embed`: vectors in Cohere's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError, quoted
from quire.server.generation.pooling import (
    PoolingFields,
    PoolingJob,
    named_as_asked,
    usage_of,
    written,
)
from quire.server.requests.fields import Int64
from quire.server.routing import Routes

EmbeddingType = Literal["float", "binary", "ubinary", "base64"]


class CohereEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that become vectors."""

    model: str | None = None
    texts: list[str] | None = None
    input_type: str | None = None
    """The name of the prompt that is put before each text; unused if the model has no prompts."""
    output_dimension: Int64 | None = None
    embedding_types: list[EmbeddingType] | None = None
    truncate: Literal["NONE", "START", "END"] | None = "END"
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Longer texts are cut as `truncate` says; `NONE`: they are refused."""


class CohereEmbedReply(msgspec.Struct, kw_only=True):
    """The vectors, by type, in the order of the texts."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, Any]
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


_BITS = 8
"""Numbers in a byte of a binary vector."""


_OWN_NAMES = {
    "truncate_prompt_tokens=-1": "truncate=END",
    "truncate_prompt_tokens=": "max_tokens=",
    "dimensions=": "output_dimension=",
}
"""Settings of this API by what stands for them in the engine."""
_INPUT_TYPES: dict[str, tuple[str, ...]] = {
    "search_document": ("document", "passage"), "search_query": ("query",), "classification": (),
    "clustering": (),
}  # fmt: skip
"""Cohere's types of texts, with usual names of prompts that mean the same."""


def _prompt_name(asked: str | None, prompts: Mapping[str, str]) -> str | None:
    """The name of the model's prompt for a type of texts. Raises RequestError."""
    known = [*prompts] if any(prompts.values()) else [*_INPUT_TYPES, *prompts]
    names = () if asked is None else (asked, *_INPUT_TYPES.get(asked, ()))
    if names and not set(names) & set(known):
        what = "the model's prompts" if any(prompts.values()) else "Cohere's for texts"
        raise RequestError(
            f"input_type must be one of {what}: {', '.join(known)}; got {quoted(asked)}",
            parameter="input_type",
        )
    return next((name for name in names if name in prompts), None)


ROUTES = Routes("pooling")


@ROUTES.on("POST", "/v2/embed", gives="embed", response=CohereEmbedReply)
async def embed(http: Request, request: CohereEmbedRequest) -> Response | None:
    """A vector for each text."""
    texts = request.texts
    if not texts:
        raise RequestError("texts must be given: a list with at least one text", parameter="texts")
    fields = PoolingFields(model=request.model)
    if request.truncate != "NONE":
        fields.truncate_prompt_tokens = -1 if request.max_tokens is None else request.max_tokens
        fields.truncation_side = "left" if request.truncate == "START" else "right"
    job = PoolingJob.of(http, fields, "embd", _OWN_NAMES)
    job.require("embed")
    params = fields.params("embed")
    params.dimensions = request.output_dimension
    settings = job.model.config.model.pooling
    params.prompt_name = _prompt_name(request.input_type, settings.prompts if settings else {})
    kinds: list[EmbeddingType] = request.embedding_types or ["float"]
    width = request.output_dimension or (settings.vector_width if settings else 0)
    if width % _BITS and {"binary", "ubinary"} & set(kinds):
        raise RequestError(
            f"Embedding dimension must be a multiple of 8 for binary types, got {width}",
            parameter="embedding_types",
        )
    with named_as_asked(_OWN_NAMES):
        tokenization = fields.tokenization(job.model)
    results = await job.run("texts", texts, params, tokenization)
    if results is None:
        return None
    longest = max(len(one.prompt_token_ids) for one in results)
    if request.max_tokens is not None and longest > request.max_tokens:
        raise RequestError(
            f"a text has {longest} tokens, which is more than max_tokens={request.max_tokens}; set "
            "truncate to END or START",
            parameter="max_tokens",
        )
    vectors = [one.outputs.data for one in results]
    usage = usage_of(results)
    return await job.answer(
        results,
        lambda _: CohereEmbedReply(
            id=job.id,
            embeddings={kind: [_as(kind, one) for one in vectors] for kind in kinds},
            texts=texts,
            meta={
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": usage.prompt_tokens, "image_tokens": 0},
            },
        ),
    )


def _as(kind: EmbeddingType, vector: NDArray[np.float32]) -> Any:
    """A vector in one of Cohere's types: binary ones have a bit for each number, 1 if it is not
    negative."""
    if kind in ("float", "base64"):
        return written(vector, kind)
    bits = np.packbits(vector >= 0)
    return bits.tolist() if kind == "ubinary" else (bits.astype(np.int16) - 128).tolist()
