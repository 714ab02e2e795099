"""Helpers that scripts import from vLLM: ids, limits, and clean-up, which Quire does not need."""

from __future__ import annotations

import gc
import resource
import uuid


def random_uuid() -> str:
    """Return 16 random hexadecimal digits, for a request id."""
    return uuid.uuid4().hex[:16]


class Counter:
    """Counts up by 1 with each `next`."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        self.counter += 1
        return self.counter - 1

    def reset(self) -> None:
        """Restarts at 0."""
        self.counter = 0


def set_ulimit(target_soft_limit: int = 65535) -> None:
    """Raises the limit of open files to `target_soft_limit`, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < target_soft_limit:
        wanted = target_soft_limit if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(target_soft_limit, wanted), hard))


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Runs the garbage collector. Quire does not have a distributed environment."""
    del shutdown_ray
    gc.collect()


def destroy_model_parallel() -> None:
    """Does nothing: Quire does not have process groups."""


def destroy_distributed_environment() -> None:
    """Does nothing: Quire does not have a distributed environment."""
