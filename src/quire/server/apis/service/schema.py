"""The smaller endpoints: models, tokenize, detokenize, render, load, version, health."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.server.generation.request_fields import Count


class ModelPermission(msgspec.Struct, kw_only=True):
    """Permissions of a model, for clients that expect them."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelStatus(msgspec.Struct, kw_only=True):
    """The state of one model of several."""

    value: Literal["unloaded", "loading", "loaded", "unloading", "failed"]
    num_bytes: Count
    """Memory that it takes while it is loaded."""
    num_requests: Count = 0
    keep_alive: float | None = None
    """Seconds without a request after which it is unloaded; null: it stays."""
    expires_in: float | None = None
    """Seconds until then, if no request comes."""
    error: str | None = None
    """Why it could not be loaded, or why its engine ended."""


class ModelCard(msgspec.Struct, kw_only=True):
    """A model that this server offers."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "quire"
    root: str | None = None
    parent: str | None = None
    max_model_len: Count
    status: ModelStatus | msgspec.UnsetType = msgspec.UNSET
    """In a server of several models: whether it is loaded."""
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    """All models that this server offers: the served names of its one model."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class VersionResponse(msgspec.Struct, kw_only=True):
    """The server's version."""

    version: str


class LoadResponse(msgspec.Struct, kw_only=True):
    """How many generation requests are in flight."""

    server_load: Count


class StatusResponse(msgspec.Struct, kw_only=True):
    """A health check's answer."""

    status: str
    reason: str | None = None
