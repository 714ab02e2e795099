"""`EngineControl`: the operations on a whole engine, as methods of `AsyncLLM`. vLLM's names.

The core runs their commands between two steps; the requests are those of `OnlineRequests`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from quire.core.pausing import PauseMode, check_mode
from quire.frontend import control
from quire.frontend.control import Action, Command, Operation, Pause, Wait, asynchronous

if TYPE_CHECKING:
    from quire.core.client import EngineCoreClient
    from quire.frontend.online.online_requests import OnlineRequests

_POLL_S = 0.01
Result = TypeVar("Result")


class EngineControl:
    """Base class of `AsyncLLM`. Owned by the event loop."""

    requests: OnlineRequests
    _client: EngineCoreClient

    sleep = asynchronous(control.sleep)
    wake_up = asynchronous(control.wake_up)
    is_sleeping = asynchronous(control.is_sleeping)
    release_kv_cache_memory = asynchronous(control.release_kv_cache_memory)
    reset_prefix_cache = asynchronous(control.reset_prefix_cache)
    reset_mm_cache = asynchronous(control.reset_mm_cache)
    reset_encoder_cache = asynchronous(control.reset_encoder_cache)
    collective_rpc = asynchronous(control.collective_rpc)
    apply_model = asynchronous(control.apply_model)
    add_lora = asynchronous(control.add_lora)
    remove_lora = asynchronous(control.remove_lora)
    list_loras = asynchronous(control.list_loras)
    pin_lora = asynchronous(control.pin_lora)
    add_prompt_adapter = asynchronous(control.add_prompt_adapter)
    remove_prompt_adapter = asynchronous(control.remove_prompt_adapter)
    list_prompt_adapters = asynchronous(control.list_prompt_adapters)
    pin_prompt_adapter = asynchronous(control.pin_prompt_adapter)
    start_profile = asynchronous(control.start_profile)
    stop_profile = asynchronous(control.stop_profile)

    pause_mode: PauseMode | None = None
    """Mode of the current pause of generation; None if there is no pause."""

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

    async def run_operation(self, operation: Operation[Result]) -> Result:
        """Runs an operation of `quire.frontend.control`."""
        answer = None
        while True:
            try:
                action = operation.send(answer)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            answer = await self._perform(action)

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

    async def _perform(self, action: Action) -> Any:
        if isinstance(action, Command):
            call = self.call(action.name, *action.args)
            return await asyncio.wait_for(call, action.timeout)
        if isinstance(action, Pause):
            return await self._pause(action.mode)
        if isinstance(action, Wait):
            return await asyncio.sleep(action.seconds, True)
        if action.level is None:
            self.pause_mode = None
        self.requests.tell_sleep(action.level)
        return None

    async def _pause(self, mode: PauseMode) -> None:
        """Returns when the pause is complete: no request runs, and no output is on its way."""
        check_mode(mode)
        if mode == "abort":
            self.requests.abort_all()
        await self.call("pause", mode)
        self.pause_mode = mode
        while await self.call("is_busy"):
            await asyncio.sleep(_POLL_S)
