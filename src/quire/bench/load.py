"""The load generator: sends requests when they are due and notes when every token came.

What is measured is what vLLM's benchmark measures: the clock starts when a request is
written, every event with choices is a token's arrival, and waiting here for
`max_concurrency` is not latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client, ReplyError

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
