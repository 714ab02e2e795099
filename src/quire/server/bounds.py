"""Every bound that a server keeps, as a list for people: `quire explain` prints it."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig
from quire.server.args import ServerArgs
from quire.units import format_bytes


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit, what is limited, and what happens beyond it."""

    option: str
    value: str
    what: str
    beyond: str


def describe_bounds(args: ServerArgs, config: EngineConfig | None = None) -> list[Bound]:
    """All of them, in the order in which a request meets them."""
    bounds = [
        Bound("max_connections", str(args.max_connections), "open connections", "503"),
        Bound("header_timeout", _s(args.header_timeout), "time for headers to arrive", "408"),
        Bound("max_url_bytes", format_bytes(args.max_url_bytes), "path and query", "414"),
        Bound("max_header_bytes", format_bytes(args.max_header_bytes), "all headers", "431"),
        Bound("body_timeout", _s(args.body_timeout), "time for the body to arrive", "408"),
        Bound("max_body_bytes", format_bytes(args.max_body_bytes), "request body", "413"),
        Bound("max_prompts", str(args.max_prompts), "prompts in a request", "400"),
        Bound("max_messages", str(args.max_messages), "messages in a request", "400"),
        Bound("max_n", str(args.max_n), "n", "400"),
        Bound("max_stop_strings", str(args.max_stop_strings), "stop strings", "400"),
        Bound("max_stop_string_chars", str(args.max_stop_string_chars), "a stop string", "400"),
        Bound("max_stop_token_ids", str(args.max_stop_token_ids), "stop token ids", "400"),
        Bound("max_request_id_chars", str(args.max_request_id_chars), "X-Request-Id", "400"),
    ]
    if config is not None:
        bounds += _engine_bounds(config)
    bounds += [
        Bound("request_timeout", _s(args.request_timeout), "life of a request", "503"),
        Bound("slow_reader_timeout", _s(args.slow_reader_timeout), "unread reply", "cut off"),
        Bound("keep_alive_timeout", _s(args.keep_alive_timeout), "idle connection", "closed"),
        Bound("step_timeout", _s(args.step_timeout), "one step", "engine dead, exit 1"),
        Bound("shutdown_timeout", _s(args.shutdown_timeout), "draining", "aborted"),
    ]
    return bounds


def _engine_bounds(config: EngineConfig) -> list[Bound]:
    model, scheduler = config.model, config.scheduler
    bounds = [
        Bound("max_model_len", str(model.max_model_len), "prompt and reply, in tokens", "400"),
        Bound("max_logprobs", str(model.max_logprobs), "logprobs", "400"),
        Bound("max_num_seqs", str(scheduler.max_num_seqs), "requests in a step", "wait"),
    ]
    for option, what in (
        ("max_num_queued_reqs", "requests that wait"),
        ("max_num_queued_tokens", "prompt tokens that wait"),
    ):
        limit = getattr(scheduler, option)
        value = "none" if limit is None else str(limit)
        bounds.append(Bound(option, value, what, "503 + Retry-After"))
    return bounds


def _s(seconds: float) -> str:
    return f"{seconds:g} s"
