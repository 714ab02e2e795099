"""All endpoints in one table, from which both the router and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from quire import env
from quire.config.kv_cache import KVEventsConfig
from quire.server.apis import adapters, cohere, embeddings, kv_store, page, scores, service, tei
from quire.server.apis import invocations as sagemaker
from quire.server.apis.chat import routes as chat_routes
from quire.server.apis.chat import schema as chat
from quire.server.apis.completions import routes as completion_routes
from quire.server.apis.completions import schema as completion
from quire.server.apis.engine import routes as engine
from quire.server.apis.engine import schema as control
from quire.server.apis.llama_server import conversion as llama_schema
from quire.server.apis.llama_server import routes as llama
from quire.server.apis.messages import reply as anthropic_reply
from quire.server.apis.messages import routes as messages
from quire.server.apis.messages import schema as anthropic
from quire.server.apis.ollama import models as ollama_models
from quire.server.apis.ollama import schema as ollama_schema
from quire.server.apis.ollama import texts as ollama
from quire.server.apis.responses import create
from quire.server.apis.responses.schema import reply
from quire.server.apis.responses.schema.request import ResponsesRequest
from quire.server.apis.text import routes as text
from quire.server.apis.text import schema as text_schema
from quire.server.apis.tokens import routes as token_routes
from quire.server.apis.tokens import schema as token_schema
from quire.server.args import ServerArgs

Handler = Callable[..., Awaitable[Any]]
Switch = Literal[
    "adapters", "dev", "kv_store", "library", "profiler", "several_models", "tokenizer_info"
]

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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    tag: str
    request: Any = None
    """Type of the JSON body, or a tuple of types; None: no body."""
    response: Any = None
    """Type of the JSON answer, or a tuple of types; None: `media`, not JSON."""
    media: str = "application/json"
    """Empty: the answer has no body."""
    stream: Any = None
    """Type of the events, where the request can ask for a stream."""
    has_named_events: bool = False
    """Events have names and no end mark; otherwise the last event is `[DONE]`."""
    query: Any = None
    """Type of the query's parameters; None: there are none."""
    errors: tuple[int, ...] | None = None
    """Statuses besides 200, 401 and 503; None: the usual ones."""
    can_be_unwell: bool = False
    """503 has the same body as 200."""
    switch: Switch | None = None
    """The switch that must be on; None: the endpoint always exists."""

    @property
    def form(self) -> Literal["openai", "messages", "ollama"]:
        """Form of the error replies."""
        if self.path.startswith("/api/"):
            return "ollama"
        return "messages" if self.path.startswith("/v1/messages") else "openai"

    @property
    def statuses(self) -> tuple[int, ...]:
        """Statuses of error replies besides 401 and 503."""
        if self.errors is not None:
            return self.errors
        if self.request is None:
            return (400,) if self.tag in ("development", "kv store") else ()
        return (*_BAD_BODY, 500) if self.uses_model and self.tag != "prompts" else _BAD_BODY

    @property
    def uses_model(self) -> bool:
        """Whether the model that the body names must be loaded."""
        return self.request is not None and self.tag in _USE_MODEL


_USE_MODEL = frozenset({"generation", "pooling", "prompts", "responses"})
"""Tags of the endpoints whose bodies are for a model."""


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
    switches: set[Switch | None] = {None}
    if args.enable_dev_routes or env.server_dev_mode():
        switches.add("dev")
    if has_profiler:
        switches.add("profiler")
    if has_kv_store:
        switches.add("kv_store")
    if has_adapters:
        switches.add("adapters")
    if has_several_models:
        switches.add("several_models")
    if args.allow_model_changes:
        switches.add("library")
    if args.enable_tokenizer_info_endpoint:
        switches.add("tokenizer_info")
    return tuple(endpoint for endpoint in ENDPOINTS if endpoint.switch in switches)


_BAD_BODY = (400, 404, 408, 413, 415)

_PROBES: tuple[tuple[Literal["GET", "POST"], str, Handler], ...] = (
    ("GET", "/live", service.live),
    ("GET", "/ready", service.ready),
    ("GET", "/health", service.health),
    ("GET", "/ping", service.ping),
    ("POST", "/ping", service.ping),
)
_RERANKS: tuple[tuple[str, Handler], ...] = (
    ("/rerank", scores.rerank),
    ("/v1/rerank", scores.rerank),
    ("/v2/rerank", scores.rerank_v2),
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST", "/v1/completions", completion_routes.completions, "generation",
        completion.CompletionRequest, completion.CompletionResponse,
        stream=completion.CompletionChunk,
    ),
    Endpoint(
        "POST", "/v1/chat/completions", chat_routes.chat_completions, "generation",
        chat.ChatRequest, chat.ChatResponse, stream=chat.ChatChunk,
    ),
    Endpoint(
        "POST", "/v1/chat/completions/batch", chat_routes.chat_completions_batch, "generation",
        chat.BatchChatRequest, chat.ChatResponse,
    ),
    Endpoint(
        "POST", "/v1/messages", messages.create_message, "generation", anthropic.MessagesRequest,
        anthropic_reply.MessagesReply, stream=anthropic_reply.StreamEvent, has_named_events=True,
    ),
    Endpoint(
        "POST", "/v1/messages/count_tokens", messages.count_tokens, "prompts",
        anthropic.CountTokensRequest, anthropic_reply.TokenCount,
    ),
    Endpoint(
        "POST", "/invocations", sagemaker.invocations, "generation",
        (chat.ChatRequest, completion.CompletionRequest),
        (chat.ChatResponse, completion.CompletionResponse),
        stream=(chat.ChatChunk, completion.CompletionChunk),
    ),
    Endpoint(
        "POST", "/v1/embeddings", embeddings.embeddings, "pooling", embeddings.EmbeddingRequest,
        embeddings.EmbeddingResponse,
    ),
    Endpoint(
        "POST", "/pooling", embeddings.pooling, "pooling", embeddings.PoolingRequest,
        embeddings.PoolingResponse,
    ),
    Endpoint(
        "POST", "/classify", embeddings.classify, "pooling", embeddings.ClassifyRequest,
        embeddings.ClassifyResponse,
    ),
    *(
        Endpoint("POST", path, scores.score, "pooling", scores.ScoreRequest, scores.ScoreResponse)
        for path in ("/score", "/v1/score")
    ),
    *(
        Endpoint(
            "POST", path, handler, "pooling", scores.RerankRequest,
            (scores.RerankResponse, list[scores.TeiRank]),
        )
        for path, handler in _RERANKS
    ),
    Endpoint(
        "POST", "/v2/embed", cohere.embed, "pooling", cohere.CohereEmbedRequest,
        cohere.CohereEmbedReply,
    ),
    Endpoint("POST", "/embed", tei.embed, "pooling", tei.TeiEmbedRequest, list[list[float]]),
    Endpoint(
        "POST", "/embed_all", tei.embed_all, "pooling", tei.TeiEmbedRequest,
        list[list[list[float]]],
    ),
    Endpoint(
        "POST", "/", tei.root, "pooling", (tei.TeiEmbedRequest, tei.TeiPredictRequest),
        (list[list[float]], list[tei.Prediction], list[list[tei.Prediction]]),
    ),
    Endpoint(
        "POST", "/predict", tei.predict, "pooling", tei.TeiPredictRequest,
        (list[tei.Prediction], list[list[tei.Prediction]]),
    ),
    Endpoint(
        "POST", "/similarity", tei.similarity, "pooling", tei.TeiSimilarityRequest, list[float],
    ),
    Endpoint("GET", "/info", tei.info, "models", response=tei.TeiInfo, errors=(400,)),
    Endpoint(
        "POST", "/embed_sparse", tei.embed_sparse, "pooling", tei.TeiRequest,
        list[list[tei.SparseValue]],
    ),
    Endpoint(
        "POST", "/api/embed", ollama.embed, "pooling", ollama.OllamaEmbedRequest,
        ollama.OllamaEmbedReply,
    ),
    Endpoint(
        "POST", "/api/embeddings", ollama.embeddings, "pooling", ollama.OllamaEmbeddingsRequest,
        ollama.OllamaEmbeddingsReply,
    ),
    Endpoint(
        "POST", "/api/chat", ollama.chat, "generation", ollama_schema.OllamaChatRequest,
        ollama_schema.OllamaChatReply, stream=ollama_schema.OllamaChatReply,
    ),
    Endpoint(
        "POST", "/api/generate", ollama.generate, "generation", ollama_schema.GenerateRequest,
        ollama_schema.GenerateReply, stream=ollama_schema.GenerateReply,
    ),
    Endpoint(
        "POST", "/api/show", ollama_models.show, "models", ollama_schema.ShowRequest,
        ollama_schema.ShownModel,
    ),
    Endpoint(
        "POST", "/api/pull", ollama_models.pull_model, "models", ollama_models.PullRequest,
        ollama_models.PullLine, stream=ollama_models.PullLine, errors=(*_BAD_BODY, 500),
        switch="library",
    ),
    Endpoint(
        "POST", "/api/copy", ollama_models.copy_model, "models", ollama_models.CopyRequest,
        media="", switch="library",
    ),
    Endpoint(
        "DELETE", "/api/delete", ollama_models.delete_model, "models", ollama_models.DeleteRequest,
        media="", errors=(*_BAD_BODY, 403, 409), switch="library",
    ),
    Endpoint("GET", "/api/tags", ollama_models.tags, "models", response=ollama_schema.ModelTags),
    Endpoint(
        "GET", "/api/ps", ollama_models.running, "models", response=ollama_schema.LoadedModels,
    ),
    Endpoint(
        "GET", "/api/version", ollama_models.version, "server",
        response=ollama_schema.OllamaVersion,
    ),
    *(
        Endpoint(
            "POST", path, llama.completion, "generation", llama_schema.LlamaCompletionRequest,
            llama_schema.LlamaReply, stream=llama_schema.LlamaReply, has_named_events=True,
        )
        for path in ("/completion", "/completions")
    ),
    Endpoint(
        "POST", "/infill", llama.infill, "generation", llama_schema.InfillRequest,
        llama_schema.LlamaReply, stream=llama_schema.LlamaReply, has_named_events=True,
    ),
    Endpoint(
        "POST", "/apply-template", llama.apply_template, "prompts",
        llama_schema.ApplyTemplateRequest, llama_schema.AppliedTemplate,
    ),
    Endpoint("GET", "/props", llama.props, "server", response=llama_schema.Props, errors=(404,)),
    Endpoint(
        "GET", "/slots", llama.slots, "server", response=list[llama_schema.Slot], errors=(404,),
    ),
    Endpoint(
        "GET", "/lora-adapters", llama.list_adapters, "models",
        response=list[llama_schema.LlamaAdapter], errors=(404,),
    ),
    Endpoint(
        "POST", "/lora-adapters", llama.set_adapters, "models", request=list[dict[str, Any]],
        response=list[llama_schema.LlamaAdapter], errors=(400,),
    ),
    Endpoint(
        "POST", "/inference/v1/generate", token_routes.generate, "generation",
        token_schema.TokensRequest, token_schema.TokensReply, stream=token_schema.TokensChunk,
    ),
    Endpoint(
        "POST", "/inference/v1/abort_requests", token_routes.abort_requests, "generation",
        token_schema.AbortTokensRequest, media="", errors=_BAD_BODY,
    ),
    Endpoint(
        "POST", "/v1/responses", create.create_response, "responses", ResponsesRequest,
        reply.Response, stream=reply.AnyEvent, has_named_events=True,
    ),
    Endpoint(
        "POST", "/v1/responses/input_tokens", create.count_input_tokens, "responses",
        ResponsesRequest, reply.InputTokens, errors=_BAD_BODY,
    ),
    Endpoint(
        "POST", "/v1/responses/render", create.render_response, "responses", ResponsesRequest,
        text_schema.RenderedPrompt, errors=_BAD_BODY,
    ),
    Endpoint(
        "GET", "/v1/responses/{response_id}", create.get_response, "responses",
        query=reply.ResponseQuery, response=reply.Response, stream=reply.AnyEvent,
        has_named_events=True, errors=(400, 404),
    ),
    Endpoint(
        "DELETE", "/v1/responses/{response_id}", create.delete_response, "responses",
        response=reply.ResponseDeleted, errors=(404,),
    ),
    Endpoint(
        "POST", "/v1/responses/{response_id}/cancel", create.cancel_response, "responses",
        response=reply.Response, errors=(400, 404),
    ),
    Endpoint(
        "GET", "/v1/responses/{response_id}/input_items", create.list_input_items, "responses",
        query=reply.ItemsQuery, response=reply.ItemList, errors=(400, 404),
    ),
    Endpoint(
        "POST", "/v1/completions/render", text.render_completion, "prompts",
        completion.CompletionRequest, list[text_schema.RenderedPrompt],
    ),
    Endpoint(
        "POST", "/v1/chat/completions/render", text.render_chat, "prompts", chat.ChatRequest,
        text_schema.RenderedPrompt,
    ),
    Endpoint(
        "POST", "/tokenize", text.tokenize, "prompts", text_schema.TokenizeRequest,
        text_schema.TokenizeResponse,
    ),
    Endpoint(
        "POST", "/detokenize", text.detokenize, "prompts", text_schema.DetokenizeRequest,
        text_schema.DetokenizeResponse,
    ),
    Endpoint(
        "GET", "/tokenizer_info", text.tokenizer_info, "prompts", response=dict[str, Any],
        switch="tokenizer_info",
    ),
    Endpoint("GET", "/v1/models", service.models, "models", response=service.ModelList),
    *(
        Endpoint(
            "POST", path, handler, "models", service.ModelCommand, service.ModelNow,
            errors=(*_BAD_BODY, 409), switch="several_models",
        )
        for prefix in ("/v1/models", "/models")
        for path, handler in (
            (f"{prefix}/load", service.load_model), (f"{prefix}/unload", service.unload_model),
        )
    ),
    Endpoint(
        "GET", "/v1/models/{model_id}", service.model, "models", response=service.ModelCard,
        errors=(404,),
    ),
    Endpoint(
        "POST", "/v1/load_lora_adapter", adapters.load, "models", adapters.LoadLoRARequest,
        media="text/plain", switch="adapters",
    ),
    Endpoint(
        "POST", "/v1/unload_lora_adapter", adapters.unload, "models", adapters.UnloadLoRARequest,
        media="text/plain", switch="adapters",
    ),
    Endpoint("GET", "/version", service.version, "server", response=service.VersionResponse),
    Endpoint(
        "GET", "/kv_event_sources", service.kv_event_sources, "server",
        response=dict[str, KVEventsConfig],
    ),
    Endpoint("GET", "/load", service.load, "server", response=service.LoadResponse),
    *(
        Endpoint(
            method, path, handler, "health", response=service.StatusResponse, can_be_unwell=True,
        )
        for method, path, handler in _PROBES
    ),
    Endpoint("GET", "/metrics", service.metrics, "server", media="text/plain"),
    Endpoint("GET", "/quire/live", page.live_view, "server", response=dict[str, Any]),
    Endpoint("GET", "/kv", kv_store.usage, "kv store", response=dict[str, Any], switch="kv_store"),
    Endpoint(
        "POST", "/kv/clear", kv_store.clear, "kv store", response=kv_store.KVCleared,
        switch="kv_store",
    ),
    Endpoint(
        "POST", "/kv/pin", kv_store.pin, "kv store", kv_store.KVPinRequest, kv_store.KVPinned,
        switch="kv_store",
    ),
    Endpoint(
        "GET", "/server_info", engine.server_info, "development", query=control.ServerInfoQuery,
        response=control.ServerInfo, switch="dev",
    ),
    Endpoint(
        "POST", "/sleep", engine.sleep, "development", query=control.SleepQuery,
        response=control.SleepReply, switch="dev",
    ),
    Endpoint(
        "POST", "/wake_up", engine.wake_up, "development", query=control.WakeUpQuery,
        response=control.WakeUpReply, switch="dev",
    ),
    Endpoint(
        "GET", "/is_sleeping", engine.is_sleeping, "development", response=control.IsSleeping,
        switch="dev",
    ),
    Endpoint(
        "POST", "/release_kv_cache_memory", engine.release_kv_cache_memory, "development",
        response=control.ReleaseReply, switch="dev",
    ),
    Endpoint(
        "POST", "/abort_requests", engine.abort_requests, "development", control.AbortRequest,
        control.AbortReply, switch="dev",
    ),
    Endpoint(
        "POST", "/collective_rpc", engine.collective_rpc, "development", control.WorkerCall,
        control.WorkerReply, errors=(*_BAD_BODY, 500, 504), switch="dev",
    ),
    Endpoint(
        "POST", "/pause", engine.pause, "development", query=control.PauseQuery,
        response=control.PauseReply, switch="dev",
    ),
    Endpoint(
        "POST", "/resume", engine.resume, "development", response=control.PauseReply, switch="dev",
    ),
    Endpoint(
        "GET", "/is_paused", engine.is_paused, "development", response=control.IsPaused,
        switch="dev",
    ),
    Endpoint(
        "POST", "/reset_prefix_cache", engine.reset_prefix_cache, "development",
        query=control.ResetQuery, response=control.ResetReply, switch="dev",
    ),
    Endpoint(
        "POST", "/reset_mm_cache", engine.reset_mm_cache, "development", media="", switch="dev",
    ),
    Endpoint(
        "POST", "/reset_encoder_cache", engine.reset_encoder_cache, "development", media="",
        switch="dev",
    ),
    Endpoint(
        "POST", "/start_profile", engine.start_profile, "development", control.StartProfile,
        media="", switch="profiler",
    ),
    Endpoint(
        "POST", "/stop_profile", engine.stop_profile, "development", media="", switch="profiler",
    ),
    Endpoint(
        "GET", "/get_world_size", engine.get_world_size, "development",
        query=control.WorldSizeQuery, response=control.WorldSize, switch="dev",
    ),
)  # fmt: skip
