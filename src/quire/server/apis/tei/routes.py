"""`/embed` of text-embeddings-inference."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.server.bodies.json_http import json_response, read_body
from quire.server.generation.request_fields import Int64
from quire.server.pooling.fields import PoolingFields, as_inputs
from quire.server.pooling.run import PoolingJob, size_of


class TeiEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that become vectors."""

    inputs: str | list[str | list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]]
    model: str | None = None
    normalize: bool | None = True
    truncate: bool | None = False
    """Whether a text that is too long loses an end."""
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = "Right"
    prompt_name: str | None = None
    dimensions: Int64 | None = None


async def embed(http: Request) -> Response:
    """A list with the vector of each text."""
    request = await read_body(http, TeiEmbedRequest)
    inputs = as_inputs("inputs", request.inputs)  # type: ignore[arg-type]
    fields = PoolingFields(model=request.model, use_activation=request.normalize)
    if request.truncate:
        fields.truncate_prompt_tokens = -1
        is_left = (request.truncation_direction or "Right").lower() == "left"
        fields.truncation_side = "left" if is_left else "right"
    job = PoolingJob.of(http, fields, "embd")
    job.require("embed")
    params = fields.params("embed")
    params.dimensions, params.prompt_name = request.dimensions, request.prompt_name
    results = await job.run(
        "inputs", lambda: inputs, params, fields.tokenization(job.model), size=size_of(inputs)
    )
    if results is None:
        return Response()
    num_values = sum(one.outputs.data.size for one in results)
    return await job.model.pool.run(
        num_values, lambda: json_response([one.outputs.data.tolist() for one in results])
    )
