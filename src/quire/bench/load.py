"""Sends a load: when each request is sent, and what became of it.

The distribution of arrivals is vLLM bench's: gamma distributed intervals, of which a burstiness of
1 is a Poisson process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client, ReplyError
from quire.config.declaration import argument
from quire.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficArgs:
    """Options for the arrival of requests."""

    request_rate: float = argument(math.inf, is_common=True)
    """Requests per second; inf sends all of them at once."""
    burstiness: float = 1.0
    """Shape of the intervals' gamma distribution: 1 is a Poisson process, less is burstier,
    inf gives constant intervals."""
    max_concurrency: int | None = argument(None, is_common=True)
    """Maximum number of requests in flight; waiting here does not count as latency."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Increase the rate during the run instead of using --request-rate."""
    ramp_up_start_rps: int | None = None
    """Rate at the first request."""
    ramp_up_end_rps: int | None = None
    """Rate at the last request."""

    def __post_init__(self) -> None:
        if not self.request_rate > 0 or not self.burstiness > 0:
            raise ConfigError("--request-rate and --burstiness must be positive")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError("--max-concurrency must be at least 1")
        if self.ramp_up_strategy is not None:
            self._check_ramp()

    def _check_ramp(self) -> None:
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if not math.isinf(self.request_rate):
            raise ConfigError("--ramp-up-strategy sets the rate; leave --request-rate out")
        if start is None or end is None:
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        if not 0 < start <= end:
            raise ConfigError(
                f"the rate must grow from a positive start: got {start} to {end}; try 1 to 10"
            )

    def rate_at(self, index: int, count: int) -> float:
        """Requests per second when request `index` of `count` is due."""
        if self.ramp_up_strategy is None:
            return self.request_rate
        start, end = float(self.ramp_up_start_rps or 1), float(self.ramp_up_end_rps or 1)
        progress = index / max(count - 1, 1)
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * progress
        return float(start * (end / start) ** progress)


def arrival_times(args: TrafficArgs, count: int, seed: int) -> list[float]:
    """Seconds after the start at which each of `count` requests is due, ascending.

    A constant rate is scaled so that the last arrival is where the mean rate puts it.
    """
    if math.isinf(args.request_rate) and args.ramp_up_strategy is None:
        return [0.0] * count
    rng = np.random.RandomState(seed)
    delays = []
    for index in range(count):
        rate = args.rate_at(index, count)
        if math.isinf(args.burstiness):
            delays.append(1.0 / rate)
        else:
            delays.append(float(rng.gamma(args.burstiness, 1.0 / (rate * args.burstiness))))
    times = np.cumsum(delays)
    if args.ramp_up_strategy is None and times[-1] > 0:
        times *= (count / args.request_rate) / times[-1]
    return [float(time) for time in times]


Endpoint = Literal["/v1/completions", "/v1/chat/completions"]


@dataclass(slots=True)
class RequestResult:
    """Measurements of one request. Times in seconds; `start_time` on the monotonic clock."""

    prompt_len: int
    is_success: bool = False
    start_time: float = 0.0
    queue_time: float = 0.0
    """Time from due to sent, caused by `max_concurrency`."""
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint, and the fields that all requests share."""

    client: Client
    endpoint: str
    model: str
    extra_body: Mapping[str, Any]
    """Sampling parameters, ignore_eos and the like."""
    request_id_prefix: str = "bench-"


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


_decode_event = msgspec.json.Decoder(_Event).decode


def request_body(target: Target, request: SampleRequest) -> bytes:
    """The JSON of a streaming request."""
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": request.output_len,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        body["prompt"] = request.prompt
    return msgspec.json.encode({**body, **target.extra_body})


async def send_one(target: Target, request: SampleRequest, request_id: str) -> RequestResult:
    """Sends one request and follows it to its end. A failure is in the result, not raised."""
    result = RequestResult(prompt_len=request.prompt_len)
    body = request_body(target, request)
    result.start_time = last = time.perf_counter()
    try:
        response = await target.client.send(
            "POST", target.endpoint, body, {"X-Request-Id": target.request_id_prefix + request_id}
        )
        if response.status != 200:
            text = (await target.client.body(response)).decode(errors="replace")
            result.error = f"{response.status}: {text[:500]}"
            result.latency = time.perf_counter() - result.start_time
            return result
        async with contextlib.aclosing(target.client.events(response)) as events:
            async for data in events:
                now = time.perf_counter()
                if data == b"[DONE]" or not data:
                    continue
                last = _take(result, _decode_event(data), now, last)
    except (ReplyError, msgspec.MsgspecError) as error:
        result.error = str(error) or type(error).__name__
        return result
    result.latency = last - result.start_time
    result.is_success = result.ttft > 0 and not result.error
    result.error = result.error or ("" if result.is_success else "no token arrived")
    return result


def _take(result: RequestResult, event: _Event, now: float, last: float) -> float:
    """Record one event; return when the last token arrived."""
    if event.error is not None:
        result.error = str(event.error.get("message", event.error))
        return last
    if event.usage is not None:
        result.output_tokens = int(event.usage.get("completion_tokens") or 0)
        result.prompt_len = int(event.usage.get("prompt_tokens") or result.prompt_len)
        details = event.usage.get("prompt_tokens_details") or {}
        result.cached_tokens = int(details.get("cached_tokens") or 0)
    if not event.choices:
        return last
    choice = event.choices[0]
    result.text += choice.text or (choice.delta or {}).get("content") or ""
    if result.ttft == 0.0:
        result.ttft = now - result.start_time
    else:
        result.itl.append(now - last)
    return now


async def run_load(
    target: Target,
    requests: Sequence[SampleRequest],
    due_s: Sequence[float],
    max_concurrency: int | None,
    on_done: Callable[[RequestResult], None],
) -> list[RequestResult]:
    """Sends every request when it is due; returns the results in the order of `requests`."""
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    begin = time.perf_counter()

    async def one(index: int) -> RequestResult:
        due = begin + due_s[index]
        async with gate:
            begun = time.perf_counter()
            result = await send_one(target, requests[index], str(index))
            result.queue_time = max(0.0, begun - due)
        on_done(result)
        return result

    tasks = []
    for index in range(len(requests)):
        delay = begin + due_s[index] - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.create_task(one(index)))
    return list(await asyncio.gather(*tasks))
