"""The page, the documentation, and `GET /quire/live`: a snapshot of an engine's state for the
page's live view."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH, chat_sampling_params
from quire.config.records import ModelConfig
from quire.errors import EngineDeadError, EngineGenerateError
from quire.metrics.engine_series import FINISH_REASONS
from quire.server import ui
from quire.server.bodies.json_http import context_of, json_response, queried_model
from quire.server.context import ServerContext
from quire.server.http.auth import is_operator
from quire.server.http.event_stream import PLAIN_FORM, EventStream, event
from quire.server.http.problems import HttpError, Problem
from quire.server.model_cards import ModelCard, model_list
from quire.server.readiness import state_of
from quire.server.routing import Routes
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.frontend.observers.engine_metrics import EngineMetrics
    from quire.frontend.online.async_llm import AsyncLLM


INTERVAL_S = 0.5
"""Time between two events of a stream."""
_MAP_AGE_S = 0.25
"""Block states younger than this are shown again instead of being asked for."""
_LARGE_POOL_MAP_AGE_S = 1.0
_LARGE_POOL_BLOCKS = 16384
_ANSWER_S = 1.0
"""Seconds that a busy engine may take to answer before the last known map is shown."""
_RATE_WINDOW_S = 2.0


class LiveView:
    """Creates the snapshots of one model; one call to the engine serves all clients."""

    def __init__(self, context: ServerContext, model: ServedModel) -> None:
        self._context = context
        self._model = model
        self._map: dict[str, Any] | None = None
        self._map_time = -1e9
        self._asking: asyncio.Task[None] | None = None
        self._samples: deque[tuple[float, float, float]] = deque()
        """(time, computed prompt tokens, generated tokens), a few seconds back."""

    async def snapshot(self, *, shows_use: bool) -> dict[str, Any]:
        """The snapshot, as described in the module's docstring. A model that is not loaded has its
        state, and what is known of it before; with `shows_use` false, any model does."""
        context, engine = self._context, self._model.engine
        state: str = state_of(context)[0]
        if context.fleet is not None and engine is None:
            state = context.fleet.member_of(self._model).state
        snapshot: dict[str, Any] = {
            "state": state,
            "model": self._model.names[0],
            "uptime_s": round(time.monotonic() - context.started_at, 3),
            "kv": None,
            "shows_use": shows_use,
        }
        config = self._model.planned if engine is None else engine.config
        if config is not None:
            snapshot |= _facts(config.model)
            snapshot["takes_audio"] |= context.args.transcription_model is not None
        if engine is None or not shows_use:
            return snapshot
        snapshot["device"] = engine.config.device.description
        latest = engine.metrics.latest
        snapshot["requests"] = {
            "running": latest.num_running,
            "waiting": latest.num_waiting,
            "max_num_seqs": engine.config.scheduler.max_num_seqs,
            "finished": finished_counts(engine.metrics),
        }
        snapshot["rates"] = self._rates(engine)
        snapshot.update(counts_of(engine.metrics))
        if state != "dead":
            await self._refresh_map(engine)
        if engine.metrics.series.ranks is not None:
            snapshot["ranks"] = engine.metrics.series.ranks.latest
            snapshot["restarts"] = int(engine.metrics.series.ranks.restarts.value)
        snapshot["kv"] = self._map
        return snapshot

    async def sleep(self, seconds: float) -> None:
        """Waits for the next event."""
        await asyncio.sleep(seconds)

    def _rates(self, engine: AsyncLLM) -> dict[str, float]:
        series, samples, now = engine.metrics.series, self._samples, time.monotonic()
        computed = series.prompt_tokens.value - series.prompt_tokens_cached.value
        samples.append((now, computed, series.generation_tokens.value))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_WINDOW_S:
            samples.popleft()
        seconds = now - samples[0][0]
        if seconds < 0.05:
            return {"prompt_tokens_per_s": 0.0, "generation_tokens_per_s": 0.0}
        return {
            "prompt_tokens_per_s": round((samples[-1][1] - samples[0][1]) / seconds, 2),
            "generation_tokens_per_s": round((samples[-1][2] - samples[0][2]) / seconds, 2),
        }

    async def _refresh_map(self, engine: AsyncLLM) -> None:
        is_large = engine.config.cache.num_blocks > _LARGE_POOL_BLOCKS
        oldest = _LARGE_POOL_MAP_AGE_S if is_large else _MAP_AGE_S
        if time.monotonic() - self._map_time < oldest:
            return
        if self._asking is None or self._asking.done():
            self._asking = self._context.keep(self._ask(engine))
        await asyncio.wait([self._asking], timeout=_ANSWER_S)

    async def _ask(self, engine: AsyncLLM) -> None:
        try:
            self._map = await engine.call("block_map")
            self._map_time = time.monotonic()
            with suppress(asyncio.TimeoutError):
                await engine.refresh_ranks()
        except (EngineDeadError, EngineGenerateError):
            self._map = None


def _facts(model: ModelConfig) -> dict[str, Any]:
    """Facts about a model that the page needs before it asks for anything."""
    return {
        "is_demo": model.path == DEMO_MODEL_PATH,
        "takes_images": model.takes("image"),
        "takes_audio": model.takes("audio"),
        "transcribes": model.num_sources > 0,
        "scoring": None if model.pooling is None else model.pooling.scoring,
        "sampling": {
            "model": dict(model.default_sampling_params),
            "chat": chat_sampling_params(model.default_sampling_params),
        },
    }


async def index(http: Request) -> Response:
    """The page."""
    return _file(http, "index.html")


async def asset(http: Request) -> Response:
    """Serves a file of the page."""
    name = http.path_params["name"]
    if name not in ui.FILES:
        raise HttpError(Problem(404, f"The file {name[:100]!r} does not exist."))
    return _file(http, name)


def _file(http: Request, name: str) -> Response:
    sources = http.app.state.tool_servers.sources
    return Response(ui.read(name), headers=ui.headers_of(name, sources))


ROUTES = Routes("server")


@ROUTES.on("GET", "/quire/live", response=dict[str, Any])
async def live_view(http: Request) -> Response | ASGIApp:
    """The engine at a glance: once, or twice a second as server-sent events.

    Of several API keys, the operator's show what runs, and others what the model is. The first
    event, and each after a change, has `models` too, as `/v1/models` lists them, and `mcp`, the
    tool servers of the page.
    """
    context, views = context_of(http), http.app.state.live
    shows_use = is_operator(http.scope)
    model = queried_model(http)
    view: LiveView = views.setdefault(model.names[0], LiveView(context, model))
    if "text/event-stream" not in http.headers.get("accept", ""):
        return json_response(await view.snapshot(shows_use=shows_use))
    is_closed = False

    async def snapshots() -> AsyncIterator[bytes]:
        sent = None
        while not is_closed and not context.is_stopping:
            snapshot, cards = await view.snapshot(shows_use=shows_use), _cards(http)
            if cards != sent:
                snapshot["models"] = sent = cards
                snapshot["mcp"] = http.app.state.tool_servers.for_page()
            yield event(msgspec.json.encode(snapshot))
            await view.sleep(INTERVAL_S)

    def close() -> None:
        nonlocal is_closed
        is_closed = True

    return EventStream(snapshots(), close, form=PLAIN_FORM)


def _cards(http: Request) -> list[ModelCard]:
    """The models of the server, without what changes all the time."""
    cards = model_list(http).data
    for card in cards:
        if card.status is not msgspec.UNSET:
            card.status = msgspec.structs.replace(card.status, expires_in=None)
    return cards


async def openapi(http: Request) -> Response:
    """This document."""
    return json_response(await asyncio.to_thread(http.app.state.openapi))


async def docs(http: Request) -> Response:
    """The same for people, without a script."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    page = await asyncio.to_thread(http.app.state.docs)
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def finished_counts(metrics: EngineMetrics) -> dict[str, int]:
    """Number of ended core requests by reason."""
    return {
        reason: int(metrics.series.request_success.of(reason).value) for reason in FINISH_REASONS
    }


def counts_of(metrics: EngineMetrics) -> dict[str, Any]:
    """Sums and recent times of the engine."""
    series = metrics.series
    return {
        "tokens": {
            "prompt": int(series.prompt_tokens.value),
            "cached": int(series.prompt_tokens_cached.value),
            "generation": int(series.generation_tokens.value),
        },
        "latency": {
            "ttft_s": _percentiles(metrics.recent_ttft_s),
            "itl_s": _percentiles(metrics.recent_itl_s),
        },
        "prefix_cache": {
            "queried_tokens": int(series.prefix_cache_queries.value),
            "hit_tokens": int(series.prefix_cache_hits.value),
            "loaded_tokens": {} if series.kv_store is None else series.kv_store.hit_tokens(),
        },
        "drafts": {
            "num_drafts": int(series.num_drafts.value),
            "num_tokens": int(series.num_draft_tokens.value),
            "num_accepted": int(series.num_accepted_tokens.value),
        },
        "preemptions": int(series.num_preemptions.value),
    }


def _percentiles(values: deque[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "last": values[-1],
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }
