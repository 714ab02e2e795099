"""The smaller endpoints: models and their loading, load, version, health, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.config.kv_cache import KVEventsConfig
from quire.metrics.exposition import CONTENT_TYPE
from quire.server.bodies.json_http import context_of, json_response, queried_model
from quire.server.endpoint import BAD_BODY
from quire.server.fleet.catalog import parsed_keep_alive
from quire.server.model_cards import (
    ModelCard,
    ModelList,
    ModelStatus,
    card_of,
    model_list,
    status_of,
)
from quire.server.readiness import state_of
from quire.server.requests.fields import Count
from quire.server.routing import Routes
from quire.server.served_model import ServedModel
from quire.version import __version__

if TYPE_CHECKING:
    from quire.server.fleet.fleet import Fleet


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
    return card_of(http, http.path_params["model_id"])


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
    state, reason = state_of(context_of(http))
    return _status(state, reason, is_well=state != "dead")


@ROUTES.on("GET", "/ready", **_HEALTH)
@ROUTES.on("GET", "/readyz", **_HEALTH)
async def ready(http: Request) -> Response:
    """Whether the server accepts requests: it is loaded, responsive, and neither draining nor
    paused."""
    state, reason = state_of(context_of(http))
    return _status(state, reason, is_well=state == "ready")


@ROUTES.on("GET", "/health", "/v1/health", **_HEALTH)
async def health(http: Request) -> Response:
    """Whether the engine is up: loaded and not dead, whatever it is busy with."""
    state, reason = state_of(context_of(http))
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


def _fleet_of(http: Request) -> Fleet:
    fleet = context_of(http).fleet
    assert fleet is not None  # otherwise the routes do not exist
    return fleet


def _reply(http: Request, model: ServedModel) -> ModelNow:
    member = _fleet_of(http).member_of(model)
    return ModelNow(model=member.name, status=status_of(http, member))
