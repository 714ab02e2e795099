"""The server's own state: models, version, load, health, metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.adapters import AnyAdapterRequest, LoRARequest
from quire.metrics.exposition import CONTENT_TYPE
from quire.server.apis.fleet.routes import status_of
from quire.server.apis.service.schema import (
    LoadResponse,
    ModelCard,
    ModelList,
    ModelPermission,
    StatusResponse,
    VersionResponse,
)
from quire.server.bodies.json_http import context_of, json_response
from quire.server.context import ServerContext
from quire.version import __version__


async def models(http: Request) -> Response:
    """The served names of the model."""
    context = context_of(http)
    return json_response(ModelList(data=[_card(context, name) for name in context.names]))


async def model(http: Request) -> Response:
    """One of the served names."""
    context = context_of(http)
    return json_response(_card(context, http.path_params["model_id"]))


def _card(context: ServerContext, name: str) -> ModelCard:
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
        status=msgspec.UNSET if member is None else status_of(member),
        permission=[ModelPermission(id=f"modelperm-{name}", created=context.created)],
    )


def _base_of(adapter: AnyAdapterRequest) -> str | None:
    return adapter.base_model_name if isinstance(adapter, LoRARequest) else None


async def version(_: Request) -> Response:
    """The server's version."""
    return json_response(VersionResponse(version=__version__))


async def kv_event_sources(http: Request) -> Response:
    """Where KV events are sent, by data-parallel rank; empty: nowhere."""
    sources = context_of(http).model.live_engine().get_kv_event_sources()
    return json_response({str(rank): source for rank, source in sources.items()})


async def load(http: Request) -> Response:
    """Generation requests in flight."""
    return json_response(LoadResponse(server_load=context_of(http).num_generating))


async def live(http: Request) -> Response:
    """Whether the process is worth keeping: 503 once the engine is dead."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state != "dead")


async def ready(http: Request) -> Response:
    """Whether the server accepts requests: it is loaded, responsive, and neither draining nor
    paused."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state == "ready")


async def health(http: Request) -> Response:
    """Whether the engine is up: loaded and not dead, whatever it is busy with."""
    state, reason = context_of(http).state()
    return _status(state, reason, is_well=state not in {"loading", "dead"})


async def ping(http: Request) -> Response:
    """As /health. For Amazon SageMaker."""
    return await health(http)


def _status(state: str, reason: str, is_well: bool) -> Response:
    body = StatusResponse(status=state, reason=reason or None)
    return json_response(body, 200 if is_well else 503)


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
