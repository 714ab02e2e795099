"""Helpers that scripts take from vLLM: ids, limits, and the clean-up that is not needed here."""

from __future__ import annotations

import gc
import resource
import uuid


def random_uuid() -> str:
    """16 random hexadecimal digits: a request id."""
    return uuid.uuid4().hex[:16]


class Counter:
    """Counts up, one number at each `next`."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        self.counter += 1
        return self.counter - 1

    def reset(self) -> None:
        """Starts again at 0."""
        self.counter = 0


def set_ulimit(target_soft_limit: int = 65535) -> None:
    """Raises the limit of open files, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < target_soft_limit:
        wanted = target_soft_limit if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(target_soft_limit, wanted), hard))


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Frees what no name refers to any more; there is no distributed environment."""
    del shutdown_ray
    gc.collect()


def destroy_model_parallel() -> None:
    """Nothing: there is no group of processes."""


def destroy_distributed_environment() -> None:
    """Nothing: there is no distributed environment."""
