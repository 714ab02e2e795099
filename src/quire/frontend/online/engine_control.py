"""`EngineControl`: what `AsyncLLM` can ask of its engine as a whole. vLLM's names.

Base class of `AsyncLLM`. Each method is some commands of the core, which runs them between two
steps; the requests are those of `OnlineRequests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.core.pausing import PauseMode, check_level, check_mode, check_tags

if TYPE_CHECKING:
    from quire.core.client import EngineCoreClient
    from quire.frontend.online.online_requests import OnlineRequests

_POLL_S = 0.01


class EngineControl:
    """Pause, sleep, caches and calls of the worker. Owned by the event loop."""

    requests: OnlineRequests
    _client: EngineCoreClient

    pause_mode: PauseMode | None = None
    """How generation is paused; None while it is not."""

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        """New requests wait from now on. Those in flight are aborted, waited for, or kept where
        they are until `resume_generation`.

        `clear_cache`: the prefix cache is cleared then; requests that are kept compute their tokens
        again.
        """
        await self._pause(mode)
        if clear_cache:
            await self.reset_prefix_cache(reset_running_requests=True)

    async def resume_generation(self) -> None:
        """Ends a pause; everything that waited goes on. Raises ConfigError if the engine has given
        memory back (`wake_up` takes it again)."""
        await self.call("resume")
        self.pause_mode = None

    async def is_paused(self) -> bool:
        """Whether new requests wait."""
        return bool(await self.call("is_paused"))

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pauses, then gives memory back to the system until `wake_up`.

        `level` 0: none. 1: the KV cache's; the weights stay, since there is no other memory to
        move them to. 2: the weights' too, which are loaded from disk again. `mode`: as in
        `pause_generation`. New requests wait.
        """
        check_level(level)
        await self._pause(mode)
        await self.call("sleep", level)
        self.requests.tell_sleep(level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Takes memory again: of `weights`, `kv_cache`, or None for all. Once none is missing,
        generation goes on. `scheduling` alone ends a `sleep(0)`. Whether the engine is awake."""
        check_tags(tags)
        is_awake = bool(await self.call("wake_up", tags))
        if is_awake:
            self.pause_mode = None
            self.requests.tell_sleep(None)
        return is_awake

    async def is_sleeping(self) -> bool:
        """Whether the engine is paused or has given memory back."""
        return bool(await self.call("is_sleeping"))

    async def release_kv_cache_memory(self) -> None:
        """Gives the KV cache's memory back, after `sleep(0)`."""
        await self.call("release_kv_cache_memory")
        self.requests.tell_sleep(0)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets all cached prompts. False, with none forgotten, while requests are running,
        unless `reset_running_requests` lets them compute their tokens again. `reset_connector`:
        the KV store forgets too; False where there is none."""
        return bool(await self.call("reset_prefix_cache", reset_running_requests, reset_connector))

    async def reset_mm_cache(self) -> None:
        """There are no images here, so nothing is cached of them."""

    async def reset_encoder_cache(self) -> None:
        """There is no encoder here, so nothing is cached of it."""

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of the worker between two steps; a list with its value.

        A function is given the worker first, where the engine runs in this process. Raises
        ConfigError for an unknown method, or what cannot be sent to an engine process; TimeoutError
        after `timeout` seconds, when the call may still run.
        """
        call = self.call("collective_rpc", method, list(args), dict(kwargs or {}))
        found: list[Any] = await asyncio.wait_for(call, timeout)
        return found

    async def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """What a function returns of the compiled model, in a list: there is no `nn.Module`. As
        `collective_rpc`."""
        return await self.collective_rpc("apply_model", args=(func,))

    async def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Records the engine's steps from now on: after `delay_iterations` of them, at most
        `max_iterations` (0: all); None: as `profiler_config` says. `profile_prefix` begins the
        file's name. Raises ConfigError without a directory, and in another session."""
        await self.call("start_profile", profile_prefix, delay_iterations, max_iterations)

    async def stop_profile(self) -> None:
        """Ends the recording; writes it to the directory of `profiler_config`, for Perfetto."""
        await self.call("stop_profile")

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Waits until nothing is in flight. Raises TimeoutError after so many seconds."""
        await asyncio.wait_for(self.wait_until_idle(), drain_timeout)

    async def wait_until_idle(self) -> None:
        """Returns when nothing is in flight."""
        while self.requests:
            await asyncio.sleep(_POLL_S)

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs one of the engine's commands (`EngineCore.commands`) between two steps. Raises
        ConfigError, EngineGenerateError if it fails otherwise, EngineDeadError."""
        with self.requests.binding.waiting():
            return await self._client.call(command, *args, **kwargs)

    async def _pause(self, mode: PauseMode) -> None:
        """Returns when the pause is complete: no request runs, and no output is on its way."""
        check_mode(mode)
        if mode == "abort":
            self.requests.abort_all()
        self.pause_mode = mode
        await self.call("pause", mode)
        while await self.call("is_busy"):
            await asyncio.sleep(_POLL_S)
