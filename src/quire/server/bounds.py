"""All limits of a server, as a list that `quire explain` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.chat.async_renderer import NUM_PROCESSES
from quire.chat.job import MAX_MEMORY_BYTES, MAX_STEPS, MAX_TEXT
from quire.config import EngineConfig
from quire.images.job import MAX_REQUEST_SECONDS
from quire.server.args import ServerArgs
from quire.server.context import FORMS_ON_DISK
from quire.server.generation.spoken import MOST_KEPT
from quire.server.http.listening import BACKLOG
from quire.server.requests.limits import WorkLimits
from quire.server.served_adapters import MAX_ADDED
from quire.structured.compile import MAX_CACHE_BYTES, NUM_THREADS
from quire.structured.limits import MAX_BYTES, MAX_LEXER_STATES, MAX_WORK_S
from quire.units import format_bytes

_DEATH_REPORTED_S = 2.0
"""Time within which waiting requests get an error after the engine died or is stuck."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, what is limited, and what happens beyond it."""

    option: str
    value: str
    what: str
    beyond: str


_FIXED = "(fixed)"


def describe_bounds(args: ServerArgs, config: EngineConfig | None = None) -> list[Bound]:
    """All limits, in the order in which they apply to a request."""

    def option(name: str, what: str, beyond: str) -> Bound:
        return Bound(name, _shown(name, getattr(args, name)), what, beyond)

    bounds = [
        option("max_connections", "open connections", "503"),
        option("reserved_connections", "probes beyond them", "503"),
        Bound(_FIXED, str(BACKLOG), "clients without a request, or refused", "oldest closed"),
        option("header_timeout", "time for headers to arrive", "408"),
        option("max_url_bytes", "path and query", "414"),
        option("max_header_bytes", "all but the body", "431"),
        option("body_timeout", "time for the body to arrive", "408"),
        option("max_body_bytes", "request body", "413"),
        option("max_pending_body_bytes", "bodies that are arriving", "503 + Retry-After"),
        option("max_form_bytes", "a form with a file", "413"),
        Bound(_FIXED, f"{FORMS_ON_DISK} x max_form_bytes", "files of all forms", "503"),
        option("max_json_values", "values in a body", "400"),
        option("max_field_bytes", "a field", "400"),
        option("max_prompts", "prompts x n in a request", "400"),
        option("max_messages", "messages in a request", "400"),
        Bound(_FIXED, str(MOST_KEPT), "sounds of chats whose words are kept", "oldest dropped"),
        option("max_n", "n", "400"),
        option("max_stop_strings", "stop strings", "400"),
        option("max_stop_string_chars", "a stop string", "400"),
        option("max_stop_token_ids", "stop token ids", "400"),
        option("max_request_id_chars", "X-Request-Id", "400"),
        option("max_engine_restarts", "starts of an engine that has died", "the server ends"),
        Bound(_FIXED, str(MAX_ADDED), "adapters that callers add", "400"),
        option("max_waiting_loads", "requests whose model is not loaded", "503 + Retry-After"),
        option("model_load_timeout", "time for a model of several to load", "503"),
        option("model_memory_bytes", "all models of several", "idle ones unload"),
        option("max_waiting_chats", "chats not yet a prompt", "503"),
        Bound(_FIXED, str(NUM_PROCESSES), "chat templates rendered at once", "wait"),
        option("template_timeout", "chat template for a prompt", "400"),
        Bound(_FIXED, str(MAX_STEPS), "steps of a chat template", "400"),
        Bound(_FIXED, str(MAX_TEXT), "characters from a chat template", "400"),
        Bound(_FIXED, format_bytes(MAX_MEMORY_BYTES), "memory of a chat template", "400"),
        *_work_bounds(args, config),
        Bound(_FIXED, format_bytes(max(MAX_BYTES.values())), "a structured output", "400"),
        Bound(_FIXED, _s(MAX_WORK_S), "processor time of a grammar", "400"),
        Bound(_FIXED, _s(MAX_REQUEST_SECONDS), "fetching and decoding a request's media", "400"),
    ]
    if config is not None:
        bounds += _engine_bounds(config)
    return [
        *bounds,
        option("request_timeout", "life of a request", "503"),
        option("slow_reader_timeout", "unread reply", "cut off"),
        option("linger_timeout", "rest of an answered request", "closed"),
        option("keep_alive_timeout", "idle connection", "closed"),
        option("step_timeout", "one step", "exit 1"),
        Bound(_FIXED, _s(_DEATH_REPORTED_S), "a step without progress", "exit 1"),
        option("response_store_bytes", "stored responses", "oldest go"),
        option("max_stored_responses", "stored responses", "oldest go"),
        option("response_store_time", "unused response", "goes"),
        option("shutdown_timeout", "draining", "aborted"),
        option("max_log_len", "a text in the log", "cut"),
    ]


def _work_bounds(args: ServerArgs, config: EngineConfig | None) -> list[Bound]:
    """Those on one request's work; some depend on the model unless they are set."""
    text, values = args.max_tokenize_bytes, args.max_reply_values
    if config is not None:
        limits = WorkLimits.of(args, config.model)
        text, values = limits.max_tokenize_bytes, limits.max_reply_values
    waiting = str(args.max_large_requests_waiting)
    return [
        Bound("max_tokenize_bytes", _or_model(text, format_bytes), "text to be tokenized", "400"),
        Bound(
            "max_reply_values",
            _or_model(values, str),
            "logprobs, echoed tokens, vectors of a reply",
            "400",
        ),
        Bound("max_large_requests", str(args.max_large_requests), "large ones at work", "wait"),
        Bound("max_large_requests_waiting", waiting, "large ones that wait", "503 + Retry-After"),
    ]


def _or_model(value: int | None, show: Callable[[int], str]) -> str:
    return "by the model" if value is None else show(value)


def _engine_bounds(config: EngineConfig) -> list[Bound]:
    model, scheduler, cache = config.model, config.scheduler, config.cache
    tokens = scheduler.max_num_batched_tokens
    running, waiting = scheduler.max_num_seqs, scheduler.max_num_queued_reqs
    kind = "always" if scheduler.queue_may_stand else "in a burst"
    queued_tokens, most = scheduler.max_num_queued_tokens, model.max_output_tokens
    return [
        Bound("max_model_len", str(model.max_model_len), "prompt and reply, in tokens", "400"),
        Bound("max_output_tokens", _or_none(most), "a reply, in tokens", "ends"),
        Bound("max_logprobs", str(model.max_logprobs), "logprobs at a position", "400"),
        Bound(
            "max_num_queued_reqs",
            _or_none(waiting),
            f"requests that wait, {kind}",
            "503 + Retry-After",
        ),
        Bound(
            "max_num_queued_tokens",
            _or_none(queued_tokens),
            "prompt tokens that wait",
            "503 + Retry-After",
        ),
        Bound("max_num_seqs", str(running), "requests in a step", "wait"),
        Bound("max_loras", _or_none(scheduler.max_loras), "adapters in a step", "wait"),
        Bound("max_num_batched_tokens", str(tokens), "tokens in a step", "next step"),
        Bound("num_gpu_blocks_override", str(cache.num_blocks), "KV blocks", "preempted"),
        Bound(_FIXED, str(NUM_THREADS), "grammars compiled at once", "wait"),
        Bound(_FIXED, format_bytes(MAX_CACHE_BYTES), "compiled grammars that are kept", "drops"),
        Bound(_FIXED, str(MAX_LEXER_STATES), "lexer states of a request's grammar", "error"),
    ]


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes"):
        return format_bytes(int(value))
    return _s(value) if name.endswith(("_timeout", "_time")) else str(value)


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _s(seconds: float) -> str:
    return f"{seconds:g} s"
