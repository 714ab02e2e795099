"""The smaller endpoints: models and their loading, load, version, health, metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.adapters import AnyAdapterRequest, LoRARequest
from quire.config.kv_cache import KVEventsConfig
from quire.metrics.exposition import CONTENT_TYPE
from quire.server.bodies.json_http import context_of, json_response, queried_model
from quire.server.fleet.catalog import parsed_keep_alive
from quire.server.http.auth import is_operator
from quire.server.requests.fields import Count
from quire.server.routing import BAD_BODY, Routes
from quire.server.served_model import ServedModel
from quire.version import __version__

if TYPE_CHECKING:
    from quire.server.fleet.fleet import Fleet
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


class VersionResponse(msgspec.Struct, kw_only=True):
    """The server's version."""

    version: str


class LoadResponse(msgspec.Struct, kw_only=True):
    """Number of generation requests in flight."""

    server_load: Count


class StatusResponse(msgspec.Struct, kw_only=True):
    """A health check's answer."""

    status: str
    reason: str | None = None


ROUTES = Routes("server")
_HEALTH: dict[str, Any] = {"tag": "health", "response": StatusResponse, "can_be_unwell": True}
_SEVERAL: dict[str, Any] = {
    "tag": "models", "errors": (*BAD_BODY, 409), "switch": "several_models",
}  # fmt: skip


@ROUTES.on("GET", "/v1/models", "/models", tag="models")
async def models(http: Request) -> ModelList:
    """The served names of the model."""
    return model_list(http)


@ROUTES.on("GET", "/v1/models/{model_id}", tag="models", errors=(404,))
async def model(http: Request) -> ModelCard:
    """One of the served names."""
    return _card(http, http.path_params["model_id"])


def model_list(http: Request) -> ModelList:
    """All models that the caller may see, with their states."""
    return ModelList(data=[_card(http, name) for name in context_of(http).names])


def _card(http: Request, name: str) -> ModelCard:
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


@ROUTES.on("GET", "/version")
async def version(_: Request) -> VersionResponse:
    """The server's version."""
    return VersionResponse(version=__version__)


@ROUTES.on("GET", "/kv_event_sources", for_operator=True)
async def kv_event_sources(http: Request) -> dict[str, KVEventsConfig]:
    """Destinations of KV events, by data-parallel rank; empty: there are none."""
    sources = queried_model(http).live_engine().get_kv_event_sources()
    return {str(rank): source for rank, source in sources.items()}


@ROUTES.on("GET", "/load", for_operator=True)
async def load(http: Request) -> LoadResponse:
    """Generation requests in flight."""
    return LoadResponse(server_load=context_of(http).num_generating)


@ROUTES.on("GET", "/live", **_HEALTH)
async def live(http: Request) -> Response:
    """Whether the process is worth keeping: 503 once the engine is dead."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state != "dead")


@ROUTES.on("GET", "/ready", **_HEALTH)
@ROUTES.on("GET", "/readyz", **_HEALTH)
async def ready(http: Request) -> Response:
    """Whether the server accepts requests: it is loaded, responsive, and neither draining nor
    paused."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state == "ready")


@ROUTES.on("GET", "/health", "/v1/health", **_HEALTH)
async def health(http: Request) -> Response:
    """Whether the engine is up: loaded and not dead, whatever it is busy with."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state not in {"loading", "dead"})


@ROUTES.on("GET", "/ping", **_HEALTH)
@ROUTES.on("POST", "/ping", **_HEALTH)
async def ping(http: Request) -> Response:
    """Same as /health. For Amazon SageMaker."""
    return await health(http)


def _status(state: str, reason: str, is_well: bool) -> Response:
    body = StatusResponse(status=state, reason=reason or None)
    return json_response(body, 200 if is_well else 503)


@ROUTES.on("GET", "/metrics", media="text/plain", for_operator=True)
async def metrics(http: Request) -> Response:
    """Everything counted, in Prometheus' text format."""
    context = context_of(http)
    if context.fleet is None:
        context.model.loaded_engine()  # raises while it is being loaded
    for engine in [model.engine for model in context.models if model.engine is not None]:
        is_well = engine.health().state == "alive"
        engine.metrics.series.engine_ready.set(1 if is_well else 0)
        if is_well:
            await engine.refresh_metrics()
    return Response(http.app.state.exposition().text(), headers={"content-type": CONTENT_TYPE})


class ModelCommand(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Names a model."""

    model: str
    keep_alive: str | int | float | None = None
    """Time for which it stays loaded without requests: seconds, a time such as `10m`, or a negative
    number for ever; by default the value of the server's options."""


class ModelNow(msgspec.Struct, kw_only=True):
    """The model's state afterwards."""

    success: bool = True
    model: str
    status: ModelStatus


@ROUTES.on("POST", "/v1/models/load", "/models/load", **_SEVERAL)
async def load_model(http: Request, asked: ModelCommand) -> ModelNow:
    """Loads a model, and answers when it is loaded."""
    fleet, model = _fleet_of(http), context_of(http).target(asked.model).model
    asked_s = None if asked.keep_alive is None else parsed_keep_alive(asked.keep_alive)
    await fleet.load(model)
    if asked.keep_alive is not None:
        fleet.keep_alive(model, asked_s)
    return _reply(http, model)


@ROUTES.on("POST", "/v1/models/unload", "/models/unload", **_SEVERAL)
async def unload_model(http: Request, asked: ModelCommand) -> ModelNow:
    """Unloads a model that has no requests."""
    fleet, model = _fleet_of(http), context_of(http).target(asked.model).model
    await fleet.unload(model)
    return _reply(http, model)


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


def _fleet_of(http: Request) -> Fleet:
    fleet = context_of(http).fleet
    assert fleet is not None  # otherwise the routes do not exist
    return fleet


def _reply(http: Request, model: ServedModel) -> ModelNow:
    member = _fleet_of(http).member_of(model)
    return ModelNow(model=member.name, status=status_of(http, member))
