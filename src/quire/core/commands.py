"""Commands to a running engine that concern several of its parts: caches, ranks, workers.

`EngineCore` registers them by name; they run on its thread, between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError

if TYPE_CHECKING:
    from quire.core.pausing import EnginePause
    from quire.executor import Executor
    from quire.kvstore.store import KVStore
    from quire.scheduler import Scheduler

_ENGINES_OWN = frozenset(
    {
        "call",
        "begin_tile",
        "close",
        "collect",
        "drop_adapter",
        "encode_tile",
        "drop_prompt_adapter",
        "load_adapter",
        "load_prompt_adapter",
        "step",
        "submit",
        "release_memory",
        "restore_memory",
        "take_new_weights",
        "write_blocks",
    }
)
"""Worker methods that only the engine may call. Called by `collective_rpc`, they would damage
running requests."""


def reset_prefix_cache(
    scheduler: Scheduler,
    store: KVStore | None,
    reset_running_requests: bool = False,
    reset_connector: bool = False,
) -> bool:
    """`Scheduler.reset_prefix_cache`. `reset_connector`: the KV store drops its chunks too. Returns
    False, as in vLLM, also if there is no KV store to reset."""
    is_done = scheduler.reset_prefix_cache(reset_running_requests)
    if reset_connector and store is not None:
        store.clear()
    return is_done and not (reset_connector and store is None)


def record_ranks(executor: Executor, is_on: bool) -> list[Any]:
    """Makes ranks record their steps, or end it; returns what they have recorded."""
    return [] if executor.num_ranks == 1 else executor.call("record_steps", is_on)


def collective_rpc(
    executor: Executor,
    pause: EnginePause,
    method: str | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Calls a method of the workers. Raises ConfigError for methods that only the engine may call.

    After `reload_weights` the new weights are loaded at once; after methods that set single
    weights, the next step loads them.
    """
    if isinstance(method, str) and method in _ENGINES_OWN:
        raise ConfigError(
            f"only the engine may call {method}; sleep and wake_up release and restore memory"
        )
    found = executor.call(method, *args, **(kwargs or {}))
    if method == "reload_weights":
        pause.take_new_weights()
    return found
