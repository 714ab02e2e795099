"""The models of a server as `/v1/models` lists them, with their states."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec
from starlette.requests import Request

from quire.adapters import AnyAdapterRequest, LoRARequest
from quire.server.bodies.json_http import context_of
from quire.server.http.auth import is_operator
from quire.server.requests.fields import Count

if TYPE_CHECKING:
    from quire.server.fleet.member import Member


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
    num_requests: Count | msgspec.UnsetType = msgspec.UNSET
    """For the operator's key, as `expires_in`."""
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


def model_list(http: Request) -> ModelList:
    """All models that the caller may see, with their states."""
    return ModelList(data=[card_of(http, name) for name in context_of(http).names])


def card_of(http: Request, name: str) -> ModelCard:
    """The model of this served name."""
    context = context_of(http)
    target = context.target(name)
    model, adapter = target.model, target.adapter
    fleet = context.fleet
    member = None if fleet is None else fleet.member_of(model)
    if member is not None and member.config is None:
        root, max_model_len = str(member.entry.engine.model), 0
    else:
        config = model.config.model
        root, max_model_len = config.model, config.max_model_len
    return ModelCard(
        id=name,
        created=context.created,
        root=root if adapter is None else adapter.path,
        parent=None if adapter is None else _base_of(adapter) or model.names[0],
        max_model_len=max_model_len,
        status=msgspec.UNSET if member is None else status_of(http, member),
        permission=[ModelPermission(id=f"modelperm-{name}", created=context.created)],
    )


def _base_of(adapter: AnyAdapterRequest) -> str | None:
    return adapter.base_model_name if isinstance(adapter, LoRARequest) else None


def status_of(http: Request, member: Member) -> ModelStatus:
    """State of a model of several, for `/v1/models`."""
    end = member.expires_at()
    shows_use = is_operator(http.scope)
    is_waiting = member.state == "loaded" and shows_use and end is not None and not member.is_busy
    return ModelStatus(
        value=member.state,
        num_bytes=member.num_bytes,
        num_requests=member.model.num_users if shows_use else msgspec.UNSET,
        keep_alive=member.keep_alive_s,
        expires_in=round(max(0.0, end - time.monotonic()), 3) if is_waiting and end else None,
        error=member.failure or None,
    )
