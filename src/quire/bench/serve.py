"""`quire bench serve`: sends a load to a running server and says how it was served.

Works against any OpenAI-compatible server. What is sent, what is measured and the keys of
the JSON are vLLM bench's; the numbers of both can stand in one table.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from tqdm import tqdm  # type: ignore[import-untyped]

from quire.bench.charts import LoadPoint, draw, parse_levels, report
from quire.bench.datasets import DatasetArgs, SampleRequest, load_requests
from quire.bench.http_stream import Client, ReplyError
from quire.bench.load import RequestResult, Target, TrafficArgs, arrival_times, run_load, send_one
from quire.bench.metrics import (
    DETAILED_KEYS,
    METRIC_TITLES,
    parse_goodput,
    parse_pairs,
    print_served,
    save_json,
    summarise,
)
from quire.config.declaration import argument
from quire.errors import ConfigError
from quire.files import write_text
from quire.log.writer import say
from quire.redaction import redact

_READY_POLL_S = 1.0
_ENDPOINTS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBenchArgs:
    """The server, the requests, and the output of results."""

    backend: Literal["openai", "openai-chat", "vllm"] = argument("openai", is_common=True)
    """Which endpoint: completions (openai, vllm) or chat completions (openai-chat)."""
    endpoint: str | None = None
    """Path of the endpoint; by default that of the backend."""
    base_url: str | None = argument(None, is_common=True)
    """Server as a URL; wins over --host and --port."""
    host: str = "127.0.0.1"
    """Server's address."""
    port: int = 8000
    """Server's port."""
    model: str | None = argument(None, is_common=True)
    """Model to ask for; the server's first one by default."""
    served_model_name: str | None = None
    """Name of the model in requests, if it differs from --model."""
    tokenizer: str | None = None
    """Directory or hub id of the tokenizer that measures prompts; the model's by default."""
    header: list[str] | None = None
    """Request headers as KEY=VALUE; OPENAI_API_KEY is sent as a bearer token anyway."""
    insecure: bool = False
    """Do not check TLS certificates."""
    num_warmups: int = 0
    """Requests sent before the measurement."""
    ready_check_timeout_sec: int = 600
    """Seconds to wait for the server's first answer; 0 does not check."""
    disable_tqdm: bool = False
    """No progress bar."""
    ignore_eos: bool = False
    """Generate on after the end-of-sequence token; always so for random prompts and traces."""
    logprobs: int | None = None
    """Log-probabilities to ask for."""
    temperature: float | None = None
    """Sampling parameter; the server decides by default."""
    top_p: float | None = None
    """Sampling parameter; the server decides by default."""
    top_k: int | None = None
    """Sampling parameter; the server decides by default."""
    min_p: float | None = None
    """Sampling parameter; the server decides by default."""
    extra_body: dict[str, Any] | None = None
    """Further fields of every request."""
    request_id_prefix: str = "bench-"
    """Beginning of the requests' ids."""
    percentile_metrics: str = "ttft,tpot,itl"
    """Metrics to report: ttft, tpot, itl, e2el, client_queue_time."""
    metric_percentiles: str = "99"
    """Percentiles to report, separated by commas."""
    goodput: list[str] | None = None
    """Bounds as NAME:MILLISECONDS (ttft, tpot, e2el); goodput counts requests that keep all."""
    label: str | None = None
    """Prefix of the result file's name; the backend by default."""
    save_result: bool = argument(False, is_common=True)
    """Write the results to a JSON file."""
    append_result: bool = False
    """Add the results to the file instead of replacing it."""
    save_detailed: bool = False
    """Put every request's times, text and error into the file as well."""
    metadata: list[str] | None = None
    """Notes for the file, as KEY=VALUE."""
    result_dir: str | None = None
    """Directory of the file; the current one by default."""
    result_filename: str | None = None
    """Name of the file; made from label, rate, model and time by default."""
    profile: bool = False
    """Let the server record its steps meanwhile; it needs --profiler-config."""
    plot: str | None = None
    """Draw the run as an SVG file."""
    levels: str = ""
    """Numbers of requests at once, separated by commas: measure at each of them, with prompts of
    its own."""
    html: str | None = None
    """Write a report with curves of throughput and latency by load, as one HTML file."""

    @property
    def url(self) -> str:
        """The server's URL."""
        return (self.base_url or f"http://{self.host}:{self.port}").rstrip("/")

    def sampling(self) -> dict[str, Any]:
        """Body fields of every request, besides its prompt."""
        names = ("temperature", "top_p", "top_k", "min_p", "logprobs")
        given = {name: getattr(self, name) for name in names}
        found = {name: value for name, value in given.items() if value is not None}
        return {**found, **(self.extra_body or {})}


def run(args: ServeBenchArgs, dataset: DatasetArgs, traffic: TrafficArgs) -> dict[str, Any]:
    """Measures and reports; returns the results of the last level. Raises ConfigError,
    ReplyError."""
    metrics = _metric_names(args.percentile_metrics)
    percentiles = _percentiles(args.metric_percentiles)
    goodput = parse_goodput(args.goodput or [])
    levels = parse_levels(args.levels, traffic)
    points = []
    for number, level in enumerate(levels):
        own = replace(traffic, max_concurrency=level)
        prompts = replace(dataset, seed=dataset.seed + number)  # no level finds the last one's K/V
        summary = asyncio.run(_measure(args, prompts, own, metrics, percentiles, goodput))
        print_served(summary, metrics, own.request_rate, level)
        points.append(LoadPoint.of(summary, level))
        _save(args, own, summary, is_first=number == 0)
    if args.plot is not None:
        write_text(Path(args.plot), draw(summary))
        say(f"chart: {args.plot}")
    if args.html is not None:
        count = summary["num_prompts"]
        rate = traffic.request_rate
        facts = {
            "model": str(summary["model_id"]),
            "server": redact(args.url),
            "date": datetime.now().strftime("%Y-%m-%d %H:%M"),
            "requests": f"{count} of {dataset.dataset_name} at each load",
            "arrival": "as early as possible" if math.isinf(rate) else f"{rate:g} per second",
            "tokens of a prompt": f"{mean(summary['input_lens']):.0f} on average",
            "tokens of a reply": f"{mean(summary['output_lens']):.0f} on average",
        }
        write_text(Path(args.html), report(facts, points))
        say(f"report: {args.html}")
    return summary


async def _measure(
    args: ServeBenchArgs,
    dataset: DatasetArgs,
    traffic: TrafficArgs,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    goodput: Mapping[str, float],
) -> dict[str, Any]:
    client = Client(args.url, _headers(args), is_verified=not args.insecure)
    try:
        found = await _send_load(client, args, dataset, traffic)
    finally:
        await client.close()
    summary = summarise(found.results, found.duration_s, metrics, percentiles, goodput)
    names = {"model_id": found.model, "tokenizer_id": found.tokenizer_id}
    return {**names, "num_prompts": len(found.results), **summary}


@dataclass(frozen=True, slots=True)
class _Measured:
    """The server's results, with its model and tokenizer."""

    model: str
    tokenizer_id: str
    results: list[RequestResult]
    duration_s: float


async def _send_load(
    client: Client, args: ServeBenchArgs, dataset: DatasetArgs, traffic: TrafficArgs
) -> _Measured:
    model, root = await _model(args, client)
    tokenizer_id = args.tokenizer or root
    if dataset.dataset_name == "timed_trace" and args.backend == "openai-chat":
        raise ConfigError(
            "a trace's prompts are token ids, which a chat cannot have; use --backend openai"
        )
    requests = load_requests(dataset, _tokenizer(tokenizer_id))
    extra = args.sampling()
    if args.ignore_eos or dataset.dataset_name in ("random", "timed_trace"):
        extra["ignore_eos"] = True
    endpoint = args.endpoint or _ENDPOINTS[args.backend]
    target = Target(client, endpoint, model, extra, args.request_id_prefix)
    await _wait_until_ready(target, requests[0], args.ready_check_timeout_sec)
    if args.num_warmups:
        warm = [requests[0]] * args.num_warmups
        await run_load(target, warm, [0.0] * len(warm), traffic.max_concurrency, lambda _: None)
    due = _due_times(traffic, requests, dataset.seed)
    if args.profile:
        await _post(client, "/start_profile")
    with tqdm(total=len(requests), disable=args.disable_tqdm, unit="req") as bar:
        begin = time.perf_counter()
        results = await run_load(
            target, requests, due, traffic.max_concurrency, lambda _: bar.update(1) and None
        )
        duration = time.perf_counter() - begin
    if args.profile:
        await _post(client, "/stop_profile")
    return _Measured(model, tokenizer_id, results, duration)


def _due_times(traffic: TrafficArgs, requests: Sequence[SampleRequest], seed: int) -> list[float]:
    own = [request.due_s for request in requests if request.due_s is not None]
    if not own:
        return arrival_times(traffic, len(requests), seed)
    if not math.isinf(traffic.request_rate) or traffic.ramp_up_strategy is not None:
        raise ConfigError(
            "the requests of a trace are sent at their own times; leave --request-rate and "
            "--ramp-up-strategy out, or give --no-self-timed"
        )
    return own


async def _post(client: Client, path: str) -> None:
    response = await client.send("POST", path)
    body = await client.body(response)
    if response.status != 200:
        raise ReplyError(
            f"{path} answered {response.status}: {body[:500].decode(errors='replace')}"
        )


def _headers(args: ServeBenchArgs) -> dict[str, str]:
    found = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        found["Authorization"] = f"Bearer {key}"
    return {**found, **parse_pairs(args.header or [], "--header")}


async def _model(args: ServeBenchArgs, client: Client) -> tuple[str, str]:
    if args.model is not None:
        return args.served_model_name or args.model, args.model
    response = await client.send("GET", "/v1/models")
    body = await client.body(response)
    try:
        first = json.loads(body)["data"][0]
        name = str(first["id"])
        return args.served_model_name or name, str(first.get("root") or name)
    except (ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{args.url}/v1/models answered {response.status} and lists no model; give --model"
        ) from None


def _tokenizer(name: str) -> Any:
    from quire.config.model_lookup.hub import resolve_model
    from quire.errors import ModelNotFoundError
    from quire.tokenizer import Tokenizer
    from quire.tokenizer.trial import try_out

    try:
        directory = resolve_model(name, needs_weights=False)
        try_out(directory)
        return Tokenizer.from_directory(directory)
    except ModelNotFoundError as error:
        raise ConfigError(f"{error}. Give the tokenizer's directory with --tokenizer") from None


async def _wait_until_ready(target: Target, request: SampleRequest, timeout_s: float) -> None:
    """Sends one request until it is answered, and says once what it waits for. Raises ReplyError
    when the time is up."""
    if timeout_s <= 0:
        return
    end = time.monotonic() + timeout_s
    for attempt in count():
        result = await send_one(target, request, "ready")
        if result.is_success:
            return
        # A refusal (4xx) will not change; a server that is not there yet may come.
        if time.monotonic() > end or result.error[:1] == "4":
            raise ReplyError(f"the test request failed: {result.error}")
        if not attempt:
            why = f"the test request failed: {result.error}"
            say(f"{why}; waiting up to {timeout_s:g} s for the server", file=sys.stderr)
        await asyncio.sleep(_READY_POLL_S)


def _metric_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in METRIC_TITLES]
    if unknown:
        raise ConfigError(
            f"--percentile-metrics {unknown[0]!r} is not known; use {', '.join(METRIC_TITLES)}"
        )
    return names


def _percentiles(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= p <= 100 for p in found):
        raise ConfigError(f"--metric-percentiles {text!r}: write numbers from 0 to 100, as 50,99")
    return found


def _save(
    args: ServeBenchArgs, traffic: TrafficArgs, summary: Mapping[str, Any], *, is_first: bool
) -> None:
    if not (args.save_result or args.append_result):
        return
    now, label = datetime.now().strftime("%Y%m%d-%H%M%S"), args.label or args.backend
    is_infinite = traffic.request_rate == float("inf")
    rate = "inf" if is_infinite else traffic.request_rate
    result = {
        "date": now, "endpoint_type": args.backend, "backend": args.backend, "label": args.label,
        **parse_pairs(args.metadata or [], "--metadata"),
        "request_rate": rate, "burstiness": traffic.burstiness,
        "max_concurrency": traffic.max_concurrency,
        **summary,
    }  # fmt: skip
    if not args.save_detailed:
        result = {key: value for key, value in result.items() if key not in DETAILED_KEYS}
    limit = f"-concurrency{traffic.max_concurrency}" if traffic.max_concurrency else ""
    model = Path(str(summary["model_id"])).name
    name = args.result_filename or f"{label}-{rate}qps{limit}-{model}-{now}.json"
    save_json(
        Path(args.result_dir or ".") / name, result, append=args.append_result or not is_first
    )
