"""`EnginePause`: pauses scheduling, gives memory back to the system, and undoes both.

Owned by `EngineCore`, which has its methods among its commands; names are vLLM's. Who waits for
requests to end, or aborts them, is the front end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from quire.errors import ConfigError, quoted
from quire.log import get_logger, phase

if TYPE_CHECKING:
    from quire.executor import Executor
    from quire.scheduler import Scheduler

logger = get_logger(__name__)

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of requests at a pause: they end at once, run to their end, or stay as they are."""
MEMORY_TAGS = ("weights", "kv_cache")
_TAGS = (*MEMORY_TAGS, "scheduling")


class EnginePause:
    """Whether the engine may schedule, and which of its memory it has. One thread, the core's.

    Invariant: while memory is given back, nothing is scheduled and no request holds KV blocks.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, released: Callable[[], None]
    ) -> None:
        """`released`: told when the memory of the KV cache is given back."""
        self._scheduler = scheduler
        self._executor = executor
        self._released = released
        self._mode: PauseMode | None = None
        self._asleep: set[str] = set()
        """Tags of the memory that is given back."""

    @property
    def is_frozen(self) -> bool:
        """Whether no plan may be made."""
        return self._mode == "keep"

    def is_busy(self) -> bool:
        """Whether a step would do anything: requests that may run are left, or plans to collect."""
        scheduler = self._scheduler
        if self._mode == "keep":
            return bool(scheduler.in_flight)
        return scheduler.has_unfinished_requests()

    def pause(self, mode: PauseMode) -> None:
        """New requests wait from now on; with `keep` nothing is scheduled at all. The pause is
        complete when the core is not busy."""
        check_mode(mode)
        self._mode = mode
        if mode != "keep":
            self._scheduler.hold_new()

    def resume(self) -> None:
        """Ends a pause. Raises ConfigError while memory is given back."""
        if self._asleep:
            raise ConfigError(f"the engine is asleep ({_named(self._asleep)}): call wake_up first")
        self._mode = None
        self._scheduler.release_held()

    def is_paused(self) -> bool:
        """Whether new requests wait."""
        return self._mode is not None

    def sleep(self, level: int) -> None:
        """Gives memory back, once a pause is complete: level 1 that of the KV cache, level 2 that
        of the weights too. Requests that were kept compute their tokens again. Raises ConfigError
        without such a pause."""
        check_level(level)
        if level:
            self._release({"kv_cache"} if level == 1 else set(MEMORY_TAGS))

    def release_kv_cache_memory(self) -> None:
        """`sleep(1)`. Raises ConfigError if there is no pause, or memory is given back already."""
        if self._asleep:
            raise ConfigError(
                f"release_kv_cache_memory needs an engine that has all of its memory; given back: "
                f"{_named(self._asleep)}; call wake_up first"
            )
        self._release({"kv_cache"})

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Takes the memory of these tags again, or all; then resumes if none is missing. Whether
        it does. Raises ConfigError for an unknown tag."""
        wanted = set(check_tags(tags)) & self._asleep
        if wanted:
            with phase(logger, f"waking up ({_named(wanted)})"):
                for fingerprint in self._executor.call("restore_memory", sorted(wanted)):
                    self._scheduler.use_fingerprint(fingerprint)
            self._asleep -= wanted
        if not self._asleep:
            self.resume()
        return not self._asleep

    def take_new_weights(self) -> None:
        """Loads the weights that workers were given, unless these are asleep and are loaded when
        they wake up. The KV cache is emptied; requests that are running compute their tokens again.
        Raises ConfigError while a plan is in flight, and what loading raises."""
        if "weights" in self._asleep:
            return
        if self._scheduler.in_flight:
            raise ConfigError("weights cannot be loaded while a step is computed: pause first")
        with phase(logger, "loading new weights"):
            self._empty_pool()
            for fingerprint in self._executor.call("take_new_weights"):
                self._scheduler.use_fingerprint(fingerprint)
        self._released()

    def is_sleeping(self) -> bool:
        """Whether new requests wait or memory is given back."""
        return self.is_paused() or bool(self._asleep)

    def _release(self, tags: set[str]) -> None:
        if not self.is_paused() or self._scheduler.in_flight:
            raise ConfigError("memory can be released in a pause only: call sleep(level=0) first")
        self._empty_pool()
        self._executor.call("release_memory", sorted(tags - self._asleep))
        self._released()
        self._asleep |= tags
        logger.info("asleep: memory released of %s", _named(self._asleep))

    def _empty_pool(self) -> None:
        """No request holds KV blocks afterwards, and nothing is cached."""
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
