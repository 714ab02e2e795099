"""`/score` and `/rerank`: requests and replies, in vLLM's, Jina's, Cohere's and TEI's forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.generation.request_fields import Count
from quire.server.pooling.fields import PoolingFields, PoolingUsage

Texts = str | list[str]
DocumentText = str | dict[str, Any]
"""A text, or an object with `text`."""
Limit = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PairFields(PoolingFields, kw_only=True):
    """What requests about pairs of texts have."""

    max_tokens_per_query: Limit | None = 0
    """Keep so many tokens of a query; 0: all."""
    max_tokens_per_doc: Limit | None = 0
    instruction: str | None = None
    """What makes a document fit, for models whose form has a place for it."""


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


class ScoreResponse(msgspec.Struct, kw_only=True):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: Count
    model: str
    data: list[ScoreItem]
    usage: PoolingUsage


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
