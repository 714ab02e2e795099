"""`/v2/embed`: the request and the reply."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.generation.request_fields import Int64

EmbeddingType = Literal["float", "binary", "ubinary", "base64"]


class CohereEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts that become vectors."""

    model: str | None = None
    texts: list[str] | None = None
    input_type: str | None = None
    """The name of the prompt that is put before each text, if the model has one of this name."""
    output_dimension: Int64 | None = None
    embedding_types: list[EmbeddingType] | None = None
    truncate: Literal["NONE", "START", "END"] | None = "END"
    max_tokens: Int64 | None = None
    """Longer texts are cut as `truncate` says."""


class CohereEmbedReply(msgspec.Struct, kw_only=True):
    """The vectors, by type, in the order of the texts."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, Any]
