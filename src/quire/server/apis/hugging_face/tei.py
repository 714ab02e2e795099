"""The routes of text-embeddings-inference: `/embed`, `/embed_all`, `/embed_sparse`, `/predict`,
`/similarity` and `/info`. Its `/rerank` is in `apis/scores`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from quire.config.pooling import PoolingConfig, PoolingTask
from quire.errors import RequestError
from quire.frontend.inputs.refusals import cannot_pool, wrong_task
from quire.frontend.scoring import PairTokens, ScoreLimits
from quire.protocol.pooling_params import PoolingParams
from quire.server.apis.hugging_face import TEI_NAMES
from quire.server.bodies.json_http import context_of
from quire.server.fleet.choice import first_that_gives
from quire.server.generation.pooling import (
    PoolingFields,
    PoolingJob,
    Result,
    as_inputs,
    listed,
    pair_form,
)
from quire.server.requests.fields import Count, Int64
from quire.server.routing import Routes
from quire.tokenizer import Tokenizer
from quire.version import __version__


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


class TeiEmbedAllRequest(TeiRequest, kw_only=True):
    """Texts whose tokens become vectors."""

    normalize: bool | None = None
    """Whether vectors have length 1; by default those of an embedder are as the model gives them,
    and those of a model for vectors of tokens have length 1."""
    dimensions: Int64 | None = None


class SparseValue(msgspec.Struct, kw_only=True):
    """A number of a sparse vector that is not 0."""

    index: Count
    """The id of a token."""
    value: float


class TeiPredictRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text or a pair of texts to classify, or a list of lists of one or two texts."""

    inputs: str | list[str | list[str]]
    model: str | None = None
    truncate: bool | None = False
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = "Right"
    raw_scores: bool | None = False


class Prediction(msgspec.Struct, kw_only=True):
    """A class and its score."""

    score: float
    label: str


class Sentences(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, and those that are compared with it."""

    source_sentence: str
    sentences: Annotated[list[str], Meta(min_length=1)]


class SimilarityParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the texts' vectors."""

    truncate: bool | None = False
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = "Right"
    prompt_name: str | None = None


class TeiSimilarityRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that are compared."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None
    model: str | None = None


class TeiInfo(msgspec.Struct, kw_only=True):
    """The served model and the limits."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    model_type: dict[str, Any]
    """`embedding`, `classifier` or `reranker`, with what is known of it."""
    max_input_length: Count
    max_client_batch_size: Count
    max_batch_tokens: Count
    auto_truncate: bool = False
    version: str


ROUTES = Routes("pooling", takes_any_name=True)


@ROUTES.on("POST", "/embed", gives="embed", response=list[list[float]])
async def embed(http: Request, request: TeiEmbedRequest) -> Response:
    """A list with the vector of each text."""
    return await _embed(http, request, "embed")


@ROUTES.on("POST", "/embed_all", gives="token_embed", response=list[list[list[float]]])
async def embed_all(http: Request, request: TeiEmbedAllRequest) -> Response:
    """A list with the vectors of the tokens of each text."""
    return await _embed(http, request, "token_embed")


async def _embed(
    http: Request, request: TeiEmbedRequest | TeiEmbedAllRequest, task: PoolingTask
) -> Response:
    fields = PoolingFields(model=request.model, use_activation=request.normalize)
    job = PoolingJob.of(http, fields, "embd", TEI_NAMES)
    job.require(task)
    pooling = job.model.config.model.pooling
    if task == "token_embed" and request.normalize is None and pooling is not None:
        fields.use_activation = pooling.is_by_token
    params = fields.params(task)
    params.dimensions, params.prompt_name = request.dimensions, request.prompt_name
    results = await _results(job, request, params)
    return await job.answer(results, lambda found: [listed(one.outputs.data) for one in found])


@ROUTES.on("POST", "/embed_sparse", gives="sparse", response=list[list[SparseValue]])
async def embed_sparse(http: Request, request: TeiRequest) -> Response:
    """The sparse vector of each text: the largest weight of each of its tokens, by token id."""
    fields = PoolingFields(model=request.model)
    job = PoolingJob.of(http, fields, "embd", TEI_NAMES)
    pooling = job.model.config.model.pooling
    if pooling is None or not pooling.is_sparse:
        raise RequestError(wrong_task(job.model.config.model, "sparse embed"), parameter="model")
    params = fields.params("token_classify")
    params.prompt_name = request.prompt_name
    results = await _results(job, request, params)
    special = special_ids(job.model.tokenizer())
    return await job.answer(
        results, lambda found: [_sparse(one, special, pooling) for one in found]
    )


@ROUTES.on("POST", "/predict", gives="classify")
async def predict(
    http: Request, request: TeiPredictRequest
) -> list[Prediction] | list[list[Prediction]] | None:
    """The classes of each text or pair of texts, the most likely first."""
    fields = PoolingFields(
        model=request.model, use_activation=False if request.raw_scores else None
    )
    job = PoolingJob.of(http, fields, "classify", TEI_NAMES)
    job.require("classify")
    sequences = _sequences(request.inputs)
    job.model.limits.check_prompts(len(sequences), 1, "inputs")
    for text in (text for one in sequences for text in one):
        job.model.limits.check_text("inputs", len(text.encode(errors="replace")))
    is_one = isinstance(request.inputs, str) or isinstance(request.inputs[0], str)
    _truncate(job, request.truncate, request.truncation_direction)
    tokenization = job.request.tokenization(job.model)
    pairs = PairTokens(
        job.model.config.model,
        job.model.tokenizer(),
        ScoreLimits(truncation=tokenization.truncation),
        await pair_form(job.model) if any(len(one) == 2 for one in sequences) else None,
    )
    results = await job.run(
        "inputs",
        [text for one in sequences for text in one],
        fields.params("classify"),
        tokenization,
        lambda: [pairs.prompt(*one) if len(one) == 2 else one[0] for one in sequences],
    )
    if results is None:
        return None
    settings = job.model.config.model.pooling
    labels = {} if settings is None else settings.labels
    found = [
        [
            Prediction(score=float(score), label=labels.get(index, f"LABEL_{index}"))
            for index, score in sorted(enumerate(one.outputs.data), key=lambda pair: -pair[1])
        ]
        for one in results
    ]
    return found[0] if is_one else found


@ROUTES.on("POST", "/similarity", gives="embed")
async def similarity(http: Request, request: TeiSimilarityRequest) -> list[float] | None:
    """The cosine of each sentence's vector and that of the source sentence."""
    fields = PoolingFields(model=request.model, use_activation=True)
    own_names = {**TEI_NAMES, "prompt_name=": "parameters.prompt_name="}
    job = PoolingJob.of(http, fields, "embd", own_names)
    job.require("embed")
    parameters = request.parameters or SimilarityParameters()
    params = fields.params("embed")
    params.prompt_name = parameters.prompt_name
    given = TeiRequest(
        inputs=[request.inputs.source_sentence, *request.inputs.sentences],
        truncate=parameters.truncate,
        truncation_direction=parameters.truncation_direction,
    )
    given_in = [("inputs.source_sentence", 1), ("inputs.sentences", len(request.inputs.sentences))]
    results = await _results(job, given, params, given_in)
    if results is None:
        return None
    source, *others = (one.outputs.data for one in results)
    return [float(source @ other) for other in others]


@ROUTES.on("GET", "/info", tag="models", errors=(400, 404))
async def info(http: Request) -> TeiInfo:
    """The served model and the limits. `?model=NAME` chooses the model."""
    context, name = context_of(http), http.query_params.get("model")
    if not name and context.fleet is not None:
        name = first_that_gives(context.models, "pooled").names[0]
    target = context.target(name)
    config = target.model.config
    model = config.model
    if model.pooling is None:
        raise RequestError(cannot_pool(model), parameter="model")
    kinds: dict[str, dict[str, Any]] = {"embedding": {"pooling": str(model.pooling.pooling_type)}}
    if model.pooling.task in ("classify", "token_classify"):
        names = {str(index): label for index, label in model.pooling.labels.items()}
        by_name = {label: index for index, label in model.pooling.labels.items()}
        kind = "reranker" if model.pooling.width == 1 else "classifier"
        kinds = {kind: {"id2label": names, "label2id": by_name}}
    return TeiInfo(
        model_id=target.name,
        model_dtype=str(model.dtype),
        model_type=kinds,
        max_input_length=target.model.limits.max_model_len,
        max_client_batch_size=target.model.limits.max_prompts,
        max_batch_tokens=config.scheduler.max_num_batched_tokens,
        version=__version__,
    )


async def _results(
    job: PoolingJob,
    request: TeiRequest,
    params: PoolingParams,
    fields: str | Sequence[tuple[str, int]] = "inputs",
) -> list[Result] | None:
    inputs = as_inputs("inputs", request.inputs)  # type: ignore[arg-type]
    _truncate(job, request.truncate, request.truncation_direction)
    tokenization = job.request.tokenization(job.model)
    return await job.run(fields, inputs, params, tokenization)


def _truncate(job: PoolingJob, truncate: bool | None, direction: str | None) -> None:
    if truncate:
        job.request.truncate_prompt_tokens = -1
        is_left = (direction or "Right").lower() == "left"
        job.request.truncation_side = "left" if is_left else "right"


def _sequences(given: str | list[str | list[str]]) -> list[list[str]]:
    """One or two texts for each result. Raises RequestError."""
    flat: list[Any] = [[given]] if isinstance(given, str) else given
    if flat and isinstance(flat[0], str):
        flat = [flat]
    if not flat or not all(map(_is_sequence, flat)):
        raise RequestError(
            "inputs must be a text, a pair of texts, or a list of lists of one or two texts, for "
            'example [["a text"], ["a question", "an answer"]]',
            parameter="inputs",
        )
    return flat


def _is_sequence(one: object) -> bool:
    if not isinstance(one, list):
        return False
    return len(one) in (1, 2) and all(isinstance(text, str) for text in one)


def special_ids(tokenizer: Tokenizer | None) -> frozenset[int]:
    """Ids of the special tokens that enclose a text."""
    frame = None if tokenizer is None else tokenizer.special_frame
    return frozenset() if frame is None else frozenset([*frame.before, *frame.after])


def _sparse(result: Result, special: frozenset[int], pooling: PoolingConfig) -> list[SparseValue]:
    weights: dict[int, float] = {}
    inner = result.prompt_token_ids[pooling.inner(result.prompt_token_ids)]
    for token, weight in zip(inner, result.outputs.data.tolist(), strict=True):
        if weight > 0 and token not in special:
            weights[token] = max(weight, weights.get(token, 0.0))
    return [SparseValue(index=token, value=weights[token]) for token in sorted(weights)]
