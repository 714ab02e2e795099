"""Errors for a request that the model cannot do: they name what works instead. Called by the input
processor, `LLM` and the server."""

from __future__ import annotations

from collections.abc import Mapping

from quire.config.pooling import PoolingConfig
from quire.config.records import ModelConfig
from quire.errors import quoted

_METHODS: Mapping[str, str] = {
    "embed": "LLM.embed, LLM.score (POST /v1/embeddings, /pooling, /score, /rerank)",
    "classify": "LLM.classify (POST /classify, /pooling)",
    "token_embed": "LLM.encode, LLM.score (POST /pooling, /score, /rerank)",
    "token_classify": "LLM.encode (POST /pooling)",
}
_RERANKS = "LLM.score (POST /score, /rerank), LLM.classify (POST /classify, /pooling)"


def works(pooling: PoolingConfig) -> str:
    """The methods and routes for the task of a pooling model."""
    if pooling.is_sparse:
        return "LLM.encode (POST /embed_sparse, /pooling)"
    return _RERANKS if pooling.scoring == "cross-encoder" else _METHODS[pooling.task]


def cannot_generate(model: ModelConfig) -> str:
    """The error for a request for text to a model that pools."""
    pooling = model.pooling
    what = "" if pooling is None else f"; use {works(pooling)}"
    return f"{quoted(model.served_model_name[0])} is a pooling model and generates no text{what}"


def cannot_pool(model: ModelConfig) -> str:
    """The error for a request for vectors or classes to a model that generates."""
    return (
        f"{quoted(model.served_model_name[0])} generates text and gives no vectors or classes; use "
        "LLM.generate or LLM.chat (POST /v1/completions, /v1/chat/completions), or start the "
        "engine with runner='pooling' and convert='embed'"
    )


def wrong_task(model: ModelConfig, wanted: str) -> str:
    """The error for a method or route of another pooling task."""
    pooling = model.pooling
    if pooling is None:
        return cannot_pool(model)
    return (
        f"The model does not support the {wanted} task; its task is {pooling.task}: use "
        f"{works(pooling)}"
    )
