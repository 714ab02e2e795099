"""`EngineControl`: what `LLMEngine` can be asked as a whole: sleep, caches, calls of the worker.

Base class of `LLMEngine`; names are vLLM's. Each method is some commands of the core, in one turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from quire.core.pausing import PauseMode, check_level, check_mode, check_tags
from quire.frontend.arguments import refuse_arguments
from quire.system.deferred_signals import with_signals_deferred, with_signals_delivered

if TYPE_CHECKING:
    from quire.core.engine_core import EngineCore
    from quire.frontend.observers.observer import RequestObserver


class ResumeListener(Protocol):
    """Who waits while the engine is paused."""

    def on_resumed(self) -> None:
        """The engine may be stepped again, or was shut down."""


class EngineControl:
    """Any thread may call, while it is another's turn too."""

    engine_core: EngineCore
    observers: list[RequestObserver]
    turn: Callable[[], AbstractContextManager[Callable[[], None]]]
    abort_all: Callable[[], None]
    _run_to_the_end: Callable[[Callable[[], None]], None]

    def __init__(self) -> None:
        self.resume_listeners: WeakSet[ResumeListener] = WeakSet()

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for `wake_up`, so that a step brings nothing."""
        return bool(self.engine_core.commands["is_paused"]())

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pauses, then gives memory back to the system until `wake_up`.

        `level` 0: none. 1: the KV cache's; the weights stay, since there is no other memory to
        move them to. 2: the weights' too, which are loaded from disk again. `mode`: requests in
        flight are aborted, run to their end first, or kept. New requests wait.
        """
        check_level(level)
        check_mode(mode)
        with self.turn() as deliver:
            was_paused = self.is_paused
            if mode == "abort":
                self.abort_all()
            self.engine_core.commands["pause"](mode)
            try:
                self._run_to_the_end(deliver)
            except BaseException:
                if not was_paused:
                    self.engine_core.commands["resume"]()
                raise
            self.engine_core.commands["sleep"](level)
            self._tell_sleep(level)

    @with_signals_deferred
    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Takes memory again: of `weights`, `kv_cache`, or None for all. Once none is missing,
        requests go on. `scheduling` alone ends a `sleep(0)`. Whether the engine is awake."""
        check_tags(tags)
        is_awake = bool(self._command("wake_up", tags))
        if is_awake:
            self._tell_sleep(None)
            self._tell_resumed()
        return is_awake

    def is_sleeping(self) -> bool:
        """Whether the engine is paused or has given memory back."""
        return bool(self._command("is_sleeping"))

    @with_signals_deferred
    def release_kv_cache_memory(self) -> None:
        """Gives the KV cache's memory back, after `sleep(0)`."""
        self._command("release_kv_cache_memory")
        self._tell_sleep(0)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forgets all cached prompts. False, with none forgotten, while requests are running,
        unless `reset_running_requests` lets them compute their tokens again. `reset_connector`:
        the KV store forgets too; False where there is none."""
        return bool(self._command("reset_prefix_cache", reset_running_requests, reset_connector))

    def reset_mm_cache(self) -> None:
        """There are no images here, so nothing is cached of them."""

    def reset_encoder_cache(self) -> None:
        """There is no encoder here, so nothing is cached of it."""

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of the worker between two steps; a list with its value.

        A function is given the worker first. Raises ConfigError for an unknown method, and for a
        `timeout`: the call runs on this thread, which nothing can end.
        """
        refuse_arguments(timeout=timeout)
        method = _as_users_code(method)
        found: list[Any] = self._command("collective_rpc", method, args, kwargs)
        return found

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """What a function returns of the compiled model, in a list: there is no `nn.Module`."""
        return self.collective_rpc("apply_model", args=(_as_users_code(func),))

    def start_profile(
        self,
        profile_prefix: str | None = None,
        *,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
    ) -> None:
        """Records the engine's steps from now on: after `delay_iterations` of them, at most
        `max_iterations` (0: all); None: as `profiler_config` says. `profile_prefix` begins the
        file's name. Raises ConfigError without a directory, and in another session."""
        self._command("start_profile", profile_prefix, delay_iterations, max_iterations)

    def stop_profile(self) -> None:
        """Ends the recording; writes it to the directory of `profiler_config`, for Perfetto."""
        self._command("stop_profile")

    def _tell_sleep(self, level: int | None) -> None:
        for observer in self.observers:
            observer.on_sleep(level)

    def _tell_resumed(self) -> None:
        for listener in list(self.resume_listeners):
            listener.on_resumed()

    def _command(self, name: str, *args: Any) -> Any:
        with self.turn():
            return self.engine_core.commands[name](*args)


def _as_users_code(function: Any) -> Any:
    """A function during which handlers of signals run at once: it may take long."""
    return with_signals_delivered(function) if callable(function) else function
