"""All limits of a server, as a list that `quire explain` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.chat.async_renderer import NUM_PROCESSES
from quire.chat.job import MAX_MEMORY_BYTES, MAX_STEPS, MAX_TEXT
from quire.config import EngineConfig
from quire.server.args import ServerArgs
from quire.server.http.listening import BACKLOG
from quire.server.requests.request_work import WorkLimits
from quire.structured.compile import MAX_CACHE_BYTES, NUM_THREADS
from quire.structured.limits import MAX_BYTES, MAX_LEXER_STATES, MAX_WORK_S
from quire.units import format_bytes

_TOLD_S = 2.0
"""Time within which waiting requests get an error after the engine died or is stuck."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, what is limited, and what happens beyond it."""

    option: str
    value: str
    what: str
    beyond: str


def describe_bounds(args: ServerArgs, config: EngineConfig | None = None) -> list[Bound]:
    """All limits, in the order in which they apply to a request."""
    bounds = [
        Bound("max_connections", str(args.max_connections), "open connections", "503"),
        Bound("reserved_connections", str(args.reserved_connections), "probes beyond them", "503"),
        Bound("(fixed)", str(BACKLOG), "clients without a request, or refused", "oldest closed"),
        Bound("header_timeout", _s(args.header_timeout), "time for headers to arrive", "408"),
        Bound("max_url_bytes", format_bytes(args.max_url_bytes), "path and query", "414"),
        Bound("max_header_bytes", format_bytes(args.max_header_bytes), "all but the body", "431"),
        Bound("body_timeout", _s(args.body_timeout), "time for the body to arrive", "408"),
        Bound("max_body_bytes", format_bytes(args.max_body_bytes), "request body", "413"),
        Bound(
            "max_pending_body_bytes",
            format_bytes(args.max_pending_body_bytes),
            "bodies that are arriving",
            "503 + Retry-After",
        ),
        Bound("max_json_values", str(args.max_json_values), "values in a body", "400"),
        Bound("max_field_bytes", format_bytes(args.max_field_bytes), "a field", "400"),
        Bound("max_prompts", str(args.max_prompts), "prompts x n in a request", "400"),
        Bound("max_messages", str(args.max_messages), "messages in a request", "400"),
        Bound("max_n", str(args.max_n), "n", "400"),
        Bound("max_stop_strings", str(args.max_stop_strings), "stop strings", "400"),
        Bound("max_stop_string_chars", str(args.max_stop_string_chars), "a stop string", "400"),
        Bound("max_stop_token_ids", str(args.max_stop_token_ids), "stop token ids", "400"),
        Bound("max_request_id_chars", str(args.max_request_id_chars), "X-Request-Id", "400"),
        Bound("max_waiting_chats", str(args.max_waiting_chats), "chats not yet a prompt", "503"),
        Bound("(fixed)", str(NUM_PROCESSES), "chat templates rendered at once", "wait"),
        Bound("template_timeout", _s(args.template_timeout), "chat template for a prompt", "400"),
        Bound("(fixed)", str(MAX_STEPS), "steps of a chat template", "400"),
        Bound("(fixed)", str(MAX_TEXT), "characters from a chat template", "400"),
        Bound("(fixed)", format_bytes(MAX_MEMORY_BYTES), "memory of a chat template", "400"),
        *_work_bounds(args, config),
        Bound("(fixed)", format_bytes(max(MAX_BYTES.values())), "a structured output", "400"),
        Bound("(fixed)", _s(MAX_WORK_S), "processor time of a grammar", "400"),
    ]
    if config is not None:
        bounds += _engine_bounds(config)
    bounds += [
        Bound("request_timeout", _s(args.request_timeout), "life of a request", "503"),
        Bound("slow_reader_timeout", _s(args.slow_reader_timeout), "unread reply", "cut off"),
        Bound("linger_timeout", _s(args.linger_timeout), "rest of an answered request", "closed"),
        Bound("keep_alive_timeout", _s(args.keep_alive_timeout), "idle connection", "closed"),
        Bound("step_timeout", _s(args.step_timeout), "one step", "exit 1"),
        Bound("(fixed)", _s(_TOLD_S), "a step without progress", "exit 1"),
        Bound(
            "response_store_bytes",
            format_bytes(args.response_store_bytes),
            "stored responses",
            "oldest go",
        ),
        Bound(
            "max_stored_responses", str(args.max_stored_responses), "stored responses", "oldest go"
        ),
        Bound("response_store_time", _s(args.response_store_time), "unused response", "goes"),
        Bound("shutdown_timeout", _s(args.shutdown_timeout), "draining", "aborted"),
        Bound(
            "max_log_len",
            "none" if args.max_log_len is None else str(args.max_log_len),
            "a text in the log",
            "cut",
        ),
    ]
    return bounds


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
            "logprobs and echoed tokens of a reply",
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
    queued = "none" if waiting is None else str(waiting)
    kind = "always" if scheduler.queue_may_stand else "in a burst"
    queued_tokens, most = scheduler.max_num_queued_tokens, model.max_output_tokens
    return [
        Bound("max_model_len", str(model.max_model_len), "prompt and reply, in tokens", "400"),
        Bound(
            "max_output_tokens", "none" if most is None else str(most), "a reply, in tokens", "ends"
        ),
        Bound("max_logprobs", str(model.max_logprobs), "logprobs at a position", "400"),
        Bound("max_num_queued_reqs", queued, f"requests that wait, {kind}", "503 + Retry-After"),
        Bound(
            "max_num_queued_tokens",
            "none" if queued_tokens is None else str(queued_tokens),
            "prompt tokens that wait",
            "503 + Retry-After",
        ),
        Bound("max_num_seqs", str(running), "requests in a step", "wait"),
        Bound("max_num_batched_tokens", str(tokens), "tokens in a step", "next step"),
        Bound("num_gpu_blocks_override", str(cache.num_blocks), "KV blocks", "preempted"),
        Bound("(fixed)", str(NUM_THREADS), "grammars compiled at once", "wait"),
        Bound("(fixed)", format_bytes(MAX_CACHE_BYTES), "compiled grammars that are kept", "drops"),
        Bound("(fixed)", str(MAX_LEXER_STATES), "lexer states of a request's grammar", "error"),
    ]


def _s(seconds: float) -> str:
    return f"{seconds:g} s"
