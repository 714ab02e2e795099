"""All endpoints, as the modules of `apis` declare them: for the router and the OpenAPI document."""

from __future__ import annotations

from quire import env
from quire.server.apis import (
    adapters,
    cohere,
    embeddings,
    invocations,
    kv_store,
    page,
    scores,
    service,
    sglang,
)
from quire.server.apis import tokenizer as text
from quire.server.apis.audio import routes as audio
from quire.server.apis.chat import batch, fim
from quire.server.apis.chat import routes as chat
from quire.server.apis.completions import routes as completions
from quire.server.apis.engine import routes as engine
from quire.server.apis.hugging_face import tei, tgi, vertex
from quire.server.apis.llama_server import embedding as llama_embedding
from quire.server.apis.llama_server import routes as llama_server
from quire.server.apis.messages import routes as messages
from quire.server.apis.ollama import changes as ollama_changes
from quire.server.apis.ollama import models as ollama_models
from quire.server.apis.ollama import routes as ollama_texts
from quire.server.apis.responses import compaction
from quire.server.apis.responses import create as responses
from quire.server.apis.tokens import routes as tokens
from quire.server.args import ServerArgs
from quire.server.endpoint import Endpoint, Switch

SWITCHES: dict[Switch, str] = {
    "adapters": "--enable-lora and the environment variable VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
    "dev": "--enable-dev-routes, or the environment variable VLLM_SERVER_DEV_MODE=1",
    "kv_store": "--kv-store, or an option that names a place for it (docs/kv_store.md)",
    "library": "--allow-model-changes",
    "profiler": "--profiler-config, which names a directory for the traces",
    "several_models": "several models: quire serve MODEL MODEL, or --models FILE",
    "tokenizer_info": "--enable-tokenizer-info-endpoint",
}
"""Options that switch optional endpoints on."""

_MODULES = (
    completions, chat, batch, audio, messages, responses, compaction, fim, text, tokens,
    invocations,
    embeddings, scores, cohere, tei, tgi, vertex, ollama_texts, ollama_models,
    ollama_changes, llama_server, llama_embedding, service, sglang, adapters, page, kv_store,
    engine,
)  # fmt: skip
ENDPOINTS: tuple[Endpoint, ...] = tuple(
    endpoint for module in _MODULES for endpoint in module.ROUTES.endpoints
)


def endpoints_of(
    args: ServerArgs,
    *,
    has_profiler: bool = False,
    has_kv_store: bool = False,
    has_adapters: bool = False,
    has_several_models: bool = False,
) -> tuple[Endpoint, ...]:
    """The endpoints that exist in a server. `has_profiler`: its engine can record its steps.
    `has_kv_store`: it keeps K/V beyond the KV cache. `has_adapters`: callers may load adapters.
    `has_several_models`: it loads and unloads models."""
    is_on: dict[Switch | None, bool] = {
        None: True,
        "adapters": has_adapters,
        "dev": args.enable_dev_routes or env.server_dev_mode(),
        "kv_store": has_kv_store,
        "library": args.allow_model_changes,
        "profiler": has_profiler,
        "several_models": has_several_models,
        "tokenizer_info": args.enable_tokenizer_info_endpoint,
    }
    return tuple(endpoint for endpoint in ENDPOINTS if is_on[endpoint.switch])
