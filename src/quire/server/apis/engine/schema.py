"""The routes that control the engine: what their queries and bodies take, and what they answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.core.pausing import PauseMode
from quire.server.requests.fields import Count


class SleepQuery(msgspec.Struct, kw_only=True):
    """Options of sleep."""

    level: Annotated[int, Meta(ge=0, le=2)] = 1
    mode: PauseMode = "abort"


class SleepReply(msgspec.Struct, kw_only=True):
    """The engine sleeps."""

    status: Literal["sleeping"] = "sleeping"
    level: Count


class WakeUpQuery(msgspec.Struct, kw_only=True):
    """Tags to wake; one each time that `tags` is given."""

    tags: list[Literal["weights", "kv_cache", "scheduling"]] = []
    """None: all."""


class WakeUpReply(msgspec.Struct):
    """Whether all is awake, and what was asked for."""

    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class IsSleeping(msgspec.Struct):
    """Whether the engine is paused or has given memory back."""

    is_sleeping: bool


class ReleaseReply(msgspec.Struct, kw_only=True):
    """The KV cache's memory was returned to the system."""

    status: Literal["kv_cache_released"] = "kv_cache_released"


class PauseQuery(msgspec.Struct, kw_only=True):
    """Options of a pause."""

    mode: PauseMode = "abort"
    clear_cache: bool = True
    """Forget all cached prompts."""


class PauseReply(msgspec.Struct):
    """The result of a pause or its end."""

    status: Literal["paused", "resumed"]


class IsPaused(msgspec.Struct):
    """Whether generation is paused."""

    is_paused: bool


class ResetQuery(msgspec.Struct, kw_only=True):
    """State to forget along with the prefix cache."""

    reset_running_requests: bool = False
    """Running requests compute their tokens again."""
    reset_external: bool = False
    """The KV store forgets too. Without one the answer is false."""


class ResetReply(msgspec.Struct):
    """Whether the prefix cache was cleared: not while requests hold blocks of it."""

    success: bool


class AbortRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The requests to abort."""

    request_ids: Annotated[list[str], Meta(max_length=4096)] | None = None
    """The `id`s of replies; none, or an empty list: all requests in flight."""


class AbortReply(msgspec.Struct, kw_only=True):
    """Number of requests that were in flight and have ended; each prompt is one."""

    status: Literal["aborted"] = "aborted"
    aborted: Count


class WorkerCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A call of a public method of the worker."""

    method: Annotated[str, Meta(min_length=1, max_length=128)]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """Seconds to wait for it."""


class WorkerReply(msgspec.Struct):
    """Results of the workers; other values than objects, lists and null as texts."""

    results: list[Any]


class StartProfile(msgspec.Struct, kw_only=True):
    """Settings of one recording that differ from the configuration. The body may be empty."""

    profile_prefix: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """Begins the file's name."""
    delay_iterations: Annotated[int, Meta(ge=0)] | None = None
    """Steps to skip before recording."""
    max_iterations: Annotated[int, Meta(ge=0)] | None = None
    """Most steps that are recorded; 0: all."""
    profiler_kwargs: dict[str, Any] | None = None
    """Must be empty: they are for the profiler of torch."""


class WorldSizeQuery(msgspec.Struct, kw_only=True):
    """Which processes count."""

    include_dp: bool = True


class WorldSize(msgspec.Struct, kw_only=True):
    """Number of processes that compute one step."""

    world_size: Count


class ServerInfoQuery(msgspec.Struct, kw_only=True):
    """The form of the configuration."""

    config_format: Literal["text", "json"] = "text"


class ServerInfo(msgspec.Struct, kw_only=True):
    """The engine's configuration, the environment variables that Quire may read, the machine."""

    vllm_config: Any
    """A text, or an object with vLLM's names for what vLLM also has, as asked for. vLLM's name."""
    vllm_env: dict[str, str]
    """Variables that begin with QUIRE_ or VLLM_, without those that hold secrets."""
    system_env: dict[str, str | None]
