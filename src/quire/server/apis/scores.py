"""`/score` and `/rerank`, in vLLM's, Jina's, Cohere's and TEI's forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from quire.errors import RequestError, quoted
from quire.frontend.inputs.tokenization import Tokenization, Truncation
from quire.frontend.scoring import ScoreLimits, Scoring
from quire.outputs import ScoringRequestOutput
from quire.server.apis.hugging_face import TEI_NAMES
from quire.server.generation.pooling import (
    ListReply,
    PoolingJob,
    PoolingUsage,
    RenderedFields,
    named_as_asked,
    pair_form,
    size_of,
    usage_of,
)
from quire.server.requests.fields import Count
from quire.server.routing import Routes

Texts = str | list[str]
DocumentText = str | dict[str, Any]
"""A text, or an object with `text`."""
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PairFields(RenderedFields, kw_only=True):
    """Fields that all requests about pairs of texts have."""

    max_tokens_per_query: Limit | None = 0
    """Keep so many tokens of a query; 0: all."""
    max_tokens_per_doc: Limit | None = 0
    instruction: str | None = None
    """Description of documents that fit, for models whose form has a place for it."""


class ScoreRequest(PairFields, kw_only=True):
    """Pairs: one text with one or with each of many, or as many with as many. The two lists have
    one of four pairs of names."""

    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None


class ScoreItem(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    index: Count
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(ListReply[ScoreItem], kw_only=True):
    """The scores, in the order of the pairs."""


class RerankRequest(PairFields, kw_only=True):
    """A query and documents that are put in order."""

    query: str
    documents: list[DocumentText] | None = None
    top_n: Limit | None = 0
    """So many of the best; 0: all."""
    return_documents: bool | None = None
    """Repeat the documents in the reply; by default yes, and no in Cohere's form."""
    texts: list[str] | None = None
    """Documents in TEI's form, whose reply is a list."""
    raw_scores: bool | None = False
    return_text: bool | None = False
    truncate: bool | None = False
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class RerankDocument(msgspec.Struct, kw_only=True):
    """A document, repeated."""

    text: str


class RerankResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A document's place in the request, and its score."""

    index: Count
    document: RerankDocument | None = None
    relevance_score: float


class RerankResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The documents, the best first."""

    id: str
    model: str
    usage: PoolingUsage
    results: list[RerankResult]
    meta: dict[str, Any] | None = None
    """In Cohere's form."""


class TeiRank(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A document's place and score in TEI's form."""

    index: Count
    score: float
    text: str | None = None


_PAIRS = (
    ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"),
)  # fmt: skip


ROUTES = Routes("pooling")


@ROUTES.on("POST", "/score", "/v1/score", gives="scores")
async def score(http: Request, request: ScoreRequest) -> ScoreResponse | None:
    """The scores of pairs."""
    job = PoolingJob.of(http, request, "score")
    first, second = _pair_of(request)
    found = await _scores(job, request, first, second, _names(request))
    if found is None:
        return None
    items = (ScoreItem(index=i, score=one.outputs.score) for i, one in enumerate(found))
    return job.reply(ScoreResponse, items, found)


@ROUTES.on("POST", "/rerank", "/v1/rerank", "/reranking", "/v1/reranking", gives="scores")
async def rerank(http: Request, request: RerankRequest) -> RerankResponse | list[TeiRank] | None:
    """The documents in the order of their scores, in vLLM's and Jina's form.

    Documents in `texts` are answered in TEI's form.
    """
    if request.texts is not None:
        return await _tei_rerank(http, request)
    return await _rerank(http, request, is_cohere=False)


@ROUTES.on("POST", "/v2/rerank", gives="scores")
async def rerank_v2(http: Request, request: RerankRequest) -> RerankResponse | None:
    """The documents in the order of their scores, in Cohere's form."""
    return await _rerank(http, request, is_cohere=True)


async def _rerank(
    http: Request, request: RerankRequest, *, is_cohere: bool
) -> RerankResponse | None:
    job = PoolingJob.of(http, request, "rerank")
    documents = _documents(request.documents)
    found = await _scores(job, request, [request.query], documents, ("query", "documents"))
    if found is None:
        return None
    shows = not is_cohere if request.return_documents is None else request.return_documents
    results = [
        RerankResult(
            index=index,
            document=RerankDocument(text=documents[index]) if shows else None,
            relevance_score=found[index].outputs.score,
        )
        for index in _order(found)[: request.top_n or len(found)]
    ]
    meta = None
    if is_cohere:
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return RerankResponse(
        id=job.id, model=job.name, usage=usage_of(found), results=results, meta=meta
    )


async def _tei_rerank(http: Request, request: RerankRequest) -> list[TeiRank] | None:
    job = PoolingJob.of(http, request, "rerank", TEI_NAMES)
    if request.raw_scores:
        request.use_activation = False
    if request.truncation_direction is not None:
        request.truncation_side = (
            "left" if request.truncation_direction.lower() == "left" else "right"
        )
    if request.truncate and request.truncate_prompt_tokens is None:
        request.truncate_prompt_tokens = -1
    texts = request.texts or []
    found = await _scores(job, request, [request.query], texts, ("query", "texts"))
    if found is None:
        return None
    return [
        TeiRank(
            index=index,
            score=found[index].outputs.score,
            text=texts[index] if request.return_text else None,
        )
        for index in _order(found)
    ]


async def _scores(
    job: PoolingJob,
    request: PairFields,
    queries: Sequence[str],
    documents: Sequence[str],
    names: tuple[str, str],
) -> list[ScoringRequestOutput] | None:
    bounds = job.model.limits
    bounds.check_prompts(len(documents), 1, names[1])
    for name, texts in zip(names, (queries, documents), strict=True):
        for text in texts:
            bounds.check_text(name, len(text.encode(errors="replace")))
    tokenization = request.tokenization(job.model)
    limits = _limits(job, request, tokenization.truncation)
    form = await pair_form(job.model, request.instruction, request)
    with named_as_asked(job.own_names):
        scoring = await job.model.pool.run(
            size_of([*queries, *documents]),
            partial(Scoring, form=form, names=names),
            job.model.config.model,
            job.model.tokenizer(),
            queries,
            documents,
            limits,
        )
    if scoring.is_cross_encoder:
        tokenization = Tokenization()
    results = await job.run(
        scoring.fields,
        [*queries, *documents],
        request.params(),
        tokenization,
        lambda: scoring.prompts,
    )
    return None if results is None else scoring.scores(results)


def _limits(job: PoolingJob, request: PairFields, truncation: Truncation | None) -> ScoreLimits:
    longest = job.model.limits.max_model_len
    found = []
    for name in ("max_tokens_per_query", "max_tokens_per_doc"):
        value = getattr(request, name) or 0
        if value >= longest:
            raise RequestError(
                f"{name} must be less than max_model_len ({longest}), got {value}", parameter=name
            )
        found.append(value)
    return ScoreLimits(found[0], found[1], truncation)


def _names(request: ScoreRequest) -> tuple[str, str]:
    for pair in _PAIRS:
        if all(getattr(request, name) is not None for name in pair):
            return pair
    names = ", ".join(f"{a} and {b}" for a, b in _PAIRS)
    raise RequestError(f"give two lists of texts: {names}", parameter="queries")


def _pair_of(request: ScoreRequest) -> tuple[list[str], list[str]]:
    given = [getattr(request, name) for name in _names(request)]
    first, second = ([one] if isinstance(one, str) else one for one in given)
    return first, second


def _documents(given: Sequence[DocumentText] | None) -> list[str]:
    if given is None:
        raise RequestError("documents must be given: a list of texts", parameter="documents")
    found = []
    for index, one in enumerate(given):
        text = one if isinstance(one, str) else one.get("text")
        if not isinstance(text, str):
            raise RequestError(
                f"documents[{index}] must be a text or an object with text, got {quoted(one)}",
                parameter="documents",
            )
        found.append(text)
    return found


def _order(found: Sequence[ScoringRequestOutput]) -> list[int]:
    """Places of the scores, the largest first; of equal ones the first."""
    return sorted(range(len(found)), key=lambda index: -found[index].outputs.score)
