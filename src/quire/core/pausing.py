"""`EnginePause`: pauses scheduling, releases memory to the system, and undoes both.

Owned by `EngineCore`, which offers its methods as commands; names are vLLM's. The front end waits
for requests to end, or aborts them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from quire.core.capability import Capability
from quire.errors import ConfigError, quoted
from quire.log import get_logger, phase

if TYPE_CHECKING:
    from quire.executor import Executor
    from quire.scheduler import Scheduler

logger = get_logger(__name__)

PauseMode = Literal["abort", "wait", "keep"]
"""Treatment of requests in a pause: abort them, let them finish, or keep them unfinished."""
MEMORY_TAGS = ("weights", "kv_cache")
_TAGS = (*MEMORY_TAGS, "scheduling")
_COMMANDS = ("pause", "resume", "is_paused", "sleep", "wake_up", "is_sleeping",
             "release_kv_cache_memory")  # fmt: skip


class EnginePause:
    """Whether the engine may schedule, and which memory is released. One thread, the core's.

    Invariant: while memory is released, nothing is scheduled and no request holds KV blocks.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, capabilities: Sequence[Capability]
    ) -> None:
        """`capabilities`: those of the engine; the list may grow."""
        self._scheduler = scheduler
        self._executor = executor
        self._capabilities = capabilities
        self._mode: PauseMode | None = None
        self._asleep: set[str] = set()
        """Tags of the released memory."""
        self.is_frozen = False
        """Whether no plan may be made."""
        self.is_on = False
        """Whether new requests wait or memory is released."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        """The methods that a front end may call."""
        return {name: getattr(self, name) for name in _COMMANDS}

    def pause(self, mode: PauseMode) -> None:
        """Holds new requests from now on; with `keep`, nothing is scheduled at all. The pause is
        complete when the core is not busy."""
        check_mode(mode)
        self._set(mode)
        if mode != "keep":
            self._scheduler.hold_new()

    def resume(self) -> None:
        """Ends a pause. Raises ConfigError while memory is released."""
        if self._asleep:
            raise ConfigError(f"the engine is asleep ({_named(self._asleep)}): call wake_up first")
        self._set(None)
        self._scheduler.release_held()

    def is_paused(self) -> bool:
        """Whether new requests wait."""
        return self._mode is not None

    def sleep(self, level: int) -> None:
        """Releases memory in a complete pause: level 1 the KV cache, level 2 the weights too. Kept
        requests compute their tokens again later. Raises ConfigError without such a pause."""
        check_level(level)
        if level:
            self._release({"kv_cache"} if level == 1 else set(MEMORY_TAGS))

    def release_kv_cache_memory(self) -> None:
        """Same as `sleep(1)`. Raises ConfigError outside a pause, or if memory is released
        already."""
        if self._asleep:
            raise ConfigError(
                f"release_kv_cache_memory requires that no memory is released yet; released: "
                f"{_named(self._asleep)}; call wake_up first"
            )
        self._release({"kv_cache"})

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Restores the memory of these tags, or all; then resumes if no memory is missing. Returns
        whether it resumed. Raises ConfigError for an unknown tag."""
        wanted = set(check_tags(tags)) & self._asleep
        if wanted:
            with phase(logger, f"waking up ({_named(wanted)})"):
                for fingerprint in self._executor.call("restore_memory", sorted(wanted)):
                    self._scheduler.use_fingerprint(fingerprint)
            self._asleep -= wanted
            self._set(self._mode)
        if not self._asleep:
            self.resume()
        return not self._asleep

    def take_new_weights(self) -> None:
        """Loads the new weights of the workers. Does nothing while the weights are asleep:
        `wake_up` loads them then. Empties the KV cache; running requests compute their tokens
        again. Raises ConfigError while a plan is in flight, and what loading raises."""
        if "weights" in self._asleep:
            return
        if self._scheduler.in_flight:
            raise ConfigError("weights cannot be loaded while a step is computed: pause first")
        with phase(logger, "loading new weights"):
            self._empty_pool()
            self._settle()
            for fingerprint in self._executor.call("take_new_weights"):
                self._scheduler.use_fingerprint(fingerprint)
        self._forget()

    @property
    def check_weights(self) -> Callable[[], None]:
        """A function that raises ConfigError while the memory of the weights is released. It holds
        no reference to this object, which knows those who call it."""
        return partial(_check_weights, self._asleep)

    def is_sleeping(self) -> bool:
        """Whether new requests wait or memory is released."""
        return self.is_on

    def _set(self, mode: PauseMode | None) -> None:
        """Takes a mode, and notes what follows from it and from the released memory."""
        self._mode = mode
        self.is_frozen = mode == "keep" or bool(self._asleep)
        self.is_on = mode is not None or bool(self._asleep)

    def _release(self, tags: set[str]) -> None:
        if not self.is_paused() or self._scheduler.in_flight:
            raise ConfigError("memory can be released in a pause only: call sleep(level=0) first")
        self._empty_pool()
        if "weights" in tags:
            self._settle()
        if "weights" not in self._asleep:  # with them, all memory of the model was released
            self._executor.call("release_memory", sorted(tags - self._asleep))
        self._forget()
        self._asleep |= tags
        self._set(self._mode)
        names = _named(self._asleep)
        logger.info("asleep: memory released of %s; requests wait for wake_up", names)

    def _settle(self) -> None:
        """Waits for loads that use the weights."""
        for one in self._capabilities:
            one.settle()

    def _forget(self) -> None:
        """The memory of the KV cache was released."""
        for one in self._capabilities:
            one.forget()

    def _empty_pool(self) -> None:
        """Empties the prefix cache and takes all KV blocks from requests."""
        if not self._scheduler.reset_prefix_cache(reset_running_requests=True):
            raise ConfigError("requests still hold KV blocks: wait until the pause is complete")
        self._scheduler.leave_pool()


def check_mode(mode: object) -> None:
    """Raises ConfigError for anything but a PauseMode."""
    if mode not in get_args(PauseMode):
        raise ConfigError(f"mode must be abort, wait or keep, got {quoted(mode)}")


def check_level(level: object) -> None:
    """Raises ConfigError for anything but 0, 1 and 2."""
    if type(level) is not int or not 0 <= level <= 2:
        raise ConfigError(
            "level must be 0 (pause), 1 (release the KV cache) or 2 (release the weights too), "
            f"got {quoted(level)}"
        )


def check_tags(tags: object) -> tuple[str, ...]:
    """The tags; None: all. Raises ConfigError."""
    if tags is None:
        return _TAGS
    if isinstance(tags, (list, tuple)) and tags and all(tag in _TAGS for tag in tags):
        return tuple(tags)
    raise ConfigError(f"tags must be a list of {', '.join(_TAGS)}, or None, got {quoted(tags)}")


def _named(tags: set[str]) -> str:
    return ", ".join(sorted(tags))


def _check_weights(asleep: Container[str]) -> None:
    if "weights" in asleep:
        raise ConfigError(
            "an adapter can be loaded only while the weights are in memory: call wake_up first"
        )
