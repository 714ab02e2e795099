"""Sleep, caches, adapters, profiles and calls of the worker, declared once for all engines.

`LLMEngine`, `LLM` and `AsyncLLM` have these operations as methods, under vLLM's names. An operation
is a generator: it yields what the engine shall do, and receives the result. So it knows neither
threads nor event loops; `blocking` and `asynchronous` make methods of it.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from quire.adapters import AnyAdapterRequest, LoRARequest, PromptAdapterRequest
from quire.core.pausing import PauseMode, check_level, check_mode, check_tags
from quire.errors import ConfigError, quoted

Params = ParamSpec("Params")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Command:
    """Run one of `EngineCore.commands`, between two steps."""

    name: str
    args: tuple[Any, ...] = ()
    timeout: float | None = None
    """Seconds to wait for the result."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Let new requests wait, and abort, finish or keep those in flight."""

    mode: PauseMode


@dataclass(frozen=True, slots=True)
class ReportSleep:
    """Report to the observers how deep the engine sleeps; None: it is awake."""

    level: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Let some time pass, in which an engine on a thread of its own goes on. Gives whether the
    engine takes steps meanwhile."""

    seconds: float


Action = Command | Pause | ReportSleep | Wait
Operation = Generator[Action, Any, Result]


def sleep(level: int = 1, mode: PauseMode = "abort") -> Operation[None]:
    """Pauses, then releases memory to the system until `wake_up`.

    `level` 0: no memory. 1: the KV cache; the weights stay, since a CPU has no other memory to
    move them to. 2: also the weights, which are loaded from disk again. `mode`: requests in
    flight are aborted (`abort`), run to their end first (`wait`), or kept (`keep`). New requests
    wait.
    """
    check_level(level)
    check_mode(mode)
    yield Pause(mode)
    yield Command("sleep", (level,))
    yield ReportSleep(level)


def wake_up(tags: list[str] | None = None) -> Operation[bool]:
    """Takes memory again: of `weights`, `kv_cache`, or None for all. Once none is missing, requests
    go on. `scheduling` alone ends a `sleep(0)`. Returns whether the engine is awake."""
    check_tags(tags)
    is_awake = bool((yield Command("wake_up", (tags,))))
    if is_awake:
        yield ReportSleep(None)
    return is_awake


def is_sleeping() -> Operation[bool]:
    """Whether the engine is paused or has given memory back."""
    return bool((yield Command("is_sleeping")))


def release_kv_cache_memory() -> Operation[None]:
    """Gives the KV cache's memory back, after `sleep(0)`."""
    yield Command("release_kv_cache_memory")
    yield ReportSleep(0)


def reset_prefix_cache(
    reset_running_requests: bool = False, reset_connector: bool = False
) -> Operation[bool]:
    """Forgets all cached prompts. Returns False, with none forgotten, while requests are running,
    unless `reset_running_requests` lets them compute their tokens again. `reset_connector`: the KV
    store forgets too; False where there is none."""
    return bool((yield Command("reset_prefix_cache", (reset_running_requests, reset_connector))))


def reset_mm_cache() -> Operation[None]:
    """Forgets the rows of all images: their decoded files are not kept."""
    yield Command("reset_encoder_cache")


def reset_encoder_cache() -> Operation[None]:
    """Forgets the rows of all images."""
    yield Command("reset_encoder_cache")


def collective_rpc(
    method: str | Callable[..., Any],
    timeout: float | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Operation[list[Any]]:
    """Calls a method of the worker between two steps; returns a list with its value.

    A function gets the worker as its first argument, where the engine runs in this process. Raises
    ConfigError for an unknown method, or arguments that cannot be sent to an engine process. After
    `timeout` seconds, `AsyncLLM` raises TimeoutError, and the call may still run; the other engines
    raise ConfigError for a `timeout`, because the call runs on the caller's thread.
    """
    given = (method, list(args), dict(kwargs or {}))
    found: list[Any] = yield Command("collective_rpc", given, timeout)
    return found


def apply_model(func: Callable[[Any], Any]) -> Operation[list[Any]]:
    """Returns a list with what a function returns for the compiled model, which is not an
    `nn.Module`. Otherwise as `collective_rpc`."""
    return (yield from collective_rpc("apply_model", args=(func,)))


def start_profile(
    profile_prefix: str | None = None,
    *,
    delay_iterations: int | None = None,
    max_iterations: int | None = None,
    profiler_kwargs: Mapping[str, Any] | None = None,
) -> Operation[None]:
    """Records the engine's steps from now on: after `delay_iterations` of them, at most
    `max_iterations` (0: all); None: as `profiler_config` says. `profile_prefix` begins the file's
    name. Raises ConfigError without a directory, in another session, and for `profiler_kwargs`."""
    if profiler_kwargs:
        raise ConfigError(
            f"profiler_kwargs must be None or empty, got {quoted(profiler_kwargs)}: they are "
            "arguments of torch's profiler, which is not used here"
        )
    yield Command("start_profile", (profile_prefix, delay_iterations, max_iterations))


def stop_profile() -> Operation[None]:
    """Ends the recording; writes it to the directory of `profiler_config`, for Perfetto."""
    yield Command("stop_profile")


class Blocking(Protocol):
    """An engine whose methods return when an operation is done."""

    def run_operation(self, operation: Operation[Result]) -> Result: ...


class Asynchronous(Protocol):
    """An engine whose methods are coroutines."""

    def run_operation(self, operation: Operation[Result]) -> Awaitable[Result]: ...


def blocking(
    operation: Callable[Params, Operation[Result]],
) -> Callable[Concatenate[Any, Params], Result]:
    """A method that runs an operation."""

    def method(self: Blocking, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return self.run_operation(operation(*args, **kwargs))

    _describe(method, operation)
    return method


def asynchronous(
    operation: Callable[Params, Operation[Result]],
) -> Callable[Concatenate[Any, Params], Coroutine[Any, Any, Result]]:
    """A coroutine method that runs an operation."""

    async def method(self: Asynchronous, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return await self.run_operation(operation(*args, **kwargs))

    _describe(method, operation)
    return method


def _describe(method: Any, operation: Callable[..., Any]) -> None:
    """Gives a method the name, the docstring and the parameters of an operation."""
    functools.update_wrapper(method, operation)
    signature = inspect.signature(operation)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    result = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    method.__signature__ = signature.replace(
        parameters=[this, *signature.parameters.values()], return_annotation=result
    )


_POLL_S = 0.005
"""Seconds between two questions whether an adapter is loaded."""
_LORA, _PROMPT = "adapters", "prompt_adapters"
"""Name prefixes of the commands."""


def add_lora(lora_request: LoRARequest) -> Operation[bool]:
    """Loads an adapter, unless one with this number and folder is in memory; with `load_inplace`
    in any case. Steps go on meanwhile. Requests that have begun keep the version they began with.
    Returns True. Raises ConfigError for an adapter that cannot be loaded."""
    if not isinstance(lora_request, LoRARequest):
        raise TypeError(f"lora_request must be a LoRARequest, got {type(lora_request).__name__}")
    return (yield from _load(_LORA, lora_request))


def remove_lora(lora_id: int) -> Operation[bool]:
    """Forgets an adapter; requests that use it go on. Returns whether it was known."""
    return bool((yield Command(f"{_LORA}_remove", (lora_id,))))


def list_loras() -> Operation[set[int]]:
    """The numbers of the adapters that are in memory."""
    return set((yield Command(f"{_LORA}_ids")))


def pin_lora(lora_id: int) -> Operation[bool]:
    """Keeps an adapter in memory until it is removed. Raises ConfigError if it is not there."""
    return (yield from _pin(_LORA, lora_id))


def add_prompt_adapter(prompt_adapter_request: PromptAdapterRequest) -> Operation[bool]:
    """Loads a prompt adapter, unless one with this number and folder is in memory. Returns True.
    Raises ConfigError for an adapter that cannot be loaded."""
    if not isinstance(prompt_adapter_request, PromptAdapterRequest):
        kind = type(prompt_adapter_request).__name__
        raise TypeError(f"prompt_adapter_request must be a PromptAdapterRequest, got {kind}")
    return (yield from _load(_PROMPT, prompt_adapter_request))


def remove_prompt_adapter(prompt_adapter_id: int) -> Operation[bool]:
    """Forgets a prompt adapter; requests that use it go on. Returns whether it was known."""
    return bool((yield Command(f"{_PROMPT}_remove", (prompt_adapter_id,))))


def list_prompt_adapters() -> Operation[set[int]]:
    """The numbers of the prompt adapters that are in memory."""
    return set((yield Command(f"{_PROMPT}_ids")))


def pin_prompt_adapter(prompt_adapter_id: int) -> Operation[bool]:
    """Keeps a prompt adapter in memory until it is removed. Raises ConfigError if it is not
    there."""
    return (yield from _pin(_PROMPT, prompt_adapter_id))


def _load(prefix: str, request: AnyAdapterRequest) -> Operation[bool]:
    ticket = uuid.uuid4().hex
    yield Command(f"{prefix}_begin_load", (msgspec.to_builtins(request), ticket))
    found: dict[str, Any] | None
    while (found := (yield Command(f"{prefix}_load_result", (ticket,)))) is None:
        takes_steps = yield Wait(_POLL_S)
        if not takes_steps and (yield Command(f"{prefix}_withdraw_load", (ticket,))):
            raise ConfigError(
                f"the adapter {request.name!r} does not fit into the memory for adapters: those "
                "that are pinned or in use are not dropped; finish some requests, or plan memory "
                "for more adapters"
            )
    if "error" in found:
        raise ConfigError(found["error"])
    return True


def _pin(prefix: str, adapter_id: int) -> Operation[bool]:
    if not (yield Command(f"{prefix}_pin", (adapter_id,))):
        raise ConfigError(f"the adapter {adapter_id!r} cannot be pinned: it is not loaded")
    return True
