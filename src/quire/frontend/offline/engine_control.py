"""`BlockingControl`: the operations on a whole engine, as methods of `LLM` and `LLMEngine`; and
`EngineControl`, which runs them for `LLMEngine`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from quire.core.pausing import PauseMode
from quire.errors import ConfigError
from quire.frontend import control
from quire.frontend.control import Action, Command, Operation, Pause, Wait, blocking
from quire.frontend.unsupported import refuse_arguments
from quire.system.deferred_signals import with_signals_deferred, with_signals_delivered

if TYPE_CHECKING:
    from quire.core.engine_core import EngineCore
    from quire.frontend.observers.observer import RequestObserver

Result = TypeVar("Result")


class BlockingControl:
    """Any thread may call; a call waits for the turn of another thread to end."""

    sleep = blocking(control.sleep)
    wake_up = blocking(control.wake_up)
    is_sleeping = blocking(control.is_sleeping)
    release_kv_cache_memory = blocking(control.release_kv_cache_memory)
    reset_prefix_cache = blocking(control.reset_prefix_cache)
    reset_mm_cache = blocking(control.reset_mm_cache)
    reset_encoder_cache = blocking(control.reset_encoder_cache)
    collective_rpc = blocking(control.collective_rpc)
    apply_model = blocking(control.apply_model)
    add_lora = blocking(control.add_lora)
    remove_lora = blocking(control.remove_lora)
    list_loras = blocking(control.list_loras)
    pin_lora = blocking(control.pin_lora)
    add_prompt_adapter = blocking(control.add_prompt_adapter)
    remove_prompt_adapter = blocking(control.remove_prompt_adapter)
    list_prompt_adapters = blocking(control.list_prompt_adapters)
    pin_prompt_adapter = blocking(control.pin_prompt_adapter)
    start_profile = blocking(control.start_profile)
    stop_profile = blocking(control.stop_profile)


class ResumeListener(Protocol):
    """An object that waits while the engine is paused."""

    def on_resumed(self) -> None:
        """Called when the engine may be stepped again, or was shut down."""


class EngineControl(BlockingControl):
    """Runs the operations in turns of the engine."""

    engine_core: EngineCore
    observers: list[RequestObserver]
    turn: Callable[[], AbstractContextManager[Callable[[], None]]]
    abort_all: Callable[[], None]
    _run_to_the_end: Callable[[Callable[[], None]], None]

    def __init__(self) -> None:
        self.resume_listeners: WeakSet[ResumeListener] = WeakSet()
        self._pausers: WeakSet[threading.Thread] = WeakSet()
        """Threads that paused the engine, or woke a part of it up, since it was awake. Guarded by
        the turn."""

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for `wake_up`, so that a step brings nothing."""
        return bool(self.engine_core.commands["is_paused"]())

    @with_signals_deferred
    def run_operation(self, operation: Operation[Result]) -> Result:
        """Runs an operation in one turn."""
        answer = None
        try:
            with self.turn() as deliver, self._forgetting_pausers():
                while True:
                    try:
                        action = operation.send(answer)
                    except StopIteration as stop:
                        result: Result = stop.value
                        return result
                    answer = self._perform(action, deliver)
        finally:
            if not self.is_paused:  # also after a pause that failed: others have seen it
                self._tell_resumed()

    @contextmanager
    def _forgetting_pausers(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self.is_paused:
                self._pausers.clear()

    def refuse_to_wait(self, *, is_begun: bool = False) -> None:
        """Raises ConfigError if requests wait for `wake_up` and only this thread could call it: it
        paused the engine itself, or the threads that did have ended. `is_begun`: this thread waits
        already, so that others which want to wake the engine up may count on it; threads that have
        ended do not matter then."""
        with self.turn():
            mine = threading.current_thread() in self._pausers
            has_others = is_begun or any(one.is_alive() for one in self._pausers)
            if self.is_paused and (mine or not has_others):
                raise ConfigError(
                    "the engine is asleep, so this call would wait for ever: call wake_up() "
                    "without tags first; requests that are queued go on then"
                )

    def _perform(self, action: Action, deliver: Callable[[], None]) -> Any:
        if isinstance(action, Command):
            refuse_arguments(timeout=action.timeout)
            args = action.args
            if action.name == "wake_up":
                self._pausers.add(threading.current_thread())
            if action.name == "collective_rpc":
                method, given, kwargs = args
                args = (_as_users_code(method), [_as_users_code(one) for one in given], kwargs)
            return self.engine_core.commands[action.name](*args)
        if isinstance(action, Pause):
            return self._pause(action.mode, deliver)
        if isinstance(action, Wait):
            time.sleep(action.seconds)
            return False
        for observer in self.observers:
            observer.on_sleep(action.level)
        return None

    def _pause(self, mode: PauseMode, deliver: Callable[[], None]) -> None:
        was_paused = self.is_paused
        self._pausers.add(threading.current_thread())
        if mode == "abort":
            self.abort_all()
        self.engine_core.commands["pause"](mode)
        try:
            self._run_to_the_end(deliver)
        except BaseException:
            if not was_paused:
                self.engine_core.commands["resume"]()
            raise

    def _tell_resumed(self) -> None:
        for listener in list(self.resume_listeners):
            listener.on_resumed()


def _as_users_code(function: Any) -> Any:
    """A function during which signal handlers run at once, because it may take long."""
    return with_signals_delivered(function) if callable(function) else function
