"""`build_app`: the ASGI application, made of endpoints and middleware.

Order of the layers, outermost first: request id and access log, middleware of users, CORS, a
guard against web pages (where no key is needed), API key, size of the body.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.errors import ConfigError, quoted
from quire.log import get_logger
from quire.metrics.exposition import Exposition
from quire.metrics.http_metrics import HttpMetrics
from quire.metrics.metric_set import MetricSet
from quire.metrics.sleep_metrics import SleepMetrics
from quire.server import ui
from quire.server.all_endpoints import ENDPOINTS, SWITCHES, endpoints_of
from quire.server.answering import answered, contained, error_reply, with_error_replies
from quire.server.apis import page
from quire.server.apis.page import LiveView
from quire.server.apis.responses.store import ResponseStore
from quire.server.bodies.uploads import SPOOLED_BYTES
from quire.server.context import ServerContext
from quire.server.endpoint import Endpoint
from quire.server.fleet.use import with_loaded_model
from quire.server.http.api_keys import operator_keys
from quire.server.http.auth import PROBE_PATHS, AuthMiddleware
from quire.server.http.middleware import IGNORED_HEADER, BodyMiddleware, RequestIdMiddleware
from quire.server.http.problems import Problem, problem_of
from quire.server.http.web_pages import WebPageGuard
from quire.server.openapi import docs_page, openapi_document
from quire.server.tool_servers import read_tool_servers

logger = get_logger(__name__)


def build_app(context: ServerContext, keys: tuple[str, ...]) -> Starlette:
    """The application for one context; `keys` empty: no key is needed."""
    if len(keys) > 1:
        logger.info(
            "%d API keys: %d may change and read what all share (SECURITY.md)",
            len(keys), len(operator_keys(context.args, keys)),
        )  # fmt: skip
    endpoints = endpoints_of(
        context.args,
        has_profiler=context.has_profiler,
        has_kv_store=context.has_kv_store,
        has_adapters=context.has_adapters,
        has_several_models=context.fleet is not None,
    )
    if any(endpoint.switch in ("dev", "profiler") for endpoint in endpoints):
        logger.warning("the development routes are served: not for use in production")
    http_metrics = HttpMetrics(endpoint.path for endpoint in endpoints)
    app = Starlette(
        routes=_routes(context, endpoints),
        middleware=_middleware(context, keys, http_metrics),
        exception_handlers={HTTPException: _on_http_exception, Exception: _on_exception},
    )
    app.router.redirect_slashes = False  # a redirect would trust the Host header
    app.state.context = context
    app.state.live = dict[str, LiveView]()
    app.state.tool_servers = read_tool_servers(
        context.args.mcp_config, allows_own=context.args.allow_own_mcp_servers
    )
    app.state.response_store = ResponseStore(
        context.args.response_store_bytes,
        context.args.max_stored_responses,
        context.args.response_store_time,
    )
    app.state.sleep_metrics = SleepMetrics()
    sets = [http_metrics.metric_set, app.state.sleep_metrics.metric_set]
    if context.fleet is not None:
        sets.append(context.fleet.metrics.metric_set)
    if context.fleet is not None and context.fleet.engine_args is not None:
        from quire.server.fleet.library import Library  # rarely used

        app.state.library = Library(context, context.fleet, context.fleet.engine_args)
    app.state.exposition = cache(partial(Exposition, partial(_metric_sets, context, sets)))
    if not context.args.disable_fastapi_docs:
        # Created on the first request: it takes 50 ms.
        app.state.openapi = cache(partial(openapi_document, endpoints, bool(keys)))
        app.state.docs = cache(lambda: docs_page(app.state.openapi()))
    return app


def _routes(context: ServerContext, endpoints: Sequence[Endpoint]) -> list[Route]:
    routes = [
        Route(
            endpoint.path,
            with_error_replies(_handler(context, endpoint), context.args.log_error_stack),
            methods=[endpoint.method],
        )
        for endpoint in endpoints
    ]
    paths = {endpoint.path for endpoint in endpoints}
    off = {one.path: f"switch it on with {SWITCHES[one.switch]}" for one in ENDPOINTS if one.switch}
    for path, reason in {**off, **ABSENT_ROUTES}.items():
        if path not in paths:
            routes.append(Route(path, _absent(path, reason), methods=["GET", "POST", "DELETE"]))
    if not context.args.disable_fastapi_docs:
        routes.append(Route("/openapi.json", page.openapi))
        routes.append(Route("/docs", page.docs))
    if context.args.ui:
        routes.append(Route("/", page.index))
        routes.append(Route("/ui/{name:path}", page.asset))
    return routes


def public_requests(context: ServerContext) -> frozenset[tuple[str, bytes]]:
    """Methods and raw paths that need no key: probes, the version, the page."""
    paths = PROBE_PATHS | {b"/version"}
    if context.args.ui:
        paths |= {b"/", *(f"/ui/{name}".encode() for name in ui.FILES)}
    prefix = context.args.root_path.rstrip("/").encode()
    public = {(method, prefix + path) for method in ("GET", "HEAD") for path in paths}
    return frozenset(public | {("POST", prefix + b"/ping")})


def _middleware(
    context: ServerContext, keys: tuple[str, ...], http_metrics: HttpMetrics
) -> list[Middleware]:
    args = context.args
    layers = [
        Middleware(
            RequestIdMiddleware,
            max_chars=args.max_request_id_chars,
            has_access_log=not args.disable_access_log,
            http_metrics=http_metrics,
            quiet_paths=args.quiet_paths,
        ),
        *(user_middleware(path) for path in args.middleware),
    ]
    if args.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=args.allowed_origins,
                allow_methods=args.allowed_methods,
                allow_headers=args.allowed_headers,
                allow_credentials=args.allow_credentials,
                expose_headers=["X-Request-Id", "Retry-After", IGNORED_HEADER],
            )
        )
    if keys:
        operators = operator_keys(args, keys)
        public = public_requests(context)
        layers.append(Middleware(AuthMiddleware, keys=keys, operators=operators, public=public))
    else:
        layers.append(
            Middleware(
                WebPageGuard,
                allowed_hosts=(args.host, *args.allowed_hosts) if args.uds is None else ("*",),
                allowed_origins=args.allowed_origins,
                takes_short_names=not args.is_loopback,
            )
        )
    layers.append(
        Middleware(
            BodyMiddleware,
            max_body_bytes=args.max_body_bytes,
            max_pending_body_bytes=args.max_pending_body_bytes,
            max_form_bytes=args.max_form_bytes,
            form_paths=frozenset(one.path for one in ENDPOINTS if one.takes == "form"),
            form_bytes_in_memory=SPOOLED_BYTES,
        )
    )
    return layers


def _handler(context: ServerContext, endpoint: Endpoint) -> Callable[..., Any]:
    handler = partial(answered, endpoint)
    if context.fleet is None or not endpoint.uses_model:
        return handler
    return partial(with_loaded_model, context=context, handler=handler, form=endpoint.form)


def _absent(path: str, reason: str) -> Callable[..., Any]:
    """A handler whose 404 explains why the path does not exist."""

    async def endpoint(request: Request) -> Response:
        text = f"{path} does not exist in this server: {reason}."
        return error_reply(request, Problem(404, text))

    return endpoint


async def _on_http_exception(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    return error_reply(request, Problem(status, detail, headers=headers))


async def _on_exception(request: Request, error: Exception) -> Response:
    return error_reply(request, problem_of(error))


def _metric_sets(context: ServerContext, sets: Sequence[MetricSet]) -> list[MetricSet]:
    engines = [model.engine for model in context.models if model.engine is not None]
    return [*(engine.metrics.series.metric_set for engine in engines), *sets]


def user_middleware(path: str) -> Middleware:
    """A class of ASGI middleware, or a coroutine function of request and next handler.

    Raises ConfigError for a path that leads to neither.
    """
    module_name, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"middleware={quoted(path)} cannot be imported: {error}; write package.module.Name"
        ) from None
    if inspect.isclass(found):
        make: Callable[..., Any] = found
        return Middleware(lambda app: contained(make(app)))
    if inspect.iscoroutinefunction(found):
        from starlette.middleware.base import BaseHTTPMiddleware

        return Middleware(lambda app: contained(BaseHTTPMiddleware(app, dispatch=found)))
    raise ConfigError(
        f"middleware={quoted(path)} is neither a class nor a coroutine function of request and "
        "next handler"
    )


_REASONS: dict[str, tuple[str, ...]] = {
    "a reranker scores pairs of texts: /score and /rerank": ("/generative_scoring",),
    "audio comes whole: /v1/audio/transcriptions, and chats (docs/transcription.md)": (
        "/v1/realtime",
    ),
    "what works is /v1/chat/completions, /v1/responses, /v1/messages and /v1/completions": (
        "/v1/messages/render", "/cohere/v2/chat", "/cohere/v2/chat/render",
        "/v1/systemone", "/v1/decisions",
    ),
    "/inference/v1/generate gives the text of a reply too, with output_mode `text`": (
        "/v1/completions/derender", "/v1/chat/completions/derender",
    ),
    "the number of engines is fixed; --max-engine-restarts replaces those that die": (
        "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply",
        "/fault_tolerance/status",
    ),
    "new weights come from files: /collective_rpc with the method reload_weights": (
        "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update",
        "/start_draft_weight_update", "/update_weights", "/finish_weight_update",
        "/update_weight_version", "/weight_checker", "/weight_info",
    ),
    "files come from the hub (/api/pull) or are on this machine (docs/ollama.md)": (
        "/api/push", "/api/blobs/{digest}",
    ),
    "the documentation is at /docs": ("/redoc",),
}  # fmt: skip
ABSENT_ROUTES: dict[str, str] = {
    path: reason for reason, paths in _REASONS.items() for path in paths
}
"""By path; `{name}` stands for one segment."""
