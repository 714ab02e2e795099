"""Creates the executor for a configuration. Called by `EngineCore`."""

from __future__ import annotations

from quire.config.records import EngineConfig
from quire.executor.base import Executor


def make_executor(config: EngineConfig) -> Executor:
    """The executor of a configuration, with its model loaded. Raises ConfigError, ModelError or
    BackendError."""
    # Imports only the modules that this configuration needs.
    backend = config.parallel.distributed_executor_backend
    if backend == "mp":
        from quire.executor.multiproc import MultiprocExecutor

        return MultiprocExecutor(config)
    if backend == "ray":
        from quire.executor.ray_executor import RayDistributedExecutor

        return RayDistributedExecutor(config)
    from quire.executor.uniproc import UniProcExecutor

    return UniProcExecutor(config)
