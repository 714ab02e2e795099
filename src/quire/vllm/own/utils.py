"""Helpers that scripts take from vLLM: ids, ports, and the clean-up that is not needed here."""

from __future__ import annotations

import gc
import os
import resource
import socket
import uuid
from contextlib import suppress

from quire.errors import ConfigError
from quire.vllm.own.envs import get_vllm_port

_LAST_PORT = 65535


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


def get_open_port() -> int:
    """A TCP port that is free now; from `VLLM_PORT` upwards if that is set. Raises ConfigError."""
    return _first_open(get_vllm_port() or 0)


def get_open_ports_list(count: int = 5) -> list[int]:
    """So many different ports that are free now. Raises ConfigError."""
    found: dict[int, None] = {}
    first = get_vllm_port() or 0
    while len(found) < count:
        port = _first_open(max(first, *found) + 1 if first and found else first)
        found[port] = None
    return list(found)


def _first_open(first: int) -> int:
    if first == 0:
        return _bind(0)
    for port in range(first, _LAST_PORT + 1):
        with suppress(OSError):
            return _bind(port)
    raise ConfigError(f"no port from {first} upwards is free; unset VLLM_PORT for any")


def _bind(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", port))
        found: int = listener.getsockname()[1]
        return found


def get_ip() -> str:
    """This machine's address: `VLLM_HOST_IP`, or the one that packets to others leave from."""
    if given := os.environ.get("VLLM_HOST_IP"):
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; no packet is sent
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


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
